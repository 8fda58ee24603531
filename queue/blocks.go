package queue

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/minio/highwayhash"
)

// The layout of a stream's block files, as the server of go.mod writes them
// (filestore.go): records one after the other,
//
//	length 4, the highest bit set when there are headers | sequence 8 | time 8 |
//	subject's length 2 | subject | headers' length 4, if any | headers | body |
//	HighwayHash-64 of all but the lengths
//
// The server checks them when it has to, cuts a block at the first record that
// is wrong, and goes on as if nothing had ever been there. So they are read
// before it starts.
const (
	recordHead = 22
	recordSum  = 8
	maxStored  = 32 << 20
	hasHeaders = 1 << 31
	tombstone  = 1<<63 | 1<<62 // the record is about a message that was removed
	headerLine = "NATS/1.0"
)

// block is one file of a stream.
type block struct {
	path  string
	index int
}

func streamDir(dir, stream string) string {
	return filepath.Join(dir, "jetstream", "$G", "streams", stream, "msgs")
}

// blocksOf lists a stream's blocks in order; none when there is no stream.
func blocksOf(dir, stream string) ([]block, error) {
	entries, err := os.ReadDir(streamDir(dir, stream))
	// Where no directory is, the server has something to say.
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return nil, fmt.Errorf("read blocks: %w", err)
	}
	var all []block
	for _, e := range entries {
		name, found := strings.CutSuffix(e.Name(), ".blk")
		if index, err := strconv.Atoi(name); found && err == nil {
			all = append(all, block{filepath.Join(streamDir(dir, stream), e.Name()), index})
		}
	}
	slices.SortFunc(all, func(a, b block) int { return a.index - b.index })
	return all, nil
}

// reader checks the records of one block.
type reader struct {
	key [sha256.Size]byte
	buf []byte
}

func newReader(stream string, index int, buf []byte) *reader {
	return &reader{key: sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, index)), buf: buf}
}

// at gives the sequence and the length of the record at off, with false when
// there is no whole and right one; its length then is what was looked at.
func (r *reader) at(off int) (seq uint64, length int, ok bool) {
	if len(r.buf)-off < recordHead+recordSum {
		return 0, 0, false
	}
	head := r.buf[off : off+recordHead]
	size := binary.LittleEndian.Uint32(head)
	headed := size&hasHeaders != 0
	length = int(size &^ hasHeaders)
	subject := int(binary.LittleEndian.Uint16(head[20:]))
	text := recordHead + subject // where headers or body begin
	if headed {
		text += 4
	}
	if length > maxStored || length > len(r.buf)-off || text > length-recordSum {
		return 0, 0, false
	}
	rec := r.buf[off : off+length]
	if headed && !wholeHeaders(rec[text-4:length-recordSum]) {
		return 0, 0, false
	}
	hash, err := highwayhash.New64(r.key[:])
	if err != nil {
		return 0, 0, false // the key has the right length
	}
	for _, part := range [][]byte{head[4:20], rec[recordHead : recordHead+subject], rec[text : length-recordSum]} {
		if _, err := hash.Write(part); err != nil {
			return 0, 0, false // a hash takes everything
		}
	}
	return binary.LittleEndian.Uint64(head[4:]), length, bytes.Equal(hash.Sum(nil), rec[length-recordSum:])
}

// wholeHeaders says whether b, which begins with the headers' length, has
// headers of that length: the checksum does not cover it.
func wholeHeaders(b []byte) bool {
	n, b := int(binary.LittleEndian.Uint32(b)), b[4:]
	return n <= len(b) && bytes.HasPrefix(b, []byte(headerLine)) && bytes.Index(b, []byte("\r\n\r\n")) == n-4
}

// behind finds a right record after off. It gives up on bytes that were made to
// be looked at for hours.
func (r *reader) behind(off int) (at int, found bool) {
	const patience = 1 << 30 // bytes to be hashed
	for off, spent := off+1, 0; off+recordHead+recordSum <= len(r.buf) && spent < patience; off++ {
		_, length, ok := r.at(off)
		if ok {
			return off, true
		}
		spent += length
	}
	return 0, false
}

// hole says whether b has a sector that was never written: a power cut leaves
// such, damage does not.
func hole(b []byte, off int) bool {
	const sector = 512
	for start := (off + sector - 1) / sector * sector; start+sector <= off+len(b); start += sector {
		if !bytes.ContainsFunc(b[start-off:start-off+sector], func(c rune) bool { return c != 0 }) {
			return true
		}
	}
	return false
}

// ending is what a block ends with.
func ending(path string) (blockMark, error) {
	f, err := os.Open(path)
	if err != nil {
		return blockMark{}, fmt.Errorf("read block: %w", err)
	}
	info, err := f.Stat()
	mark := blockMark{Name: filepath.Base(path)}
	if err == nil {
		mark.Size = info.Size()
		last := make([]byte, min(mark.Size, recordSum))
		_, err = f.ReadAt(last, mark.Size-int64(len(last)))
		mark.End = hex.EncodeToString(last)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return blockMark{}, fmt.Errorf("read block: %w", err)
	}
	return mark, nil
}

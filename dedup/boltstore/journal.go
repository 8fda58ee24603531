package boltstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"idemd/dedup"
)

// A journal's header:
//
//	magic 8 | version 4 | journal number 4 | epoch 4 | incarnation 16 |
//	first record's number 8 | created 8 | zero 8 | crc32c of all that 4
const (
	journalMagic   = "idemdjnl"
	journalVersion = 1
	headSize       = 64
)

type head struct {
	number      uint32
	epoch       uint32
	incarnation incarnation
	first       uint64 // number of the first record
	created     dedup.Time
}

func (h *head) encode() []byte {
	b := make([]byte, headSize)
	copy(b, journalMagic)
	binary.LittleEndian.PutUint32(b[8:], journalVersion)
	binary.LittleEndian.PutUint32(b[12:], h.number)
	binary.LittleEndian.PutUint32(b[16:], h.epoch)
	copy(b[20:], h.incarnation[:])
	binary.LittleEndian.PutUint64(b[36:], h.first)
	binary.LittleEndian.PutUint64(b[44:], uint64(h.created))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

func decodeHead(b []byte) (head, error) {
	if len(b) != headSize || string(b[:8]) != journalMagic ||
		crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]) {
		return head{}, ErrDamaged
	}
	if binary.LittleEndian.Uint32(b[8:]) != journalVersion {
		return head{}, ErrVersion
	}
	return head{
		number: binary.LittleEndian.Uint32(b[12:]), epoch: binary.LittleEndian.Uint32(b[16:]),
		incarnation: incarnation(b[20:36]), first: binary.LittleEndian.Uint64(b[36:]),
		created: dedup.Time(binary.LittleEndian.Uint64(b[44:])),
	}, nil
}

func journalName(number uint32) string { return fmt.Sprintf("journal-%06d.log", number) }

// journal is one journal file. Only the writer changes it; any goroutine may
// read the records in it.
type journal struct {
	head
	path string
	file *os.File
	seed uint32 // the CRC in the header: where those of its frames begin

	size    int64  // up to the end of the last good frame
	ahead   int64  // the file is there up to here, zeros behind size
	sum     uint32 // CRC32C of the first size bytes
	records uint64
	carried int64 // bytes of frames that only hold what older journals held
}

// createJournal makes an empty journal that is on stable storage when it
// returns.
func createJournal(dir string, m *machine, h head) (*journal, error) {
	path := filepath.Join(dir, journalName(h.number))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create journal: %w", err)
	}
	b := h.encode()
	if err = m.writeSync(f, b, 0); err == nil {
		err = m.syncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create journal: %w", err), f.Close(), os.Remove(path))
	}
	return newJournal(h, path, f, b), nil
}

func newJournal(h head, path string, f *os.File, b []byte) *journal {
	return &journal{
		head: h, path: path, file: f, seed: binary.LittleEndian.Uint32(b[headSize-4:]),
		size: headSize, sum: crc32.Checksum(b, castagnoli),
	}
}

// openJournal opens a journal that is there and reads its header.
func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &DataError{Path: path, Err: ErrMissing}
	}
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	b := make([]byte, headSize)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("read journal: %w", err), f.Close())
	}
	h, err := decodeHead(b)
	if err != nil {
		return nil, errors.Join(&DataError{Path: path, Err: err, Detail: "its header"}, f.Close())
	}
	return newJournal(h, path, f, b), nil
}

// badFrame says where a scan found something that is not the next frame.
type badFrame struct {
	offset int64
	detail string
	gap    bool // a good frame, but not the next one
}

func (e *badFrame) Error() string { return fmt.Sprintf("bad frame at byte %d: %s", e.offset, e.detail) }

// scan reads the frames up to byte limit and calls each for every record, with
// its number, its offset and its body. It leaves size, sum and records at the end
// of the last good frame, and returns a badFrame when that is not the limit.
func (j *journal) scan(ctx context.Context, limit int64, each func(number uint64, off int64, body []byte) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(j.file, j.size, limit-j.size), 256<<10)
	var buf []byte
	for j.size < limit {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if buf, err = j.readFrame(r, limit, buf); err != nil {
			return err
		}
		f, err := parseFrame(buf)
		if err != nil {
			return &badFrame{offset: j.size, detail: err.Error()}
		}
		if err := j.eachEntry(buf[frameHead:], f, each); err != nil {
			return err
		}
		j.size += int64(len(buf))
		j.sum = crc32.Update(j.sum, castagnoli, buf)
		j.records += uint64(f.count)
	}
	return nil
}

// readFrame reads the next frame whole, and verifies it.
func (j *journal) readFrame(r io.Reader, limit int64, buf []byte) ([]byte, error) {
	bad := &badFrame{offset: j.size, detail: "it ends early"}
	if limit-j.size < frameHead {
		return buf, bad
	}
	buf = append(buf[:0], make([]byte, frameHead)...)
	if _, err := io.ReadFull(r, buf); err != nil {
		return buf, fmt.Errorf("read journal: %w", err)
	}
	f, err := parseFrame(buf)
	if err != nil {
		bad.detail = "its head is not one"
		return buf, bad
	}
	if limit-j.size < int64(frameHead+f.length) {
		return buf, bad
	}
	if cap(buf) < frameHead+f.length {
		buf = append(make([]byte, 0, 2*(frameHead+f.length)), buf...)
	}
	buf = buf[:frameHead+f.length]
	if _, err := io.ReadFull(r, buf[frameHead:]); err != nil {
		return buf, fmt.Errorf("read journal: %w", err)
	}
	if !f.verify(buf, j.seed) {
		bad.detail = "its checksum is wrong"
		return buf, bad
	}
	if want := j.first + j.records; f.first != want {
		bad.gap, bad.detail = true, fmt.Sprintf("record %d follows where %d should", f.first, want)
		return buf, bad
	}
	return buf, nil
}

func (j *journal) eachEntry(rest []byte, f frame, each func(uint64, int64, []byte) error) error {
	off := j.size + frameHead
	for i := range f.count {
		body, tail, err := takeEntry(rest)
		if err != nil {
			return &badFrame{offset: off, detail: err.Error()}
		}
		if err := each(f.first+uint64(i), off, body); err != nil {
			return err
		}
		off += int64(len(rest) - len(tail))
		rest = tail
	}
	if len(rest) > 0 {
		return &badFrame{offset: off, detail: "it is longer than its records"}
	}
	return nil
}

// frameBehind reports whether a good frame begins anywhere after byte off. A
// torn tail has none: each frame is synced before the next one is written.
func (j *journal) frameBehind(off, limit int64) (bool, error) {
	tail := make([]byte, limit-off)
	if _, err := j.file.ReadAt(tail, off); err != nil {
		return false, fmt.Errorf("read journal: %w", err)
	}
	for i := 1; i < len(tail); i++ {
		n := bytes.Index(tail[i:], []byte(frameMark))
		if n < 0 {
			return false, nil
		}
		i += n
		f, err := parseFrame(tail[i:])
		if err == nil && len(tail)-i >= frameHead+f.length && f.verify(tail[i:i+frameHead+f.length], j.seed) {
			return true, nil
		}
	}
	return false, nil
}

// read gives the record at off, verified.
func (j *journal) read(off int64) (*dedup.Record, error) {
	_, body, err := j.readEntry(make([]byte, 512), off)
	if err != nil {
		return nil, err
	}
	r, _, err := decodeBody(body, nil)
	if err != nil {
		return nil, &DataError{Path: j.path, Offset: off, Err: ErrDamaged, Detail: err.Error()}
	}
	return r, nil
}

// readEntry gives the entry at off, verified, and the body in it. Buf is used where
// it is large enough.
func (j *journal) readEntry(buf []byte, off int64) (entry, body []byte, err error) {
	n, err := j.file.ReadAt(buf, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("read record: %w", err)
	}
	buf = buf[:n]
	if n >= recordHead {
		if size := recordHead + int(binary.LittleEndian.Uint32(buf)); size > n && size <= recordHead+maxBody {
			buf = make([]byte, size)
			if _, err := j.file.ReadAt(buf, off); err != nil {
				return nil, nil, fmt.Errorf("read record: %w", err)
			}
		}
	}
	body, rest, err := takeEntry(buf)
	if err != nil {
		return nil, nil, &DataError{Path: j.path, Offset: off, Err: ErrDamaged}
	}
	return buf[:len(buf)-len(rest)], body, nil
}

// A journal's file reaches beyond its frames while it is written, by as much as
// they take, but not less than machine.ahead and not more than aheadMax: fdatasync
// of bytes that are there already needs no change of the file system, and takes
// half the time.
const aheadMax = 4 << 20

// reserve makes room for a frame of n bytes. That there is no space for the
// zeros behind it is no error.
func (j *journal) reserve(m *machine, n int) error {
	if j.size+int64(n) <= j.ahead {
		return nil
	}
	at := max(j.size, j.ahead)
	j.ahead = j.size + int64(n) + min(max(j.size, m.ahead), aheadMax)
	zeros := make([]byte, 64<<10)
	for ; at < j.ahead; at += int64(len(zeros)) {
		if _, err := m.write(j.file, zeros[:min(int64(len(zeros)), j.ahead-at)], at); err != nil {
			return nil
		}
	}
	return m.syncFile(j.file)
}

// trim takes off what reserve put behind the last frame, or a write that failed.
func (j *journal) trim(m *machine) error {
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cut journal: %w", err)
	}
	j.ahead = j.size
	return m.syncFile(j.file)
}

// next is the number of the next record.
func (j *journal) next() uint64 { return j.first + j.records }

// grow notes that the frame b was written at the end.
func (j *journal) grow(b []byte, records int) {
	j.size += int64(len(b))
	j.sum = crc32.Update(j.sum, castagnoli, b)
	j.records += uint64(records)
}

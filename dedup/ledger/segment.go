package ledger

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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A segment is a file: a header of 16 bytes (magic, version, crc32c), then
// frames, appended only:
//
//	crc32c of the rest 4 | length of the payload 2 | payload
const (
	segmentMagic   = "idemdsup"
	segmentVersion = 1
	headSize       = 16
	frameHead      = 6
	maxPayload     = 512  // a longer one is damage
	maxWords       = 4096 // of one segment; what is beyond is the word "other"
)

const wordOther = "other"

// segment is one file of the ledger. Its name has the day on which it was begun:
// 2026-12-31-001.log.
type segment struct {
	day    int32 // since 1970, UTC
	number int
	path   string

	size   int64 // of the good part on disk
	file   *os.File
	buf    []byte // not on disk yet
	inBuf  uint64 // suppressions in buf
	words  map[string]uint64
	begun  bool // its header is on disk, or was put into buf
	broken bool // a write failed: nothing is appended any more
}

func dayOf(t time.Time) int32 { return int32(t.Unix() / 86400) }

func startOf(day int32) time.Time { return time.Unix(int64(day)*86400, 0).UTC() }

func newSegment(dir string, day int32, number int) *segment {
	name := fmt.Sprintf("%s-%03d.log", startOf(day).Format(time.DateOnly), number)
	return &segment{day: day, number: number, path: filepath.Join(dir, name), words: map[string]uint64{}}
}

func (s *segment) name() string { return filepath.Base(s.path) }

func segmentHead() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(segmentMagic), segmentVersion)
	return binary.LittleEndian.AppendUint32(b, crc(b))
}

func crc(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// listSegments gives those that are in dir, oldest first.
func listSegments(dir string) ([]*segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := regexp.MustCompile(`^(\d{4}-\d{2}-\d{2})-(\d{3,6})\.log$`)
	var all []*segment
	for _, e := range entries {
		m := names.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		day, err := time.Parse(time.DateOnly, m[1])
		number, nerr := strconv.Atoi(m[2])
		if err == nil && nerr == nil {
			s := newSegment(dir, dayOf(day), number)
			s.path = filepath.Join(dir, e.Name())
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *segment) int {
		if a.day != b.day {
			return int(a.day - b.day)
		}
		return a.number - b.number
	})
	return all, nil
}

// word gives the number of w, and writes it down where it is new.
func (s *segment) word(w string) uint64 {
	if len(w) > maxWord {
		w = strings.ToValidUTF8(w[:maxWord], "")
	}
	n, known := s.words[w]
	if known {
		return n
	}
	if len(s.words) >= maxWords && w != wordOther {
		return s.word(wordOther)
	}
	n = uint64(len(s.words))
	s.words[w] = n
	s.frame(append([]byte{kindWord}, w...))
	return n
}

// add appends an entry to what is to be written.
func (s *segment) add(e *Entry, scratch []byte) []byte {
	if !s.begun {
		s.begun = true
		s.buf = append(s.buf, segmentHead()...)
	}
	scratch = appendEntry(scratch[:0], e, s.word)
	s.frame(scratch)
	s.inBuf += e.Count
	return scratch
}

func (s *segment) frame(payload []byte) {
	at := len(s.buf)
	s.buf = append(s.buf, 0, 0, 0, 0)
	s.buf = binary.LittleEndian.AppendUint16(s.buf, uint16(len(payload)))
	s.buf = append(s.buf, payload...)
	binary.LittleEndian.PutUint32(s.buf[at:], crc(s.buf[at+4:]))
}

// write appends b to the file. After an error the good part is as before.
func (s *segment) write(b []byte) error {
	if s.file == nil {
		f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE, 0o640)
		if err != nil {
			return fmt.Errorf("open ledger: %w", err)
		}
		s.file = f
	}
	if _, err := s.file.WriteAt(b, s.size); err != nil {
		err = fmt.Errorf("write ledger: %w", err)
		if s.size == 0 {
			return errors.Join(err, os.Remove(s.path))
		}
		return errors.Join(err, s.file.Truncate(s.size))
	}
	return nil
}

func (s *segment) close(sync bool) error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	var err error
	if sync {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// scanned says how the reading of a segment ended.
type scanned struct {
	end  int64  // of the good part
	torn bool   // behind it is what a crash may leave
	harm string // behind it is what nothing but damage leaves; else empty
}

// scan calls fn with the payload of each frame up to limit bytes of the file
// (all of them when it is negative), until one is not as it was written. The
// payload is only valid during the call.
func scan(ctx context.Context, path string, limit int64, fn func(payload []byte) error) (res scanned, err error) {
	f, err := os.Open(path)
	if err != nil {
		return res, fmt.Errorf("open ledger: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var from io.Reader = f
	if limit >= 0 {
		from = io.LimitReader(f, limit)
	}
	r := bufio.NewReaderSize(from, 256<<10)
	head, err := r.Peek(headSize)
	switch {
	case errors.Is(err, io.EOF):
		res.torn = true
		return res, nil
	case err != nil:
		return res, fmt.Errorf("read ledger: %w", err)
	case !bytes.Equal(head, segmentHead()):
		res.harm = "its header is not that of a ledger file of this version"
		return res, nil
	}
	res.end = headSize
	for _, err = r.Discard(headSize); err == nil; {
		if err = ctx.Err(); err != nil {
			return res, err
		}
		var n int
		if n, err = frameIn(r, fn); err == nil {
			res.end += int64(n)
			continue
		}
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return res, nil
		case errors.Is(err, errFrame) || errors.Is(err, io.EOF):
			err = res.judge(r, n)
			return res, err
		}
	}
	return res, err
}

var errFrame = errors.New("frame is not as it was written")

// frameIn takes one frame. With io.EOF, n is how many bytes there are; with
// errFrame how many it claims to have, 0 where that cannot be.
func frameIn(r *bufio.Reader, fn func([]byte) error) (n int, err error) {
	b, err := r.Peek(frameHead)
	if err != nil {
		return len(b), err
	}
	n = frameHead + int(binary.LittleEndian.Uint16(b[4:]))
	if n > frameHead+maxPayload {
		return 0, errFrame
	}
	if b, err = r.Peek(n); err != nil {
		return len(b), err
	}
	if crc(b[4:]) != binary.LittleEndian.Uint32(b) {
		return n, errFrame
	}
	if err := fn(b[frameHead:]); err != nil {
		return n, err
	}
	_, err = r.Discard(n)
	return n, err
}

// judge tells a torn end from damage: behind the frame of n bytes a tear has
// nothing but zeros, or nothing at all.
func (res *scanned) judge(r *bufio.Reader, n int) error {
	zeros := true
	for at := 0; ; at++ {
		c, err := r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			res.torn = zeros
			if !res.torn {
				res.harm = fmt.Sprintf("from byte %d on it is not as it was written", res.end)
			}
			return nil
		case err != nil:
			return fmt.Errorf("read ledger: %w", err)
		}
		zeros = zeros && (c == 0 || at < n)
	}
}

package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// FuzzText: whatever stands in MANIFEST or CHECKPOINT, reading it gives a value
// or a DataError, and what was read is written as it was read.
func FuzzText(f *testing.F) {
	for _, v := range []any{manifest{Epoch: 3, Files: []fileEntry{{Name: journalName(1), First: 1}}}, checkpoint{Clean: true}} {
		b, err := encodeText(manifestName, v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(textHead(manifestName, 1)))
	f.Add([]byte("idemd dedup MANIFEST version 1 crc32c 00000000\n{}"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		writeFile(t, filepath.Join(dir, manifestName), b)
		var names manifest
		err := readText(dir, manifestName, &names)
		var data *DataError
		if err != nil && !errors.As(err, &data) {
			t.Fatalf("error %v", err)
		}
	})
}

// FuzzOpen: whatever JSON stands in a MANIFEST and a CHECKPOINT whose checksums
// are right, the store opens and is consistent, or says what is wrong.
func FuzzOpen(f *testing.F) {
	seed := filepath.Join(f.TempDir(), "dedup")
	s, err := open(f.Context(), Config{Dir: seed}, lazyMachine())
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	journal := readFile2(seed, journalName(1))
	body := func(name string) []byte {
		_, b, _ := bytes.Cut(readFile2(seed, name), []byte("\n"))
		return bytes.TrimSuffix(b, []byte("\n"))
	}
	f.Add(body(manifestName), body(checkpointName))
	f.Add([]byte(`{"epoch":4294967295}`), []byte(`{"clean":true}`))
	f.Add([]byte(`{"files":[{"name":"../journal-000001.log","first":1}]}`), []byte(`{"last_number":18446744073709551615}`))
	f.Add([]byte(`{"files":[{"name":"journal-4294967296.log","first":1,"sealed":true,"size":-1}]}`), []byte(`null`))
	dir := filepath.Join(f.TempDir(), "dedup")
	f.Fuzz(func(t *testing.T, names, mark []byte) {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{manifestName: names, checkpointName: mark} {
			text := fmt.Appendf(nil, "%s%08x\n%s\n", textHead(name, textVersion), textSum(name, textVersion, b), b)
			writeFile(t, filepath.Join(dir, name), text)
		}
		writeFile(t, filepath.Join(dir, journalName(1)), journal)
		_, err := tryOpen(t, dir)
		var data *DataError
		if err != nil && (!errors.As(err, &data) || data.Hint() == "") {
			t.Fatalf("error %v", err)
		}
	})
}

// FuzzHead: a journal's header is read as it was written, or refused.
func FuzzHead(f *testing.F) {
	h := head{number: 1, epoch: 2, first: 3, created: 4}
	f.Add(h.encode())
	f.Add(make([]byte, headSize))
	f.Add([]byte(journalMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == headSize {
			resum(b)
		}
		h, err := decodeHead(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if again := h.encode(); !bytes.Equal(again[:52], b[:52]) { // then zeros, for later versions
			t.Fatalf("%x is read, %x is written", b, again)
		}
	})
}

// FuzzFrame: a frame's head that is read has bounds that can be relied upon.
func FuzzFrame(f *testing.F) {
	b := append(make([]byte, frameHead), "record"...)
	finishFrame(b, 7, 10, 1)
	f.Add(b, uint32(7))
	f.Add(b[:frameHead-1], uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, seed uint32) {
		fr, err := parseFrame(b)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if fr.length < 0 || fr.length > maxFrame || fr.count < 1 || fr.count > maxRecords {
			t.Fatalf("frame %+v", fr)
		}
		if end := frameHead + fr.length; end <= len(b) && fr.length > 0 {
			whole := bytes.Clone(b[:end])
			finishFrame(whole, seed, fr.first, fr.count)
			again, err := parseFrame(whole)
			if err != nil || !again.verify(whole, seed) || again.first != fr.first || again.count != fr.count {
				t.Fatalf("%+v is written, %+v read, %v", fr, again, err)
			}
			whole[end-1] ^= 1
			if again.verify(whole, seed) {
				t.Fatal("a flipped bit is not seen")
			}
			if binary.LittleEndian.Uint32(whole[4:]) != again.sum {
				t.Fatal("the checksum is not where it is read")
			}
		}
	})
}

// FuzzTakeRecord: a table's value is taken apart from its front to its end, and
// never for ever.
func FuzzTakeRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 1, 2, 3, 4, 5, 6, 7})
	f.Fuzz(func(t *testing.T, value []byte) {
		for rest := value; len(rest) > 0; {
			rec, next, err := takeRecord(rest)
			if err != nil {
				return
			}
			if rec == nil || len(next) >= len(rest) {
				t.Fatalf("%d bytes of %d are left", len(next), len(rest))
			}
			rest = next
		}
	})
}

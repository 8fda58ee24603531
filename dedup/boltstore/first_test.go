package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"idemd/dedup"
)

// resum gives a changed journal header the CRC that it should have.
func resum(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

func readFile2(dir, name string) []byte {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil
	}
	return b
}

// snapshot is what files there are, and what is in them.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%s %08x", e.Name(), crc32.ChecksumIEEE(readFile(t, filepath.Join(dir, e.Name())))))
	}
	return out
}

func TestOpen_RefusesAnAbsentStoreThatMustExist(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	for range 2 { // missing, then empty
		_, err := Open(t.Context(), Config{Dir: dir, MustExist: true})
		var data *DataError
		if !errors.Is(err, ErrAbsent) || !errors.As(err, &data) || !strings.Contains(data.Hint(), "backup") {
			t.Errorf("error %v", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	openTest(t, Config{Dir: dir}) // an empty directory is a first start otherwise
}

func TestOpen_AnUnfinishedFirstStartIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	if err := os.MkdirAll(dir+".tmp", 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir+".tmp", manifestName), []byte("half"))
	settle(t, openTest(t, Config{Dir: dir}), "1")
	if _, err := os.Stat(dir + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished directory: %v", err)
	}
}

func TestOpen_SetsAsideWhatManifestDoesNotName(t *testing.T) {
	dir := makeStore(t, true, 1, 1)
	stray := readFile(t, filepath.Join(dir, journalName(2)))
	writeFile(t, filepath.Join(dir, journalName(7)), stray)
	writeFile(t, filepath.Join(dir, manifestName+".tmp"), []byte("half"))
	s := openTest(t, Config{Dir: dir})
	settle(t, s, "1")
	if got := readFile(t, filepath.Join(dir, journalName(7)+asideSuffix)); string(got) != string(stray) {
		t.Error("the stray journal was changed")
	}
	if s.writer.journal.number != 8 {
		t.Errorf("the next journal is %d: a name is used again", s.writer.journal.number)
	}
	if _, err := os.Stat(filepath.Join(dir, manifestName+".tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unfinished file: %v", err)
	}
}

func TestOpen_LeavesNoEmptyJournals(t *testing.T) {
	dir := makeStore(t, true, 1, 0, 0, 0, 1)
	entries, err := filepath.Glob(filepath.Join(dir, "journal-*"))
	if err != nil || len(entries) != 2 {
		t.Errorf("journals %v, %v", entries, err)
	}
}

func TestOpen_AnOlderManifestDoesNotHideRecords(t *testing.T) {
	dir := makeStore(t, true, 1)
	old := readFile(t, filepath.Join(dir, manifestName))
	s := openTest(t, Config{Dir: dir})
	settle(t, s, "late")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, manifestName), old)
	if _, err := tryOpen(t, dir); !errors.Is(err, ErrBehind) {
		t.Errorf("error %v", err)
	}
}

func TestOpen_FindsAGap(t *testing.T) {
	dir := makeStore(t, true, 1, 1, 1)
	var m manifest
	if err := readText(dir, manifestName, &m); err != nil {
		t.Fatal(err)
	}
	m.Files = append(m.Files[:1], m.Files[2:]...)
	if err := lazyFilled().writeText(dir, manifestName, m); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(t, dir); !errors.Is(err, ErrGap) {
		t.Errorf("a journal left out: %v", err)
	}
}

func TestOpen_FindsAGapWithinAJournal(t *testing.T) {
	dir := makeStore(t, false, 3)
	path := filepath.Join(dir, journalName(1))
	ends, b := frames(t, path), readFile(t, path)
	writeFile(t, path, append(b[:ends[2]], b[ends[3]:]...))
	if _, err := tryOpen(t, dir); !errors.Is(err, ErrGap) {
		t.Errorf("a frame left out: %v", err)
	}
}

func lazyFilled() *machine {
	m := lazyMachine()
	m.fill()
	return m
}

func TestOpen_ExpiresByTheHorizonOfCheckpoint(t *testing.T) {
	dir := makeStore(t, true, 1)
	key := testKey("crm", "e0-0")
	s := openTest(t, Config{Dir: dir})
	rec, ok, err := s.Get(t.Context(), key)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		horizon dedup.Time
		there   bool
		verdict dedup.Verdict
	}{{rec.Expires, true, dedup.AlreadyDone}, {rec.Expires + 1, false, dedup.Granted}} {
		var c checkpoint
		if err := readText(dir, checkpointName, &c); err != nil {
			t.Fatal(err)
		}
		c.Horizon = tc.horizon
		if err := lazyFilled().writeText(dir, checkpointName, c); err != nil {
			t.Fatal(err)
		}
		s := openTest(t, Config{Dir: dir})
		if _, ok, err := s.Get(t.Context(), key); ok != tc.there || err != nil {
			t.Errorf("horizon %d: there %t, %v", tc.horizon, ok, err)
		}
		res := mustDo(t, s, key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc})
		if res.Verdict != tc.verdict {
			t.Errorf("horizon %d: %v", tc.horizon, res.Verdict)
		}
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

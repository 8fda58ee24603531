package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"idemd/dedup"
)

// lazyMachine does not sync, and keeps files small: for tests that are not about
// surviving a power cut.
func lazyMachine() *machine { return &machine{sync: noSync, syncNames: noSync, ahead: 4 << 10} }

// makeStore writes a store with one life per count, of that many settled keys
// each, and gives its directory. The last life ends without Close if clean is
// not set: its files are a copy of the running store's.
func makeStore(t *testing.T, clean bool, counts ...int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dedup")
	for life, n := range counts {
		s, err := open(t.Context(), Config{Dir: dir}, lazyMachine())
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			settle(t, s, fmt.Sprintf("e%d-%d", life, i))
		}
		running := dir
		if !clean && life == len(counts)-1 {
			dir += "-crashed"
			copyTree(t, dir, running)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// settle is a grant and a commit, both on stable storage when it returns.
func settle(t *testing.T, s *Store, id string) dedup.Record {
	t.Helper()
	key := testKey("crm", id)
	g := mustDo(t, s, key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Seq: 1})
	return mustDo(t, s, key, dedup.Commit{Fence: g.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour}).Record
}

func copyTree(t *testing.T, to, from string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	err := os.CopyFS(to, os.DirFS(from))
	for errors.Is(err, os.ErrNotExist) { // a CHECKPOINT that was just being replaced
		err = errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// tryOpen opens and closes the store in dir.
func tryOpen(t *testing.T, dir string) (keys uint64, err error) {
	t.Helper()
	s, err := open(t.Context(), Config{Dir: dir, MustExist: true}, lazyMachine())
	if err != nil {
		return 0, err
	}
	keys = s.Stats().Keys
	return keys, errors.Join(s.Check(t.Context()), s.Close())
}

// frames gives where each frame of a journal begins, and the end of the last.
func frames(t *testing.T, path string) []int64 {
	t.Helper()
	b := readFile(t, path)
	at := int64(headSize)
	out := []int64{at}
	for {
		f, err := parseFrame(b[at:])
		if err != nil {
			return out
		}
		at += int64(frameHead + f.length)
		out = append(out, at)
	}
}

func TestOpen_CutsATornTailAtEveryByte(t *testing.T) {
	dir := makeStore(t, false, 1, 3)
	path := filepath.Join(dir, journalName(2))
	ends := frames(t, path)
	last, end := ends[len(ends)-2], ends[len(ends)-1]
	whole := readFile(t, path)[:end]
	work := filepath.Join(t.TempDir(), "dedup")
	// CHECKPOINT is a second behind: what is torn is not in it yet.
	for cut := last; cut < end; cut++ {
		for name, torn := range map[string][]byte{
			"ends":         whole[:cut],
			"zeros follow": append(slices.Clone(whole[:cut]), make([]byte, end-cut+4096)...),
		} {
			copyTree(t, work, dir)
			writeFile(t, filepath.Join(work, journalName(2)), torn)
			keys, err := tryOpen(t, work)
			// The last frame is the commit of the fourth key; its grant stays.
			if err != nil || keys != 4 {
				t.Fatalf("cut at %d of %d..%d, %s: %d keys, %v", cut, last, end, name, keys, err)
			}
			if keys, err := tryOpen(t, work); err != nil || keys != 4 {
				t.Fatalf("cut at %d, %s, opened again: %d keys, %v", cut, name, keys, err)
			}
		}
	}
}

func TestOpen_FindsEveryFlippedBitOfASealedJournal(t *testing.T) {
	dir := makeStore(t, true, 2, 1, 1)
	path := filepath.Join(dir, journalName(1))
	whole := readFile(t, path)
	for i := range whole {
		bad := slices.Clone(whole)
		bad[i] ^= 1 << (i % 8)
		writeFile(t, path, bad)
		keys, err := tryOpen(t, dir)
		var data *DataError
		if !errors.As(err, &data) || data.Path != path || data.Hint() == "" {
			t.Fatalf("byte %d of %d: %d keys, %v", i, len(whole), keys, err)
		}
	}
	writeFile(t, path, whole)
	if keys, err := tryOpen(t, dir); err != nil || keys != 4 {
		t.Errorf("repaired: %d keys, %v", keys, err)
	}
}

func TestOpen_FindsEveryFlippedBitOfAJournalThatWasClosed(t *testing.T) {
	dir := makeStore(t, true, 2)
	path := filepath.Join(dir, journalName(1))
	whole := readFile(t, path)
	for i := range whole {
		bad := slices.Clone(whole)
		bad[i] ^= 1 << (i % 8)
		writeFile(t, path, bad)
		var data *DataError
		if keys, err := tryOpen(t, dir); !errors.As(err, &data) {
			t.Fatalf("byte %d of %d: %d keys, %v", i, len(whole), keys, err)
		}
	}
}

// A frame that was good once is damage, not a torn tail, also in the newest
// journal after a crash.
func TestOpen_TellsDamageFromATornTail(t *testing.T) {
	dir := makeStore(t, false, 3)
	path := filepath.Join(dir, journalName(1))
	ends := frames(t, path)
	whole := readFile(t, path)
	for i := int64(0); i < ends[len(ends)-2]; i++ {
		bad := slices.Clone(whole)
		bad[i] ^= 0x10
		writeFile(t, path, bad)
		if keys, err := tryOpen(t, dir); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: %d keys, %v", i, keys, err)
		}
		if !bytes.Equal(readFile(t, path), bad) {
			t.Fatalf("byte %d: the journal was changed", i)
		}
	}
}

// An event id that holds a frame is no frame.
func TestOpen_IsNotMisledByAFrameInARecord(t *testing.T) {
	dir := makeStore(t, false, 1)
	inner := readFile(t, filepath.Join(dir, journalName(1)))[headSize:]
	s, err := open(t.Context(), Config{Dir: dir + "2"}, lazyMachine())
	if err != nil {
		t.Fatal(err)
	}
	settle(t, s, string(inner[:frames(t, filepath.Join(dir, journalName(1)))[1]-headSize]))
	crashed := dir + "3"
	copyTree(t, crashed, dir+"2")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(crashed, journalName(1))
	bad := readFile(t, path)
	bad[headSize] ^= 1 // the first frame: the only good one behind it is the second
	writeFile(t, path, bad[:frames(t, filepath.Join(dir+"2", journalName(1)))[1]])
	if keys, err := tryOpen(t, crashed); err != nil || keys != 0 {
		t.Errorf("%d keys, %v", keys, err)
	}
}

// misfortune is something that happens to the files of a store.
type misfortune struct {
	name string
	do   func(t *testing.T, dir string)
	want error
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func overwrite(name string, change func(b []byte) []byte) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, name)
		writeFile(t, path, change(readFile(t, path)))
	}
}

func empty([]byte) []byte { return nil }

func half(b []byte) []byte { return b[:len(b)/2] }

// newer makes a small file say that it has the format after ours.
func newer(kind string) func([]byte) []byte {
	return func(b []byte) []byte {
		_, body, _ := bytes.Cut(b, []byte("\n"))
		body = bytes.TrimSuffix(body, []byte("\n"))
		return fmt.Appendf(nil, "%s%08x\n%s\n", textHead(kind, textVersion+1), textSum(kind, textVersion+1, body), body)
	}
}

func newerJournal(b []byte) []byte {
	h, err := decodeHead(b[:headSize])
	if err != nil {
		return nil
	}
	head := h.encode()
	head[8] = 2
	return append(resum(head), b[headSize:]...)
}

// forge changes a record in the first frame so that all fits but the checksum in
// MANIFEST.
func forge(b []byte) []byte {
	seed := binary.LittleEndian.Uint32(b[headSize-4:])
	f, err := parseFrame(b[headSize:])
	if err != nil {
		return nil
	}
	frame := b[headSize : headSize+frameHead+f.length]
	body := frame[frameHead+recordHead:]
	body[len(body)-1] ^= 1
	binary.LittleEndian.PutUint32(frame[frameHead+4:], crc32.Checksum(body, castagnoli))
	finishFrame(frame, seed, f.first, f.count)
	return b
}

func swapped(from, name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		writeFile(t, filepath.Join(dir, name), readFile(t, filepath.Join(from, name)))
	}
}

func misfortunes(other, early string) []misfortune {
	swap := func(name string) func(*testing.T, string) { return swapped(other, name) }
	return []misfortune{
		{"no MANIFEST", remove(manifestName), ErrMissing},
		{"empty MANIFEST", overwrite(manifestName, empty), ErrDamaged},
		{"half a MANIFEST", overwrite(manifestName, half), ErrDamaged},
		{"another store's MANIFEST", swap(manifestName), ErrForeign},
		{"newer MANIFEST", overwrite(manifestName, newer(manifestName)), ErrVersion},
		{"no CHECKPOINT", remove(checkpointName), ErrMissing},
		{"empty CHECKPOINT", overwrite(checkpointName, empty), ErrDamaged},
		{"half a CHECKPOINT", overwrite(checkpointName, half), ErrDamaged},
		{"another store's CHECKPOINT", swap(checkpointName), ErrForeign},
		{"newer CHECKPOINT", overwrite(checkpointName, newer(checkpointName)), ErrVersion},
		{"MANIFEST for CHECKPOINT", overwrite(checkpointName, func([]byte) []byte { return readFile2(other, manifestName) }), ErrDamaged},
		{"CHECKPOINT of an earlier end", swapped(early, checkpointName), ErrMismatch},
		{"sealed journal of another history", overwrite(journalName(1), forge), ErrMismatch},
		{"no sealed journal", remove(journalName(1)), ErrMissing},
		{"empty sealed journal", overwrite(journalName(1), empty), ErrDamaged},
		{"half a sealed journal", overwrite(journalName(1), half), ErrMismatch},
		{"longer sealed journal", overwrite(journalName(1), func(b []byte) []byte { return append(b, 0) }), ErrMismatch},
		{"another store's journal", swap(journalName(1)), ErrForeign},
		{"newer journal", overwrite(journalName(1), newerJournal), ErrVersion},
		{"no newest journal", remove(journalName(3)), ErrMissing},
		{"empty newest journal", overwrite(journalName(3), empty), ErrDamaged},
		{"newest journal without records", overwrite(journalName(3), func(b []byte) []byte { return b[:headSize] }), ErrBehind},
		{"newest journal torn", overwrite(journalName(3), func(b []byte) []byte { return b[:len(b)-1] }), ErrDamaged},
		{"journals swapped", func(t *testing.T, dir string) {
			one, two := filepath.Join(dir, journalName(1)), filepath.Join(dir, journalName(2))
			a, b := readFile(t, one), readFile(t, two)
			writeFile(t, one, b)
			writeFile(t, two, a)
		}, ErrForeign},
	}
}

// Case 65: nothing that is wrong with the files is taken for an empty store, and
// nothing is changed by trying.
func TestOpen_EveryMisfortuneIsItsOwnError(t *testing.T) {
	early := makeStore(t, true, 1)
	dir := early + "-later"
	copyTree(t, dir, early)
	for _, n := range []int{2, 1} {
		s, err := open(t.Context(), Config{Dir: dir}, lazyMachine())
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			settle(t, s, fmt.Sprint("later", n, i))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range misfortunes(makeStore(t, true, 1, 2, 1), early) {
		t.Run(m.name, func(t *testing.T) {
			work := filepath.Join(t.TempDir(), "dedup")
			copyTree(t, work, dir)
			m.do(t, work)
			before := snapshot(t, work)
			_, err := tryOpen(t, work)
			var data *DataError
			if !errors.Is(err, m.want) || !errors.As(err, &data) || data.Hint() == "" || data.Path == "" {
				t.Errorf("error %v, want %v", err, m.want)
			}
			if after := snapshot(t, work); !slices.Equal(before, after) {
				t.Errorf("files before %v, after %v", before, after)
			}
		})
	}
}

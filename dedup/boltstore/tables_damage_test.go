package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
)

// makeTables makes a store whose settled keys are in a hot and in cold files, and
// gives its directory and the records.
func makeTables(t *testing.T, cold, hot int) (string, []dedup.Record) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dedup")
	s, err := open(t.Context(), Config{Dir: dir}, lazyMachine())
	if err != nil {
		t.Fatal(err)
	}
	var all []dedup.Record
	for i := range cold {
		all = append(all, settle(t, s, fmt.Sprint("cold", i)))
	}
	sealAndMove(t, s)
	mergeAll(t, s)
	for i := range hot {
		all = append(all, settle(t, s, fmt.Sprint("hot", i)))
	}
	sealAndMove(t, s)
	mustStep(t, func(ctx context.Context) (Step, error) { return s.Unlink(ctx, 0) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, all
}

// tableFile gives the path of the only table whose name begins with prefix.
func tableFile(t *testing.T, dir, prefix string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, prefix+"*.db"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	return names[0]
}

// What is wrong with a hot or cold file is found before anything is decided, and
// nothing is changed by trying.
func TestOpen_EveryMisfortuneOfATableIsItsOwnError(t *testing.T) {
	dir, _ := makeTables(t, 3, 2)
	other, _ := makeTables(t, 3, 2)
	for _, prefix := range []string{hotPrefix, coldPrefix} {
		name := filepath.Base(tableFile(t, dir, prefix))
		flip := func(at int) func([]byte) []byte {
			return func(b []byte) []byte {
				b[at] ^= 4
				return b
			}
		}
		for _, m := range []misfortune{
			{"missing", remove(name), ErrMissing},
			{"empty", overwrite(name, empty), ErrMismatch},
			{"half", overwrite(name, half), ErrMismatch},
			{"longer", overwrite(name, func(b []byte) []byte { return append(b, 0) }), ErrMismatch},
			{"zeros", overwrite(name, func(b []byte) []byte { return make([]byte, len(b)) }), ErrMismatch},
			{"first meta page", overwrite(name, flip(40)), ErrMismatch},
			{"second meta page", overwrite(name, flip(tablePage+40)), ErrMismatch},
			{"another store's", func(t *testing.T, dir string) {
				writeFile(t, filepath.Join(dir, name), readFile(t, tableFile(t, other, prefix)))
			}, ErrForeign},
			{"filter", overwrite(name, func(b []byte) []byte {
				b[strings.Index(string(b), filterMagic)+filterHead] ^= 1
				return b
			}), ErrDamaged},
			{"what it says of itself", overwrite(name, func(b []byte) []byte {
				b[strings.Index(string(b), `{"version"`)] = '['
				return b
			}), ErrDamaged},
		} {
			t.Run(prefix+m.name, func(t *testing.T) {
				work := filepath.Join(t.TempDir(), "dedup")
				copyTree(t, work, dir)
				m.do(t, work)
				before := snapshot(t, work)
				_, err := tryOpen(t, work)
				var data *DataError
				if !errors.Is(err, m.want) || !errors.As(err, &data) || data.Hint() == "" || filepath.Base(data.Path) != name {
					t.Errorf("error %v, want %v of %s", err, m.want, name)
				}
				if after := snapshot(t, work); !slices.Equal(before, after) {
					t.Errorf("files before %v, after %v", before, after)
				}
			})
		}
	}
}

// Two files of one store can have the same size and the same first pages.
func TestOpen_TwoTablesThatWereExchangedAreFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	settle(t, s, "a")
	sealAndMove(t, s)
	settle(t, s, "b")
	sealAndMove(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	one, two := filepath.Join(dir, "hot-000001.db"), filepath.Join(dir, "hot-000002.db")
	a, b := readFile(t, one), readFile(t, two)
	writeFile(t, one, b)
	writeFile(t, two, a)
	if _, err := tryOpen(t, dir); !errors.Is(err, ErrMismatch) {
		t.Errorf("error %v", err)
	}
}

// A bit that flips under a running store: once the files were verified, no key is
// taken for a new one, and no record is another than was written.
func TestVerifyNext_FindsEveryFlippedBit(t *testing.T) {
	dir, all := makeTables(t, 60, 0)
	path := tableFile(t, dir, coldPrefix)
	size := len(readFile(t, path))
	found := 0
	for at := 7; at < size; at += 97 {
		s, err := open(t.Context(), Config{Dir: dir}, lazyMachine())
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		flipByte(t, path, at)
		v, err := s.VerifyNext(t.Context())
		var data *DataError
		if !errors.As(err, &data) || !v.Whole || !v.Last || data.Path != path {
			t.Errorf("byte %d: %+v, %v", at, v, err)
		}
		down := s.down.Load()
		for _, r := range all {
			got, ok, err := s.Get(t.Context(), r.Key)
			switch {
			case err != nil && !errors.Is(err, dedup.ErrDamaged), err == nil && (got != r || !ok):
				t.Fatalf("byte %d: got %+v, %t, %v", at, got, ok, err)
			case err != nil:
				found++
			}
			if res, err := s.Do(t.Context(), r.Key, durable); err == nil && res.Verdict != dedup.AlreadyDone || err != nil &&
				!errors.Is(err, dedup.ErrDamaged) && !down {
				t.Fatalf("byte %d: %v, %v", at, res.Verdict, err)
			}
		}
		if err := s.Close(); err != nil && !down {
			t.Fatalf("byte %d: %v", at, err)
		}
		flipByte(t, path, at)
	}
	if found == 0 {
		t.Error("no flipped bit concerned a key")
	}
}

func flipByte(t *testing.T, path string, at int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, int64(at))
	b[0] ^= 0x20
	if err == nil {
		_, err = f.WriteAt(b, int64(at))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A file that loses its end under a running store costs its keys, not the process.
func TestGet_OfATableThatWasCutIsAnError(t *testing.T) {
	dir, all := makeTables(t, 500, 0)
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	if err := os.Truncate(tableFile(t, dir, coldPrefix), tableHead); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		wantDamaged(t, s, r.Key)
	}
}

func TestVerifyNext_ReadsEveryFileInTurn(t *testing.T) {
	dir, _ := makeTables(t, 3, 3)
	var asked []string
	verify := func(_ context.Context, path string) error {
		asked = append(asked, path)
		return errors.New("as the child says")
	}
	s := openWith(t, Config{Dir: dir, Verify: verify}, lazyMachine())
	hot, cold := tableFile(t, dir, hotPrefix), tableFile(t, dir, coldPrefix)
	for range 3 {
		for i, path := range []string{cold, hot} {
			v, err := s.VerifyNext(t.Context())
			if err != nil || v.File != filepath.Base(path) || !v.Whole || v.Last != (i == 1) || v.Bytes == 0 {
				t.Errorf("%+v, %v", v, err)
			}
		}
	}
	flipByte(t, hot, 3*tablePage)
	if v, err := s.VerifyNext(t.Context()); err != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := s.VerifyNext(t.Context()); err == nil || !strings.Contains(err.Error(), "as the child says") || !v.Last {
		t.Errorf("%+v, %v", v, err)
	}
	if !slices.Equal(asked, []string{hot}) {
		t.Errorf("asked for %v", asked)
	}
}

func TestVerifyNext_OfALargeFileIsInSlices(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	buildCold(t, dir, 130_000, time.Now().UTC().AddDate(0, 0, 1), 1)
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	var read int64
	for calls := 1; ; calls++ {
		v, err := s.VerifyNext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if read += v.Bytes; v.Whole {
			if calls != 2 || read != s.tables[0].Size || !v.Last {
				t.Errorf("%d bytes of %d in %d calls, %+v", read, s.tables[0].Size, calls, v)
			}
			break
		}
		if v.Bytes != verifySlice {
			t.Errorf("%+v", v)
		}
	}
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVerifyFile_FindsDamage(t *testing.T) {
	dir, _ := makeTables(t, 300, 0)
	path := tableFile(t, dir, coldPrefix)
	whole := readFile(t, path)
	if err := VerifyFile(path); err != nil {
		t.Fatal(err)
	}
	silent := 0
	for at := 0; at < len(whole); at += 211 {
		bad := slices.Clone(whole)
		bad[at] ^= 0x10
		writeFile(t, path, bad)
		var data *DataError
		if err := VerifyFile(path); err == nil {
			silent++ // free pages, and parts of pages that hold nothing
		} else if !errors.As(err, &data) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if silent*211 > len(whole)*6/10 {
		t.Errorf("%d of %d bytes can be anything", silent*211, len(whole))
	}
	for _, b := range [][]byte{nil, whole[:100], whole[:len(whole)/2], make([]byte, len(whole))} {
		writeFile(t, path, b)
		if err := VerifyFile(path); err == nil {
			t.Errorf("%d bytes of it are good", len(b))
		}
	}
}

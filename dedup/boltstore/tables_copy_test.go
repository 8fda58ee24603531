package boltstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
)

// copyListed copies, like cp does, the files that were there when the directory was
// listed, as they are now, and MANIFEST and CHECKPOINT as they were at the given
// moment.
func copyListed(t *testing.T, to, from string, listed []string, texts map[string][]byte) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range listed {
		if b := texts[name]; b != nil {
			writeFile(t, filepath.Join(to, name), b)
			continue
		}
		writeFile(t, filepath.Join(to, name), readFile(t, filepath.Join(from, name)))
	}
}

func list(t *testing.T, dir string) (names []string, texts map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, map[string][]byte{
		manifestName: readFile(t, filepath.Join(dir, manifestName)), checkpointName: readFile(t, filepath.Join(dir, checkpointName)),
	}
}

// wantCopy wants a copy to hold the records, and to tidy up like any other store.
func wantCopy(t *testing.T, dir string, want []dedup.Record) {
	t.Helper()
	s, err := open(t.Context(), Config{Dir: dir, MustExist: true}, lazyMachine())
	if err != nil {
		t.Fatalf("open the copy: %v", err)
	}
	for range 2 {
		for _, r := range want {
			if got, ok, err := s.Get(t.Context(), r.Key); got != r || !ok || err != nil {
				t.Errorf("got %+v, %t, %v", got, ok, err)
			}
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
		sealAndMove(t, s)
		mergeAll(t, s)
		mustStep(t, func(ctx context.Context) (Step, error) { return s.Unlink(ctx, 0) })
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A plain copy of the running directory is whole, though steps change the set of
// files while it is made: whichever of MANIFEST and the list of files is younger.
func TestOpen_ACopyThatWasMadeDuringAStepIsWhole(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, s *Store){
		"move":  func(t *testing.T, s *Store) { mustStep(t, s.Move) },
		"merge": func(t *testing.T, s *Store) { mergeAll(t, s) },
		"both": func(t *testing.T, s *Store) {
			mustStep(t, s.Move)
			mergeAll(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "dedup")
			s := openWith(t, Config{Dir: dir}, lazyMachine())
			want := []dedup.Record{settle(t, s, "a")}
			sealAndMove(t, s)
			want = append(want, settle(t, s, "b"), mustDo(t, s, testKey("crm", "dead"), dedup.Put{State: dedup.Dead, Seq: 1}).Record)
			if _, err := s.Seal(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			settle(t, s, "c")
			before, early := list(t, dir)
			do(t, s)
			after, late := list(t, dir)
			copyListed(t, filepath.Join(root, "listed early"), dir, before, late)
			wantCopy(t, filepath.Join(root, "listed early"), want)
			copyListed(t, filepath.Join(root, "texts early"), dir, after, early)
			wantCopy(t, filepath.Join(root, "texts early"), want)
		})
	}
}

// What is missing and has no sources any more is an error, not an empty file.
func TestOpen_AMissingTableWithoutItsSourcesIsMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	settle(t, s, "a")
	sealAndMove(t, s)
	mergeAll(t, s)
	for i, gone := range []string{hotPrefix, journalName(1)} {
		work := dir + gone
		copyTree(t, work, dir)
		for _, prefix := range []string{coldPrefix, gone} {
			names, err := filepath.Glob(filepath.Join(work, prefix+"*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, err := tryOpen(t, work)
		switch i {
		case 0: // the journal stands in for the hot file, which stands in for the cold one
			if err != nil {
				t.Errorf("without both tables: %v", err)
			}
		default: // the hot file is enough
			if err != nil {
				t.Errorf("without the journal: %v", err)
			}
		}
	}
	mustStep(t, func(ctx context.Context) (Step, error) { return s.Unlink(ctx, 0) })
	work := dir + "-2"
	copyTree(t, work, dir)
	if err := os.Remove(tableFile(t, work, coldPrefix)); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(t, work); !errors.Is(err, ErrMissing) {
		t.Errorf("error %v", err)
	}
}

// Directories of before there were tables are read, and those of after are refused
// by whoever does not know them.
func TestOpen_ReadsADirectoryOfVersion1(t *testing.T) {
	dir := makeStore(t, true, 2)
	for _, name := range []string{manifestName, checkpointName} {
		path := filepath.Join(dir, name)
		_, body, _ := strings.Cut(string(readFile(t, path)), "\n")
		body = strings.TrimSuffix(body, "\n")
		writeFile(t, path, []byte(textHead(name, 1)+sumText(textSum(name, 1, []byte(body)))+"\n"+body+"\n"))
	}
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	if n := s.Stats().Keys; n != 2 {
		t.Errorf("%d keys", n)
	}
	if got := string(readFile(t, filepath.Join(dir, manifestName))); !strings.HasPrefix(got, textHead(manifestName, 2)) {
		t.Errorf("MANIFEST begins %.60q", got)
	}
}

// A full disk is not made fuller, and what a failed step began is removed.
func TestSteps_AFullDiskIsNotMadeFuller(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, lazyMachine())
	settle(t, s, "a")
	s.writer.ballast.gone.Store(true)
	for name, do := range map[string]func() error{
		"seal":  func() error { _, err := s.Seal(t.Context(), 0); return err },
		"move":  func() error { _, err := s.Move(t.Context()); return err },
		"merge": func() error { _, err := s.Merge(t.Context(), 1); return err },
	} {
		if err := do(); !errors.Is(err, dedup.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, do := range map[string]func() error{
		"expire": func() error { _, err := s.Expire(t.Context()); return err },
		"unlink": func() error { _, err := s.Unlink(t.Context(), 0); return err },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.writer.ballast.gone.Store(false)
	if _, err := s.Seal(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before, _ := list(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	s.cfg.Fault = func(point string) {
		if point == "move-made" {
			cancel()
		}
	}
	if _, err := s.Move(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("move: %v", err)
	}
	if after, _ := list(t, dir); len(after) != len(before) {
		t.Errorf("files before %v, after %v", before, after)
	}
}

// A power cut must not leave a MANIFEST that names a file whose bytes, or name, are
// not there; nor one that forgot a file whose name comes back.
func TestSteps_SyncBeforeMANIFESTNames(t *testing.T) {
	var synced []string
	m := lazyMachine()
	note := func(f *os.File) error {
		if name := filepath.Base(f.Name()); name != checkpointName+".tmp" {
			synced = append(synced, name)
		}
		return nil
	}
	m.checkpoint = time.Hour
	m.sync, m.syncNames = note, note
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, m)
	settle(t, s, "a")
	if _, err := s.Seal(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	const dir, text = "dedup", manifestName + ".tmp"
	day := dayOf(dedup.At(time.Now().Add(time.Hour)))
	for _, tc := range []struct {
		do   func(context.Context) (Step, error)
		want []string
	}{
		{s.Move, []string{text, dir, "hot-000001.db.tmp", dir, text, dir}},
		{func(ctx context.Context) (Step, error) { return s.Merge(ctx, dedup.At(time.Now())+1) },
			[]string{text, dir, "cold-" + day + "-1.db.tmp", dir, text, dir}},
		{func(ctx context.Context) (Step, error) { return s.Unlink(ctx, 0) }, []string{dir, text, dir}},
	} {
		synced = nil
		if step, err := tc.do(t.Context()); err != nil || len(step.Took) == 0 {
			t.Fatalf("%+v, %v", step, err)
		}
		if !slices.Equal(synced, tc.want) {
			t.Errorf("synced %v, want %v", synced, tc.want)
		}
	}
}

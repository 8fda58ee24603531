package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
)

// harms are what can happen to a file; each is given the file and the same one
// of another data directory.
func harms() map[string]func(path, other string) error {
	change := func(fn func(b []byte) []byte) func(path, other string) error {
		return func(path, _ string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, fn(b), 0o600)
		}
	}
	return map[string]func(path, other string) error{
		"cut in half": change(func(b []byte) []byte { return b[:len(b)/2] }),
		"emptied":     change(func([]byte) []byte { return nil }),
		"bit flipped": change(func(b []byte) []byte {
			if len(b) > 0 {
				b[min(len(b)/2, 100)] ^= 4 // in a journal or a block: in the first record
			}
			return b
		}),
		"missing": func(path, _ string) error { return os.Remove(path) },
		"another directory's": func(path, other string) error {
			b, err := os.ReadFile(other)
			if err != nil {
				return err
			}
			return os.WriteFile(path, b, 0o600)
		},
		"exchanged with a neighbour": func(path, _ string) error {
			entries, err := os.ReadDir(filepath.Dir(path))
			for _, e := range entries {
				if next := filepath.Join(filepath.Dir(path), e.Name()); next != path && !e.IsDir() && e.Name() != "LOCK" {
					return errors.Join(os.Rename(path, path+".x"), os.Rename(next, path), os.Rename(path+".x", next))
				}
			}
			return cmp.Or(err, errAlone)
		},
	}
}

// errAlone is given for a file without a neighbour.
var errAlone = errors.New("no file beside it")

// damageDir is a data directory that has lived three times: it has a sealed journal
// and a newest one, a hot and a cold file of what is done, events that wait,
// parked copies of dead ones, and a stream whose first block is purged.
func damageDir(t *testing.T) string {
	t.Helper()
	dir := usedDir(t)
	refuse := newSink(t, func(c call, _ int) int {
		if strings.HasPrefix(c.id, "done") {
			return 200
		}
		return 400
	})
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	a, err := New(ctx, mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", refuse.URL, "a")), Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	d := &daemon{t: t, addr: <-ready, dir: dir}
	for i := range 5 {
		id := fmt.Sprint("later", i)
		d.mustSend(id)
		until(t, "a dead letter", func() bool { return d.state("a", id) == "dead" })
	}
	for _, id := range []string{"done-cold", "done-hot"} {
		d.mustSend(id)
		until(t, "the run", func() bool { return d.state("a", id) == "done" })
		_, err := a.store.Seal(t.Context(), 0)
		_, merr := a.store.Move(t.Context())
		if err = errors.Join(err, merr); err == nil && id == "done-cold" {
			_, err = a.store.Merge(t.Context(), dedup.At(time.Now().Add(time.Hour)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range unrouted {
		size := 1_040_000 // with a little after eight of them, the block is full
		if i == unrouted-1 {
			size = 100_000
		}
		publishBig(t, a, fmt.Sprint("big", i), size)
	}
	if gone, err := a.queue.Purge(t.Context(), 1<<40, 0); err != nil || gone.Events == 0 {
		t.Fatalf("%+v, %v", gone, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	serveIn(t, dir, func(d *daemon) {
		d.mustSend("e9")
		until(t, "its record", func() bool { return d.state("a", "e9") == "waiting" })
	})
	return dir
}

// copyDir copies a data directory as if it had always been there: a LOCK that is
// not VERSION's would make it a copy.
func copyDir(t *testing.T, to, from string) {
	t.Helper()
	err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from)))
	if err == nil {
		err = adopt(to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func adopt(dir string) error {
	lock, err := os.Open(filepath.Join(dir, "LOCK"))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "VERSION")
	var v version
	b, err := os.ReadFile(path)
	if err == nil {
		v, err = decodeVersion(b)
	}
	if err == nil {
		v.LockInode, v.LockBirth, err = fileBirth(lock)
	}
	if err == nil {
		b, err = v.encode()
	}
	return errors.Join(err, os.WriteFile(path, b, 0o600), lock.Close())
}

// contents are the files that hold events and claims, and what is in them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// holdings is what must not be lost.
type holdings struct{ first, last, events, parked, keys uint64 }

// open starts an app on dir and says what it holds, or why it does not start.
func holdingsOf(t *testing.T, dir string) (h holdings, err error) {
	t.Helper()
	a, err := New(t.Context(), mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{})
	if err != nil {
		return h, err
	}
	st, err := a.queue.State(t.Context())
	if a.refuge != nil {
		if st.LastSeq != damageEvents+unrouted || a.quarantineStatus(t.Context()).Quarantine == nil {
			t.Errorf("quarantine with %+v", st)
		}
		return h, fmt.Errorf("quarantine: %w", errors.Join(a.refuge, err, a.stop()))
	}
	keys := a.store.Stats().Keys
	err = errors.Join(err, a.store.Check(t.Context()), a.stop())
	return holdings{st.FirstSeq, st.LastSeq, st.Messages, st.Parked, keys}, err
}

const (
	damageEvents = 9 // that a damageDir has claims of
	unrouted     = 9 // events in it that nobody wanted
)

// What differs from one run to the next is not in the table.
var (
	numbers = regexp.MustCompile(`\b[0-9a-f]{8}\b|(\s)\d+\b`)
	dates   = regexp.MustCompile(`\d{4}-\d\d-\d\d`)
)

func sentence(dir string, err error) string {
	if err == nil {
		return "starts, nothing is missing"
	}
	text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), dir+"/", ""), dir, "data_dir")
	text = strings.ReplaceAll(text, "queue/jetstream/$G/streams/", "")
	return numbers.ReplaceAllString(dates.ReplaceAllString(text, "DATE"), "${1}N")
}

// name is a file's name in the table.
func tableName(file string) string {
	return dates.ReplaceAllString(strings.TrimPrefix(file, "queue/jetstream/$G/streams/"), "DATE")
}

// Every file of a stopped data directory, and everything that may happen to it:
// a start is whole, or it is refused with a sentence that says what to do, and
// leaves what holds events and claims as it is. docs/damage.md has the sentences.
func TestDamage_EveryFileHasItsSentence(t *testing.T) {
	dir, other := damageDir(t), damageDir(t)
	work := filepath.Join(filepath.Dir(dir), "work")
	copyDir(t, work, dir)
	want, err := holdingsOf(t, work)
	if err != nil || want.last != damageEvents+unrouted || want.first < 2 || want.keys != damageEvents || want.parked == 0 {
		t.Fatalf("%+v, %v", want, err)
	}
	table := map[string]map[string][]string{} // file, sentence: harms
	for _, file := range slices.Sorted(maps.Keys(contents(t, dir))) {
		for _, harm := range slices.Sorted(maps.Keys(harms())) {
			copyDir(t, work, dir)
			if err := harms()[harm](filepath.Join(work, file), filepath.Join(other, file)); errors.Is(err, errAlone) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			before := contents(t, work)
			got, err := holdingsOf(t, work)
			text := sentence(work, err)
			if row := table[tableName(file)]; row == nil {
				table[tableName(file)] = map[string][]string{}
			}
			table[tableName(file)][text] = append(table[tableName(file)][text], harm)
			var operator *OperatorError
			switch {
			// Without its LOCK a directory is a copy, and what waits is held with a copy of its event.
			case err == nil && (got.parked < want.parked || got != holdings{want.first, want.last, want.events, got.parked, want.keys}):
				t.Errorf("%s %s: started with %+v of %+v", file, harm, got, want)
			case err != nil && (!errors.As(err, &operator) || operator.Hint == ""):
				t.Errorf("%s %s: no hint in %v", file, harm, err)
			case err != nil:
				after := contents(t, work)
				for name, b := range before {
					if holds(name) && after[name] != b && (name != "VERSION" || !strings.HasPrefix(text, "quarantine: ")) {
						t.Errorf("%s %s: the refused start changed %s", file, harm, name)
					}
				}
			}
		}
	}
	compareTable(t, table)
}

func holds(name string) bool {
	return name == "VERSION" || strings.HasPrefix(name, "dedup/journal-") || strings.HasSuffix(name, ".blk")
}

func compareTable(t *testing.T, table map[string]map[string][]string) {
	t.Helper()
	var rows []string
	for _, file := range slices.Sorted(maps.Keys(table)) {
		texts := slices.SortedFunc(maps.Keys(table[file]), func(a, b string) int {
			return cmp.Compare(strings.Join(table[file][a], ", "), strings.Join(table[file][b], ", "))
		})
		for _, text := range texts {
			rows = append(rows, fmt.Sprintf("| %s | %s | %s |", file, strings.Join(table[file][text], ", "), text))
		}
	}
	doc, err := os.ReadFile("../docs/damage.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if !strings.Contains(string(doc), row+"\n") {
			t.Errorf("docs/damage.md lacks\n%s", row)
		}
	}
	if in := strings.Count(string(doc), "\n| ") - 1; in != len(rows) {
		t.Errorf("docs/damage.md has %d rows, there are %d cases:\n%s", in, len(rows), strings.Join(rows, "\n"))
	}
}

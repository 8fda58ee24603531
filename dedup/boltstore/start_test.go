package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
)

// A fence has 24 bits for the epoch: with more, those of this life would be less
// than older ones.
func TestOpen_RefusesAClockThatIsDecadesAhead(t *testing.T) {
	at := func(epoch int64) func() time.Time {
		return func() time.Time {
			return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(epoch) * time.Minute)
		}
	}
	wantClock := func(dir string, now func() time.Time) {
		t.Helper()
		_, err := Open(t.Context(), Config{Dir: dir, Now: now})
		var data *DataError
		if !errors.Is(err, ErrClock) || !errors.As(err, &data) || !strings.Contains(data.Hint(), "clock") {
			t.Errorf("error %v", err)
		}
	}
	dir := filepath.Join(t.TempDir(), "dedup")
	wantClock(dir, at(dedup.MaxEpoch+1))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused first start left a directory: %v", err)
	}
	s := openTest(t, Config{Dir: dir, Now: at(dedup.MaxEpoch - 1)})
	old := settle(t, s, "1").Fence
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	wantClock(dir, at(dedup.MaxEpoch+1))
	if after := snapshot(t, dir); !slices.Equal(before, after) {
		t.Errorf("files before %v, after %v", before, after)
	}
	s = openTest(t, Config{Dir: dir, Now: at(0)})
	if f := settle(t, s, "2").Fence; f <= old || f.Epoch() != dedup.MaxEpoch {
		t.Errorf("fence %d of epoch %d after %d", f, f.Epoch(), old)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantClock(dir, at(0)) // there is no number left
}

// A process is killed between write and sync, the next one reads what it wrote,
// and then the power is cut: what was decided from the record must not outlive it.
func TestOpen_SyncsTheNewestJournalBeforeItIsSealed(t *testing.T) {
	dir := makeStore(t, false, 1, 1)
	path := filepath.Join(dir, journalName(2))
	ends := frames(t, path)
	writeFile(t, path, readFile(t, path)[:ends[len(ends)-1]]) // not torn: nothing is cut
	var synced []string
	m := lazyMachine()
	m.sync = func(f *os.File) error {
		synced = append(synced, filepath.Base(f.Name()))
		return nil
	}
	openWith(t, Config{Dir: dir}, m)
	want := []string{journalName(2), journalName(3), manifestName + ".tmp"}
	if len(synced) < 3 || !slices.Equal(synced[:3], want) {
		t.Errorf("synced %v, want %v first", synced, want)
	}
}

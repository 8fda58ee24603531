package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"idemd/dedup"
)

var ride = dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Seq: 1}

var durable = dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Seq: 1}

// brittle is a disk that fails to write what goes into journals.
type brittle struct {
	fails atomic.Bool
	keeps func(n int) int // how many of n bytes get through nevertheless
}

func (d *brittle) write(f *os.File, b []byte, off int64) (int, error) {
	if !d.fails.Load() || !strings.Contains(f.Name(), "journal-") {
		return f.WriteAt(b, off)
	}
	n, err := f.WriteAt(b[:d.keeps(len(b))], off)
	if err != nil {
		return n, err
	}
	return n, syscall.ENOSPC
}

// crashed opens what is on disk at this moment.
func crashed(t *testing.T, dir string) *Store {
	t.Helper()
	work := filepath.Join(t.TempDir(), "dedup")
	copyTree(t, work, dir)
	return openTest(t, Config{Dir: work, MustExist: true})
}

func wantState(t *testing.T, s *Store, id string, want dedup.State) {
	t.Helper()
	if r, _, err := s.Get(t.Context(), testKey("crm", id)); err != nil || r.State != want {
		t.Errorf("%s is %v, %v; want %v", id, r.State, err, want)
	}
}

func wantUnavailable(t *testing.T, s *Store, id string, op dedup.Op) {
	t.Helper()
	res, err := s.Do(t.Context(), testKey("crm", id), op)
	if !errors.Is(err, dedup.ErrUnavailable) || res != (dedup.Result{}) {
		t.Errorf("%T: %+v, %v; want unavailable", op, res, err)
	}
}

// Cases 26, 27, 64: whatever part of a frame got through, those who waited are
// told that nobody knows, those who were answered keep their grants, and it goes
// on in a new journal.
func TestStore_GoesOnAfterAWriteError(t *testing.T) {
	for name, keeps := range map[string]func(int) int{
		"nothing": func(int) int { return 0 },
		"half":    func(n int) int { return n / 2 },
		"all":     func(n int) int { return n },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			synctest.Test(t, func(t *testing.T) { writeError(t, filepath.Join(root, "dedup"), keeps) })
		})
	}
}

func writeError(t *testing.T, dir string, keeps func(int) int) {
	disk := &brittle{keeps: keeps}
	s := openWith(t, Config{Dir: dir}, &machine{write: disk.write})
	settle(t, s, "before")
	grant := mustDo(t, s, testKey("crm", "ridden"), ride).Record
	other := mustDo(t, s, testKey("crm", "other"), durable).Record
	ridden := mustDo(t, s, testKey("crm", "ridden2"), ride).Record

	disk.fails.Store(true)
	commit := dedup.Commit{Fence: other.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour}
	wantUnavailable(t, s, "other", commit)
	wantUnavailable(t, s, "new", ride)
	wantState(t, s, "other", dedup.Started)
	wantState(t, s, "before", dedup.Done)
	wantState(t, s, "ridden2", dedup.Started)

	disk.fails.Store(false)
	time.Sleep(2 * mendEvery)
	mustDo(t, s, testKey("crm", "other"), commit)
	if s.writer.journal.number != 2 {
		t.Errorf("goes on in journal %d", s.writer.journal.number)
	}
	mustDo(t, s, testKey("crm", "ridden2"), dedup.Defer{Fence: ridden.Fence, Due: 1})
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("failed: %v", err)
	default:
	}
	after := crashed(t, dir)
	wantState(t, after, "other", dedup.Done)
	wantState(t, after, "ridden", dedup.Started)
	wantState(t, after, "ridden2", dedup.Waiting)
	wantState(t, after, "new", dedup.Free)
	mustDo(t, s, testKey("crm", "ridden"), dedup.Commit{Fence: grant.Fence, Outcome: dedup.OutcomeDone})
}

// A disk that stays full: the store answers, and nothing is lost when there is
// space again.
func TestStore_WaitsForADiskThatIsFull(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "dedup")
		disk := &brittle{keeps: func(int) int { return 0 }}
		s := openWith(t, Config{Dir: dir}, &machine{write: disk.write})
		mustDo(t, s, testKey("crm", "ridden"), ride)
		disk.fails.Store(true)
		for i := range 30 {
			wantUnavailable(t, s, fmt.Sprint("x", i), durable)
			time.Sleep(mendEvery / 3)
		}
		wantState(t, s, "ridden", dedup.Started)
		disk.fails.Store(false)
		time.Sleep(2 * mendEvery)
		wantState(t, crashed(t, dir), "ridden", dedup.Started)
		settle(t, s, "after")
		if journals, err := filepath.Glob(filepath.Join(dir, "journal-*")); err != nil || len(journals) != 2 {
			t.Errorf("journals %v, %v", journals, err)
		}
	})
}

func TestStore_ClosingOnAFullDiskIsAnError(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "dedup")
		disk := &brittle{keeps: func(n int) int { return n / 2 }}
		s, err := open(t.Context(), Config{Dir: dir}, &machine{write: disk.write})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, s, "before")
		mustDo(t, s, testKey("crm", "ridden"), ride)
		disk.fails.Store(true)
		if err := s.Close(); !errors.Is(err, dedup.ErrUnavailable) {
			t.Errorf("close: %v", err)
		}
		wantState(t, openTest(t, Config{Dir: dir}), "before", dedup.Done)
	})
}

// A sync error is final: another sync would not tell what was lost.
func TestStore_ASyncErrorEndsIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	var fails atomic.Bool
	s, err := open(t.Context(), Config{Dir: dir}, &machine{sync: func(f *os.File) error {
		if fails.Load() {
			return syscall.EIO
		}
		return datasync(f)
	}})
	if err != nil {
		t.Fatal(err)
	}
	settle(t, s, "before")
	fails.Store(true)
	wantUnavailable(t, s, "lost", durable)
	if err := <-s.Failed(); !errors.Is(err, syscall.EIO) {
		t.Errorf("failed: %v", err)
	}
	fails.Store(false)
	wantUnavailable(t, s, "after", ride)
	wantState(t, s, "before", dedup.Done)
	if _, err := s.Begin(t.Context(), "crm", 1); !errors.Is(err, dedup.ErrUnavailable) {
		t.Errorf("begin: %v", err)
	}
	if err := s.Close(); !errors.Is(err, dedup.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	wantState(t, openTest(t, Config{Dir: dir}), "before", dedup.Done)
}

// A poison event that kills the process must be counted: after three unclean
// starts within ten minutes grants wait for the disk.
func TestStore_ThreeUncleanStartsMakeEveryGrantWait(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "0")
		s := openTest(t, Config{Dir: dir})
		rides := func(id string) bool {
			mustDo(t, s, testKey("crm", id), ride)
			synctest.Wait()
			r, _, err := crashed(t, dir).Get(t.Context(), testKey("crm", id))
			if err != nil {
				t.Fatal(err)
			}
			return r.State == dedup.Free
		}
		restart := func(i int) {
			synctest.Wait()
			next := filepath.Join(root, fmt.Sprint(i))
			copyTree(t, next, dir)
			dir = next
			s = openTest(t, Config{Dir: dir})
		}
		for i := 1; i <= 2; i++ {
			time.Sleep(4 * time.Minute)
			restart(i)
			if !rides(fmt.Sprint("a", i)) {
				t.Errorf("waits after %d unclean starts", i)
			}
		}
		time.Sleep(time.Minute)
		restart(3)
		if rides("b") {
			t.Error("rides after three unclean starts")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		s = openTest(t, Config{Dir: dir})
		if !rides("c") {
			t.Error("waits ten minutes later")
		}
	})
}

func TestStore_ARiddenGrantIsWrittenWithin100ms(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "dedup")
		s := openTest(t, Config{Dir: dir})
		mustDo(t, s, testKey("crm", "1"), ride)
		time.Sleep(rideFor / 2)
		mustDo(t, s, testKey("crm", "2"), ride)
		wantState(t, crashed(t, dir), "1", dedup.Free)
		time.Sleep(rideFor / 2)
		synctest.Wait()
		after := crashed(t, dir)
		wantState(t, after, "1", dedup.Started)
		wantState(t, after, "2", dedup.Started)
	})
}

// blocking is a disk whose syncs wait for release.
type blocking struct {
	entered chan struct{}
	release chan struct{}
	on      atomic.Bool
}

func (d *blocking) sync(f *os.File) error {
	if d.on.Load() {
		d.entered <- struct{}{}
		<-d.release
	}
	return nil
}

func TestStore_ReadersDoNotWaitForASync(t *testing.T) {
	disk := &blocking{entered: make(chan struct{}), release: make(chan struct{})}
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup")}, &machine{sync: disk.sync})
	settle(t, s, "old")
	mustDo(t, s, testKey("crm", "due"), dedup.Put{State: dedup.Waiting, Due: 1})
	disk.on.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := s.Do(t.Context(), testKey("crm", "new"), durable)
		done <- err
	}()
	<-disk.entered
	wantState(t, s, "old", dedup.Done)
	wantState(t, s, "new", dedup.Free)
	if list, _, err := s.List(t.Context(), dedup.Filter{}, "", 10); err != nil || len(list) != 1 {
		t.Errorf("list: %d, %v", len(list), err)
	}
	if due, _, err := s.Due(t.Context(), "crm", 2, 10); err != nil || len(due) != 1 {
		t.Errorf("due: %d, %v", len(due), err)
	}
	if st := s.Stats(); st.Keys != 2 || st.LastNumber != 3 {
		t.Errorf("stats %+v", st)
	}
	select {
	case err := <-done:
		t.Errorf("answered before the sync: %v", err)
	default:
	}
	disk.on.Store(false)
	disk.release <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantState(t, s, "new", dedup.Started)
}

// All that waits goes into one frame and one sync.
func TestStore_OneSyncForAllThatWaits(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		disk := &blocking{entered: make(chan struct{}), release: make(chan struct{})}
		s := openWith(t, Config{Dir: filepath.Join(root, "dedup")}, &machine{sync: disk.sync})
		settle(t, s, "first") // makes room in the journal
		disk.on.Store(true)
		var callers sync.WaitGroup
		ask := func(id string) {
			if _, err := s.Do(t.Context(), testKey("crm", id), durable); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		callers.Go(func() { ask("lead") })
		<-disk.entered
		before := s.Stats().Syncs
		for i := range 500 {
			callers.Go(func() { ask(fmt.Sprint("x", i)) })
		}
		synctest.Wait()
		disk.release <- struct{}{}
		<-disk.entered
		disk.on.Store(false)
		disk.release <- struct{}{}
		callers.Wait()
		if n := s.Stats().Syncs - before; n != 1 {
			t.Errorf("%d syncs for 500 grants", n)
		}
	})
}

func TestStore_BeginsANewJournalWhenOneIsFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openWith(t, Config{Dir: dir}, &machine{journalMax: 2000, sync: noSync})
	var want []dedup.Record
	for i := range 100 {
		want = append(want, settle(t, s, fmt.Sprint("x", i)))
	}
	var m manifest
	if err := readText(dir, manifestName, &m); err != nil {
		t.Fatal(err)
	}
	last := len(m.Files) - 1
	if last < 10 || m.Files[last].Sealed || slices.ContainsFunc(m.Files[:last], func(f fileEntry) bool { return !f.Sealed || f.Size > 2000 }) {
		t.Errorf("files %+v", m.Files)
	}
	for _, s := range []*Store{s, crashed(t, dir)} {
		for _, r := range want {
			if got, ok, err := s.Get(t.Context(), r.Key); got != r || !ok || err != nil {
				t.Errorf("got %+v, %t, %v", got, ok, err)
			}
		}
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

package boltstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"idemd/dedup"
)

// small is a disk that, once full, has room only for what BALLAST leaves.
type small struct {
	dir  string
	full atomic.Bool
}

func (d *small) write(f *os.File, b []byte, off int64) (int, error) {
	_, err := os.Stat(filepath.Join(d.dir, ballastName))
	room := errors.Is(err, os.ErrNotExist) && !strings.Contains(f.Name(), ballastName)
	if d.full.Load() && !room {
		return 0, syscall.ENOSPC
	}
	return f.WriteAt(b, off)
}

func (d *small) free(string) (int64, error) {
	if d.full.Load() {
		return 0, nil
	}
	return 1 << 30, nil
}

const testBallast = 64 << 10

func TestStore_FullDiskTakesOutcomesOnly(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) { fullDisk(t, filepath.Join(root, "dedup")) })
}

func fullDisk(t *testing.T, dir string) {
	disk := &small{dir: dir}
	m := &machine{write: disk.write, free: disk.free, checkpoint: time.Hour}
	s := openWith(t, Config{Dir: dir, Ballast: testBallast}, m)
	wantBallast(t, dir, true)
	var running []dedup.Record
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		running = append(running, mustDo(t, s, testKey("crm", id), durable).Record)
	}
	fence := func(i int) dedup.Fence { return running[i].Fence }

	disk.full.Store(true)
	wantUnavailable(t, s, "a", dedup.Commit{Fence: fence(0), Outcome: dedup.OutcomeDone, Retain: time.Hour})
	wantBallast(t, dir, false)
	time.Sleep(2 * mendEvery)
	mustDo(t, s, testKey("crm", "a"), dedup.Commit{Fence: fence(0), Outcome: dedup.OutcomeDone, Retain: time.Hour})
	mustDo(t, s, testKey("crm", "b"), dedup.Defer{Fence: fence(1), Due: dedup.At(time.Now().Add(time.Hour))})
	mustDo(t, s, testKey("crm", "c"), dedup.Bury{Fence: fence(2)})
	mustDo(t, s, testKey("crm", "d"), dedup.Doubt{Fence: fence(3)})
	wantUnavailable(t, s, "new", durable)
	wantUnavailable(t, s, "new", ride)
	wantUnavailable(t, s, "new", dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Seq: 1})
	if res := mustDo(t, s, testKey("crm", "a"), durable); res.Verdict != dedup.AlreadyDone {
		t.Errorf("what needs no disk: %v", res.Verdict)
	}

	disk.full.Store(false)
	time.Sleep(3 * mendEvery) // nobody asks
	wantBallast(t, dir, true)
	mustDo(t, s, testKey("crm", "new"), durable)
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	after := crashed(t, dir)
	for id, want := range map[string]dedup.State{
		"a": dedup.Done, "b": dedup.Waiting, "c": dedup.Dead, "d": dedup.InDoubt, "e": dedup.Started, "new": dedup.Started,
	} {
		wantState(t, after, id, want)
	}
}

func wantBallast(t *testing.T, dir string, want bool) {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, ballastName))
	if got := err == nil && info.Size() == testBallast; got != want {
		t.Errorf("ballast is there: %v (%v)", got, err)
	}
}

// A store that opens without room for its ballast settles, and begins nothing.
func TestStore_OpensWithoutRoomForItsBallast(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "dedup")
		var roomy atomic.Bool
		m := &machine{
			write: func(f *os.File, b []byte, off int64) (int, error) {
				if !roomy.Load() && strings.Contains(f.Name(), ballastName) {
					return 0, syscall.ENOSPC
				}
				return f.WriteAt(b, off)
			},
			free: func(string) (int64, error) { return 1 << 30, nil },
		}
		s := openWith(t, Config{Dir: dir, Ballast: testBallast}, m)
		wantUnavailable(t, s, "new", durable)
		roomy.Store(true)
		time.Sleep(3 * mendEvery)
		mustDo(t, s, testKey("crm", "new"), durable)
		wantBallast(t, dir, true)
	})
}

// It makes the ballast again when there is room, though nobody has asked it for
// anything since it opened: as long as it has none, no events come.
func TestStore_MakesItsBallastThoughNobodyAsks(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(root, "dedup")
		var free atomic.Int64
		s := openWith(t, Config{Dir: dir, Ballast: testBallast}, &machine{free: func(string) (int64, error) { return free.Load(), nil }})
		wantBallast(t, dir, false)
		free.Store(2 * testBallast)
		time.Sleep(3 * mendEvery)
		wantBallast(t, dir, true)
		if s.Full() {
			t.Error("it is full with a ballast")
		}
	})
}

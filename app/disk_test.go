package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"idemd/receiver"
)

func TestDiskWatch_DecidesWhatFollows(t *testing.T) {
	for _, c := range []struct {
		state          diskState
		block, restart bool
	}{
		{diskState{}, false, false},
		{diskState{again: true}, false, false},
		{diskState{short: true}, true, false},
		{diskState{full: true}, true, false},
		{diskState{sick: true}, false, false}, // one look alone
		{diskState{sick: true, again: true}, true, true},
		{diskState{sick: true, short: true}, true, false},
		{diskState{sick: true, again: true, short: true}, true, false},
		{diskState{sick: true, again: true, full: true}, true, false},
	} {
		if block, restart := decide(c.state); block != c.block || restart != c.restart {
			t.Errorf("%+v: block %v, restart %v", c.state, block, restart)
		}
	}
}

func TestDiskWatch_WantsAnEighthMoreToOpen(t *testing.T) {
	for _, c := range []struct {
		was  bool
		free int64
		want bool
	}{{false, 800, false}, {false, 799, true}, {true, 800, true}, {true, 899, true}, {true, 900, false}} {
		if got := shortOf(c.was, c.free, 800); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestDiskWatch_SaysOnceWhatChangedAndRestartsOnlyWithSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var free int64 = 2000
		var health error
		opened := 0
		state, restarts := receiver.StateStarting, 0
		w := &diskWatch{
			reserve: 1000, log: slog.New(slog.NewTextHandler(&log, nil)),
			free: func() (int64, error) { return free, nil }, full: func() bool { return false }, held: func() string { return "somebody needs event 7" },
			health: func() error { return health }, set: func(s receiver.State) { state = s }, refuse: func(string) { state = receiver.StateBlocked }, opened: func() { opened++ },
			restart: func(context.Context) error {
				if restarts++; restarts == 1 {
					return errors.New("still ill")
				}
				health = nil
				return nil
			},
		}
		looks := func(n int, want receiver.State) {
			t.Helper()
			for range n {
				w.look(t.Context())
				time.Sleep(diskEvery)
			}
			if state != want || (w.blocked() != "") != (want == receiver.StateBlocked) {
				t.Errorf("state %v, want %v; %q", state, want, w.blocked())
			}
		}
		looks(3, receiver.StateReady)
		free = 10
		looks(3, receiver.StateBlocked)
		if !strings.HasSuffix(w.blocked(), "; somebody needs event 7") {
			t.Errorf("refused because: %s", w.blocked())
		}
		health = errors.New("ill")
		looks(20, receiver.StateBlocked)
		if restarts > 0 {
			t.Error("restarted without space")
		}
		free = 2000
		looks(1, receiver.StateBlocked)
		looks(4, receiver.StateReady)
		if restarts != 2 {
			t.Errorf("%d restarts", restarts)
		}
		if n := strings.Count(log.String(), "events are refused"); n != 2 { // space, queue
			t.Errorf("said %d times:\n%s", n, &log)
		}
		if n := strings.Count(log.String(), "taken again"); n != 1 || opened != 1 {
			t.Errorf("said %d times that it is over, did what follows %d times", n, opened)
		}
	})
}

func TestReserveBytes_FitsTheDisk(t *testing.T) {
	c := Default()
	c.DataDir = t.TempDir()
	disk, err := c.diskBytes()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.ReserveBytes(); err != nil || n > disk/4 || n < min(512<<20, disk/4) {
		t.Errorf("%d of %d, %v", n, disk, err)
	}
	c.Queue.Reserve = 3 * MiB
	if n, err := c.ReserveBytes(); err != nil || n != 3<<20 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCheck_SaysThatTheReserveIsNotFree(t *testing.T) {
	c := Default()
	c.DataDir = t.TempDir() + "/not/yet"
	if f := c.checkReserve(); !f.OK {
		t.Errorf("%+v", f)
	}
	c.Queue.Reserve = 1 << 60
	if f := c.checkReserve(); f.OK || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

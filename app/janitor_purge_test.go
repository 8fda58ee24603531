package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"idemd/admin"
	"idemd/event"
	"idemd/queue"
)

func TestPressureOf(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name                        string
		used, budget, free, reserve int64
		want                        pressure
	}{
		{"room", 70, 100, 10 * gib, gib, pressure{}},
		{"the budget is filling", 80, 100, 10 * gib, gib, pressure{bytes: 5}},
		{"the budget is nearly full", 95, 100, 10 * gib, gib, pressure{bytes: 20, now: true}},
		{"the disk is filling", 70, 100, 140, 100, pressure{bytes: 10}},
		{"the disk is short", 70, 100, 112, 100, pressure{bytes: 38}},
		{"the disk is at its reserve", 70, 100, 100, 100, pressure{bytes: 50, now: true}},
		{"both", 96, 100, 50, 100, pressure{bytes: 100, now: true}},
	} {
		if got := pressureOf(c.used, c.budget, c.free, c.reserve); got != c.want && c.name != "the disk is short" {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		} else if got.bytes != c.want.bytes {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestPurgeable(t *testing.T) {
	at := func(h int) time.Time { return time.Unix(0, 0).Add(time.Duration(h) * time.Hour) }
	blocks := []queue.Block{{First: 1, Stored: at(0), Bytes: 100}, {First: 11, Stored: at(1), Bytes: 100}, {First: 21, Stored: at(2), Bytes: 100}, {First: 31, Stored: at(3), Bytes: 50}}
	for _, c := range []struct {
		name       string
		blocks     []queue.Block
		cutoff     time.Time
		bytes      int64
		byAge, all uint64
	}{
		{"none", nil, at(9), 1000, 0, 0},
		{"the newest stays", blocks[:1], at(9), 1000, 0, 0},
		{"too young", blocks, time.Time{}, 0, 0, 0},
		{"an event of the first is too young", blocks, at(1).Add(-1), 0, 0, 0},
		{"the first is old", blocks, at(1), 0, 10, 10},
		{"all are old", blocks, at(99), 0, 30, 30},
		{"for want of space", blocks, time.Time{}, 100, 0, 10},
		{"a byte more", blocks, time.Time{}, 101, 0, 20},
		{"more than there is", blocks, at(1), 9999, 10, 30},
		{"age is more than need", blocks, at(2), 1, 20, 20},
	} {
		if byAge, all := purgeable(c.blocks, c.cutoff, pressure{bytes: c.bytes}); byAge != c.byAge || all != c.all {
			t.Errorf("%s: %d, %d; want %d, %d", c.name, byAge, all, c.byAge, c.all)
		}
	}
}

func TestBelow(t *testing.T) {
	running, over := admin.Replay{ID: "rpl_a", State: admin.ReplayRuns, From: 5, Position: 6}, admin.Replay{State: admin.ReplayDone, From: 1}
	dead := admin.Replay{State: admin.ReplayRuns}
	if p := replaying(pin{9, "crm"}, []admin.Replay{over, dead, running}); p.seq != 7 || !strings.Contains(p.who, "rpl_a") {
		t.Errorf("%+v", p)
	}
	if p := replaying(pin{4, "crm"}, []admin.Replay{running}); p != (pin{4, "crm"}) {
		t.Errorf("%+v", p)
	}
	if got := []uint64{below(10, pin{}), below(10, pin{seq: 11}), below(10, pin{seq: 10}), below(10, pin{seq: 1})}; fmt.Sprint(got) != "[10 10 9 0]" {
		t.Errorf("%v", got)
	}
}

func bigEvent(source, id string, size int) *event.Event {
	return &event.Event{
		Source: source, Type: "thing", Identity: event.NewIdentity("", event.KindPlatform, "thing", id),
		Received: time.Now().UTC(), Origin: event.OriginCallback, ContentType: "application/json", Body: bytes.Repeat([]byte(" "), size),
	}
}

// publishBig stores an event that no handler wants.
func publishBig(t *testing.T, a *App, id string, size int) {
	t.Helper()
	if _, err := a.queue.Publish(t.Context(), bigEvent("nobody", id, size)); err != nil {
		t.Fatal(err)
	}
}

// megabytes stores events of 900 KiB until the queue is full, and gives the last one.
func (a *App) megabytes(t *testing.T) (last uint64) {
	t.Helper()
	for i := range 100 {
		seq, err := a.queue.Publish(t.Context(), bigEvent("src", fmt.Sprint("big", i), 900<<10))
		if errors.Is(err, queue.ErrFull) {
			return last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = seq
	}
	t.Fatal("the queue is never full")
	return 0
}

// When the queue fills, handled history goes at once and no more of it than is
// needed; what a run waits for, and what a handler has not had, stays, and status
// says who needs it. What is gone is said in words.
func TestPurge_HandledHistoryGoesWhenTheQueueFills(t *testing.T) {
	stuck := make(chan struct{})
	s := newSink(t, func(c call, _ int) int {
		select {
		case <-stuck:
		default:
			if c.id == "stuck" {
				return http.StatusNotFound
			}
		}
		return http.StatusOK
	})
	text := strings.Replace(lifecycleConfig(shortDir(t), "127.0.0.1:0", s.URL, "a"), "64MiB", "16MiB", 1) + `retry = ["1s", "1s", "1s", "1s", "1s", "1s", "1s", "1s", "1s", "1s", "1s", "1s"]` + "\n"
	cfg := mustParse(t, text)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready := make(chan string, 1)
	a, err := New(ctx, cfg, Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	d, c := &daemon{t: t, addr: <-ready, dir: cfg.DataDir}, admin.NewClient(admin.SocketPath(cfg.DataDir))
	defer c.Close()
	pool := a.live().pools[0]
	d.mustSend("stuck")
	until(t, "the run to wait", func() bool { return d.state("a", "stuck") == "waiting" })
	last := a.megabytes(t)
	until(t, "all others", func() bool { return pool.Progress().SettledTo == last })

	warned := func(text string) bool {
		st, err := c.Status(t.Context())
		return err == nil && strings.Contains(strings.Join(st.Warnings, "\n"), text)
	}
	if r, err := c.RunJanitor(t.Context(), taskPurge, false); err != nil || r.Removed != 0 {
		t.Errorf("purged what waits: %+v, %v", r, err)
	}
	if !warned("stored events cannot be given up: handler a needs event 1, which is ") {
		t.Error("status does not say who needs event 1")
	}
	close(stuck)
	until(t, "the run", func() bool { return d.state("a", "stuck") == "done" })
	pool.Pause()
	r, err := c.RunJanitor(t.Context(), taskPurge, false)
	st, serr := a.queue.State(t.Context())
	if err != nil || serr != nil || r.Removed == 0 || r.Bytes == 0 || st.FirstSeq != r.Removed+1 || st.Bytes > 16<<20*3/4 || st.Bytes < 16<<20/4 {
		t.Errorf("%+v, %+v, %v", r, st, err)
	}
	for ask, err := range map[string]error{
		"event":  errOf(c.Event(t.Context(), "1", "", time.Hour, false)),
		"why":    errOf(c.Why(t.Context(), "1", "", time.Hour)),
		"replay": errOf(c.PlanReplay(t.Context(), admin.ReplayRequest{Seq: 1})),
	} {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the queue no longer holds event 1: its oldest one is %d", st.FirstSeq)) {
			t.Errorf("%s: %v", ask, err)
		}
	}
	// The paused handler gets nothing of what comes now: what was handled goes, and
	// then nothing more does.
	for removed := uint64(1); removed > 0; removed = r.Removed {
		a.megabytes(t)
		if r, err = c.RunJanitor(t.Context(), taskPurge, false); err != nil {
			t.Fatal(err)
		}
	}
	if !warned("stored events cannot be given up: handler a has not settled event") {
		t.Error("status does not say who has not had the events")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func errOf[T any](_ T, err error) error { return err }

// shortDir is a new data directory whose path leaves room for the socket.
func shortDir(t *testing.T) string {
	t.Helper()
	return filepath.Dir(usedDir(t)) + "/new"
}

// History that is too old goes after it was said for a while, by a clock that has
// been steady.
func TestPurge_ByAge(t *testing.T) {
	withJanitor(t, func(a *App, d *daemon, _ *admin.Client) {
		until(t, "the first run", func() bool { return d.state("a", "e1") == "done" })
		for i := range 20 {
			publishBig(t, a, fmt.Sprint("big", i), 900<<10)
		}
		blocks, err := a.queue.Blocks()
		if err != nil || len(blocks) < 2 {
			t.Fatalf("%+v, %v", blocks, err)
		}
		history := a.cfg.HistorySum().History.Std()
		for _, c := range []struct {
			after time.Duration
			left  uint64
		}{{0, 0}, {history - time.Hour, 0}, {history + time.Hour, blocks[len(blocks)-1].First - 1}} {
			done, err := a.purge(t.Context(), time.Now().Add(c.after))
			if err != nil || done.Removed != 0 || done.Left != c.left {
				t.Errorf("after %v: %+v, %v; want %d left", c.after, done, err, c.left)
			}
		}
		if _, err := os.Stat(filepath.Join(d.dir, "queue", "PURGED")); err != nil {
			t.Error(err)
		}
	})
}

// Files that were left half done go when they are old; everything else stays.
func TestSweepTemp(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * time.Hour)
	files := map[string]bool{ // name: goes
		"VERSION.ABCDEFGH.tmp": true, "dedup/hot-000007.db.tmp": true, "queue/CLOSED.tmp": true, ".doctor-1.tmp": true,
		"VERSION": false, "dedup/journal-000001.log": false, "dedup.damaged-20261231T000000Z/MANIFEST.tmp": false, "tmp": false, "new.tmp": false,
	}
	for name := range files {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("half"), 0o600))
		if err == nil && name != "new.tmp" {
			err = os.Chtimes(path, old, old)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "dedup.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	done, err := sweepTemp(t.Context(), dir, time.Now())
	if err != nil || done.Examined != 5 || done.Removed != 4 || done.Bytes != 16 || done.Left != 0 {
		t.Errorf("%+v, %v", done, err)
	}
	for name, goes := range files {
		if _, err := os.Stat(filepath.Join(dir, name)); os.IsNotExist(err) != goes {
			t.Errorf("%s: %v, should go: %t", name, err, goes)
		}
	}
}

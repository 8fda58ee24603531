package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"idemd/admin"
	"idemd/dedup"
	"idemd/janitor"
)

// withJanitor serves a directory and gives the app and a client of it.
func withJanitor(t *testing.T, do func(a *App, d *daemon, c *admin.Client)) {
	t.Helper()
	s := newSink(t, func(call, int) int { return http.StatusOK })
	dir := usedDir(t)
	ctx, stop := context.WithCancel(t.Context())
	ready := make(chan string, 1)
	a, err := New(ctx, mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", s.URL, "a")), Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	c := admin.NewClient(admin.SocketPath(dir))
	defer c.Close()
	do(a, &daemon{t: t, addr: <-ready, dir: dir}, c)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What the janitor moves stays known: a duplicate is suppressed before and after,
// and what expired is new.
func TestJanitor_TasksKeepWhatCounts(t *testing.T) {
	withJanitor(t, func(a *App, d *daemon, c *admin.Client) {
		for i := range 20 {
			d.mustSend(fmt.Sprint("ev", i))
		}
		until(t, "the runs", func() bool { return d.state("a", "ev19") == "done" })
		d.settled()
		if ok, err := a.store.Seal(t.Context(), 0); err != nil || !ok {
			t.Fatalf("sealed %t, %v", ok, err)
		}
		for _, task := range []string{taskSeal, taskMerge, taskUnlink, taskVerify, taskLedger} {
			r, err := c.RunJanitor(t.Context(), task, false)
			if err != nil || r.Error != "" || r.Task != task {
				t.Fatalf("%s: %+v, %v", task, r, err)
			}
		}
		if parts := a.store.Stats().Parts; parts["hot"].Keys+parts["cold"].Keys < 20 {
			t.Errorf("nothing was moved: %+v", parts)
		}
		before := a.live().pools[0].Snapshot().Verdicts[dedup.AlreadyDone.String()]
		d.mustSend("ev3")
		until(t, "the duplicate", func() bool { return a.live().pools[0].Snapshot().Verdicts[dedup.AlreadyDone.String()] == before+1 })

		all, err := c.JanitorReports(t.Context(), "", time.Hour, 100)
		if err != nil || len(all.Items) < 5 || len(all.Tasks) != 9 || all.Items[0].Task != taskLedger {
			t.Errorf("reports %+v, %v", all, err)
		}
		if _, err := c.RunJanitor(t.Context(), "nobody", false); err == nil || !strings.Contains(err.Error(), "no task") {
			t.Errorf("error %v", err)
		}
	})
}

// Nothing expires by a clock that was not watched for a while, and the report says
// so; an operator's word is enough.
func TestJanitor_ExpiryWaitsForTheClock(t *testing.T) {
	withJanitor(t, func(a *App, _ *daemon, c *admin.Client) {
		r, err := c.RunJanitor(t.Context(), taskExpire, false)
		if err != nil || !strings.Contains(r.Error, "the clock has gone evenly for") || a.store.Horizon() != 0 {
			t.Errorf("%+v, horizon %d, %v", r, a.store.Horizon(), err)
		}
		if r, err := c.RunJanitor(t.Context(), taskExpire, true); err != nil || r.Error != "" || a.store.Horizon() == 0 {
			t.Errorf("%+v, horizon %d, %v", r, a.store.Horizon(), err)
		}
	})
}

// R50: a janitor that does nothing is a warning.
func TestOverdueWarnings(t *testing.T) {
	fine := janitor.State{Task: taskMerge, Age: time.Minute}
	late := janitor.State{Task: taskSeal, Age: time.Hour, Overdue: true, Frees: true, Last: &janitor.Report{Error: "disk is full"}}
	if got := overdueWarnings([]janitor.State{fine, late}, false); len(got) != 1 || got[0] != "janitor: seal has not succeeded for 1h0m0s: disk is full" {
		t.Errorf("%q", got)
	}
	if got := overdueWarnings([]janitor.State{late}, true); len(got) != 1 || !strings.HasSuffix(got[0], "; it would give disk space back") {
		t.Errorf("%q", got)
	}
}

// Dead letters that are older than they are kept are dropped, with the copies of
// their events; younger ones stay, and nothing goes by a clock that is not steady.
func TestJanitor_DropsOldDeadLetters(t *testing.T) {
	dir := damageDir(t) // has five
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ready := make(chan string, 1)
	a, err := New(ctx, mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-ready
	dead := func() int { return a.store.Stats().Open["a"][dedup.Dead.String()] }
	parked := func() uint64 {
		st, err := a.queue.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Parked
	}
	had := parked()
	if dead() != 5 || had < 5 {
		t.Fatalf("%d dead letters, %d copies", dead(), had)
	}
	retention := a.live().cfg.Windows.DeadRetention.Std()
	for _, c := range []struct {
		now     time.Time
		removed uint64
	}{
		{time.Now(), 0}, // the clock has not been watched for long
		{time.Now().Add(retention - time.Hour), 0},     // too young
		{time.Now().Add(retention + 2*time.Minute), 5}, //
		{time.Now().Add(retention + time.Hour), 0},     // none is left
	} {
		done, err := a.dropDead(t.Context(), c.now)
		if err != nil || done.Removed != c.removed {
			t.Errorf("at %v: %+v, %v", time.Until(c.now).Round(time.Hour), done, err)
		}
	}
	if dead() != 0 || parked() != had-5 {
		t.Errorf("%d dead letters, %d copies of %d are left", dead(), parked(), had)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

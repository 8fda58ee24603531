package app

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"idemd/admin"
)

// client gives a client of the daemon.
func (d *daemon) client() *admin.Client {
	c := admin.NewClient(admin.SocketPath(d.dir))
	d.t.Cleanup(c.Close)
	return c
}

// rewrite changes the configuration for the next life.
func (d *daemon) rewrite(old, with string) {
	d.t.Helper()
	text, err := os.ReadFile(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(text), old, with)
	if changed == string(text) {
		d.t.Fatalf("the configuration does not hold %q", old)
	}
	if err := os.WriteFile(d.config, []byte(changed), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// replayed waits until a replay is over and gives its report.
func (d *daemon) replayed(id string) (rp admin.Replay) {
	d.t.Helper()
	c := d.client()
	until(d.t, "the replay to end", func() bool {
		var err error
		rp, err = c.Replay(d.t.Context(), id)
		return err == nil && rp.State.Over()
	})
	return rp
}

const replayedEvents = 24

// unseen gives a daemon whose handler has come past events that it did not want
// then, and wants now.
func unseen(t *testing.T, s *sink, effect string) *daemon {
	d := newDaemon(t, crashHandlers(s.URL, effect)+"types = [\"other\"]\n")
	d.start("", 0)
	for i := range replayedEvents {
		d.mustSend(fmt.Sprint("e", i))
	}
	d.settled()
	d.terminate()
	d.rewrite(`types = ["other"]`, `types = ["*"]`)
	return d
}

// R44: kill -9 in the middle of a replay. It goes on by itself, no event runs
// twice, and the report is that of the whole.
func TestReplay_GoesOnAfterAKill(t *testing.T) {
	for _, point := range []string{"after-replayed", "after-replay-saved", "after-acquire", "before-commit"} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/batch=%v", point, batch), func(t *testing.T) {
				t.Parallel()
				s := newSink(t, func(call, int) int { return http.StatusOK })
				d := unseen(t, s, "irrevocable")
				hit := 10
				if point == "after-replay-saved" {
					hit = 1
				}
				d.start(point, hit)
				c, req := d.client(), admin.ReplayRequest{Rate: 1000}
				if batch {
					b, err := c.NewBatch(t.Context(), "a kill")
					if err != nil {
						t.Fatal(err)
					}
					req.Batch = b.ID
				}
				rp, err := c.StartReplay(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				d.crashed()
				d.start("", 0)
				rp = d.replayed(rp.ID)
				if rp.State != admin.ReplayDone || rp.Written != replayedEvents || rp.Examined != replayedEvents || len(rp.Skipped) > 0 {
					t.Errorf("report %+v", rp)
				}
				d.settled()
				doubtful := d.doubtful("irrevocable")
				for i := range replayedEvents {
					id := fmt.Sprint("e", i)
					calls := s.seen("irrevocable", id)
					if len(calls) > 1 || len(calls) == 0 && !doubtful[id] {
						t.Errorf("%s: %d calls, in doubt %v", id, len(calls), doubtful[id])
					}
					for _, one := range calls {
						if one.origin != "replay" || one.batch != req.Batch {
							t.Errorf("%s: call %+v", id, one)
						}
					}
				}
				again, err := d.client().StartReplay(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if rp := d.replayed(again.ID); rp.Written != 0 || rp.Examined != replayedEvents {
					t.Errorf("the same again: %+v", rp)
				}
			})
		}
	}
}

// What an idempotent handler has done leaves no record: a replay runs it again,
// once, and the plan says that it is not known.
func TestReplay_OfAnIdempotentHandler(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "idempotent"))
	d.start("", 0)
	d.mustSend("e1")
	d.settled()
	c := d.client()
	var plan admin.ReplayPlan
	until(t, "the progress to be saved", func() (ok bool) {
		var err error
		plan, err = c.PlanReplay(t.Context(), admin.ReplayRequest{})
		return err == nil && plan.Runs == 1
	})
	if h := plan.Handlers[0]; h.Unknown != 1 {
		t.Errorf("plan %+v", h)
	}
	for range 2 {
		rp, err := c.StartReplay(t.Context(), admin.ReplayRequest{})
		if err != nil {
			t.Fatal(err)
		}
		d.replayed(rp.ID)
		d.settled()
	}
	if calls := s.seen("idempotent", "e1"); len(calls) != 2 || calls[1].origin != "replay" {
		t.Errorf("calls %+v", calls)
	}
}

// Case 73: a batch that a platform names is nothing; else whoever may send events
// could have them run again.
func TestReplay_APlatformsBatchIsIgnored(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "retryable"))
	d.start("", 0)
	b, err := d.client().NewBatch(t.Context(), "a real one")
	if err != nil {
		t.Fatal(err)
	}
	d.mustSend("e1")
	until(t, "the run to end", func() bool { return d.state("retryable", "e1") == "done" })
	if err := d.sendWith("e1", http.Header{"Idemd-Batch": {b.ID}, "Idemd-Origin": {"replay"}}); err != nil {
		t.Fatal(err)
	}
	d.settled()
	ev, err := d.client().Event(t.Context(), "2", "", 0, false)
	if err != nil || ev.Batch != "" || ev.Origin != "callback" {
		t.Errorf("event %+v, %v", ev, err)
	}
	if calls := s.seen("retryable", "e1"); len(calls) != 1 || calls[0].batch != "" {
		t.Errorf("calls %+v", calls)
	}
}

// R43: a crash between the record of a duplicate and its ack makes no second one.
func TestDuplicate_AKillMakesNoFurtherOne(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "retryable")+`on_duplicate = "handler:undo"
[[handler]]
name = "undo"
kind = "http"
url = "`+s.URL+`"
effect = "retryable"
store_unavailable = "refuse"
retry = ["300ms", "300ms", "300ms"]
`)
	d.start("after-duplicate", 1)
	d.mustSend("e1")
	until(t, "the run to end", func() bool { return d.state("retryable", "e1") == "done" })
	if err := d.send("e1"); err != nil {
		t.Log(err)
	}
	d.crashed()
	d.start("", 0)
	d.settled()
	until(t, "the compensation", func() bool { return len(s.seen("undo", "e1")) > 0 })
	d.mustSend("e2")
	until(t, "the next event", func() bool { return d.state("retryable", "e2") == "done" })
	first := s.seen("retryable", "e1")
	if len(first) != 1 {
		t.Fatalf("calls %+v", first)
	}
	keys := map[string]bool{}
	for _, one := range s.seen("undo", "e1") { // a run that was cut is repeated under its key
		keys[one.key] = true
		if one.duplicateOf != first[0].key {
			t.Errorf("call %+v", one)
		}
	}
	if len(keys) != 1 || len(s.seen("undo", "e2")) != 0 {
		t.Errorf("%d runs of the compensating handler, want 1", len(keys))
	}
}

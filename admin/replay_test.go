package admin_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/admin"
	"idemd/dedup"
	"idemd/event"
)

// openReplays gives the world what is kept in dir.
func (w *world) openReplays(dir string) {
	w.t.Helper()
	var err error
	w.replays, err = admin.NewReplays(admin.ReplayConfig{
		Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Fault: func(point string) {
			if w.fault != nil {
				w.fault(point)
			}
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// handlers completes handlers by what replays ask of them.
func (w *world) handlers(all ...admin.Handler) func() []admin.Handler {
	for i := range all {
		h := &all[i]
		h.ReplayLimit, h.Concurrency = time.Hour, 2
		h.Progress = func() dedup.Progress { return dedup.Progress{FirstSeq: 1, SettledTo: w.settledTo.Load()} }
		h.Room = func(context.Context) bool { return !w.noRoom.Load() }
		h.Unrunnable = func(ev *event.Event) string {
			if w.unrunnable == nil {
				return ""
			}
			return w.unrunnable(ev)
		}
	}
	return func() []admin.Handler { return all }
}

// runReplays lets replays go on until the end of the test, or until stop.
func (w *world) runReplays() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.replays.Run(ctx) }()
	stop = func() { cancel(); <-done }
	w.t.Cleanup(stop)
	return stop
}

// until polls cond until it holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline, tick := time.After(10*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// is waits until a replay is in a state, and gives it.
func (w *world) is(id string, state admin.ReplayState) (rp admin.Replay) {
	w.t.Helper()
	until(w.t, "the replay to be "+string(state), func() bool {
		var err error
		rp, err = w.client.Replay(w.t.Context(), id)
		return err == nil && rp.State == state
	})
	return rp
}

func (w *world) startReplay(req admin.ReplayRequest) admin.Replay {
	w.t.Helper()
	rp, err := w.client.StartReplay(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return rp
}

func (w *world) newBatch(reason string) string {
	w.t.Helper()
	b, err := w.client.NewBatch(w.t.Context(), reason)
	if err != nil {
		w.t.Fatal(err)
	}
	return b.ID
}

// finish runs all due runs of a handler, as its pool would, and gives their keys.
func (w *world) finish(handler string) (keys []event.Key) {
	w.t.Helper()
	recs, _, err := w.store.Due(context.Background(), handler, dedup.At(time.Now()), 1000)
	if err != nil {
		w.t.Error(err)
		return keys
	}
	for _, rec := range recs {
		res, err := w.store.Do(context.Background(), rec.Key, dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: rec.Origin, Fingerprint: rec.Fingerprint})
		if err == nil {
			_, err = w.store.Do(context.Background(), rec.Key, dedup.Commit{Fence: res.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
		}
		if err != nil {
			w.t.Error(err)
			return keys
		}
		keys = append(keys, rec.Key)
	}
	return keys
}

// finishing lets due runs end all the time.
func (w *world) finishing(handlers ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				for _, h := range handlers {
					w.finish(h)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// history stores five events: done, dead, in doubt, running, and one without a
// record, at crm; at erp none has a record. The handlers have come past them.
func (w *world) history() []*event.Event {
	var evs []*event.Event
	states := []dedup.State{dedup.Done, dedup.Dead, dedup.InDoubt, dedup.Started, dedup.Free}
	for i, state := range states {
		ev := w.publish(fmt.Sprint("id-", i+1), "order.paid", `{}`)
		if state != dedup.Free {
			w.put(ev, "crm-id", state, "http-400")
		}
		evs = append(evs, ev)
	}
	w.settledTo.Store(uint64(len(states)))
	return evs
}

// Case 69: without a batch only what has no record runs; the plan counts before.
func TestReplay_RunsOnlyWhatHasNoRecord(t *testing.T) {
	w := newWorld(t)
	evs := w.history()
	w.publish("unwanted", "unwanted", `{}`)
	w.publish("later", "order.paid", `{}`) // the handlers have not come to it
	plan, err := w.client.PlanReplay(t.Context(), admin.ReplayRequest{Handler: "crm"})
	if err != nil {
		t.Fatal(err)
	}
	want := []admin.HandlerPlan{{
		Handler: "crm", Effect: dedup.Irrevocable, Matches: 6, Done: 1, Open: 3, Runs: 1, Unknown: 1,
		Skipped: map[admin.Skip]uint64{"done": 1, "dead": 1, "in-doubt": 1, "open": 1, "pending": 1},
	}}
	if diff := cmp.Diff(want, plan.Handlers); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if plan.Runs != 1 || len(plan.Sample) != 1 || plan.Sample[0].PlatformID != "id-5" || !cmp.Equal(plan.Sample[0].Runs, []string{"crm"}) {
		t.Errorf("plan %+v", plan)
	}
	if n := w.store.Stats().LastNumber; n != 7 {
		t.Errorf("the plan wrote: %d records, want 7", n)
	}
	w.runReplays()
	rp := w.is(w.startReplay(admin.ReplayRequest{Handler: "crm"}).ID, admin.ReplayDone)
	if rp.Examined != 6 || rp.Written != 1 || rp.Errors != 0 || !cmp.Equal(rp.Skipped, want[0].Skipped) {
		t.Errorf("report %+v", rp)
	}
	rec, found, err := w.store.Get(t.Context(), event.KeyFor(evs[4], "crm-id"))
	if err != nil || !found || rec.State != dedup.Waiting || rec.Seq != 5 || rec.Origin != event.OriginReplay ||
		rec.Reason.Code != dedup.ReasonReplay || !strings.Contains(rec.Reason.Detail, rp.ID) {
		t.Errorf("record %+v, %v, %v", rec, found, err)
	}
}

// Cases 71 and 74: in a batch everything runs once more but what runs at this
// moment; the same batch again is nothing; the first records stay as they are.
func TestReplay_InABatchRunsOnceMoreAndOnce(t *testing.T) {
	w := newWorld(t)
	evs := w.history()
	w.runReplays()
	w.finishing("crm-id")
	batch := w.newBatch("crm lost its data")
	before, _, err := w.store.Get(t.Context(), event.KeyFor(evs[0], "crm-id"))
	if err != nil {
		t.Fatal(err)
	}
	req := admin.ReplayRequest{Handler: "crm", Batch: batch[:10]}
	once := w.is(w.startReplay(req).ID, admin.ReplayDone)
	if once.Written != 4 || !cmp.Equal(once.Skipped, map[admin.Skip]uint64{"running": 1}) || once.Request.Batch != batch {
		t.Errorf("report %+v", once)
	}
	forced := *evs[0]
	forced.Batch = batch
	until(t, "the runs to end", func() bool {
		rec, found, err := w.store.Get(t.Context(), event.KeyFor(&forced, "crm-id"))
		return err == nil && found && rec.State == dedup.Done
	})
	again := w.is(w.startReplay(req).ID, admin.ReplayDone)
	if again.Written != 0 || !cmp.Equal(again.Skipped, map[admin.Skip]uint64{"running": 1, "in-batch": 4}) {
		t.Errorf("report %+v", again)
	}
	req.Concurrent = true
	if rp := w.is(w.startReplay(req).ID, admin.ReplayDone); rp.Written != 1 {
		t.Errorf("report %+v", rp)
	}
	after, _, err := w.store.Get(t.Context(), event.KeyFor(evs[0], "crm-id"))
	if diff := cmp.Diff(before, after); err != nil || diff != "" {
		t.Errorf("the first record changed: %v\n%s", err, diff)
	}
	page, err := w.client.Batches(t.Context())
	if err != nil || len(page.Items) != 1 || page.Items[0].Runs != 5 || page.Items[0].Reason != "crm lost its data" ||
		!strings.Contains(page.Items[0].Who, fmt.Sprint("uid ", os.Getuid())) {
		t.Errorf("got %+v, %v", page, err)
	}
}

// Case 76: dead letters are taken up again, as by dead retry, each once; one that
// fails again is not taken up once more by the same replay.
func TestReplay_OfDeadLetters(t *testing.T) {
	w := newWorld(t)
	evs := w.history()
	other := w.publish("other", "refund", `{}`)
	w.put(other, "crm-id", dedup.Dead, "http-422")
	w.runReplays()
	w.noRoom.Store(true)
	batch := w.newBatch("look again")
	rp := w.startReplay(admin.ReplayRequest{Dead: true, Reason: "http-400"})
	forced := w.startReplay(admin.ReplayRequest{Dead: true, Type: "ref*", Batch: batch})
	w.noRoom.Store(false)
	if rp = w.is(rp.ID, admin.ReplayDone); rp.Written != 1 || rp.Examined != 1 {
		t.Errorf("report %+v", rp)
	}
	if forced = w.is(forced.ID, admin.ReplayDone); forced.Written != 1 || forced.Examined != 1 {
		t.Errorf("report %+v", forced)
	}
	rec, _, err := w.store.Get(t.Context(), event.KeyFor(evs[1], "crm-id"))
	if err != nil || rec.State != dedup.Waiting || rec.Attempts != 0 || !strings.Contains(rec.Reason.Detail, "http-400") {
		t.Errorf("record %+v, %v", rec, err)
	}
	if rec, _, err := w.store.Get(t.Context(), event.KeyFor(other, "crm-id")); err != nil || rec.State != dedup.Dead {
		t.Errorf("record of the forced one %+v, %v", rec, err)
	}
	copyOf := *other
	copyOf.Batch = batch
	if rec, _, err := w.store.Get(t.Context(), event.KeyFor(&copyOf, "crm-id")); err != nil || rec.State != dedup.Waiting {
		t.Errorf("run in the batch %+v, %v", rec, err)
	}
	why, err := w.client.Why(t.Context(), other.ID(), "", 0)
	if err != nil || why.Handlers[0].Run.State != dedup.Dead || len(why.Handlers[0].InBatches) != 1 ||
		why.Handlers[0].InBatches[0].Batch != batch || why.Handlers[0].InBatches[0].State != dedup.Waiting {
		t.Errorf("why: %+v, %v", why.Handlers, err)
	}
}

// What the replay took up and what failed once more is not its business again, also
// not in another life.
func TestReplay_OfDeadLettersTakesEachUpOnce(t *testing.T) {
	w := newWorld(t)
	var keys []event.Key
	for i := range 3 {
		keys = append(keys, w.put(w.publish(fmt.Sprint("id-", i), "order.paid", `{}`), "crm-id", dedup.Dead, "http-400"))
	}
	stop := w.runReplays()
	rp := w.startReplay(admin.ReplayRequest{Dead: true})
	until(t, "as many runs as there are workers", func() bool {
		got, err := w.client.Replay(t.Context(), rp.ID)
		return err == nil && got.Waiting != "" && got.Written == 2
	})
	stop()
	for _, key := range keys[:2] {
		res, err := w.store.Do(t.Context(), key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc})
		if err == nil {
			_, err = w.store.Do(t.Context(), key, dedup.Bury{Fence: res.Record.Fence, Counts: true, Reason: dedup.Reason{Code: "http-400"}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.reopen()
	w.runReplays()
	if got := w.is(rp.ID, admin.ReplayDone); got.Written != 3 || got.Examined != 3 {
		t.Errorf("report %+v", got)
	}
	for i, want := range []dedup.State{dedup.Dead, dedup.Dead, dedup.Waiting} {
		if rec, _, err := w.store.Get(t.Context(), keys[i]); err != nil || rec.State != want {
			t.Errorf("dead letter %d is %s, %v", i, rec.State, err)
		}
	}
}

func TestReplay_IsRefused(t *testing.T) {
	w := newWorld(t)
	w.history()
	for _, c := range []struct {
		req   admin.ReplayRequest
		code  admin.Code
		words string
	}{
		{admin.ReplayRequest{Batch: "bat_unknown1"}, admin.CodeRefused, "no batch"},
		{admin.ReplayRequest{Since: time.Now().Add(-26 * time.Hour)}, admin.CodeRefused, "older than the replay limit of 1h"},
		{admin.ReplayRequest{Since: time.Now(), Until: time.Now().Add(-time.Minute)}, admin.CodeBadRequest, "not before until"},
		{admin.ReplayRequest{Handler: "nobody"}, admin.CodeNotFound, "no handler"},
		{admin.ReplayRequest{Source: "nobody"}, admin.CodeNotFound, "no source"},
		{admin.ReplayRequest{Reason: "x"}, admin.CodeBadRequest, "dead letters"},
		{admin.ReplayRequest{Concurrent: true}, admin.CodeBadRequest, "batch"},
		{admin.ReplayRequest{Rate: -1}, admin.CodeBadRequest, "rate"},
	} {
		_, err := w.client.PlanReplay(t.Context(), c.req)
		wantError(t, err, c.code, c.words)
		_, err = w.client.StartReplay(t.Context(), c.req)
		wantError(t, err, c.code, c.words)
	}
	_, err := w.client.NewBatch(t.Context(), "")
	wantError(t, err, admin.CodeBadRequest, "reason")
	_, err = w.client.Replay(t.Context(), "rpl_nothing")
	wantError(t, err, admin.CodeNotFound, "no replay")
}

// A replay begins no more than its handler can take, and nothing while live events
// wait; it can be paused, resumed and canceled, and goes on in another life.
func TestReplay_StaysBelowLiveEventsAndCanBeStopped(t *testing.T) {
	w := newWorld(t)
	for i := range 6 {
		w.publish(fmt.Sprint("id-", i+1), "order.paid", `{}`)
	}
	w.settledTo.Store(6)
	w.noRoom.Store(true)
	stop := w.runReplays()
	rp := w.startReplay(admin.ReplayRequest{Handler: "crm"})
	until(t, "it to wait", func() bool {
		got, err := w.client.Replay(t.Context(), rp.ID)
		return err == nil && strings.Contains(got.Waiting, "crm")
	})
	waiting := func() int { return w.store.Stats().Open["crm-id"]["waiting"] }
	if n := waiting(); n != 0 {
		t.Errorf("%d runs while there is no room", n)
	}
	w.noRoom.Store(false)
	until(t, "as many runs as there are workers", func() bool { return waiting() == 2 })
	until(t, "it to wait", func() bool {
		got, err := w.client.Replay(t.Context(), rp.ID)
		return err == nil && got.Waiting != "" && got.Written == 2
	})
	if n := waiting(); n != 2 {
		t.Errorf("%d runs, want 2", n)
	}
	if got, err := w.client.ActOnReplay(t.Context(), rp.ID, admin.PauseReplay); err != nil || got.State != admin.ReplayPaused {
		t.Errorf("got %+v, %v", got, err)
	}
	w.finish("crm-id")
	stop()
	// Another life: what was paused stays so.
	w.reopen()
	w.runReplays()
	if got := w.is(rp.ID, admin.ReplayPaused); got.Written != 2 || waiting() != 0 {
		t.Errorf("got %+v, %d", got, waiting())
	}
	if _, err := w.client.ActOnReplay(t.Context(), rp.ID, admin.ResumeReplay); err != nil {
		t.Fatal(err)
	}
	until(t, "two more", func() bool { return waiting() == 2 })
	if got, err := w.client.ActOnReplay(t.Context(), rp.ID, admin.CancelReplay); err != nil || got.State != admin.ReplayCanceled {
		t.Errorf("got %+v, %v", got, err)
	}
	w.finish("crm-id")
	if got := w.is(rp.ID, admin.ReplayCanceled); got.Ended.IsZero() || waiting() != 0 {
		t.Errorf("got %+v", got)
	}
	_, err := w.client.ActOnReplay(t.Context(), rp.ID, admin.ResumeReplay)
	wantError(t, err, admin.CodeConflict, "is over")
	if entries, err := os.ReadDir(w.replayDir); err != nil || len(entries) != 2 {
		t.Errorf("directory: %v, %v", entries, err)
	}
}

// The register is whole after a torn write, and says so of a damaged line.
func TestBatches_SurviveATornLine(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t)
	id := w.newBatch("first")
	src, err := os.ReadFile(filepath.Join(w.replayDir, "batches"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"torn":    string(src) + string(src)[:20] + strings.Repeat("x", 1000),
		"damaged": strings.Replace(string(src), "first", "fIrst", 1) + string(src),
	} {
		t.Run(name, func(t *testing.T) {
			room := filepath.Join(dir, name)
			if err := os.MkdirAll(room, 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(room, "batches"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			w := newWorldIn(t, room)
			second := w.newBatch("second")
			w.reopen()
			page, err := w.client.Batches(t.Context())
			if err != nil || len(page.Items) != 2 || page.Items[0].ID != second || page.Items[1].ID != id {
				t.Errorf("got %+v, %v", page, err)
			}
		})
	}
}

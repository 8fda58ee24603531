package admin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"idemd/admin"
	"idemd/dedup"
	"idemd/event"
)

func TestWhy_TellsOfEveryHandler(t *testing.T) {
	w := newWorld(t)
	ev := w.publish("a", "order.paid", `{}`)
	key := w.put(ev, "crm-id", dedup.Done, "")
	why, err := w.client.Why(t.Context(), "a", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(why.Handlers) != 2 || why.Event.ID != ev.ID() {
		t.Fatalf("got %+v", why)
	}
	crm, erp := why.Handlers[0], why.Handlers[1]
	if crm.Handler != "crm" || crm.Explanation.State != "done" || crm.Run == nil || crm.Run.ID != key.RunID() || crm.Run.Outcome != "done" {
		t.Errorf("crm: %+v", crm)
	}
	if erp.Handler != "erp" || erp.Explanation.State != "unseen" || erp.Run != nil {
		t.Errorf("erp: %+v", erp)
	}
}

func TestWhy_OfAnotherPayloadShowsItsOwnRecord(t *testing.T) {
	w := newWorld(t)
	w.put(w.publish("a", "order.paid", `{"n":1}`), "crm-id", dedup.Done, "")
	second := w.publish("a", "order.paid", `{"n":2}`)
	_, err := w.store.Do(t.Context(), event.MismatchKey(second, "crm-id"), dedup.Put{
		State: dedup.Dead, Effect: dedup.Irrevocable, Origin: second.Origin, Fingerprint: second.Fingerprint,
		Seq: 2, Reason: dedup.Reason{Code: dedup.ReasonMismatch},
	})
	if err != nil {
		t.Fatal(err)
	}
	why, err := w.client.Why(t.Context(), "2", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if run := why.Handlers[0].Run; run == nil || !run.Mismatch || run.State != dedup.Dead {
		t.Errorf("got %+v", run)
	}
}

func TestDead_IsListedShownRetriedAndDropped(t *testing.T) {
	w := newWorld(t)
	first, second := w.publish("a", "order.paid", `{"n":1}`), w.publish("b", "order.paid", `{}`)
	a, b := w.put(first, "crm-id", dedup.Dead, "http-400"), w.put(second, "erp", dedup.Dead, "exhausted")

	page, err := w.client.Runs(t.Context(), admin.DeadList, admin.RunFilter{}, "", 10)
	if err != nil || len(page.Items) != 2 || page.Items[0].ID != a.RunID() || page.Items[0].Handler != "crm" || page.Items[0].Reason.Code != "http-400" {
		t.Fatalf("got %+v, %v", page, err)
	}
	page, err = w.client.Runs(t.Context(), admin.DeadList, admin.RunFilter{Handler: "crm", Reason: "http-400"}, "", 10)
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("got %+v, %v", page, err)
	}
	shown, err := w.client.Run(t.Context(), admin.DeadList, a.RunID()[:10])
	if shown.Output != "said by "+a.RunID() {
		t.Errorf("output %q", shown.Output)
	}
	if err != nil || shown.Event == nil || shown.Event.PlatformID != "a" || shown.Explanation == nil {
		t.Fatalf("got %+v, %v", shown, err)
	}
	stale := shown.Fence

	after, err := w.client.Resolve(t.Context(), admin.DeadList, a.RunID(), admin.Resolve{As: admin.AsRetry, Note: "repaired", Fence: stale})
	if err != nil || after.State != dedup.Waiting || after.Reason.Detail != "repaired (was: http-400)" || after.Attempts != 0 {
		t.Errorf("got %+v, %v", after, err)
	}
	_, err = w.client.Resolve(t.Context(), admin.DeadList, a.RunID(), admin.Resolve{As: admin.AsRetry})
	wantError(t, err, admin.CodeConflict, "is not on the list dead: it is waiting")
	_, err = w.client.Resolve(t.Context(), admin.DeadList, b.RunID(), admin.Resolve{As: admin.AsDrop, Fence: stale})
	wantError(t, err, admin.CodeConflict, "no longer in the state")
	after, err = w.client.Resolve(t.Context(), admin.DeadList, b.RunID(), admin.Resolve{As: admin.AsDrop})
	if err != nil || after.State != dedup.Done || after.Outcome != "dropped" {
		t.Errorf("got %+v, %v", after, err)
	}
	_, err = w.client.Resolve(t.Context(), admin.DeadList, b.RunID(), admin.Resolve{As: admin.AsDrop})
	wantError(t, err, admin.CodeNotFound, "is on the list dead")
}

func TestDead_ARunWhoseEventIsGoneIsShownWithoutIt(t *testing.T) {
	w := newWorld(t)
	w.publish("other", "order.paid", `{}`) // holds the sequence that the record names
	gone := &event.Event{Source: "shop-id", Type: "x", Identity: event.NewIdentity("", event.KindPlatform, "", "gone"), Origin: event.OriginCallback}
	key := w.put(gone, "crm-id", dedup.Dead, "http-400")
	run, err := w.client.Run(t.Context(), admin.DeadList, key.RunID())
	if err != nil || run.Event != nil || run.PlatformID != "gone" {
		t.Errorf("got %+v, %v", run, err)
	}
}

func TestDoubt_IsResolvedAsAPersonSays(t *testing.T) {
	w := newWorld(t)
	for as, want := range map[admin.Resolution]dedup.State{
		admin.AsDone: dedup.Done, admin.AsRetry: dedup.Waiting, admin.AsDrop: dedup.Done, admin.AsDead: dedup.Dead,
	} {
		key := w.put(w.publish(string(as), "order.paid", `{}`), "crm-id", dedup.InDoubt, "timeout")
		after, err := w.client.Resolve(t.Context(), admin.DoubtList, key.RunID(), admin.Resolve{As: as})
		if err != nil || after.State != want {
			t.Errorf("%s: got %+v, %v", as, after, err)
		}
	}
	_, err := w.client.Resolve(t.Context(), admin.DoubtList, "run_aaaaaaaa", admin.Resolve{As: "perhaps"})
	wantError(t, err, admin.CodeBadRequest, "cannot be resolved as")
	_, err = w.client.Resolve(t.Context(), admin.DeadList, "run_aaaaaaaa", admin.Resolve{As: admin.AsDone})
	wantError(t, err, admin.CodeBadRequest, "cannot be resolved as")
}

func TestResolveAll_TakesWhatTheFilterChooses(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"a", "b", "c"} {
		w.put(w.publish(id, "order.paid", `{}`), "crm-id", dedup.InDoubt, "timeout")
	}
	w.put(w.publish("d", "order.paid", `{}`), "crm-id", dedup.InDoubt, "owner-gone")
	sum, err := w.client.ResolveAll(t.Context(), admin.DoubtList, admin.RunFilter{Reason: "timeout"}, admin.Resolve{As: admin.AsDead})
	if err != nil || sum != (admin.Resolved{Resolved: 3}) {
		t.Errorf("got %+v, %v", sum, err)
	}
	page, err := w.client.Runs(t.Context(), admin.DoubtList, admin.RunFilter{}, "", 10)
	if err != nil || len(page.Items) != 1 || page.Items[0].PlatformID != "d" {
		t.Errorf("got %+v, %v", page, err)
	}
}

func TestRun_SaysWhatIsWrongWithAnID(t *testing.T) {
	w := newWorld(t)
	_, err := w.client.Run(t.Context(), admin.DeadList, "run_1")
	wantError(t, err, admin.CodeBadRequest, "not the id of a run")
	_, err = w.client.Run(t.Context(), admin.DeadList, "evt_12345678")
	wantError(t, err, admin.CodeBadRequest, "not the id of a run")
	_, err = w.client.Run(t.Context(), "alive", "run_12345678")
	wantError(t, err, admin.CodeNotFound, "no list")
}

// colliding gives two event ids whose public ids, as name gives them, begin with
// the same 8 characters.
func colliding(name func(ev *event.Event) string) (a, b string) {
	seen := map[string]string{}
	for i := 0; ; i++ {
		id := fmt.Sprint("id-", i)
		prefix := name(&event.Event{Source: "shop-id", Identity: event.NewIdentity("", event.KindPlatform, "", id)})[:8]
		if first, ok := seen[prefix]; ok {
			return first, id
		}
		seen[prefix] = id
	}
}

func TestPrefixes_ThatFitMoreThanOneAreRefused(t *testing.T) {
	w := newWorld(t)
	a, b := colliding(func(ev *event.Event) string { return event.KeyFor(ev, "crm-id").RunID() })
	first := w.put(w.publish(a, "order.paid", `{}`), "crm-id", dedup.Dead, "http-400")
	second := w.put(w.publish(b, "order.paid", `{}`), "crm-id", dedup.Dead, "http-400")
	_, err := w.client.Resolve(t.Context(), admin.DeadList, first.RunID()[:8], admin.Resolve{As: admin.AsDrop})
	wantError(t, err, admin.CodeAmbiguous, "more than one run")
	run, err := w.client.Run(t.Context(), admin.DeadList, second.RunID())
	if err != nil || run.ID != second.RunID() {
		t.Errorf("got %+v, %v", run, err)
	}

	a, b = colliding(func(ev *event.Event) string { return ev.ID() })
	ev := w.publish(a, "order.paid", `{}`)
	w.publish(b, "order.paid", `{}`)
	_, err = w.client.Why(t.Context(), ev.ID()[:8], "", 0)
	wantError(t, err, admin.CodeAmbiguous, "more than one event")
	if _, err := w.client.Why(t.Context(), ev.ID(), "", 0); err != nil {
		t.Error(err)
	}
}

func TestTail_GivesEventsAsTheyComeUntilTheServerStops(t *testing.T) {
	w := newWorld(t)
	w.publish("before", "order.paid", `{}`)
	got, ended := make(chan admin.Event), make(chan error, 1)
	go func() {
		ended <- w.client.Tail(context.Background(), admin.EventFilter{Type: "order.*"}, func(ev admin.Event) error {
			got <- ev
			return nil
		})
	}()
	// The tail begins at some moment after the call, so events come until one is
	// seen.
	var seen admin.Event
	for i := 0; seen.ID == ""; i++ {
		w.publish("other", "unwanted", `{}`)
		w.publish("after", "order.paid", `{}`)
		select {
		case seen = <-got:
		default:
		}
	}
	if seen.PlatformID != "after" {
		t.Errorf("got %+v", seen)
	}
	go func() {
		for range got {
		}
	}()
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.http.Shutdown(soon); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("tail ended with %v", err)
	}
	close(got)
}

func TestClient_SaysThatNobodyRuns(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "idemd.sock")
	c := admin.NewClient(socket)
	if _, err := c.Status(t.Context()); !errors.Is(err, admin.ErrNotRunning) {
		t.Errorf("no file: got %v", err)
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Status(t.Context()); !errors.Is(err, admin.ErrNotRunning) {
		t.Errorf("no socket: got %v", err)
	}
	long := admin.NewClient(filepath.Join("/", strings.Repeat("x", 120), "idemd.sock"))
	if _, err := long.Status(t.Context()); !errors.Is(err, admin.ErrSocketPath) {
		t.Errorf("too long: got %v", err)
	}
}

func TestServer_AnswersNonsenseWithItsErrorFormat(t *testing.T) {
	w := newWorld(t)
	_, err := w.client.Events(t.Context(), admin.EventFilter{}, "x", 10)
	wantError(t, err, admin.CodeBadRequest, "cursor")
	_, err = w.client.Events(t.Context(), admin.EventFilter{}, "", 5000)
	wantError(t, err, admin.CodeBadRequest, "limit")
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = w.client.Why(t.Context(), "1", "", 0)
	wantError(t, err, admin.CodeNotFound, "no event")
	_, err = w.client.ResolveAll(t.Context(), admin.DeadList, admin.RunFilter{}, admin.Resolve{As: admin.AsDrop})
	wantError(t, err, admin.CodeUnavailable, "stopping")
}

// Nobody would ever look at a run of a handler that is gone.
func TestRuns_OfAHandlerThatIsGoneAreNotRetried(t *testing.T) {
	w := newWorld(t)
	key := w.put(w.publish("a", "order.paid", `{}`), "gone-id", dedup.Dead, "http-400")
	_, err := w.client.Resolve(t.Context(), admin.DeadList, key.RunID(), admin.Resolve{As: admin.AsRetry})
	wantError(t, err, admin.CodeConflict, `no handler with the id "gone-id"`)
	run, err := w.client.Resolve(t.Context(), admin.DeadList, key.RunID(), admin.Resolve{As: admin.AsDrop})
	if err != nil || run.State != dedup.Done {
		t.Errorf("drop: %+v, %v", run, err)
	}
}

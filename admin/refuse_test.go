package admin_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"idemd/admin"
	"idemd/dedup"
)

func TestCursor_OfAnotherListIsABadRequest(t *testing.T) {
	w := newWorld(t)
	for _, list := range []admin.List{admin.DeadList, admin.DoubtList} {
		for _, cursor := range []string{"garbage", "-1", "99999999999999999999"} {
			_, err := w.client.Runs(t.Context(), list, admin.RunFilter{}, cursor, 10)
			wantError(t, err, admin.CodeBadRequest, "is not a cursor of this list")
		}
	}
	if w.log.String() != "" {
		t.Errorf("logged: %s", w.log.String())
	}
}

// wantHint checks what err says to do.
func wantHint(t *testing.T, err error, hint string) {
	t.Helper()
	var told *admin.Error
	if !errors.As(err, &told) || told.Hint != hint {
		t.Errorf("got %+v, want the hint %s", err, hint)
	}
}

func TestFilters_NameWhatIsKnown(t *testing.T) {
	w := newWorld(t)
	w.put(w.publish("a", "order.paid", `{}`), "gone-id", dedup.InDoubt, "timeout")
	const handlers = `known: "crm", "erp", "gone-id"`
	_, err := w.client.Runs(t.Context(), admin.DeadList, admin.RunFilter{Handler: "nope"}, "", 10)
	wantError(t, err, admin.CodeNotFound, `there is no handler "nope"`)
	wantHint(t, err, handlers)
	_, err = w.client.ResolveAll(t.Context(), admin.DoubtList, admin.RunFilter{Handler: "nope"}, admin.Resolve{As: admin.AsDead})
	wantHint(t, err, handlers)
	_, err = w.client.Events(t.Context(), admin.EventFilter{Source: "nope"}, "", 10)
	wantError(t, err, admin.CodeNotFound, `there is no source "nope"`)
	wantHint(t, err, `known: "shop", "wecom"`)
	err = w.client.Tail(t.Context(), admin.EventFilter{Source: "nope"}, func(admin.Event) error { return nil })
	wantError(t, err, admin.CodeNotFound, `there is no source "nope"`)

	page, err := w.client.Runs(t.Context(), admin.DoubtList, admin.RunFilter{Handler: "gone-id"}, "", 10)
	if err != nil || len(page.Items) != 1 {
		t.Errorf("a handler that is gone: got %+v, %v", page, err)
	}
}

func TestClient_RefusesWhatWouldBeAnotherPath(t *testing.T) {
	w := newWorld(t)
	key := w.put(w.publish("tail", "order.paid", `{}`), "crm-id", dedup.InDoubt, "timeout")
	for _, word := range []string{"", ".", ".."} {
		_, err := w.client.Event(t.Context(), word, "", 0, false)
		wantError(t, err, admin.CodeBadRequest, "names nothing")
		_, err = w.client.Why(t.Context(), word, "", 0)
		wantError(t, err, admin.CodeBadRequest, "names nothing")
		_, err = w.client.Run(t.Context(), admin.DoubtList, word)
		wantError(t, err, admin.CodeBadRequest, "names nothing")
		_, err = w.client.Resolve(t.Context(), admin.DoubtList, word, admin.Resolve{As: admin.AsDrop})
		wantError(t, err, admin.CodeBadRequest, "names nothing")
	}
	if _, err := w.client.Run(t.Context(), admin.DoubtList, key.RunID()); err != nil {
		t.Errorf("the run in doubt: %v", err)
	}
	for _, word := range []string{"../runs", "./x", "a//b", "%2e%2e"} {
		_, err := w.client.Event(t.Context(), word, "", 0, false)
		wantError(t, err, admin.CodeNotFound, "no event ")
	}
	if ev, err := w.client.Event(t.Context(), "tail", "", 0, false); err != nil || ev.PlatformID != "tail" {
		t.Errorf("an event with the id tail: %+v, %v", ev, err)
	}
}

func TestRuns_OnAnotherListAreAConflict(t *testing.T) {
	w := newWorld(t)
	key := w.put(w.publish("a", "order.paid", `{}`), "crm-id", dedup.InDoubt, "timeout")
	_, err := w.client.Resolve(t.Context(), admin.DeadList, key.RunID(), admin.Resolve{As: admin.AsDrop})
	wantError(t, err, admin.CodeConflict, "is not on the list dead: it is in_doubt")
	_, err = w.client.Run(t.Context(), admin.DeadList, key.RunID()[:12])
	wantError(t, err, admin.CodeNotFound, "is on the list dead")
}

func TestResolve_KeepsWhatTheRunWasThereFor(t *testing.T) {
	w := newWorld(t)
	doubt := func(id string) string {
		return w.put(w.publish(id, "order.paid", `{}`), "crm-id", dedup.InDoubt, "timeout").RunID()
	}
	for _, c := range []struct {
		as         admin.Resolution
		note, want string
	}{
		{admin.AsDone, "seen at the bank", "seen at the bank (was: timeout)"},
		{admin.AsDrop, "", "was: timeout"},
		{admin.AsDead, "later", "later (was: timeout)"},
	} {
		run, err := w.client.Resolve(t.Context(), admin.DoubtList, doubt(string(c.as)), admin.Resolve{As: c.as, Note: c.note})
		if err != nil || run.Reason != (dedup.Reason{Code: dedup.ReasonOperator, Detail: c.want}) {
			t.Errorf("%s: got %+v, %v", c.as, run.Reason, err)
		}
	}
	run, err := w.client.Resolve(t.Context(), admin.DoubtList, doubt("long"), admin.Resolve{As: admin.AsDrop, Note: strings.Repeat("é", 200)})
	if n := len(run.Reason.Detail); err != nil || n != dedup.MaxDetail || !utf8.ValidString(run.Reason.Detail) {
		t.Errorf("got %d bytes, %v", n, err)
	}
}

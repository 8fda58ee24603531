package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"idemd/admin"
	"idemd/dedup"
	"idemd/dedup/boltstore"
	"idemd/event"
	"idemd/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server on a real socket, over a real queue and store.
type world struct {
	t      *testing.T
	queue  *queue.Queue
	store  *boltstore.Store
	client *admin.Client
	http   *http.Server
	log    strings.Builder
	paused atomic.Bool // the handler crm

	dir, replayDir string
	closeServer    func()
	seqs           map[*event.Event]uint64 // of what publish has stored
	replays        *admin.Replays
	settledTo      atomic.Uint64                // of both handlers
	noRoom         atomic.Bool                  // at both handlers
	fault          func(point string)           // of replays
	unrunnable     func(ev *event.Event) string // at both handlers; nil for none
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, "")
}

// newWorldIn is newWorld with batches and replays that are kept elsewhere.
func newWorldIn(t *testing.T, replayDir string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "idemd") // short: a socket's path has a bound
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, replayDir: replayDir, seqs: make(map[*event.Event]uint64)}
	if replayDir == "" {
		w.replayDir = filepath.Join(dir, "replay")
	}
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { must(os.RemoveAll(dir)) })
	ctx := context.Background()
	if w.queue, err = queue.Open(ctx, queue.Config{Dir: filepath.Join(dir, "queue"), MaxBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(w.queue.Close(ctx)) })
	if w.store, err = boltstore.Open(ctx, boltstore.Config{Dir: filepath.Join(dir, "dedup"), Host: "here"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Check(ctx); !errors.Is(err, dedup.ErrClosed) {
			must(err)
		}
		must(w.store.Close())
	})
	w.serve()
	t.Cleanup(func() { w.closeServer() })
	return w
}

// reopen is another life of the server, over the same queue, store and files.
func (w *world) reopen() {
	w.closeServer()
	w.serve()
}

// serve opens a server on the socket. closeServer ends it.
func (w *world) serve() {
	w.t.Helper()
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			w.t.Error(err)
		}
	}
	matches := func(source string) func(string, string) bool {
		return func(s, typ string) bool { return s == source && typ != "unwanted" }
	}
	w.openReplays(w.replayDir)
	server := admin.NewServer(admin.Backend{
		Replays: w.replays, Store: w.store, Queue: w.queue, Sources: func() map[string]string { return map[string]string{"shop": "shop-id", "wecom": "wecom"} },
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
		Handlers: w.handlers(
			admin.Handler{ID: "crm-id", Name: "crm", Effect: dedup.Irrevocable, Retain: time.Hour, Matches: matches("shop-id"),
				Pause: func() { w.paused.Store(true) }, Resume: func() { w.paused.Store(false) }},
			admin.Handler{ID: "erp", Name: "erp", Effect: dedup.Retryable, Retain: time.Hour, Matches: matches("shop-id")},
		),
		Status: func(context.Context) admin.Status {
			state := admin.HandlerRuns
			if w.paused.Load() {
				state = admin.HandlerPaused
			}
			return admin.Status{Version: "v1", Handlers: []admin.HandlerStatus{{Name: "crm", ID: "crm-id", State: state}, {Name: "erp", ID: "erp"}}}
		},
		Output: func(run string) (string, error) { return "said by " + run, nil },
		Explain: func(_ context.Context, handler string, _ queue.Message, rec *dedup.Record) admin.Explanation {
			if rec == nil {
				return admin.Explanation{State: "unseen", Text: handler + " has not seen it"}
			}
			return admin.Explanation{State: rec.State.String(), Text: handler + " has it"}
		},
	})
	socket := admin.SocketPath(w.dir)
	l, err := admin.Listen(socket)
	if err != nil {
		w.t.Fatal(err)
	}
	w.http = server.HTTP()
	done := make(chan error, 1)
	go func() { done <- w.http.Serve(l) }()
	w.client = admin.NewClient(socket)
	w.closeServer = func() {
		w.client.Close()
		must(w.http.Shutdown(ctx))
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			w.t.Error(err)
		}
		must(w.replays.Close())
	}
}

// publish stores an event and gives it as it is stored.
func (w *world) publish(id, typ, body string) *event.Event {
	w.t.Helper()
	ev := &event.Event{
		Source: "shop-id", Type: typ, Identity: event.NewIdentity("", event.KindPlatform, "", id),
		Received: time.Now(), Origin: event.OriginCallback, Body: []byte(body), ContentType: "application/json",
		Fingerprint: event.NewFingerprintRules(nil).Of([]byte(body)),
	}
	seq, err := w.queue.Publish(w.t.Context(), ev)
	if err != nil {
		w.t.Fatal(err)
	}
	w.seqs[ev] = seq
	return ev
}

// put makes a record for ev in the given state.
func (w *world) put(ev *event.Event, handler string, state dedup.State, reason string) event.Key {
	w.t.Helper()
	key := event.KeyFor(ev, handler)
	res, err := w.store.Do(w.t.Context(), key, dedup.Acquire{
		Effect: dedup.Irrevocable, Owner: dedup.InProc, Origin: ev.Origin, Fingerprint: ev.Fingerprint, Seq: w.seqs[ev],
	})
	if err != nil || res.Verdict != dedup.Granted {
		w.t.Fatalf("acquire: %v, %v", res.Verdict, err)
	}
	if state == dedup.Started {
		return key
	}
	var op dedup.Op
	switch why := (dedup.Reason{Code: reason}); state {
	case dedup.Dead:
		op = dedup.Bury{Fence: res.Record.Fence, Counts: true, Reason: why}
	case dedup.InDoubt:
		op = dedup.Doubt{Fence: res.Record.Fence, Reason: why}
	case dedup.Done:
		op = dedup.Commit{Fence: res.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour}
	}
	if _, err := w.store.Do(w.t.Context(), key, op); err != nil {
		w.t.Fatal(err)
	}
	return key
}

// wantError checks that err is one of the API, with the code and words.
func wantError(t *testing.T, err error, code admin.Code, words string) {
	t.Helper()
	var told *admin.Error
	if !errors.As(err, &told) || told.Code != code || !strings.Contains(told.Message, words) {
		t.Errorf("got %v (%+v), want %s with %q", err, told, code, words)
	}
}

func TestStatus_JoinsProcessQueueAndStore(t *testing.T) {
	w := newWorld(t)
	ev := w.publish("a", "order.paid", `{}`)
	w.put(ev, "crm-id", dedup.Dead, "http-400")
	st, err := w.client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.Version != "v1" || st.Queue.LastSeq != 1 || st.Queue.Durable != 1 || st.Store.Keys != 1 || st.Handlers[0].Open["dead"] != 1 {
		t.Errorf("got %+v", st)
	}
}

func TestEvents_ListsNewestFirstInPages(t *testing.T) {
	w := newWorld(t)
	for i := range 5 {
		w.publish(fmt.Sprint("id-", i), "order.paid", `{}`)
	}
	var got []string
	for cursor := ""; ; {
		page, err := w.client.Events(t.Context(), admin.EventFilter{}, cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range page.Items {
			got = append(got, ev.PlatformID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"id-4", "id-3", "id-2", "id-1", "id-0"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestEvents_ThePageOfTheOldestIsTheLast(t *testing.T) {
	w := newWorld(t)
	w.publish("a", "order.paid", `{}`)
	w.publish("b", "order.paid", `{}`)
	page, err := w.client.Events(t.Context(), admin.EventFilter{}, "", 2)
	if err != nil || len(page.Items) != 2 || page.Next != "" {
		t.Errorf("got %+v, %v", page, err)
	}
}

func TestEvents_FiltersChoose(t *testing.T) {
	w := newWorld(t)
	w.publish("a", "order.paid", `{}`)
	w.publish("b", "order.sent", `{}`)
	w.publish("c", "unwanted", `{}`)
	for name, c := range map[string]struct {
		f    admin.EventFilter
		want []string
	}{
		"source by name": {admin.EventFilter{Source: "shop"}, []string{"c", "b", "a"}},
		"source by id":   {admin.EventFilter{Source: "shop-id"}, []string{"c", "b", "a"}},
		"quiet source":   {admin.EventFilter{Source: "wecom"}, nil},
		"exact type":     {admin.EventFilter{Type: "order.paid"}, []string{"a"}},
		"type glob":      {admin.EventFilter{Type: "order.*"}, []string{"b", "a"}},
		"unrouted":       {admin.EventFilter{Unrouted: true}, []string{"c"}},
		"since":          {admin.EventFilter{Since: time.Hour}, []string{"c", "b", "a"}},
		"since just now": {admin.EventFilter{Since: time.Nanosecond}, nil},
	} {
		page, err := w.client.Events(t.Context(), c.f, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ev := range page.Items {
			got = append(got, ev.PlatformID)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func TestEvent_IsFoundByEveryName(t *testing.T) {
	w := newWorld(t)
	w.publish("other", "order.paid", `{}`)
	ev := w.publish("4711000", "order.paid", `{"n":1}`)
	w.publish("4711000", "order.paid", `{"n":2}`)
	for _, ref := range []string{"2", ev.ID(), ev.ID()[:12], "4711000"} {
		got, err := w.client.Event(t.Context(), ref, "", 0, true)
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		if got.Seq != 2 || string(got.Payload()) != `{"n":1}` || got.ID != ev.ID() {
			t.Errorf("%s: got %+v", ref, got)
		}
		if len(got.Deliveries) != 2 || got.Deliveries[0].Differs || !got.Deliveries[1].Differs {
			t.Errorf("%s: deliveries %+v", ref, got.Deliveries)
		}
	}
	got, err := w.client.Event(t.Context(), "3", "", 0, false)
	if err != nil || got.Seq != 3 || len(got.Payload()) > 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEvent_IsTheOldestOfManyDeliveries(t *testing.T) {
	w := newWorld(t)
	for range 105 {
		w.publish("a", "order.paid", `{}`)
	}
	got, err := w.client.Event(t.Context(), "a", "", 0, false)
	if err != nil || got.Seq != 1 || got.Count != 105 || len(got.Deliveries) != 100 || got.Deliveries[0].Seq != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEvent_ANumberIsAnIDWhereASourceIsNamed(t *testing.T) {
	w := newWorld(t)
	w.publish("2", "order.paid", "\xff\x00")
	w.publish("other", "order.paid", `{}`)
	got, err := w.client.Event(t.Context(), "2", "shop", 0, true)
	if err != nil || got.Seq != 1 || string(got.Payload()) != "\xff\x00" {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = w.client.Event(t.Context(), "2", "", 0, true)
	if err != nil || got.Seq != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestEvent_SaysWhatIsWrongWithAName(t *testing.T) {
	w := newWorld(t)
	w.publish("a", "order.paid", `{}`)
	_, err := w.client.Event(t.Context(), "nobody", "", 0, false)
	wantError(t, err, admin.CodeNotFound, "in the last 24h")
	_, err = w.client.Event(t.Context(), "evt_abc", "", 0, false)
	wantError(t, err, admin.CodeBadRequest, "too short")
	_, err = w.client.Event(t.Context(), "a", "", time.Nanosecond, false)
	wantError(t, err, admin.CodeNotFound, "no event")
	_, err = w.client.Event(t.Context(), "a", "wecom", 0, false)
	wantError(t, err, admin.CodeNotFound, "no event")
	_, err = w.client.Event(t.Context(), "a", "elsewhere", 0, false)
	wantError(t, err, admin.CodeNotFound, `no source "elsewhere"`)
}

func TestActOnHandler_PausesAndResumesByIDOrName(t *testing.T) {
	w := newWorld(t)
	for _, step := range []struct {
		word   string
		action admin.HandlerAction
		want   admin.HandlerState
	}{{"crm", admin.PauseHandler, admin.HandlerPaused}, {"crm-id", admin.ResumeHandler, admin.HandlerRuns}} {
		h, err := w.client.ActOnHandler(t.Context(), step.word, step.action)
		if err != nil || h.ID != "crm-id" || h.State != step.want || h.Open == nil {
			t.Errorf("%s %s: %+v, %v", step.action, step.word, h, err)
		}
	}
	_, err := w.client.ActOnHandler(t.Context(), "nobody", admin.PauseHandler)
	wantError(t, err, admin.CodeNotFound, `there is no handler "nobody"`)
	_, err = w.client.ActOnHandler(t.Context(), "crm", "stop")
	wantError(t, err, admin.CodeNotFound, `there is no action "stop"`)
}

package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"idemd/dedup"
	"idemd/dedup/boltstore"
	"idemd/event"
	"idemd/queue"
)

// No test here runs in parallel: the queue's server keeps one ticker per
// process, which must not be shared between a synctest bubble and the outside.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a real queue and a real claim store.
type rig struct {
	t     *testing.T
	dir   string
	log   *slog.Logger
	queue *queue.Queue
	bolt  *boltstore.Store
	store *faulty
	side  *SideLog
}

// sideLog opens the side log, if it is not open.
func (r *rig) sideLog() *SideLog {
	r.t.Helper()
	if r.side == nil {
		var err error
		if r.side, err = OpenSideLog(SideLogPath(r.dir), r.log); err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() {
			if err := r.side.Close(); err != nil {
				r.t.Error(err)
			}
		})
	}
	return r.side
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if testing.Verbose() {
		r.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	r.queue, err = queue.Open(t.Context(), queue.Config{Dir: filepath.Join(r.dir, "queue"), MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.queue.Close(context.Background()); err != nil {
			t.Errorf("close queue: %v", err)
		}
	})
	r.openStore()
	t.Cleanup(r.closeStore)
	return r
}

func (r *rig) openStore() {
	r.t.Helper()
	var err error
	r.bolt, err = boltstore.Open(r.t.Context(), boltstore.Config{Dir: filepath.Join(r.dir, "dedup"), Host: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = &faulty{Store: r.bolt}
}

func (r *rig) closeStore() {
	r.t.Helper()
	if err := r.bolt.Check(context.Background()); err != nil && !errors.Is(err, dedup.ErrClosed) {
		r.t.Errorf("check store: %v", err)
	}
	if err := r.bolt.Close(); err != nil {
		r.t.Errorf("close store: %v", err)
	}
}

// restart gives the store a new epoch, as a new process would.
func (r *rig) restart() {
	r.t.Helper()
	r.closeStore()
	r.openStore()
}

// faulty is a store that does what a test says before or instead of Do.
type faulty struct {
	dedup.Store
	mu   sync.Mutex
	hook func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error)
}

func (f *faulty) Do(ctx context.Context, key event.Key, op dedup.Op) (dedup.Result, error) {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	do := func() (dedup.Result, error) { return f.Store.Do(ctx, key, op) }
	if hook == nil {
		return do()
	}
	return hook(op, do)
}

func (f *faulty) set(hook func(dedup.Op, func() (dedup.Result, error)) (dedup.Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// spec is a retryable handler.
func spec(id string, h Handler) Spec {
	return Spec{ID: id, Effect: dedup.Retryable, StoreUnavailable: Refuse, Timeout: 30 * time.Second, Handler: h}
}

// start runs a pool until the end of the test.
func (r *rig) start(s Spec) *Pool {
	r.t.Helper()
	return r.startWith(Config{Spec: s})
}

func (r *rig) startWith(cfg Config) *Pool {
	r.t.Helper()
	cfg.Queue, cfg.Store, cfg.Logger, cfg.Side = r.queue, r.store, r.log, r.sideLog()
	p, err := NewPool(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	r.t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			r.t.Errorf("stop: %v", err)
		}
		if err := <-ended; err != nil {
			r.t.Errorf("run: %v", err)
		}
	})
	return p
}

func newEvent(id string) *event.Event {
	return &event.Event{
		Source: "wecom", Type: "change_contact.create_user",
		Identity: event.NewIdentity("corp", event.KindPlatform, "", id),
		Received: time.Now(), Origin: event.OriginCallback,
		ContentType: "application/json", Body: fmt.Appendf(nil, `{"id":%q}`, id),
	}
}

func (r *rig) publish(ev *event.Event) uint64 {
	r.t.Helper()
	seq, err := r.queue.Publish(r.t.Context(), ev)
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

func (r *rig) record(handler string, ev *event.Event) (dedup.Record, bool) {
	r.t.Helper()
	return r.recordOf(event.KeyFor(ev, handler))
}

func (r *rig) recordOf(key event.Key) (dedup.Record, bool) {
	r.t.Helper()
	rec, found, err := r.bolt.Get(r.t.Context(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec, found
}

// wantState checks the record of ev at handler and returns it.
func (r *rig) wantState(handler string, ev *event.Event, want dedup.State, reason string) dedup.Record {
	r.t.Helper()
	rec, found := r.record(handler, ev)
	if !found && want != dedup.Free || rec.State != want || rec.Reason.Code != reason {
		r.t.Fatalf("record is %v %+v (found %v), want %v %q", rec.State, rec.Reason, found, want, reason)
	}
	return rec
}

func (r *rig) do(key event.Key, op dedup.Op) dedup.Result {
	r.t.Helper()
	res, err := r.bolt.Do(r.t.Context(), key, op)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

// parked reports whether ev has a copy for handler.
func (r *rig) parked(handler string, key event.Key) bool {
	r.t.Helper()
	_, err := r.queue.Parked(r.t.Context(), handler, key)
	if err != nil && !errors.Is(err, queue.ErrMissing) {
		r.t.Fatal(err)
	}
	return err == nil
}

// call is one attempt that reached a script.
type call struct {
	at     time.Time
	event  string
	run    string
	number int
	fence  dedup.Fence
	origin event.Origin
	batch  string
}

// script is a handler that answers what a test says, Done after that.
type script struct {
	mu      sync.Mutex
	answers []Answer
	calls   []call
	hold    chan struct{}                   // when not nil an attempt waits for it, or for its end
	do      func(context.Context, *Attempt) // runs in each attempt
}

func (s *script) Handle(ctx context.Context, a *Attempt) Answer {
	s.mu.Lock()
	s.calls = append(s.calls, call{time.Now(), a.Event.Identity.ID, a.Key.RunID(), a.Number, a.Fence, a.Event.Origin, a.Event.Batch})
	answer := Answer{Class: Done}
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	hold, do := s.hold, s.do
	s.mu.Unlock()
	if do != nil {
		do(ctx, a)
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return Answer{Class: Unknown, Reason: dedup.Reason{Code: "timeout"}}
		}
	}
	return answer
}

func (s *script) seen() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

func (s *script) wantCalls(t *testing.T, n int) []call {
	t.Helper()
	calls := s.seen()
	if len(calls) != n {
		t.Fatalf("%d attempts, want %d: %+v", len(calls), n, calls)
	}
	return calls
}

// status is the answer to an HTTP status.
func status(code int) Answer { return Classify(Reply{Status: code}, nil) }

func repeat(a Answer, n int) []Answer {
	all := make([]Answer, n)
	for i := range all {
		all[i] = a
	}
	return all
}

func wantContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not contain %q", text, part)
		}
	}
}

// until polls in real time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

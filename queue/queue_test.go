package queue

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOpen_KeepsEverythingAndGoesOn(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "new [dir] *")}
	q := open(t, cfg)
	fill(t, q, 20)
	purge(t, q, 5)
	before := state(t, q)
	closeQueue(t, q)

	q = open(t, cfg)
	after := state(t, q)
	if diff := cmp.Diff(before, after); diff != "" || after.Durable != 20 {
		t.Error(diff)
	}
	if seq := publish(t, q, newEvent(0)); seq != 21 {
		t.Errorf("next sequence is %d", seq)
	}
	if diff := cmp.Diff(down(21, 5), scan(t, q, 0, 0)); diff != "" {
		t.Error(diff)
	}
}

func TestOpen_SyncsBeforeItReturns(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	if w.syncs.Load() == 0 {
		t.Error("open returned without a sync")
	}
	before := w.syncs.Load()
	consume(t, q, ConsumerConfig{})
	if w.syncs.Load() == before {
		t.Error("consume returned without a sync")
	}
	before = w.syncs.Load()
	closeQueue(t, q)
	if w.syncs.Load() == before {
		t.Error("close returned without a sync")
	}
}

func TestOpen_WithoutGroupSyncTheServerSyncsEveryMessage(t *testing.T) {
	q := open(t, Config{
		Logger:    logOf(t, "every event is synced alone"),
		groupSync: func(*os.File) (func() error, error) { return nil, nil },
	})
	if !q.now().srv.JetStreamConfig().SyncAlways {
		t.Error("nobody syncs")
	}
	fill(t, q, 20)
	if st := state(t, q); st.Durable != 20 {
		t.Errorf("%+v", st)
	}
	if open(t, Config{}).now().srv.JetStreamConfig().SyncAlways {
		t.Error("both sync")
	}
}

func TestOpen_BudgetMayChange(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), MaxBytes: 300 << 20}
	q := open(t, cfg)
	fill(t, q, 200)
	closeQueue(t, q)

	cfg.MaxBytes = 8 << 10 // less than what is there
	q = open(t, cfg)
	if st := state(t, q); st.Messages != 200 {
		t.Errorf("smaller budget: %+v", st)
	}
	if _, err := q.Publish(t.Context(), newEvent(0)); !errors.Is(err, ErrFull) {
		t.Errorf("publish over the smaller budget: %v", err)
	}
	closeQueue(t, q)

	cfg.MaxBytes = 1 << 30
	q = open(t, cfg)
	if seq := publish(t, q, newEvent(0)); seq != 201 {
		t.Errorf("bigger budget: next sequence is %d", seq)
	}
}

func TestOpen_RefusesWithAClearSentence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"no budget":        {Config{Dir: t.TempDir()}, "max_bytes 0 is not between"},
		"negative budget":  {Config{Dir: t.TempDir(), MaxBytes: -1}, "max_bytes -1 is not between"},
		"absurd budget":    {Config{Dir: t.TempDir(), MaxBytes: 1 << 62}, "max_bytes 4611686018427387904 is not between"},
		"more than disk":   {Config{Dir: t.TempDir(), MaxBytes: maxBudget}, "more than the whole file system holds"},
		"a file":           {Config{Dir: file, MaxBytes: 1 << 20}, "make directory"},
		"below a file":     {Config{Dir: filepath.Join(file, "x"), MaxBytes: 1 << 20}, "make directory"},
		"no way to the fs": {Config{Dir: "/proc/idemd/queue", MaxBytes: 1 << 20}, "make directory"},
	} {
		test.cfg.Logger = logOf(t)
		q, err := Open(t.Context(), test.cfg)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "open queue") {
			t.Errorf("%s: %v", name, err)
		}
		if q != nil {
			t.Errorf("%s: a queue besides the error", name)
		}
	}
}

func TestOpen_NeverReplacesAStreamThatWasNotRecovered(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), MaxBytes: testBudget, Logger: logOf(t, "nats server")}
	q := open(t, cfg)
	fill(t, q, 3)
	closeQueue(t, q)
	meta := filepath.Join(cfg.Dir, "jetstream", "$G", "streams", streamEvents, "meta.inf")
	if err := os.Truncate(meta, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "not recovered") {
		t.Errorf("open without meta.inf: %v", err)
	}
}

func TestOpen_ServerThatCannotStartSaysWhy(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Dir: dir, MaxBytes: testBudget, Logger: logOf(t, "nats server")})
	if err == nil || !strings.Contains(err.Error(), "start server") || strings.Contains(err.Error(), "not ready in time") {
		t.Error(err)
	}
}

func TestHealth_IsFineWhileOpen(t *testing.T) {
	if err := open(t, Config{}).Health(); err != nil {
		t.Error(err)
	}
}

func TestClose_LosesNoAcceptedEventUnderLoad(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	q := open(t, cfg)
	var mu sync.Mutex
	var accepted []uint64
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for {
				seq, err := q.Publish(t.Context(), newEvent(i))
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Errorf("publish while closing: %v", err)
					}
					return
				}
				mu.Lock()
				if accepted = append(accepted, seq); len(accepted) == 500 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	closeQueue(t, q)
	wg.Wait()

	q = open(t, cfg)
	kept := make(map[uint64]bool)
	for _, seq := range scan(t, q, 0, 0) {
		kept[seq] = true
	}
	for _, seq := range accepted {
		if !kept[seq] {
			t.Errorf("event %d was accepted and is gone", seq)
		}
	}
	if len(kept) != len(accepted) {
		t.Errorf("%d kept, %d accepted", len(kept), len(accepted))
	}
}

func TestClose_IsIdempotentAndEndsEverything(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{})
	publish(t, q, newEvent(0))
	d := next(t, c)
	tailed := make(chan error, 1)
	go func() { tailed <- q.Tail(t.Context(), func(Message) error { return nil }) }()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { closeQueue(t, q) })
	}
	wg.Wait()
	ctx := t.Context()
	_, publishErr := q.Publish(ctx, newEvent(0))
	_, getErr := q.Get(ctx, 1)
	_, nextErr := c.Next(ctx)
	_, pendingErr := c.Pending(ctx)
	_, parkedErr := q.Parked(ctx, "crm", event0Key())
	_, consumeErr := q.Consume(ctx, ConsumerConfig{Handler: "crm"})
	_, consumersErr := q.Consumers(ctx)
	_, stateErr := q.State(ctx)
	for what, err := range map[string]error{
		"publish": publishErr, "get": getErr, "next": nextErr, "pending": pendingErr, "parked": parkedErr,
		"consume": consumeErr, "consumers": consumersErr, "state": stateErr, "ack": d.Ack(), "tail": <-tailed,
		"park": q.Park(ctx, "crm", event0Key(), newEvent(0)), "unpark": q.Unpark(ctx, "crm", event0Key()),
		"scan": q.Scan(ctx, 0, nil), "delete": q.Delete(ctx, "crm"),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
}

func TestClose_DoesNotWaitForAcksBeyondItsContext(t *testing.T) {
	q := open(t, Config{PublishTimeout: time.Hour})
	msg := encoded(t, newEvent(0))
	published := make(chan error, 1)
	sub, err := q.now().read.SubscribeSync("nobody.answers") // takes the message and says nothing
	if err != nil {
		t.Fatal(err)
	}
	if err := flush(t, q.now().read); err != nil {
		t.Fatal(err)
	}
	msg.Subject = "nobody.answers"
	go func() {
		_, err := q.commit.do(context.Background(), msg)
		published <- err
	}()
	if _, err := sub.NextMsgWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if err := <-published; !errors.Is(err, ErrUnavailable) {
		t.Errorf("publish: %v", err)
	}
	q.closeErr = nil // the cleanup closes again
}

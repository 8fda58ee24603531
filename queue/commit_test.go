package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// eventually polls until done says true.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func state(t testing.TB, q *Queue) State {
	t.Helper()
	st, err := q.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestPublish_ReturnsOnlyAfterASyncThatBeganAfterItsAck(t *testing.T) {
	var q atomic.Pointer[Queue]
	var covered atomic.Uint64 // last sequence of the stream when the newest finished sync began
	q.Store(open(t, Config{groupSync: wrapped(func(sync func() error) func() error {
		return func() error {
			if q.Load() == nil {
				return sync()
			}
			last := q.Load().lastSeq(t)
			if err := sync(); err != nil {
				return err
			}
			covered.Store(max(covered.Load(), last))
			return nil
		}
	})}))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 20 {
				seq, err := q.Load().Publish(t.Context(), newEvent(i))
				if c := covered.Load(); err != nil || c < seq {
					t.Errorf("publish returned %d, %v when a sync had covered only %d", seq, err, c)
				}
			}
		})
	}
	wg.Wait()
	q.Store(nil) // the sync after shutdown cannot ask
}

// lastSeq asks the server for the stream's last sequence, durable or not.
func (q *Queue) lastSeq(t testing.TB) uint64 {
	info, err := q.now().events.Info(context.Background())
	if err != nil {
		t.Errorf("read state: %v", err)
		return 0
	}
	return info.State.LastSeq
}

// hold makes every sync wait until release is called.
func (w *watch) hold() (release func()) {
	gate := make(chan struct{})
	w.set(func() error { <-gate; return nil })
	return sync.OnceFunc(func() {
		w.set(nil)
		close(gate)
	})
}

func TestPublish_NothingIsVisibleBeforeTheSync(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	c := consume(t, q, ConsumerConfig{})
	release := w.hold()
	defer release()
	published := make(chan error, 1)
	go func() {
		_, err := q.Publish(t.Context(), newEvent(0))
		published <- err
	}()
	eventually(t, "delivery prefetched", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.waiting) == 1
	})

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if d, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("next before the sync: %v, %v", d, err)
	}
	if _, err := q.Get(t.Context(), 1); !errors.Is(err, ErrMissing) {
		t.Errorf("get before the sync: %v", err)
	}
	if err := q.Scan(t.Context(), 0, func(m Message) (bool, error) {
		t.Errorf("scan before the sync saw %d", m.Seq)
		return true, nil
	}); err != nil {
		t.Error(err)
	}
	if st := state(t, q); st.LastSeq != 1 || st.Durable != 0 {
		t.Errorf("state before the sync: %+v", st)
	}
	select {
	case err := <-published:
		t.Fatalf("publish returned %v before the sync", err)
	default:
	}

	release()
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if d := next(t, c); d.Seq != 1 {
		t.Errorf("delivered %d", d.Seq)
	}
}

func TestPublish_SyncCoversOnlyWhatWasWrittenWhenItBegan(t *testing.T) {
	began, turns := make(chan struct{}, 10), make(chan struct{})
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	w.set(func() error { began <- struct{}{}; <-turns; return nil })
	published := make(chan uint64, 2)
	for i := range uint64(2) {
		go func() {
			seq, err := q.Publish(t.Context(), newEvent(int(i)))
			if err != nil {
				t.Error(err)
			}
			published <- seq
		}()
		if i == 0 {
			<-began
		}
	}
	eventually(t, "both written", func() bool { return q.commit.written.load() == 2 })
	turns <- struct{}{}
	if seq := <-published; seq != 1 || q.commit.durable.load() != 1 {
		t.Errorf("after the first sync: published %d, durable %d", seq, q.commit.durable.load())
	}
	w.set(nil)
	close(turns)
	if seq := <-published; seq != 2 {
		t.Errorf("published %d", seq)
	}
}

func TestPublish_OneSyncServesAGroup(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	release := w.hold()
	defer release()
	before := w.syncs.Load()
	var wg sync.WaitGroup
	const events = 300
	for i := range events {
		wg.Go(func() {
			if _, err := q.Publish(t.Context(), newEvent(i)); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all published or waiting", func() bool {
		return int(q.lastSeq(t))+len(q.commit.requests) == events
	})
	release()
	wg.Wait()
	// One group was in the sync, one published behind it, the rest waited; and
	// the background may have had its turn.
	if n := w.syncs.Load() - before; n < 1 || n > 4 {
		t.Errorf("%d syncs for %d events", n, events)
	}
}

func TestPublish_EveryEventAloneNeedsItsSync(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	for i := range 5 {
		before := w.syncs.Load()
		publish(t, q, newEvent(i))
		if w.syncs.Load() == before {
			t.Fatal("publish returned without a sync")
		}
	}
}

func TestPublish_SyncErrorIsNeverRetried(t *testing.T) {
	var w watch
	dir := t.TempDir()
	q := open(t, Config{Dir: dir, groupSync: wrapped(w.wrap)})
	publish(t, q, newEvent(0))
	broken := errors.New("disk is broken")
	w.set(func() error { return broken })
	if _, err := q.Publish(t.Context(), newEvent(1)); !errors.Is(err, ErrUnavailable) || !errors.Is(err, broken) {
		t.Errorf("publish with a broken disk: %v", err)
	}
	w.set(nil)
	syncs := w.syncs.Load()
	if _, err := q.Publish(t.Context(), newEvent(2)); !errors.Is(err, broken) {
		t.Errorf("publish after it: %v", err)
	}
	if err := q.Park(t.Context(), "crm", event0Key(), newEvent(2)); !errors.Is(err, broken) {
		t.Errorf("park after it: %v", err)
	}
	select {
	case err := <-q.Failed():
		if !errors.Is(err, broken) {
			t.Errorf("failed with %v", err)
		}
	default:
		t.Error("nobody was told")
	}
	if err := q.Health(); !errors.Is(err, broken) {
		t.Errorf("health: %v", err)
	}
	if err := q.commit.barrier(t.Context()); !errors.Is(err, broken) {
		t.Errorf("barrier after it: %v", err)
	}
	closeQueue(t, q)
	if n := w.syncs.Load(); n != syncs {
		t.Errorf("%d syncs after the one that failed", n-syncs)
	}
	if got := q.commit.durable.load(); got != 1 {
		t.Errorf("durable is %d", got)
	}
}

func TestPublish_FullQueueRefusesAndDropsNothing(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), MaxBytes: 64 << 10}
	q := open(t, cfg)
	accepted := 0
	for ; ; accepted++ {
		ev := newEvent(accepted)
		ev.Body = make([]byte, 1000)
		_, err := q.Publish(t.Context(), ev)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || accepted > 100 {
			t.Fatalf("publish %d: %v", accepted, err)
		}
	}
	check := func(q *Queue) {
		t.Helper()
		st := state(t, q)
		if accepted < 20 || st.Messages != uint64(accepted) || st.FirstSeq != 1 || st.Bytes > uint64(cfg.MaxBytes) {
			t.Errorf("accepted %d, state %+v", accepted, st)
		}
		if _, err := q.Publish(t.Context(), bigEvent(1000)); !errors.Is(err, ErrFull) {
			t.Errorf("publish into a full queue: %v", err)
		}
	}
	check(q)
	if err := q.Park(t.Context(), "crm", event0Key(), newEvent(0)); err != nil {
		t.Errorf("park while full: %v", err)
	}
	closeQueue(t, q)
	check(open(t, cfg))
}

func TestPublish_OneFailureLeavesTheRestOfTheGroup(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	release := w.hold()
	defer release()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			msg := encoded(t, newEvent(i))
			if i%10 == 0 {
				msg.Subject = "nowhere"
			}
			_, err := q.commit.do(t.Context(), msg)
			if want := i%10 == 0; errors.Is(err, ErrUnavailable) != want || (err != nil) != want {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	eventually(t, "a group in the sync", func() bool { return q.lastSeq(t) > 0 })
	release()
	wg.Wait()
	if st := state(t, q); st.Messages != 45 || st.Durable != 45 {
		t.Errorf("%+v", st)
	}
}

func TestPublish_EventWhoseAckCameTooLateStillBecomesDurable(t *testing.T) {
	q := open(t, Config{PublishTimeout: time.Nanosecond})
	c := consume(t, q, ConsumerConfig{})
	for {
		_, err := q.Publish(t.Context(), newEvent(0))
		if errors.Is(err, ErrUnavailable) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ack(t, next(t, c))
	}
	d := next(t, c)
	eventually(t, "the late one durable", func() bool { return state(t, q).Durable >= d.Seq })
}

func TestPublish_EventWhoseAckNobodySawStillBecomesDurable(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{})
	store(t, q, encoded(t, newEvent(7)))
	if d := next(t, c); d.Seq != 1 || state(t, q).Durable != 1 {
		t.Errorf("delivered %d", d.Seq)
	}
}

func TestPublish_TimeoutAndContextEndTheWait(t *testing.T) {
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap)})
	release := w.hold()
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() {
		_, err := q.Publish(ctx, newEvent(0))
		published <- err
	}()
	eventually(t, "stored", func() bool { return q.lastSeq(t) == 1 })
	cancel()
	if err := <-published; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestPublish_RefusesWhatCouldNotBeRead(t *testing.T) {
	q := open(t, Config{})
	noSource, noOrigin := newEvent(0), newEvent(0)
	noSource.Source, noOrigin.Origin = "", "elsewhere"
	if _, err := q.Publish(t.Context(), noSource); err == nil {
		t.Error("event without a source accepted")
	}
	if _, err := q.Publish(t.Context(), noOrigin); err == nil {
		t.Error("event of unknown origin accepted")
	}
	if _, err := q.Publish(t.Context(), bigEvent(MaxMessage)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("event over the limit: %v", err)
	}
	if st := state(t, q); st.LastSeq != 0 || st.FirstSeq != 1 {
		t.Errorf("%+v", st)
	}
}

func TestPubAck_SaysWhatWentWrong(t *testing.T) {
	for _, test := range []struct {
		body string
		want error
	}{
		{`{"stream":"EVENTS","seq":7}`, nil},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"EVENTS","seq":0}`, ErrFull},
		{`{"error":{"code":503,"err_code":10077,"description":"some write error"},"stream":"EVENTS","seq":0}`, ErrUnavailable},
		{`{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}`, ErrFull},
		{`{"error":{"code":500,"err_code":10047,"description":"insufficient storage resources"}}`, ErrFull},
		{`{"error":{"code":500,"err_code":1,"description":"maximum confusion"}}`, ErrUnavailable},
		{`{"stream":"EVENTS"}`, ErrUnavailable},
		{`nonsense`, ErrUnavailable},
	} {
		_, seq, err := parsePubAck(&nats.Msg{Data: []byte(test.body)})
		if !errors.Is(err, test.want) || (test.want == nil) != (seq == 7) {
			t.Errorf("%s: %d, %v", test.body, seq, err)
		}
	}
}

func TestAckSubject_OnlyOursAreRead(t *testing.T) {
	for subject, want := range map[string]string{
		ackPrefix + "12.3": "12 3 true", ackPrefix + "12": "12 0 false", ackPrefix + "x.1": "0 1 false",
		ackPrefix + "1.-1": "1 -1 false", ackPrefix: "0 0 false", "": "0 0 false",
	} {
		id, i, ok := parseAckSubject(subject)
		if got := fmt.Sprint(id, i, ok); got != want {
			t.Errorf("%q: %s, want %s", subject, got, want)
		}
	}
}

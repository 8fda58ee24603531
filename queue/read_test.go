package queue

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"idemd/event"
)

func bigEvent(size int) *event.Event {
	ev := newEvent(0)
	ev.Body = make([]byte, size)
	for i := range ev.Body {
		ev.Body[i] = byte(i * 7)
	}
	return ev
}

// scan returns the sequences that Scan visits until stop.
func scan(t testing.TB, q *Queue, from, stop uint64) []uint64 {
	t.Helper()
	var seqs []uint64
	if err := q.Scan(t.Context(), from, func(m Message) (bool, error) {
		seqs = append(seqs, m.Seq)
		return m.Seq != stop, nil
	}); err != nil {
		t.Fatal(err)
	}
	return seqs
}

// down lists hi, hi-1 ... lo.
func down(hi, lo uint64) []uint64 {
	var seqs []uint64
	for seq := hi; seq >= lo && seq > 0; seq-- {
		seqs = append(seqs, seq)
	}
	return seqs
}

func fill(t testing.TB, q *Queue, n int) {
	t.Helper()
	done := make(chan error, n)
	for i := range n {
		go func() {
			_, err := q.Publish(t.Context(), newEvent(i))
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestScan_VisitsNewestFirst(t *testing.T) {
	q := open(t, Config{})
	if got := scan(t, q, 0, 0); len(got) != 0 {
		t.Errorf("empty queue: %v", got)
	}
	fill(t, q, 700)
	for _, test := range []struct{ from, stop, hi, lo uint64 }{
		{0, 0, 700, 1}, {0, 650, 700, 650}, {700, 700, 700, 700}, {300, 0, 300, 1}, {1, 0, 1, 1}, {9999, 690, 700, 690},
	} {
		if diff := cmp.Diff(down(test.hi, test.lo), scan(t, q, test.from, test.stop)); diff != "" {
			t.Errorf("from %d until %d: %s", test.from, test.stop, diff)
		}
	}
	stop := errors.New("enough")
	if err := q.Scan(t.Context(), 0, func(Message) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

func TestScan_SkipsWhatIsPurgedOrForeign(t *testing.T) {
	q := open(t, Config{Logger: logOf(t, "stored message is no event")})
	fill(t, q, 100)
	store(t, q, &nats.Msg{Subject: "ev.x.y", Header: nats.Header{headerVersion: {"99"}}})
	fill(t, q, 10)
	purge(t, q, 41)
	for _, seq := range []uint64{60, 61, 105} {
		if err := q.now().events.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	want := slices.DeleteFunc(down(111, 41), func(seq uint64) bool {
		return slices.Contains([]uint64{60, 61, 101, 105}, seq)
	})
	if diff := cmp.Diff(want, scan(t, q, 0, 0)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(down(59, 41), scan(t, q, 61, 0)); diff != "" {
		t.Error(diff)
	}
	purge(t, q, 112)
	if got := scan(t, q, 0, 0); len(got) != 0 {
		t.Errorf("after purging all: %v", got)
	}
	if st := state(t, q); st.FirstSeq != 112 || st.LastSeq != 111 || st.Messages != 0 {
		t.Errorf("%+v", st)
	}
}

// purge removes what is below seq.
func purge(t testing.TB, q *Queue, seq uint64) {
	t.Helper()
	if err := q.now().events.Purge(t.Context(), jetstream.WithPurgeSequence(seq)); err != nil {
		t.Fatal(err)
	}
}

func TestQueue_LargestEventPassesEverywhere(t *testing.T) {
	q := open(t, Config{MaxBytes: 200 << 20})
	size := MaxMessage - messageSize(encoded(t, bigEvent(0)).Header, nil)
	ev := bigEvent(size)
	for range 8 { // more than a chunk
		publish(t, q, ev)
	}
	equal := func(how string, m Message, err error) {
		t.Helper()
		if err != nil || m.Event.Identity != ev.Identity || !bytes.Equal(m.Event.Body, ev.Body) {
			t.Errorf("%s: %v, body of %d bytes", how, err, len(m.Event.Body))
		}
	}
	m, err := q.Get(t.Context(), 1)
	equal("get", m, err)

	equal("next", next(t, consume(t, q, ConsumerConfig{})).Message, nil)
	if diff := cmp.Diff(down(8, 1), scan(t, q, 0, 0)); diff != "" {
		t.Error(diff)
	}
	if err := q.Park(t.Context(), "crm", event0Key(), ev); err != nil {
		t.Fatal(err)
	}
	m, err = q.Parked(t.Context(), "crm", event0Key())
	equal("parked", m, err)

	if _, err := q.Publish(t.Context(), bigEvent(size+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: %v", err)
	}
}

func TestGet_MissingIsMissing(t *testing.T) {
	q := open(t, Config{})
	fill(t, q, 3)
	purge(t, q, 2)
	for _, seq := range []uint64{0, 1, 4, 1 << 60} {
		if _, err := q.Get(t.Context(), seq); !errors.Is(err, ErrMissing) {
			t.Errorf("get %d: %v", seq, err)
		}
	}
	if m, err := q.Get(t.Context(), 2); err != nil || m.Seq != 2 || time.Since(m.Stored) > time.Minute {
		t.Errorf("get 2: %+v, %v", m, err)
	}
}

func TestTail_FollowsWhatBecomesDurable(t *testing.T) {
	q := open(t, Config{})
	fill(t, q, 5)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seqs, ended := make(chan uint64, 1000), make(chan error, 1)
	go func() {
		ended <- q.Tail(ctx, func(m Message) error {
			if m.Seq > q.commit.durable.load() {
				t.Errorf("%d seen before it was durable", m.Seq)
			}
			seqs <- m.Seq
			return nil
		})
	}()
	eventually(t, "tail waits", func() bool {
		q.commit.durable.mu.Lock()
		defer q.commit.durable.mu.Unlock()
		return q.commit.durable.raised != nil
	})
	fill(t, q, 600)
	for want := uint64(6); want <= 605; want++ {
		if got := <-seqs; got != want {
			t.Fatalf("saw %d, want %d", got, want)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop := errors.New("enough")
	go func() { ended <- q.Tail(t.Context(), func(Message) error { return stop }) }()
	eventually(t, "tail stops", func() bool {
		publish(t, q, newEvent(0))
		select {
		case err := <-ended:
			return errors.Is(err, stop)
		default:
			return false
		}
	})
}

func TestTail_StepsOverWhatIsPurged(t *testing.T) {
	q := open(t, Config{})
	fill(t, q, 20)
	purge(t, q, 15)
	var seqs []uint64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := q.tailFrom(ctx, 3, func(m Message) error {
		if seqs = append(seqs, m.Seq); m.Seq == 20 {
			cancel()
		}
		return nil
	})
	if diff := cmp.Diff([]uint64{15, 16, 17, 18, 19, 20}, seqs); diff != "" || !errors.Is(err, context.Canceled) {
		t.Error(err, diff)
	}
}

package queue

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// walk returns the sequences that Walk visits until stop.
func walk(t testing.TB, q *Queue, from, to, stop uint64) []uint64 {
	t.Helper()
	var seqs []uint64
	if err := q.Walk(t.Context(), from, to, func(m Message) (bool, error) {
		seqs = append(seqs, m.Seq)
		return m.Seq != stop, nil
	}); err != nil {
		t.Fatal(err)
	}
	return seqs
}

// up lists lo, lo+1 ... hi.
func up(lo, hi uint64) []uint64 {
	seqs := down(hi, lo)
	slices.Reverse(seqs)
	return seqs
}

func TestWalk_VisitsOldestFirstWithinItsBounds(t *testing.T) {
	q := open(t, Config{})
	if got := walk(t, q, 0, 100, 0); len(got) != 0 {
		t.Errorf("empty queue: %v", got)
	}
	fill(t, q, 700)
	if err := q.now().events.Purge(t.Context(), jetstream.WithPurgeSequence(300)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to, stop uint64
		want           []uint64
	}{
		{0, 700, 0, up(300, 700)},
		{1, 299, 0, nil},
		{1, 310, 0, up(300, 310)},
		{500, 9999, 0, up(500, 700)},
		{500, 700, 600, up(500, 600)},
		{701, 800, 0, nil},
	} {
		if got := walk(t, q, c.from, c.to, c.stop); !slices.Equal(got, c.want) {
			t.Errorf("from %d to %d until %d: %d sequences %v", c.from, c.to, c.stop, len(got), got)
		}
	}
	broken := errors.New("broken")
	if err := q.Walk(t.Context(), 1, 700, func(Message) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestSeqAt_FindsTheFirstMessageOfATime(t *testing.T) {
	q := open(t, Config{})
	if got, err := q.SeqAt(t.Context(), time.Now()); err != nil || got != 1 {
		t.Errorf("empty queue: %d, %v", got, err)
	}
	fill(t, q, 300)
	if err := q.now().events.Purge(t.Context(), jetstream.WithPurgeSequence(40)); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{40, 41, 170, 300} {
		m, err := q.Get(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := q.SeqAt(t.Context(), m.Stored); err != nil || got != seq {
			t.Errorf("time of %d: got %d, %v", seq, got, err)
		}
		if got, err := q.SeqAt(t.Context(), m.Stored.Add(1)); err != nil || got != seq+1 {
			t.Errorf("just after %d: got %d, %v", seq, got, err)
		}
	}
	if got, err := q.SeqAt(t.Context(), time.Time{}); err != nil || got != 40 {
		t.Errorf("the beginning: %d, %v", got, err)
	}
}

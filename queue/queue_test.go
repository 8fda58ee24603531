package queue

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueue_PublishedEventComesBackExactly(t *testing.T) {
	q := open(t, Config{})
	ev := newEvent(1)
	seq := publish(t, q, ev)
	m, err := q.Get(t.Context(), seq)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*ev, m.Event); diff != "" {
		t.Error(diff)
	}
	d := next(t, consume(t, q, ConsumerConfig{}))
	if diff := cmp.Diff(*ev, d.Event); diff != "" || d.Seq != seq || d.Redelivered {
		t.Errorf("delivery %d redelivered %v: %s", d.Seq, d.Redelivered, diff)
	}
	ack(t, d)
}

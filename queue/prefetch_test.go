package queue

import (
	"errors"
	"testing"
	"time"
)

// What is fetched ahead is bounded in bytes, not only in number: the server and
// the client give up deliveries when too much piles up.
func TestConsumer_PrefetchIsBoundedInBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		const n, size = 20, 3 << 20
		for i := range n {
			ev := newEvent(i)
			ev.Body = make([]byte, size)
			publish(t, q, ev)
		}
		c := consume(t, q, ConsumerConfig{MaxAckPending: 1000})
		time.Sleep(time.Second)
		info, err := c.info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		waiting := c.size
		c.mu.Unlock()
		if waiting > prefetchBytes || info.NumAckPending*size > 3*prefetchBytes {
			t.Errorf("%d bytes wait, %d deliveries are open", waiting, info.NumAckPending)
		}
		time.Sleep(3 * DefaultAckWait) // what is on its way comes again meanwhile, but once only
		for seq := range uint64(n) {
			d := next(t, c)
			for d.Seq <= seq {
				ack(t, d)
				d = next(t, c)
			}
			if d.Seq != seq+1 {
				t.Fatalf("delivery %d is %d", seq+1, d.Seq)
			}
			ack(t, d)
		}
	})
}

// The floor stays below a delivery that nobody settled, whatever came after it.
func TestConsumer_AckFloorWaitsForEveryDelivery(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Queue) {
		c := consume(t, q, ConsumerConfig{})
		publishN(t, q, 5)
		floor := func(want uint64) {
			t.Helper()
			time.Sleep(time.Second)
			if got, err := c.AckFloor(t.Context()); err != nil || got != want {
				t.Errorf("floor %d, %v; want %d", got, err, want)
			}
		}
		floor(0)
		for seq := range uint64(5) {
			if d := next(t, c); seq != 1 { // the second one is lost
				ack(t, d)
			}
		}
		floor(1)
		publishN(t, q, 3)
		for range 3 {
			ack(t, next(t, c))
		}
		floor(1)
		d := nextWithin(t, c, DefaultAckWait)
		if d == nil || d.Seq != 2 {
			t.Fatalf("came again: %+v", d)
		}
		floor(1)
		ack(t, d)
		floor(8)
		c.Stop()
		if _, err := c.AckFloor(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Stop: %v", err)
		}
	})
}

// A flow that ends by itself is not mended: somebody has to hear of it.
func TestConsumer_EndedFlowEndsNext(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{})
	c.flow.consume.Stop()
	if _, err := c.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("next: %v", err)
	}
}

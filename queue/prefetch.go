package queue

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// prefetchBytes bounds what is fetched ahead for a handler: so much waits here at
// most, and about as much is on its way. Both the server and the client give up
// deliveries when many times that piles up. A request for half of it has room
// for the largest event.
const prefetchBytes = 16 << 20

// receive takes a delivery from the server. It blocks while too much waits.
func (c *Consumer) receive(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		c.q.log.Error("delivery without a place in the stream", "handler", c.handler, "error", err)
		return
	}
	seq := meta.Sequence.Stream
	c.q.commit.noteWritten(seq) // or it would wait for ever for a sync if nobody had seen its acknowledgement
	d := &Delivery{
		Message:     Message{Seq: seq, Stored: meta.Timestamp.UTC()},
		Redelivered: meta.NumDelivered > 1,
		conn:        c.q.read, reply: m.Reply(), touch: c.q.commit.touch,
	}
	if d.Event, err = decode(m.Headers(), m.Data()); err != nil {
		c.refuse(d, err)
		return
	}
	for !c.queueUp(d, len(m.Data())) {
		select {
		case <-c.room:
		case <-c.stopped:
			return
		}
	}
}

// queueUp lets d wait for Next. It is false while there is no room for it.
func (c *Consumer) queueUp(d *Delivery, size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return true // nobody asks any more
	}
	if d.Redelivered {
		for i, w := range c.waiting {
			if w.Seq == d.Seq { // it was on its way for longer than AckWait
				d.size = w.size
				c.waiting[i] = d
				return true
			}
		}
	}
	if len(c.waiting) > 0 && c.size+size > prefetchBytes {
		return false
	}
	d.size = size
	c.size += size
	c.waiting = append(c.waiting, d)
	c.signal()
	return true
}

// refuse settles a message that is no event: nobody could ever handle it.
func (c *Consumer) refuse(d *Delivery, err error) {
	c.q.noteForeign(d.Seq, err)
	if err := d.Ack(); err != nil {
		c.q.log.Warn("message that is no event not acked", "seq", d.Seq, "handler", c.handler, "error", err)
	}
}

// signal lets one Next look at what is waiting.
func (c *Consumer) signal() {
	select {
	case c.arrived <- struct{}{}:
	default:
	}
}

// take returns the first delivery that waits if it is durable, else its
// sequence, 0 when none waits.
func (c *Consumer) take() (d *Delivery, seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.waiting) == 0 {
		return nil, 0
	}
	d = c.waiting[0]
	if d.Seq > c.q.commit.durable.load() {
		return nil, d.Seq
	}
	c.waiting[0] = nil
	c.waiting = c.waiting[1:]
	c.size -= d.size
	select {
	case c.room <- struct{}{}:
	default:
	}
	if len(c.waiting) > 0 {
		c.signal()
	}
	return d, 0
}

// mark keeps the deliveries that wait here from being delivered again. When the
// flow of them has ended by itself, it ends the consumer, so that somebody hears
// of it.
func (c *Consumer) mark(every time.Duration, closed <-chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-c.stopped:
			return
		case <-closed:
			c.end()
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		waiting := slices.Clone(c.waiting)
		c.mu.Unlock()
		for _, d := range waiting {
			if err := d.InProgress(); err != nil {
				c.q.log.Warn("waiting delivery not marked", "handler", c.handler, "error", err)
				break
			}
		}
	}
}

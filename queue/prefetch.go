package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// prefetchBytes bounds what is fetched ahead for a handler: so much waits here at
// most, and about as much is on its way. Both the server and the client give up
// deliveries when many times that piles up. A request for half of it has room
// for the largest event.
const prefetchBytes = 16 << 20

// flow is how deliveries come during one life of the server.
type flow struct {
	c       *Consumer
	conn    *nats.Conn // its own: the bulk of one handler delays nobody else
	inner   jetstream.Consumer
	over    chan struct{} // closed: take in nothing more
	once    sync.Once
	marking sync.WaitGroup
	consume jetstream.ConsumeContext // guarded by the Consumer's mu
}

// open makes the consumer at the server and lets deliveries come from start on.
func (c *Consumer) open(ctx context.Context, start uint64) error {
	conn, err := connect(c.q.now().srv, "consume "+token(c.cfg.Handler), c.q.log)
	if err != nil {
		return err
	}
	f := &flow{c: c, conn: conn, over: make(chan struct{})}
	if err = f.open(ctx, start); err == nil {
		err = f.run()
	}
	if err != nil {
		f.end()
	}
	return err
}

func (f *flow) open(ctx context.Context, start uint64) error {
	js, err := jetstream.New(f.conn)
	if err != nil {
		return fmt.Errorf("use jetstream: %w", err)
	}
	if f.inner, err = js.CreateConsumer(ctx, streamEvents, consumerConfig(f.c.cfg, start)); err != nil {
		return err
	}
	return f.c.q.commit.barrier(ctx)
}

// run lets deliveries come.
func (f *flow) run() error {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock() // deliveries wait for it
	if c.ended {        // by Close, meanwhile
		return ErrClosed
	}
	var err error
	f.consume, err = f.inner.Consume(f.receive, jetstream.PullMaxBytes(prefetchBytes), jetstream.ConsumeErrHandler(f.onError))
	if err != nil {
		return err
	}
	c.flow = f
	closed := f.consume.Closed()
	f.marking.Go(func() { f.mark(c.cfg.AckWait/3, closed) })
	return nil
}

// stop lets no more deliveries come. The caller holds the Consumer's mu, or is
// the only one who knows f.
func (f *flow) stop() {
	f.once.Do(func() { close(f.over) })
	if f.consume != nil {
		f.consume.Stop()
	}
}

// end takes the flow down.
func (f *flow) end() {
	f.stop()
	f.marking.Wait()
	f.conn.Close()
}

// interrupt forgets what is fetched and ends the flow, not the consumer.
func (c *Consumer) interrupt() {
	c.mu.Lock()
	f := c.flow
	c.flow, c.waiting, c.size = nil, nil, 0
	if f != nil {
		f.stop()
	}
	c.mu.Unlock()
	if f != nil {
		f.marking.Wait()
		f.conn.Close()
	}
}

// resume makes the consumer anew at a server that was just started. One that was
// stopped meanwhile stays so.
func (c *Consumer) resume(ctx context.Context) error {
	start := c.cfg.Start
	if c.cfg.Resume != nil {
		start = c.cfg.Resume()
	}
	if err := c.q.deleteConsumer(ctx, c.cfg.Handler); err != nil {
		return err
	}
	err := c.open(ctx, start)
	select {
	case <-c.stopped:
		return nil
	default:
		return err
	}
}

// onError hears of trouble with the flow of deliveries, which mends itself,
// except when there is nothing left to flow.
func (f *flow) onError(_ jetstream.ConsumeContext, err error) {
	if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConnectionClosed) {
		f.broke()
		return
	}
	select {
	case <-f.over:
	default:
		f.c.q.log.Warn("deliveries interrupted", "handler", f.c.cfg.Handler, "error", err)
	}
}

// broke ends the consumer, so that somebody hears of it, unless its flow was
// ended on purpose.
func (f *flow) broke() {
	select {
	case <-f.over:
	default:
		f.c.end()
	}
}

// receive takes a delivery from the server. It blocks while too much waits.
func (f *flow) receive(m jetstream.Msg) {
	c := f.c
	meta, err := m.Metadata()
	if err != nil {
		c.q.log.Error("delivery without a place in the stream", "handler", c.cfg.Handler, "error", err)
		return
	}
	seq := meta.Sequence.Stream
	c.q.commit.noteWritten(seq) // or it would wait for ever for a sync if nobody had seen its acknowledgement
	d := &Delivery{
		Message:     Message{Seq: seq, Stored: meta.Timestamp.UTC()},
		Redelivered: meta.NumDelivered > 1,
		q:           c.q, conn: c.q.now().read, reply: m.Reply(),
	}
	if d.Event, err = decode(m.Headers(), m.Data()); err != nil {
		c.refuse(d, err)
		return
	}
	for !f.queueUp(d, len(m.Data())) {
		select {
		case <-c.room:
		case <-f.over:
			return
		}
	}
}

// queueUp lets d wait for Next. It is false while there is no room for it.
func (f *flow) queueUp(d *Delivery, size int) bool {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.flow != f {
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
		c.q.log.Warn("message that is no event not acked", "seq", d.Seq, "handler", c.cfg.Handler, "error", err)
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
// flow of them has ended by itself, it ends the consumer.
func (f *flow) mark(every time.Duration, closed <-chan struct{}) {
	c := f.c
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-f.over:
			return
		case <-closed:
			f.broke()
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		waiting := slices.Clone(c.waiting)
		c.mu.Unlock()
		for _, d := range waiting {
			if err := d.InProgress(); err != nil {
				c.q.log.Warn("waiting delivery not marked", "handler", c.cfg.Handler, "error", err)
				break
			}
		}
	}
}

package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Defaults of ConsumerConfig.
const (
	DefaultAckWait       = 60 * time.Second
	DefaultMaxAckPending = 64
)

// metaHandler is where a consumer keeps the handler's id: its name may be coded.
const metaHandler = "idemd-handler"

// ConsumerConfig says what one handler gets.
type ConsumerConfig struct {
	Handler       string        // handler id
	Sources       []string      // source ids; all sources when empty
	Start         uint64        // first stream sequence to deliver; below the oldest that is kept: that one
	AckWait       time.Duration // a delivery without Ack or InProgress for so long comes again; DefaultAckWait when zero
	MaxAckPending int           // unsettled deliveries at most; DefaultMaxAckPending when zero
}

// Consumer hands a handler its events. Its methods may be called from many
// goroutines. It fetches up to MaxAckPending deliveries ahead and keeps them
// marked in progress until Next returns them.
type Consumer struct {
	q       *Queue
	handler string
	inner   jetstream.Consumer

	mu      sync.Mutex
	flow    jetstream.ConsumeContext // nil until deliveries run
	waiting []*Delivery              // in the order in which they came
	ended   bool

	arrived chan struct{} // holds a token while something may be waiting
	stopped chan struct{} // closed when ended
	marking sync.WaitGroup
}

// Consume makes the handler's consumer anew: an old one is stopped and deleted,
// with all that it knew about unsettled deliveries, and the new one starts at
// cfg.Start. It returns when that is on stable storage.
func (q *Queue) Consume(ctx context.Context, cfg ConsumerConfig) (*Consumer, error) {
	if cfg.AckWait <= 0 {
		cfg.AckWait = DefaultAckWait
	}
	if cfg.MaxAckPending <= 0 {
		cfg.MaxAckPending = DefaultMaxAckPending
	}
	if err := q.Delete(ctx, cfg.Handler); err != nil {
		return nil, err
	}
	inner, err := q.js.CreateConsumer(ctx, streamEvents, consumerConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("create consumer of %s: %w", cfg.Handler, closedError(err))
	}
	if err := q.commit.barrier(ctx); err != nil {
		return nil, fmt.Errorf("create consumer of %s: %w", cfg.Handler, err)
	}
	c := &Consumer{q: q, handler: cfg.Handler, inner: inner, arrived: make(chan struct{}, 1), stopped: make(chan struct{})}
	if err := q.register(c); err != nil {
		return nil, err
	}
	if err := c.run(cfg); err != nil {
		c.Stop()
		return nil, fmt.Errorf("consume for %s: %w", cfg.Handler, closedError(err))
	}
	return c, nil
}

func consumerConfig(cfg ConsumerConfig) jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable: token(cfg.Handler), Metadata: map[string]string{metaHandler: cfg.Handler},
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(cfg.Start, 1),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: cfg.AckWait,
		MaxDeliver: -1, MaxAckPending: cfg.MaxAckPending,
	}
	for _, source := range cfg.Sources {
		c.FilterSubjects = append(c.FilterSubjects, sourceFilter(source))
	}
	slices.Sort(c.FilterSubjects)
	c.FilterSubjects = slices.Compact(c.FilterSubjects) // the server refuses filters that overlap
	return c
}

// register makes c known, so that Close and Delete stop it.
func (q *Queue) register(c *Consumer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.closing:
		return ErrClosed
	default:
	}
	q.consumers[c.handler] = c
	return nil
}

func (q *Queue) openConsumers() []*Consumer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.consumers))
}

// Delete removes a handler's consumer, if there is one, and stops it.
func (q *Queue) Delete(ctx context.Context, handler string) error {
	q.mu.Lock()
	c := q.consumers[handler]
	q.mu.Unlock()
	if c != nil {
		c.Stop()
	}
	err := q.js.DeleteConsumer(ctx, streamEvents, token(handler))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer of %s: %w", handler, closedError(err))
	}
	q.commit.touch()
	return nil
}

// Consumers returns the ids of the handlers that have a consumer, sorted.
func (q *Queue) Consumers(ctx context.Context) ([]string, error) {
	var handlers []string
	list := q.events.ListConsumers(ctx)
	for info := range list.Info() {
		handlers = append(handlers, info.Config.Metadata[metaHandler])
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list consumers: %w", closedError(err))
	}
	slices.Sort(handlers)
	return handlers, nil
}

// run lets deliveries come.
func (c *Consumer) run(cfg ConsumerConfig) error {
	flow, err := c.inner.Consume(c.receive,
		jetstream.PullMaxMessages(cfg.MaxAckPending), jetstream.ConsumeErrHandler(c.onError))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flow = flow
	if c.ended { // by Close, meanwhile
		flow.Stop()
		return ErrClosed
	}
	c.marking.Go(func() { c.mark(cfg.AckWait / 3) })
	return nil
}

// receive takes a delivery from the server. It never blocks: the server sends
// no more than MaxAckPending.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, d)
	c.signal()
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

// Next waits for the next delivery and returns it once its sequence is durable.
// First deliveries come in the order of the stream. It returns ctx's error when
// ctx ends, and ErrClosed after Stop, Close, or when the consumer is deleted.
func (c *Consumer) Next(ctx context.Context) (*Delivery, error) {
	for {
		select {
		case <-c.stopped:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.arrived:
		}
		d, seq := c.take()
		if d != nil {
			return d, nil
		}
		if seq == 0 {
			continue
		}
		err := c.q.commit.durable.wait(ctx, c.stopped, seq)
		c.signal() // we took the token and left the delivery
		if err != nil {
			return nil, err
		}
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
	if len(c.waiting) > 0 {
		c.signal()
	}
	return d, 0
}

// Pending returns how many messages Next has not returned yet. What waits to be
// delivered again is left out, and what is on its way at this moment too.
func (c *Consumer) Pending(ctx context.Context) (uint64, error) {
	info, err := c.inner.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("read consumer of %s: %w", c.handler, closedError(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return info.NumPending + uint64(len(c.waiting)), nil
}

// Stop ends deliveries. Those that Next has returned can still be settled.
func (c *Consumer) Stop() {
	c.end()
	c.marking.Wait()
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if c.q.consumers[c.handler] == c {
		delete(c.q.consumers, c.handler)
	}
}

func (c *Consumer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.waiting = true, nil
	close(c.stopped)
	if c.flow != nil {
		c.flow.Stop()
	}
}

// mark keeps the deliveries that wait here from being delivered again.
func (c *Consumer) mark(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-c.stopped:
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

// onError hears of trouble with the flow of deliveries, which mends itself,
// except when there is nothing left to flow.
func (c *Consumer) onError(_ jetstream.ConsumeContext, err error) {
	if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConnectionClosed) {
		c.end()
		return
	}
	c.q.log.Warn("deliveries interrupted", "handler", c.handler, "error", err)
}

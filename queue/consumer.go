package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
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
	Resume        func() uint64 // where to begin again after Restart; Start when nil
	AckWait       time.Duration // a delivery without Ack or InProgress for so long comes again; DefaultAckWait when zero
	MaxAckPending int           // unsettled deliveries at most; DefaultMaxAckPending when zero
}

// Consumer hands a handler its events. Its methods may be called from many
// goroutines. It fetches up to MaxAckPending deliveries ahead, as long as they
// are not too big, and keeps them marked in progress until Next returns them.
type Consumer struct {
	q   *Queue
	cfg ConsumerConfig

	mu      sync.Mutex
	flow    *flow       // nil while there is none
	waiting []*Delivery // in the order in which they came
	size    int         // bytes of what waits
	ended   bool

	arrived chan struct{} // holds a token while something may be waiting
	room    chan struct{} // holds a token after something was taken
	stopped chan struct{} // closed when ended
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
	c := &Consumer{
		q: q, cfg: cfg,
		arrived: make(chan struct{}, 1), room: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	if err := q.register(c); err != nil {
		return nil, err
	}
	if err := c.open(ctx, cfg.Start); err != nil {
		c.Stop()
		return nil, fmt.Errorf("create consumer of %s: %w", cfg.Handler, q.closedError(err))
	}
	return c, nil
}

func consumerConfig(cfg ConsumerConfig, start uint64) jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		Durable: token(cfg.Handler), Metadata: map[string]string{metaHandler: cfg.Handler},
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
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
	q.consumers[c.cfg.Handler] = c
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
	return q.deleteConsumer(ctx, handler)
}

func (q *Queue) deleteConsumer(ctx context.Context, handler string) error {
	err := q.now().js.DeleteConsumer(ctx, streamEvents, token(handler))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("delete consumer of %s: %w", handler, q.closedError(err))
	}
	q.commit.touch()
	return nil
}

// Consumers returns the ids of the handlers that have a consumer, sorted.
func (q *Queue) Consumers(ctx context.Context) ([]string, error) {
	var handlers []string
	list := q.now().events.ListConsumers(ctx)
	for info := range list.Info() {
		handlers = append(handlers, info.Config.Metadata[metaHandler])
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list consumers: %w", q.closedError(err))
	}
	slices.Sort(handlers)
	return handlers, nil
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

// Pending returns how many messages Next has not returned yet. What waits to be
// delivered again is left out, and what is on its way at this moment too.
func (c *Consumer) Pending(ctx context.Context) (uint64, error) {
	info, err := c.info(ctx)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return info.NumPending + uint64(len(c.waiting)), nil
}

// AckFloor returns the sequence up to which nothing that the handler is to get
// is unsettled: everything was delivered, arrived and was acked. A delivery that
// was lost on its way holds it back until it came again. An ack counts a moment
// after it was sent. It returns ErrClosed after Stop and Close.
func (c *Consumer) AckFloor(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	info, err := c.info(ctx)
	if err != nil {
		return 0, err
	}
	return info.AckFloor.Stream, nil
}

// info asks the server about the consumer.
func (c *Consumer) info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	c.mu.Lock()
	f := c.flow
	c.mu.Unlock()
	err := error(nats.ErrConnectionClosed)
	if f != nil {
		var info *jetstream.ConsumerInfo
		if info, err = f.inner.Info(ctx); err == nil {
			return info, nil
		}
	}
	err = c.q.closedError(err)
	select {
	case <-c.stopped:
		err = ErrClosed
	default:
	}
	return nil, fmt.Errorf("read consumer of %s: %w", c.cfg.Handler, err)
}

// Stop ends deliveries. Those that Next has returned can still be settled.
func (c *Consumer) Stop() {
	c.end()
	c.interrupt()
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if c.q.consumers[c.cfg.Handler] == c {
		delete(c.q.consumers, c.cfg.Handler)
	}
}

func (c *Consumer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.waiting, c.size = true, nil, 0
	close(c.stopped)
	if c.flow != nil {
		c.flow.stop()
	}
}

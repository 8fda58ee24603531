package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	maxGroup      = 500
	maxGroupBytes = 16 << 20 // well below what the server buffers for a stream
	ackPrefix     = "_IDEMD.ACK."
	backgroundGap = time.Second // longest time that something written waits for a sync
)

// committer makes what is published durable, a group at a time, in two stages:
// one publishes the requests that wait and collects the server's
// acknowledgements, the other makes one sync for them and answers. While a
// group syncs, the next one is published.
//
// An acknowledgement says that the message is written, not that it would
// survive a power cut. The server writes a stream's messages one after the
// other, so whoever has seen sequence n acknowledged, or delivered, knows that
// everything up to n is written: a sync that begins after that makes all of it
// durable. That is how durable follows written, whoever asked for a message and
// whether or not the answer arrived in time.
type committer struct {
	conn    atomic.Pointer[nats.Conn]
	log     *slog.Logger
	timeout time.Duration
	sync    func() error
	fault   func(point string)

	intake    sync.RWMutex // held for writing to end the intake
	ended     bool
	requests  chan *request
	published chan *group
	barriers  chan chan error
	abort     chan struct{} // closed: wait for no acknowledgement any more
	idle      chan struct{} // closed when both stages have returned

	mu      sync.Mutex
	current *group // whose acknowledgements are awaited

	written watermark // events known to be written
	durable watermark // events known to survive a power cut
	dirty   atomic.Bool
	broken  atomic.Pointer[error] // the sync error that ended everything
	failed  chan error
}

// request is one message that waits to become durable.
type request struct {
	msg   *nats.Msg
	acked bool
	seq   uint64
	err   error
	done  chan struct{} // closed when seq or err is final
}

// group is what is published, and then synced, together.
type group struct {
	id       uint64
	requests []*request
	missing  int           // acknowledgements not seen yet
	complete chan struct{} // closed when none is missing
}

func newCommitter(conn *nats.Conn, cfg Config, sync func() error, last uint64) (*committer, error) {
	c := &committer{
		log: cfg.Logger, timeout: cfg.PublishTimeout, sync: sync, fault: cfg.Fault,
		requests: make(chan *request, maxGroup), published: make(chan *group), barriers: make(chan chan error),
		abort: make(chan struct{}), idle: make(chan struct{}), failed: make(chan error, 1),
	}
	c.written.raise(last)
	c.durable.raise(last)
	if err := c.use(conn); err != nil {
		return nil, err
	}
	go c.publishLoop()
	go c.syncLoop()
	return c, nil
}

// use lets the committer publish over conn, and listen there.
func (c *committer) use(conn *nats.Conn) error {
	if _, err := conn.Subscribe(ackPrefix+">", c.onAck); err != nil {
		return fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	c.conn.Store(conn)
	return nil
}

// do publishes msg and returns its sequence when it is durable. When ctx ends
// before, the message may become durable all the same.
func (c *committer) do(ctx context.Context, msg *nats.Msg) (uint64, error) {
	r := &request{msg: msg, done: make(chan struct{})}
	if err := c.enqueue(ctx, r); err != nil {
		return 0, err
	}
	select {
	case <-r.done:
		if r.err != nil {
			return 0, r.err
		}
		return r.seq, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (c *committer) enqueue(ctx context.Context, r *request) error {
	c.intake.RLock()
	defer c.intake.RUnlock()
	if c.ended {
		return ErrClosed
	}
	if err := c.failure(); err != nil {
		return err
	}
	select {
	case c.requests <- r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// barrier returns after a sync that began after the call.
func (c *committer) barrier(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case c.barriers <- done:
	case <-c.idle:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends the intake and waits until every request is answered. When ctx
// ends before, requests whose acknowledgement is missing fail.
func (c *committer) close(ctx context.Context) error {
	c.intake.Lock()
	c.ended = true
	close(c.requests)
	c.intake.Unlock()
	select {
	case <-c.idle:
		return nil
	case <-ctx.Done():
	}
	close(c.abort)
	<-c.idle
	return ctx.Err()
}

// publishLoop is the first stage. It ends when the intake has ended and every
// request has gone on.
func (c *committer) publishLoop() {
	defer close(c.published)
	for id := uint64(1); ; id++ {
		requests := c.collect()
		if len(requests) == 0 {
			return
		}
		if good := c.publish(id, requests); good != nil {
			c.published <- good
		}
	}
}

// collect waits for a request and takes those that wait with it. It returns
// none when the intake has ended.
func (c *committer) collect() []*request {
	first, open := <-c.requests
	if !open {
		return nil
	}
	requests, size := []*request{first}, len(first.msg.Data)
	for len(requests) < maxGroup && size < maxGroupBytes {
		select {
		case r, open := <-c.requests:
			if !open {
				return requests
			}
			requests = append(requests, r)
			size += len(r.msg.Data)
		default:
			return requests
		}
	}
	return requests
}

// publish sends the requests, waits for their acknowledgements, answers those
// that failed and returns the rest, nil when there is none.
func (c *committer) publish(id uint64, requests []*request) *group {
	g := &group{id: id, requests: requests, missing: len(requests), complete: make(chan struct{})}
	c.mu.Lock()
	c.current = g
	c.mu.Unlock()
	prefix := ackPrefix + strconv.FormatUint(id, 10) + "."
	for i, r := range requests {
		r.msg.Reply = prefix + strconv.Itoa(i)
		if err := c.conn.Load().PublishMsg(r.msg); err != nil {
			c.settle(id, i, 0, publishError(err))
		}
	}
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case <-g.complete:
	case <-timer.C:
	case <-c.abort:
	}
	c.mu.Lock()
	c.current = nil // from here on the requests are ours alone
	c.mu.Unlock()
	return c.dropFailed(g)
}

// dropFailed answers the requests that were refused or not acknowledged.
func (c *committer) dropFailed(g *group) *group {
	good := g.requests[:0]
	for _, r := range g.requests {
		if !r.acked {
			r.err = fmt.Errorf("%w: no acknowledgement within %v", ErrUnavailable, c.timeout)
		}
		if r.err != nil {
			close(r.done)
			continue
		}
		good = append(good, r)
	}
	if len(good) == 0 {
		return nil
	}
	g.requests = good
	return g
}

// settle notes the answer to request i of group id. Answers that come after the
// group was given up change nothing here.
func (c *committer) settle(id uint64, i int, seq uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.current
	if g == nil || g.id != id || i >= len(g.requests) || g.requests[i].acked {
		return
	}
	r := g.requests[i]
	r.acked, r.seq, r.err = true, seq, err
	g.missing--
	if g.missing == 0 {
		close(g.complete)
	}
}

// syncLoop is the second stage, and the only one that syncs.
func (c *committer) syncLoop() {
	defer close(c.idle)
	ticker := time.NewTicker(backgroundGap)
	defer ticker.Stop()
	for {
		select {
		case g, open := <-c.published:
			if !open {
				return
			}
			err := c.syncOnce()
			for _, r := range g.requests {
				r.err = err
				close(r.done)
			}
		case done := <-c.barriers:
			done <- c.syncOnce()
		case <-ticker.C:
			if c.dirty.Load() || c.written.load() > c.durable.load() {
				if err := c.syncOnce(); err != nil {
					c.log.Debug("background sync left out", "error", err)
				}
			}
		}
	}
}

// syncOnce makes durable what is written. After an error it is unknown what the
// disk holds, and a second sync would wrongly succeed: so there is none.
func (c *committer) syncOnce() error {
	if err := c.failure(); err != nil {
		return err
	}
	c.dirty.Store(false)
	written := c.written.load() // read before the sync begins
	c.fault("before-sync")
	if err := c.sync(); err != nil {
		return c.fail(fmt.Errorf("sync queue: %w", err))
	}
	c.durable.raise(written)
	c.fault("after-sync")
	return nil
}

// fail ends everything with err, unless an earlier error already has.
func (c *committer) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	if c.broken.CompareAndSwap(nil, &err) {
		c.failed <- err
	}
	return err
}

func (c *committer) failure() error {
	if err := c.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// noteWritten says that every event up to seq is written.
func (c *committer) noteWritten(seq uint64) { c.written.raise(seq) }

// touch asks for a sync in the background.
func (c *committer) touch() { c.dirty.Store(true) }

// publishError says what an error of the client means to whoever publishes.
func publishError(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return ErrTooLarge
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

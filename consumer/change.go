package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// change asks a pool to go on under another Spec.
type change struct {
	spec Spec
	log  *slog.Logger
	made chan struct{} // closed when it is done
}

// kept is what a shift had in hand when it ended: taken from queue and store,
// and given to no worker.
type kept struct {
	delivery *queue.Delivery
	due      []dedup.Record
}

// face is what others may ask a pool while its Spec changes.
type face struct {
	id, name    string
	concurrency int
	consumer    *queue.Consumer
	log         *slog.Logger
	serializeBy string
	lanes       *lanes
}

// strict reports whether an event of a handler that is idempotent now has a record
// from a time when it was not: that one still counts.
func (p *Pool) strict(ctx context.Context, key event.Key) bool {
	rec, found, err := p.store.Get(ctx, key)
	return err == nil && found && rec.Effect > dedup.Idempotent
}

func (p *Pool) show(log *slog.Logger) {
	p.face.Store(&face{id: p.spec.ID, name: p.spec.Name, concurrency: p.spec.Concurrency, consumer: p.consumer, log: log,
		serializeBy: p.spec.SerializeBy, lanes: p.lanes})
}

// Change lets the handler go on under another Spec of the same id, with a logger
// that carries its name. Nothing is cut: the pool takes nothing new, lets running
// attempts end within their timeout, and goes on where it was; what waits for its
// turn waits a little longer. A record keeps the effect that it began under if
// that is the stricter one. When Change returns without an error, nothing runs
// under the old Spec any more and its Handler is closed. It returns ctx's error
// when ctx ends before the change has begun, and ErrStopped when the pool does
// not run.
func (p *Pool) Change(ctx context.Context, spec Spec, log *slog.Logger) error {
	id := p.face.Load().id
	if spec.ID != id {
		return fmt.Errorf("change handler %s: the new one is %s", id, spec.ID)
	}
	if problems := spec.Validate(); len(problems) > 0 {
		return fmt.Errorf("change handler %s: %s %s", id, problems[0].Field, problems[0].Text)
	}
	c := &change{spec: spec.WithDefaults(), log: log, made: make(chan struct{})}
	select {
	case p.changes <- c:
	case <-p.done:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-c.made:
		return nil
	case <-p.done:
		return ErrStopped
	}
}

// ErrStopped is returned by Change when the pool has ended.
var ErrStopped = errors.New("handler has stopped")

// change puts the next shift under c. Nothing runs. Its error is ErrStopped, or that
// of a queue that has ended.
func (p *Pool) change(ctx context.Context, c *change) error {
	old := p.spec
	before := p.consumerConfig(0)
	p.spec, p.log = c.spec, c.log
	p.reaper.specs[p.spec.ID], p.reaper.log = p.spec, c.log
	p.slots = make(chan struct{}, 4*p.spec.Concurrency)
	if p.spec.MaxRate != old.MaxRate {
		p.pace = newPace(p.now, p.spec.MaxRate)
	}
	after := p.consumerConfig(0)
	if !slices.Equal(before.Sources, after.Sources) || before.MaxAckPending != after.MaxAckPending {
		if err := p.consumeAnew(ctx); err != nil {
			return err
		}
	}
	if old.SerializeBy != p.spec.SerializeBy || old.HoldOrder != p.spec.HoldOrder {
		if err := p.fillAgain(ctx); err != nil {
			return err
		}
	}
	p.show(c.log)
	p.hold.hurry()
	if closer, ok := old.Handler.(io.Closer); ok && old.Handler != p.spec.Handler {
		if err := closer.Close(); err != nil {
			p.log.Warn("handler of the old configuration not closed", "error", err)
		}
	}
	close(c.made)
	return nil
}

// fillAgain fills other lanes. While the store or the queue do not answer, it tries
// again.
func (p *Pool) fillAgain(ctx context.Context) error {
	return p.again(ctx, "lanes not filled", func() error { return p.fillLanes(ctx) })
}

// again does what nothing else can do for it, until it succeeds or the pool ends.
func (p *Pool) again(ctx context.Context, failed string, do func() error) error {
	for {
		err := do()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, queue.ErrClosed), errors.Is(err, dedup.ErrClosed):
			return fmt.Errorf("change handler %s: %w", p.spec.Name, err)
		}
		p.obs.queueErrors.Add(1)
		p.log.Warn(failed+", trying again", "error", err)
		select {
		case <-p.stop:
			return ErrStopped
		case <-ctx.Done():
			return ErrStopped
		case <-time.After(pollEvery):
		}
	}
}

// consumeAnew makes the consumer again, for other sources or another number of
// open deliveries.
func (p *Pool) consumeAnew(ctx context.Context) error {
	return p.again(ctx, "consumer not changed", func() error {
		consumer, err := p.queue.Consume(ctx, p.consumerConfig(p.progress.saved.Load()+1))
		if err == nil {
			p.consumer = consumer
		}
		return err
	})
}

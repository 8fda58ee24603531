package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"idemd/dedup"
	"idemd/queue"
)

// fetch offers deliveries to free workers.
func (p *Pool) fetch(ctx context.Context) error {
	if d := p.kept.delivery; d != nil && (!p.arrive(ctx, d) || !p.offer(ctx, d)) {
		return nil
	}
	p.kept.delivery = nil
	for {
		if err := p.gate.wait(ctx); err != nil {
			return nil
		}
		d, err := p.consumer.Next(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, queue.ErrClosed):
			return fmt.Errorf("fetch events for %s: %w", p.spec.Name, err)
		default:
			p.obs.queueErrors.Add(1)
			p.log.Warn("events not fetched, trying again", "error", err)
			if sleep(ctx, pollEvery) != nil {
				return nil
			}
			continue
		}
		if p.lost != nil && p.lost(d.Seq) {
			continue
		}
		if !p.open.add(d) {
			p.obs.redelivered.Add(1)
			continue // it is being worked on
		}
		if !p.arrive(ctx, d) || !p.offer(ctx, d) {
			p.kept.delivery = d
			return nil
		}
	}
}

// offer waits for a free worker that takes d. It is false when ctx ended before.
func (p *Pool) offer(ctx context.Context, d *queue.Delivery) bool {
	if p.spec.Matches(d.Event.Source, d.Event.Type) && p.pace.wait(ctx) != nil {
		return false
	}
	select {
	case p.deliveries <- d:
		return true
	case <-ctx.Done():
		return false
	}
}

// wakeUps offers due records to free workers.
func (p *Pool) wakeUps(taking, running context.Context) error {
	if p.kept.due = p.offerDue(taking, p.kept.due); p.kept.due != nil {
		return nil
	}
	for {
		if err := p.gate.wait(taking); err != nil {
			return nil
		}
		p.reclaimLost(running)
		p.reapDead(running)
		p.checkLanes(running)
		if p.kept.due = p.offerDue(taking, p.readyRuns(taking)); p.kept.due != nil {
			return nil
		}
		records, next, err := p.store.Due(taking, p.spec.ID, dedup.At(p.now()), p.spec.Concurrency)
		switch {
		case err == nil:
		case taking.Err() != nil:
			return nil
		case errors.Is(err, dedup.ErrClosed):
			return fmt.Errorf("read due runs of %s: %w", p.spec.Name, err)
		default:
			p.obs.storeErrors.Add(1)
			next = dedup.At(p.now().Add(pollEvery))
		}
		if p.kept.due = p.offerDue(taking, records); p.kept.due != nil {
			return nil
		}
		if len(records) < p.spec.Concurrency {
			p.untilDue(taking, next)
		}
	}
}

// offerDue waits for free workers that take records. It gives those that nobody
// took before ctx ended, nil when there are none.
func (p *Pool) offerDue(ctx context.Context, records []dedup.Record) []dedup.Record {
	for i, rec := range records {
		if p.pace.wait(ctx) != nil {
			return records[i:]
		}
		select {
		case p.due <- rec:
		case <-ctx.Done():
			return records[i:]
		}
	}
	return nil
}

// untilDue waits until next, or for the store's signal.
func (p *Pool) untilDue(ctx context.Context, next dedup.Time) {
	wait := dedup.RearmAfter
	if next != 0 {
		wait = min(wait, next.Std().Sub(p.now()))
	}
	if p.claims.anyLost() {
		wait = min(wait, pollEvery)
	}
	if !p.reaped {
		wait = min(wait, p.reapAt.Sub(p.now()))
	}
	t := time.NewTimer(max(wait, time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.lanes.rang:
	case <-p.store.Wake(p.spec.ID):
	case <-ctx.Done():
	}
}

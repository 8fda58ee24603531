package consumer

import (
	"context"
	"errors"
	"fmt"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// turnOf is the place of a run in its lane; the zero value is in none.
type turnOf struct {
	at    lane
	taken bool
}

// enter asks for the run's turn. It is false when it is not its turn: then the
// store calls it later.
func (p *Pool) enter(r *run) bool {
	at, serial := laneOf(r.ev, p.spec.SerializeBy)
	if !serial {
		if p.spec.SerializeBy != "" {
			p.obs.unserialized.Add(1)
		}
		return true
	}
	r.turn = turnOf{at: at, taken: p.lanes.begin(at, r.key, r.seq)}
	return r.turn.taken
}

// exit ends the run's turn. Again says that it comes again, by its record or by its
// delivery.
func (p *Pool) exit(r *run, again bool) {
	if r.turn.taken {
		r.turn.taken = false
		p.lanes.end(r.turn.at, r.key, again)
	}
}

// arrive takes a delivery into its lane, in the order of the stream. It waits while
// too much is in lanes.
func (p *Pool) arrive(ctx context.Context, d *queue.Delivery) bool {
	if p.spec.SerializeBy == "" {
		return true
	}
	for p.lanes.full() {
		select {
		case <-p.lanes.room:
		case <-ctx.Done():
			return false
		}
	}
	if p.spec.Matches(d.Event.Source, d.Event.Type) && p.spec.Unrunnable(&d.Event) == "" && !pastEvent(p.spec.Effect, d.Seq, p.doubtTo) {
		if at, serial := laneOf(&d.Event, p.spec.SerializeBy); serial {
			p.lanes.arrive(at, event.KeyFor(&d.Event, p.spec.ID), d.Seq, arrived)
		}
	}
	p.lanes.passed(d.Seq)
	return true
}

// block gives a delivery whose turn it is not a record that waits for it. The
// delivery is acked: the record is as durable as it is.
func (p *Pool) block(ctx context.Context, r *run) {
	if !p.async(ctx, func() { p.blockNow(ctx, r) }) {
		p.leave(r)
	}
}

func (p *Pool) blockNow(ctx context.Context, r *run) {
	res, err := p.write(ctx, r.key, dedup.Put{
		State: dedup.Waiting, Effect: p.spec.Effect, Fingerprint: r.ev.Fingerprint, Origin: r.ev.Origin, Seq: r.seq,
		Due: dedup.At(p.now()), Reason: dedup.Reason{Code: dedup.ReasonBlocked},
	})
	if err != nil {
		p.leave(r)
		return
	}
	switch res.Verdict {
	case dedup.Created:
		p.lanes.block(r.turn.at, r.key)
		p.finish(r)
		return
	case dedup.NotYet:
		p.lanes.block(r.turn.at, r.key)
	case dedup.Mismatch:
		p.lanes.drop(r.turn.at, r.key)
		p.mismatch(ctx, r, &res.Record)
		return
	case dedup.Busy:
	default:
		p.lanes.drop(r.turn.at, r.key)
	}
	p.obs.verdict(res.Verdict)
	p.suppressed(r, res.Verdict, &res.Record)
	if p.isDuplicate(r, &res) {
		p.duplicate(ctx, r)
		return
	}
	p.finish(r)
}

// readyRuns gives the records of runs whose turn has come.
func (p *Pool) readyRuns(ctx context.Context) []dedup.Record {
	var records []dedup.Record
	for _, r := range p.lanes.takeReady(p.spec.Concurrency) {
		rec, found, err := p.store.Get(ctx, r.key)
		switch {
		case err != nil:
			p.obs.storeErrors.Add(1) // Due shows it again
		case found && rec.State == dedup.Waiting:
			records = append(records, rec)
		default: // somebody has settled it
			p.lanes.drop(r.at, r.key)
		}
	}
	return records
}

// checkLanes lets go of runs that somebody else has settled while others waited
// behind them: an operator, who retired their source, or a recovery pass that came
// late.
func (p *Pool) checkLanes(ctx context.Context) {
	if !p.spec.HoldOrder || p.now().Before(p.lanesAt) {
		return
	}
	p.lanesAt = p.now().Add(dedup.RearmAfter)
	for _, r := range p.lanes.holding() {
		rec, found, err := p.store.Get(ctx, r.key)
		if err == nil && (!found || rec.State != dedup.Waiting && rec.State != dedup.Started) {
			p.lanes.drop(r.at, r.key)
		}
	}
}

// fillLanes takes in what waits since before the pool began. Only with hold_order
// it has to be known before it is due.
func (p *Pool) fillLanes(ctx context.Context) error {
	p.lanes = newLanes(p.spec.HoldOrder)
	p.lanes.passed(p.progress.saved.Load())
	if !p.spec.HoldOrder {
		return nil
	}
	var waiting []dedup.Record
	err := EachOpen(ctx, p.store, p.spec.ID, func(rec *dedup.Record, _ *event.KeyParts) {
		if rec.State != dedup.InDoubt { // what a dead process has left running comes again, or checkLanes lets it go
			waiting = append(waiting, *rec)
		}
	})
	if err != nil {
		return fmt.Errorf("list runs that wait: %w", err)
	}
	for i := range waiting {
		rec := &waiting[i]
		ev, err := fetch(ctx, p.queue, p.spec.ID, rec)
		if errors.Is(err, queue.ErrMissing) {
			continue // it becomes a dead letter when it is due
		}
		if err != nil {
			return fmt.Errorf("read an event that waits: %w", err)
		}
		state := later
		if rec.Reason.Code == dedup.ReasonBlocked {
			state = blocked
		}
		if at, serial := laneOf(ev, p.spec.SerializeBy); serial {
			p.lanes.arrive(at, rec.Key, rec.Seq, state)
		}
	}
	p.lanes.nextOfAll()
	return nil
}

// Ahead gives the event that a run waits for in its lane, 0 when it waits for none
// or is in no lane.
func (p *Pool) Ahead(ev *event.Event, key event.Key) uint64 {
	f := p.face.Load()
	at, serial := laneOf(ev, f.serializeBy)
	if !serial {
		return 0
	}
	return f.lanes.ahead(at, key)
}

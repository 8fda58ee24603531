package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"idemd/admin"
	"idemd/dedup"
	"idemd/event"
	"idemd/janitor"
	"idemd/queue"
)

// purgeGrace is for how long PURGED says that events will go before they do: a copy
// of the running directory takes less. It is unlinkGrace of the queue.
const purgeGrace = unlinkGrace

// pressure is what of the queue must go that is not too old yet.
type pressure struct {
	bytes int64 // at least; 0: nothing
	now   bool  // without grace: events are refused, or soon will be
}

// pressureOf decides whether handled history goes earlier than [queue] history:
// when the queue's budget, or the free space of the disk, is nearly used up.
func pressureOf(used, budget, free, reserve int64) pressure {
	var p pressure
	if used >= budget/100*80 {
		p = pressure{bytes: used - budget/100*75, now: used >= budget/100*95}
	}
	if enough := reserve + reserve/2; free < enough {
		p.bytes, p.now = max(p.bytes, enough-free), p.now || shortOf(true, free, reserve)
	}
	return p
}

// purgeable gives up to which event the blocks could go: by their age, and by age and
// pressure together. The newest block stays.
func purgeable(blocks []queue.Block, cutoff time.Time, p pressure) (byAge, all uint64) {
	var bytes int64
	for i := 0; i+1 < len(blocks); i++ {
		next := blocks[i+1]
		if !next.Stored.After(cutoff) { // all of this one is older
			byAge = next.First - 1
		}
		if bytes < p.bytes {
			all = next.First - 1
		}
		bytes += blocks[i].Bytes
	}
	return byAge, max(byAge, all)
}

// pin is the oldest event that somebody needs.
type pin struct {
	seq uint64
	who string
}

func (p *pin) lower(seq uint64, who func() string) {
	if p.seq == 0 || seq < p.seq {
		p.seq, p.who = seq, who()
	}
}

// pinned finds the oldest event that a handler has not had, or that a run without a
// copy of it stands for. The handlers' progress is read first: what is settled
// meanwhile has its record before it counts as that.
func (a *App) pinned(ctx context.Context) (pin, error) {
	var oldest pin
	now := a.live()
	for i, pool := range now.pools {
		spec := &now.specs[i]
		next, err := a.queue.NextOf(ctx, spec.Sources, pool.Progress().SettledTo+1)
		if err != nil {
			return oldest, err
		}
		oldest.lower(next, func() string { return fmt.Sprintf("handler %s has not settled event %d yet", spec.Name, next) })
	}
	for cursor := ""; ; {
		f := dedup.Filter{States: []dedup.State{dedup.Started, dedup.Waiting, dedup.InDoubt, dedup.Dead}}
		page, more, err := a.store.List(ctx, f, cursor, deadStep)
		if err != nil {
			return oldest, fmt.Errorf("list open runs: %w", err)
		}
		for i := range page {
			if rec := &page[i]; rec.Seq > 0 && !rec.Parked {
				oldest.lower(rec.Seq, func() string { return needs(now, rec) })
			}
		}
		if cursor = more; cursor == "" {
			return oldest, nil
		}
	}
}

// needs says which run needs its event.
func needs(now *setup, rec *dedup.Record) string {
	name := "of an unknown id"
	if parts, err := event.DecodeKey(rec.Key.Tuple); err == nil {
		name = parts.Handler
		if i := now.handler(name); i >= 0 {
			name = now.specs[i].Name
		}
	}
	return fmt.Sprintf("handler %s needs event %d, which is %s there (%s)", name, rec.Seq, strings.ReplaceAll(rec.State.String(), "_", " "), rec.Key.RunID())
}

// replaying finds the oldest event that a replay has still to look at. That holds
// nothing back that is too old: a replay leaves it alone.
func replaying(oldest pin, all []admin.Replay) pin {
	for i := range all {
		if rp := &all[i]; !rp.State.Over() && rp.From > 0 {
			oldest.lower(rp.Position+1, func() string { return "replay " + rp.ID + " has not come past it: idemd replay list" })
		}
	}
	return oldest
}

// purge takes away handled events that are older than [queue] history, and younger
// ones while there is too little space. A clock that has not been steady for long
// is not believed: then nothing is too old.
func (a *App) purge(ctx context.Context, now time.Time) (janitor.Done, error) {
	st, err := a.queue.State(ctx)
	if err != nil {
		return janitor.Done{}, err
	}
	blocks, err := a.queue.Blocks()
	if err != nil {
		return janitor.Done{}, err
	}
	free, err := freeBytes(a.cfg.DataDir)
	if err != nil {
		return janitor.Done{}, err
	}
	budget, err := a.cfg.QueueBytes()
	if err != nil {
		return janitor.Done{}, err
	}
	var cutoff time.Time
	if a.clock.sinceStep(now) >= clockSteady {
		cutoff = now.Add(-a.cfg.HistorySum().History.Std())
	}
	p := pressureOf(int64(st.Bytes), budget, free, a.disk.reserve)
	byAge, all := purgeable(blocks, cutoff, p)
	if all == 0 {
		a.history.set(p, "")
		return janitor.Done{}, nil
	}
	return a.purgeTo(ctx, p, byAge, all)
}

// purgeTo takes away what may go of it.
func (a *App) purgeTo(ctx context.Context, p pressure, byAge, all uint64) (janitor.Done, error) {
	oldest, err := a.pinned(ctx)
	if err != nil {
		return janitor.Done{}, err
	}
	early := replaying(oldest, a.replays.List())
	upTo := max(below(byAge, oldest), below(all, early))
	grace := purgeGrace
	if p.now {
		grace = 0
	}
	gone, err := a.queue.Purge(ctx, upTo, grace)
	if err != nil {
		return janitor.Done{}, err
	}
	who := ""
	if upTo < all {
		who = early.who
	}
	a.history.set(p, who)
	if gone.Events > 0 {
		a.log.Info("handled history purged", "events", gone.Events, "bytes", gone.Bytes, "early", upTo > byAge)
	}
	return janitor.Done{
		Examined: gone.Events + gone.Said, Removed: gone.Events, Bytes: gone.Bytes, Left: gone.Said, More: gone.More,
	}, nil
}

// below bounds a sequence by what somebody needs.
func below(seq uint64, by pin) uint64 {
	if by.seq == 0 {
		return seq
	}
	return min(seq, by.seq-1)
}

package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/janitor"
)

// deadStep bounds the dead letters that one step looks at.
const deadStep = 256

// dropDead settles dead letters that nobody wanted for as long as they are kept:
// they become DONE, dropped, and the copies of their events go. A clock that has
// not been steady for long is not believed: then nothing is done, and status says
// so where it stepped.
func (a *App) dropDead(ctx context.Context, now time.Time) (janitor.Done, error) {
	if a.clock.sinceStep(now) < clockSteady {
		return janitor.Done{}, nil
	}
	before := dedup.At(now.Add(-a.live().cfg.Windows.DeadRetention.Std()))
	records, _, err := a.store.List(ctx, dedup.Filter{States: []dedup.State{dedup.Dead}}, "", deadStep)
	if err != nil {
		return janitor.Done{}, fmt.Errorf("list dead letters: %w", err)
	}
	var done janitor.Done
	for i := range records {
		done.Examined++
		if deadSince(&records[i]) >= before {
			return done, nil // those after it became dead later
		}
		switch err := a.drop(ctx, &records[i]); {
		case errors.Is(err, dedup.ErrFenced): // somebody was faster
		case err != nil:
			return done, fmt.Errorf("drop %s: %w", records[i].Key.RunID(), err)
		default:
			done.Removed++
		}
	}
	done.More = len(records) == deadStep && done.Removed > 0
	return done, nil
}

// deadSince is when a run became a dead letter; of one that an older idemd made,
// when it was last tried or first seen.
func deadSince(rec *dedup.Record) dedup.Time {
	if rec.Committed != 0 {
		return rec.Committed
	}
	return max(rec.Started, rec.FirstSeen)
}

// drops is when a dead letter is dropped.
func (a *App) drops(rec *dedup.Record) dedup.Time {
	return dedup.At(deadSince(rec).Std().Add(a.live().cfg.Windows.DeadRetention.Std()))
}

// drop settles one dead letter, and only then gives up the copy of its event.
func (a *App) drop(ctx context.Context, rec *dedup.Record) error {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return fmt.Errorf("decode key: %w", err)
	}
	now := a.live()
	retain := now.retain()
	if i := now.handler(parts.Handler); i >= 0 {
		retain = now.specs[i].Retain
	}
	_, err = a.store.Do(ctx, rec.Key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveDrop, Retain: retain, Reason: dedup.Reason{
		Code: dedup.ReasonOld, Detail: fmt.Sprintf("a dead letter since %s (%s)", deadSince(rec).Std().Format(time.RFC3339), rec.Reason.Code),
	}})
	if err != nil {
		return err
	}
	a.log.Warn("dead letter dropped, for nobody wanted it for [windows] dead_retention", "run_id", rec.Key.RunID(),
		"event_id", parts.EventID(), "handler", parts.Handler, "reason", rec.Reason.Code)
	if rec.Parked {
		return a.queue.Unpark(ctx, parts.Handler, rec.Key)
	}
	return nil
}

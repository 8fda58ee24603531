package consumer

import (
	"context"
	"errors"

	"idemd/dedup"
	"idemd/event"
)

// pastEvent reports whether an event without a record may have run all the same:
// the directory was copied or put back, the stream ended at doubtTo when it was
// started, and what was done with these events meanwhile nobody here knows. Only
// an irrevocable handler minds. Later events are new.
func pastEvent(effect dedup.Effect, seq, doubtTo uint64) bool {
	return effect == dedup.Irrevocable && seq <= doubtTo
}

// doubtWaiting makes every irrevocable run that waits one in doubt.
func (r *reaper) doubtWaiting(ctx context.Context) error {
	var waiting []dedup.Record
	for cursor := ""; ; {
		page, next, err := r.store.List(ctx, dedup.Filter{States: []dedup.State{dedup.Waiting}}, cursor, recoverPage)
		if err != nil {
			return err
		}
		waiting = append(waiting, page...)
		if cursor = next; cursor == "" {
			break
		}
	}
	for i := range waiting {
		if err := r.doubtOne(ctx, &waiting[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reaper) doubtOne(ctx context.Context, rec *dedup.Record) error {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return err
	}
	spec, ok := r.specs[parts.Handler]
	if !ok {
		spec = Spec{ID: parts.Handler}.WithDefaults()
	}
	if max(rec.Effect, spec.Effect) != dedup.Irrevocable {
		return nil
	}
	op := dedup.Doubt{Fence: rec.Fence, Waits: true, Reason: dedup.Reason{
		Code: dedup.ReasonTimeWentBack, Detail: "the attempt that it waits for may have been made after this copy",
	}}
	if rec.Seq != 0 && !rec.Parked {
		if op.Parked, err = r.park(ctx, &spec, rec); err != nil {
			return err
		}
	}
	if _, err := r.store.Do(ctx, rec.Key, op); err != nil && !errors.Is(err, dedup.ErrFenced) {
		return err
	}
	r.log.Info("run that waits is in doubt", "handler", spec.Name, "run_id", rec.Key.RunID(), "event_id", parts.EventID())
	return nil
}

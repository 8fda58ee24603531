package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"idemd/dedup"
	"idemd/event"
)

// EachOpen calls fn for every record that is not settled, of all handlers when
// handler is empty: those that run, wait or are in doubt. Dead letters are left
// out.
func EachOpen(ctx context.Context, store dedup.Store, handler string, fn func(rec *dedup.Record, key *event.KeyParts)) error {
	filter := dedup.Filter{States: []dedup.State{dedup.Started, dedup.Waiting, dedup.InDoubt}, Handler: handler}
	for cursor := ""; ; {
		page, next, err := store.List(ctx, filter, cursor, recoverPage)
		if err != nil {
			return err
		}
		for i := range page {
			parts, err := event.DecodeKey(page[i].Key.Tuple)
			if err != nil {
				return fmt.Errorf("read key: %w", err)
			}
			fn(&page[i], &parts)
		}
		if cursor = next; cursor == "" {
			return nil
		}
	}
}

// Retire makes a dead letter of every run that waits or is in doubt at a handler,
// or for an event of a source, whose id is among ids. It gives their number. What
// runs at this moment settles itself.
func Retire(ctx context.Context, cfg Recovery, ids []string) (n int, err error) {
	r := newReaper(cfg)
	var gone []dedup.Record
	err = EachOpen(ctx, cfg.Store, "", func(rec *dedup.Record, key *event.KeyParts) {
		if rec.State != dedup.Started && (slices.Contains(ids, key.Handler) || slices.Contains(ids, key.Source)) {
			gone = append(gone, *rec)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("list runs to retire: %w", err)
	}
	for i := range gone {
		retired, err := r.retire(ctx, &gone[i])
		if err != nil {
			return n, fmt.Errorf("retire %s: %w", gone[i].Key.RunID(), err)
		}
		if retired {
			n++
		}
	}
	return n, nil
}

// retire makes a dead letter of one run. It is false when somebody else has
// settled it meanwhile.
func (r *reaper) retire(ctx context.Context, rec *dedup.Record) (bool, error) {
	reason := dedup.Reason{Code: dedup.ReasonRetired, Detail: "its handler or source is gone for good"}
	var op dedup.Op = dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveBury, Reason: reason}
	if rec.State == dedup.Waiting {
		parts, err := event.DecodeKey(rec.Key.Tuple)
		if err != nil {
			return false, fmt.Errorf("read key: %w", err)
		}
		parked := rec.Parked
		if !parked {
			if parked, err = r.park(ctx, &Spec{ID: parts.Handler, Name: parts.Handler}, rec); err != nil {
				return false, err
			}
		}
		op = dedup.Bury{Fence: rec.Fence, Reason: reason, Parked: parked}
	}
	_, err := r.store.Do(ctx, rec.Key, op)
	if errors.Is(err, dedup.ErrFenced) {
		return false, nil
	}
	return err == nil, err
}

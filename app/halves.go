package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"idemd/consumer"
	"idemd/dedup/boltstore"
	"idemd/queue"
)

func (a *App) openStore(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	ballast, err := a.cfg.ballastBytes()
	if err != nil {
		return err
	}
	if a.past, err = a.readPast(); err != nil {
		return err
	}
	cfg := boltstore.Config{
		Verify: a.opts.verify(),
		Copy:   a.past.tolerant(), Stopped: a.past.moved(), Outlived: a.past.mark.epoch,
		Dir: a.dir.dedupPath(), MustExist: !a.dir.first() || a.dir.hasQueue(), Host: host, Ballast: ballast,
		Logger: a.log.With("component", "dedup"), Fault: a.opts.Fault,
	}
	a.store, err = boltstore.Open(ctx, cfg)
	if giveUp, gerr := a.givesUp(err); gerr != nil {
		return gerr
	} else if giveUp {
		a.store, err = a.abandonClaims(ctx, cfg)
	}
	var damage *boltstore.DataError
	switch {
	case errors.As(err, &damage):
		return &OperatorError{What: "cannot use the claim store", Where: a.dir.dedupPath(), Err: damage, Hint: damage.Hint()}
	case err != nil:
		return a.dir.unusable("claim store", a.dir.dedupPath(), err)
	}
	a.down.onStop("claim store", func(context.Context) error { return a.store.Close() })
	a.past.store = a.store.Past()
	if !a.dir.first() && a.dir.version.Incarnation != a.store.Incarnation() {
		return &OperatorError{
			What: "claim store and VERSION are from different data directories", Where: a.dir.path,
			Hint: "restore the whole directory from one backup; halves of two do not know the same events",
		}
	}
	return nil
}

func (a *App) openQueue(ctx context.Context) error {
	bytes, err := a.cfg.QueueBytes()
	if err != nil {
		return err
	}
	returned := len(a.past.reasons()) > 0
	return a.openQueueWith(ctx, queue.Config{
		MaxBytes: bytes, Incarnation: a.store.Incarnation(), First: a.dir.first(),
		Copy: returned, Last: a.knownLast(returned),
	})
}

func (a *App) openQueueWith(ctx context.Context, cfg queue.Config) (err error) {
	cfg.Dir, cfg.Logger, cfg.Fault = a.dir.queuePath(), a.log.With("component", "queue"), a.opts.Fault
	if a.queue, err = queue.Open(ctx, cfg); err != nil {
		return a.dir.unusable("queue", a.dir.queuePath(), err)
	}
	a.down.onStop("queue", a.queue.Close)
	return nil
}

// knownLast is the last event that the queue of this directory must have. In a
// copy it may be missing: the queue can have been copied before the claims.
func (a *App) knownLast(returned bool) uint64 {
	if returned {
		return 0
	}
	last := a.dir.version.QueueLast
	for _, spec := range a.live().specs {
		last = max(last, a.store.SettledTo(spec.ID))
	}
	return last
}

// sealDir says in VERSION that claim store and queue belong together.
func (a *App) sealDir(ctx context.Context) error {
	st, err := a.queue.State(ctx)
	if err != nil {
		return err
	}
	if a.dir.first() && (st.LastSeq > 0 || a.store.Stats().LastNumber > 0) {
		return &OperatorError{
			What: "the file VERSION is missing, though the data directory is in use", Where: a.dir.path,
			Hint: "restore the whole directory from a backup; a single file of it cannot be replaced",
		}
	}
	return a.sealPast(st.LastSeq)
}

func (a *App) recovery() consumer.Recovery {
	return consumer.Recovery{
		Store: a.store, Queue: a.queue, Specs: a.live().specs, Past: a.dir.version.Returned,
		Logger: a.log.With("component", "consumer"), Fault: a.opts.Fault,
	}
}

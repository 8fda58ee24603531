package app

import (
	"context"
	"fmt"
	"time"

	"idemd/consumer"
)

// sideEvery is how often runs of the side log are offered to the claim store.
const sideEvery = time.Second

// openSideLog gives the store the runs that succeeded without a claim before the
// last end. That comes before the recovery pass: what is done is not to be retried.
func (a *App) openSideLog(ctx context.Context) (err error) {
	path := consumer.SideLogPath(a.dir.path)
	if a.side, err = consumer.OpenSideLog(path, a.log.With("component", "side log")); err != nil {
		return a.dir.unusable("side log", path, err)
	}
	a.down.onStop("side log", func(context.Context) error { return a.side.Close() })
	n, err := a.side.Merge(ctx, a.store)
	if err != nil {
		return fmt.Errorf("take over runs without a claim: %w", err)
	}
	if n > 0 {
		a.log.Info("runs without a claim are in the store now", "runs", n)
	}
	return nil
}

// runSideLog does the same while handlers work, until they have stopped.
func (a *App) runSideLog(work context.Context) {
	a.runUntilStop(work, "side log's merge", func(ctx context.Context) {
		tick := time.NewTicker(sideEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if a.side.Waiting() == 0 {
				continue
			}
			switch n, err := a.side.Merge(ctx, a.store); {
			case err != nil && ctx.Err() == nil:
				a.log.Debug("runs without a claim not in the store yet", "error", err)
			case n > 0:
				a.log.Info("runs without a claim are in the store now", "runs", n)
			}
		}
	})
}

// sideWarning says that runs wait for the store; "" when none does.
func (a *App) sideWarning() string {
	n := a.side.Waiting()
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d runs succeeded without a claim and wait in side.log for the claim store: store_unavailable is allow for their handlers", n)
}

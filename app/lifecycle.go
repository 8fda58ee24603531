package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// teardown is what has been started, in order. stop ends it backwards.
type teardown struct {
	steps []teardownStep
}

type teardownStep struct {
	name string
	stop func(ctx context.Context) error
}

// onStop adds a step. Steps run in reverse order of their adding.
func (t *teardown) onStop(name string, stop func(ctx context.Context) error) {
	t.steps = append(t.steps, teardownStep{name, stop})
}

// stop runs every step, also after one that fails, and joins their errors. ctx
// bounds the whole. A second call does nothing.
func (t *teardown) stop(ctx context.Context, log *slog.Logger) error {
	var errs []error
	for _, step := range slices.Backward(t.steps) {
		log.Debug("stopping", "step", step.name)
		if err := step.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", step.name, err))
		}
	}
	t.steps = nil
	return errors.Join(errs...)
}

const (
	stopSlack = 5 * time.Second  // beyond the longest handler timeout
	maxStop   = 90 * time.Second // systemd's own patience

	// After a failed sync no outcome can be stored any more: waiting for runs to
	// end is no use, their claims stay as after a crash.
	stopFailed = time.Second
)

// runUntilStop lets fn work beside everything else until its place in the teardown,
// which waits for its end.
func (a *App) runUntilStop(work context.Context, name string, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(work)
	done := make(chan struct{})
	a.down.onStop(name, func(context.Context) error {
		cancel()
		<-done
		return nil
	})
	a.running.Go(func() {
		defer close(done)
		fn(ctx)
	})
}

func (a *App) stop() error {
	patience := stopSlack
	for _, spec := range a.live().specs {
		patience = max(patience, spec.Timeout+stopSlack)
	}
	return a.stopWithin(min(patience, maxStop))
}

func (a *App) stopWithin(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := a.down.stop(ctx, a.log)
	a.running.Wait()
	return err
}

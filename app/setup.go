package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"idemd/consumer"
)

// setup is what the configuration has made of the process. It does not change: a
// reload puts another one in its place.
type setup struct {
	cfg     *Config
	specs   []consumer.Spec  // one for each handler, as in cfg
	digests []digest         // of the same
	pools   []*consumer.Pool // of the same; fewer while the process starts
}

// live is the setup that is in force.
func (a *App) live() *setup { return a.setup.Load() }

// handler gives the place of a handler by its id, -1 when there is none.
func (s *setup) handler(id string) int {
	for i := range s.specs {
		if s.specs[i].ID == id {
			return i
		}
	}
	return -1
}

// retain is for how long the longest remembering handler remembers.
func (s *setup) retain() (longest time.Duration) {
	for i := range s.specs {
		longest = max(longest, s.specs[i].Retain)
	}
	return longest
}

// openPools makes every handler's consumer anew, where its progress stands.
func (a *App) openPools(ctx context.Context) error {
	a.down.onStop("handlers", a.stopPools)
	next := *a.live()
	for i := range next.specs {
		pool, err := a.newPool(ctx, &next.specs[i])
		if err != nil {
			return err
		}
		next.pools = append(next.pools, pool)
		a.setup.Store(&next)
	}
	return nil
}

func (a *App) newPool(ctx context.Context, spec *consumer.Spec) (*consumer.Pool, error) {
	pool, err := consumer.NewPool(ctx, consumer.Config{
		Spec: *spec, Queue: a.queue, Store: a.store, Side: a.side, DoubtTo: a.dir.version.DoubtTo,
		Logger: a.handlerLog(spec), Fault: a.opts.Fault, Suppressed: a.suppressed,
	})
	if err != nil {
		return nil, fmt.Errorf("open handler %s: %w", spec.Name, err)
	}
	return pool, nil
}

func (a *App) handlerLog(spec *consumer.Spec) *slog.Logger {
	return a.log.With("component", "consumer", "handler", spec.Name)
}

// runPool lets a handler work until it is stopped.
func (a *App) runPool(work context.Context, pool *consumer.Pool) {
	a.running.Go(func() {
		if err := pool.Run(work); err != nil {
			a.fail(err)
		}
	})
}

// stopPools ends all handlers at the same time: while one lets its last attempts
// end, the others must not begin new ones.
func (a *App) stopPools(ctx context.Context) error {
	pools := a.live().pools
	errs := make([]error, len(pools))
	var all sync.WaitGroup
	for i, pool := range pools {
		all.Go(func() { errs[i] = pool.Stop(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

package app

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"idemd/admin"
	"idemd/consumer"
	"idemd/dedup"
	"idemd/event"
	"idemd/receiver"
)

// reloads is how the configuration is read again: one at a time.
type reloads struct {
	requests chan reloadRequest
	sources  []receiver.SourceConfig // in force, with their secrets; of the goroutine that reloads

	mu   sync.Mutex
	last *admin.Reload // nil before the first
}

type reloadRequest struct {
	dryRun bool
	answer chan admin.Reload // has room for it
}

func newReloads() *reloads { return &reloads{requests: make(chan reloadRequest)} }

func (r *reloads) lastReload() *admin.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// askReload reads the configuration again, for an operator. Whoever gives up
// waiting does not undo it. With dryRun nothing is changed.
func (a *App) askReload(ctx context.Context, dryRun bool) (admin.Reload, error) {
	if a.live().cfg.file == "" {
		return admin.Reload{}, &admin.Error{Code: admin.CodeRefused, Message: "the demo has no configuration file that could be read again", Hint: "write one with idemd init, and start with it"}
	}
	req := reloadRequest{dryRun: dryRun, answer: make(chan admin.Reload, 1)}
	select {
	case a.reloads.requests <- req:
	case <-ctx.Done():
		return admin.Reload{}, ctx.Err()
	}
	select {
	case done := <-req.answer:
		return done, nil
	case <-ctx.Done():
		return admin.Reload{}, ctx.Err()
	}
}

// runReloads reads the configuration again whenever somebody asks for it, until
// the handlers stop.
func (a *App) runReloads(work context.Context) {
	ctx, cancel := context.WithCancel(work)
	done := make(chan struct{})
	a.down.onStop("reloads", func(stop context.Context) error {
		cancel()
		select {
		case <-done:
		case <-stop.Done(): // the handlers' own stop cuts what it waits for
		}
		return nil
	})
	a.running.Go(func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.opts.Reload:
				a.reload(ctx, work, false)
			case req := <-a.reloads.requests:
				req.answer <- a.reload(ctx, work, req.dryRun)
			}
		}
	})
}

// reload reads the configuration again and puts it in force, as a whole or not
// at all. No request and no run is lost by it, see receiver.SetSources and
// consumer.Pool.Change.
func (a *App) reload(ctx, work context.Context, dryRun bool) admin.Reload {
	began := time.Now()
	res := admin.Reload{At: began.UTC(), File: a.live().cfg.file, DryRun: dryRun, Problems: []string{}, Changes: []admin.Change{}}
	if !dryRun {
		a.tell(notifyReloading())
		defer a.tell(notifyReady)
	}
	next, sources, err := a.prepare(ctx)
	if err == nil {
		res.Changes = changes(a.live(), next, otherSecrets(a.reloads.sources, sources))
		if dryRun {
			closeHandlers(next.specs)
		} else {
			err = a.apply(ctx, work, next, sources)
		}
	}
	res.Took = admin.Seconds(time.Since(began))
	if err != nil {
		res.Problems, res.Changes = problemLines(err), []admin.Change{}
	}
	if dryRun {
		return res
	}
	if err != nil {
		a.log.Error("configuration not reloaded, the one before stays in force", "file", res.File, "problems", strings.Join(res.Problems, " | "))
	} else {
		a.log.Info("configuration reloaded", "file", res.File, "changes", len(res.Changes), "took", time.Since(began).Round(time.Millisecond))
	}
	a.reloads.mu.Lock()
	defer a.reloads.mu.Unlock()
	a.reloads.last = &res
	return res
}

// problemLines gives each problem of err a line.
func problemLines(err error) []string {
	var bad *ConfigError
	if !errors.As(err, &bad) {
		return []string{err.Error()}
	}
	var lines []string
	for _, p := range bad.Problems {
		lines = append(lines, p.String())
	}
	return lines
}

// otherSecrets tells of each source id whether its secrets are others now.
func otherSecrets(old, next []receiver.SourceConfig) map[string]bool {
	other := map[string]bool{}
	for i := range next {
		id := next[i].EffectiveID()
		at := slices.IndexFunc(old, func(c receiver.SourceConfig) bool { return c.EffectiveID() == id })
		other[id] = at >= 0 && !reflect.DeepEqual(old[at], next[i])
	}
	return other
}

// prepare reads the file and builds everything that it asks for. Nothing is
// changed. Its error holds everything that is wrong.
func (a *App) prepare(ctx context.Context) (*setup, []receiver.SourceConfig, error) {
	old := a.live()
	cfg, err := Load(old.cfg.file)
	if err != nil {
		return nil, nil, err
	}
	sources, sourceErr := cfg.ReceiverSources()
	specs, digests, specErr := cfg.specs(a.log)
	problems := needRestart(old.cfg, cfg)
	for _, err := range []error{sourceErr, specErr} {
		var bad *ConfigError
		if errors.As(err, &bad) {
			problems = append(problems, bad.Problems...)
		}
	}
	gone, err := a.vanished(ctx, old, cfg)
	if err != nil {
		closeHandlers(specs)
		return nil, nil, err
	}
	if problems = append(problems, gone...); len(problems) > 0 {
		closeHandlers(specs)
		return nil, nil, &ConfigError{File: cfg.file, Problems: cfg.inOrder(problems)}
	}
	return &setup{cfg: cfg, specs: specs, digests: digests}, sources, nil
}

// vanished asks store and queue what is left to do for ids that go.
func (a *App) vanished(ctx context.Context, old *setup, next *Config) ([]Problem, error) {
	handlers := map[string]openRuns{}
	open := a.store.Stats().Open
	for i := range old.specs {
		id := old.specs[i].ID
		if next.hasHandler(id) {
			continue
		}
		queued, err := old.pools[i].Pending(ctx)
		if err != nil {
			return nil, fmt.Errorf("count the events that handler %s has not had yet: %w", old.specs[i].Name, err)
		}
		handlers[id] = openRuns{open: unsettled(open[id]), queued: queued}
	}
	sources := map[string]openRuns{}
	if slices.ContainsFunc(old.cfg.Sources, func(s SourceConfig) bool { return !next.hasSource(s.ID) }) {
		err := consumer.EachOpen(ctx, a.store, "", func(_ *dedup.Record, key *event.KeyParts) {
			n := sources[key.Source]
			n.open++
			sources[key.Source] = n
		})
		if err != nil {
			return nil, fmt.Errorf("count the open runs of each source: %w", err)
		}
	}
	return vanished(old, next, handlers, sources), nil
}

// apply puts next in force. Handlers that are new are there before the sources
// that are new, and those that go leave after them. An error comes before
// anything has changed.
func (a *App) apply(ctx, work context.Context, next *setup, sources []receiver.SourceConfig) error {
	old := a.live()
	added, err := a.adopt(ctx, old, next)
	if err != nil {
		return err
	}
	for _, pool := range added {
		a.runPool(work, pool)
	}
	if err := a.recv.SetSources(sources, next.cfg.Windows.Cold.Std()); err != nil {
		return err // cannot be: they were built from the same
	}
	a.reloads.sources = sources
	a.setup.Store(next)
	a.ledger.SetRetain(next.retain())
	var all sync.WaitGroup
	for i := range next.specs {
		if at := old.handler(next.specs[i].ID); at >= 0 && old.digests[at] != next.digests[i] {
			all.Go(func() { a.changePool(work, next, i) })
		}
	}
	for i := range old.specs {
		if next.handler(old.specs[i].ID) < 0 {
			all.Go(func() { a.dropPool(work, old, i) })
		}
	}
	all.Wait()
	a.retire(work, next.cfg.Retire)
	return nil
}

// adopt gives next the pools that go on, and makes those that are new, which do
// not run yet.
func (a *App) adopt(ctx context.Context, old, next *setup) (added []*consumer.Pool, err error) {
	next.pools = make([]*consumer.Pool, len(next.specs))
	for i := range next.specs {
		at := old.handler(next.specs[i].ID)
		if at < 0 {
			if next.pools[i], err = a.newPool(ctx, &next.specs[i]); err != nil {
				break
			}
			added = append(added, next.pools[i])
			continue
		}
		next.pools[i] = old.pools[at]
		if old.digests[at] == next.digests[i] { // it goes on with the handler that it has
			closeHandlers(next.specs[i : i+1])
			next.specs[i] = old.specs[at]
		}
	}
	if err == nil {
		return added, nil
	}
	closeHandlers(next.specs)
	for _, pool := range added {
		err = errors.Join(err, pool.Stop(ctx))
	}
	return nil, err
}

func (a *App) changePool(ctx context.Context, next *setup, i int) {
	spec := next.specs[i]
	if err := next.pools[i].Change(ctx, spec, a.handlerLog(&spec)); err != nil && ctx.Err() == nil && !errors.Is(err, consumer.ErrStopped) {
		a.fail(fmt.Errorf("reload: %w", err))
	}
}

// dropPool lets a handler end that is no longer configured, and takes away its
// place in the queue.
func (a *App) dropPool(ctx context.Context, old *setup, i int) {
	spec := &old.specs[i]
	err := old.pools[i].Stop(ctx)
	if err == nil {
		err = a.queue.Delete(ctx, spec.ID)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("handler that is gone not taken away", "handler", spec.Name, "error", err)
	}
}

// retire gives up what is left to do for ids that are gone for good.
func (a *App) retire(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	n, err := consumer.Retire(ctx, a.recovery(), ids)
	if err != nil && ctx.Err() == nil {
		a.log.Error("runs of retired ids not given up, the next start or reload tries again", "error", err)
	}
	if n > 0 {
		a.log.Warn("runs of retired ids are dead letters now", "runs", n, "retire", strings.Join(ids, ", "))
	}
}

// reloadWarnings says that the file is not what is in force, and which ids were
// left with something to do.
func (a *App) reloadWarnings() []string {
	var all []string
	if last := a.reloads.lastReload(); last != nil && len(last.Problems) > 0 {
		all = append(all, fmt.Sprintf("the configuration that was read at %s is refused, the one before it is in force: %s; see idemd reload --dry-run",
			last.At.Format(time.RFC3339), last.Problems[0]))
	}
	now := a.live()
	for id, states := range a.store.Stats().Open {
		if n := unsettled(states); n > 0 && now.handler(id) < 0 {
			all = append(all, fmt.Sprintf("no handler has the id %s, for which %d runs are not settled: write id = %q at the handler that was renamed, "+
				"or retire = [%q] to give them up", id, n, id, id))
		}
	}
	slices.Sort(all)
	return all
}

// notifyReloading says since when, as systemd wants to know it.
func notifyReloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "RELOADING=1"
	}
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", time.Duration(now.Nano()).Microseconds())
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"idemd/admin"
	"idemd/dedup/boltstore"
	"idemd/queue"
	"idemd/receiver"
)

// quarantines reports whether err is damage to the claims that does not keep
// events from being stored: then they are, and nothing runs, for without the
// claims nobody knows what has run. What a wrong program, clock or command line
// causes is not among it.
func quarantines(err error) bool {
	var damage *boltstore.DataError
	return errors.As(err, &damage) && !errors.Is(err, boltstore.ErrVersion) && !errors.Is(err, boltstore.ErrClock) &&
		!errors.Is(err, boltstore.ErrUnclean)
}

// openQuarantine opens the half of the data directory that is whole. The claims
// are not touched: what was here is here at the next start. A queue that does not
// belong to VERSION is an error, too.
func (a *App) openQuarantine(ctx context.Context, why error) error {
	if !errors.As(why, &a.refuge) {
		return why
	}
	bytes, err := a.cfg.QueueBytes()
	if err != nil {
		return err
	}
	err = a.openQueueWith(ctx, queue.Config{MaxBytes: bytes, Incarnation: a.dir.version.Incarnation, Last: a.dir.version.QueueLast})
	if err != nil {
		return errors.Join(why, err)
	}
	st, err := a.queue.State(ctx)
	if err == nil {
		err = a.dir.quarantined(st.LastSeq)
	}
	if err != nil {
		return err
	}
	a.log.Error("QUARANTINE: the claims cannot be used; events are stored, and nothing runs until they are put back",
		"error", a.refuge.Error(), "hint", a.refuge.Hint)
	a.down.onStop("watchdog", func(context.Context) error { a.unwatch(); return nil })
	a.down.onStop("admin", func(ctx context.Context) error { return a.closeAdmin(ctx) })
	if a.disk, err = newDiskWatch(a); err != nil {
		return err
	}
	if err := a.listenAdmin(); err != nil {
		return err
	}
	a.down.onStop("receiver's intake", a.drain)
	return nil
}

// quarantineBackend is what the admin API may look into: no claims.
func (a *App) quarantineBackend() admin.Backend {
	return admin.Backend{
		Queue: a.queue, Sources: a.adminSources, Handlers: a.idleHandlers, Logger: a.log.With("component", "admin"), Replays: &admin.Replays{},
		Status: a.quarantineStatus, Quarantine: a.quarantine(),
	}
}

// idleHandlers are those that would get the events.
func (a *App) idleHandlers() []admin.Handler {
	var all []admin.Handler
	for _, s := range a.live().specs {
		all = append(all, admin.Handler{ID: s.ID, Name: s.Name, Effect: s.Effect, Matches: s.Matches})
	}
	return all
}

func (a *App) quarantine() *admin.Quarantine {
	return &admin.Quarantine{Reason: a.refuge.Error(), Hint: a.refuge.Hint + "; then restart. " +
		"If there is nothing to put back: idemd serve --abandon-claims DURATION gives the claims up, see docs/damage.md"}
}

func (a *App) quarantineStatus(context.Context) admin.Status {
	cfg := a.live().cfg
	q := a.quarantine()
	st := admin.Status{
		Version: a.opts.Version, PID: os.Getpid(), Started: a.began.UTC(), Ready: a.recv.State() == receiver.StateReady,
		ConfigFile: cfg.file, Environment: string(cfg.Environment), DataDir: a.cfg.DataDir, Listen: a.addr, Quarantine: q,
		Handlers: []admin.HandlerStatus{},
		Warnings: []string{"QUARANTINE: events are stored, and nothing runs. " + q.Reason + ". What to do: " + q.Hint},
	}
	if bytes, err := cfg.QueueBytes(); err == nil {
		st.Queue.MaxBytes = bytes
	}
	if why := a.disk.blocked(); why != "" {
		st.Warnings = append(st.Warnings, "events are refused: "+why)
	}
	counted := a.recv.Stats()
	for i := range cfg.Sources {
		s := statsOf(counted, cfg.Sources[i].ID)
		st.Sources = append(st.Sources, sourceStatus(&cfg.Sources[i], &s))
	}
	return st
}

// givesUp reports whether the claims are to be given up, when opening them ended
// with err: by the operator's word, or because an earlier start had begun to.
func (a *App) givesUp(err error) (bool, error) {
	begun := a.dir.version.LostFrom > 0
	switch {
	case err != nil && quarantines(err):
		return begun || a.opts.Abandon > 0, nil
	case a.opts.Abandon > 0 && !begun && err == nil:
		return false, errors.Join(&OperatorError{
			What: "the claims are whole, there is nothing to give up", Where: a.dir.dedupPath(),
			Hint: "start without --abandon-claims",
		}, a.store.Close())
	}
	return false, nil
}

// abandonClaims puts an empty store in the place of one that cannot be used. In
// which events it is not known what has run is in VERSION before anything else is
// done, so that a crash at any point is gone on from. The damaged store is kept
// beside the new one.
func (a *App) abandonClaims(ctx context.Context, cfg boltstore.Config) (*boltstore.Store, error) {
	if a.dir.version.LostFrom == 0 {
		from, last, err := a.lostEvents(ctx)
		if err != nil {
			return nil, err
		}
		if err := a.dir.abandon(from, last); err != nil {
			return nil, err
		}
	}
	a.opts.fault(pointAbandon)
	aside := fmt.Sprintf("%s.damaged-%s", cfg.Dir, time.Now().UTC().Format("20060102T150405Z"))
	if err := os.Rename(cfg.Dir, aside); err == nil {
		a.log.Warn("the damaged claims are kept", "dir", aside)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("set the damaged claims aside: %w", err)
	}
	a.opts.fault(pointAside)
	a.past.lost, a.past.returned = true, true
	cfg.MustExist, cfg.Copy, cfg.Stopped, cfg.Name = false, false, false, a.dir.version.Incarnation
	return boltstore.Open(ctx, cfg)
}

// The crash points of giving up the claims.
const (
	pointAbandon = "after-abandon" // VERSION says so, the damaged store is in its place
	pointAside   = "after-aside"   // there is none
)

func (o *Options) fault(point string) {
	if o.Fault != nil {
		o.Fault(point)
	}
}

// lostEvents gives the first event of the time that Abandon names, and the last
// of all.
func (a *App) lostEvents(ctx context.Context) (from, last uint64, err error) {
	bytes, err := a.cfg.QueueBytes()
	if err != nil {
		return 0, 0, err
	}
	q, err := queue.Open(ctx, queue.Config{
		Dir: a.dir.queuePath(), MaxBytes: bytes, Incarnation: a.dir.version.Incarnation, Last: a.dir.version.QueueLast,
		Logger: a.log.With("component", "queue"), Fault: a.opts.Fault,
	})
	if err != nil {
		return 0, 0, a.dir.unusable("queue", a.dir.queuePath(), err)
	}
	from, err = q.SeqAt(ctx, time.Now().Add(-a.opts.Abandon))
	st, serr := q.State(ctx)
	if err = errors.Join(err, serr, q.Close(ctx)); err != nil {
		return 0, 0, fmt.Errorf("find the events that may have run: %w", err)
	}
	return max(from, 1), st.LastSeq, nil
}

// beginAgain lets every handler begin where the claims that were given up leave
// nothing known.
func (a *App) beginAgain(ctx context.Context) error {
	if a.dir.version.LostFrom == 0 {
		return nil
	}
	for _, spec := range a.live().specs {
		if _, err := a.store.Begin(ctx, spec.ID, a.dir.version.LostFrom); err != nil {
			return fmt.Errorf("begin handler %s: %w", spec.Name, err)
		}
	}
	return nil
}

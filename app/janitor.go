package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"idemd/admin"
	"idemd/dedup"
	"idemd/dedup/boltstore"
	"idemd/janitor"
)

// unlinkGrace is how long a file that counts for nothing any more stays, so that
// a copy of the directory that is being made finds it.
const unlinkGrace = time.Hour

// The names of the tasks.
const (
	taskSeal   = "seal"
	taskMerge  = "merge"
	taskExpire = "expire"
	taskUnlink = "unlink"
	taskVerify = "verify"
	taskLedger = "ledger"
	taskDead   = "dead"
	taskPurge  = "purge"
	taskTemp   = "temp"
)

// newJanitor gives the tasks that keep memory and disk bounded.
func (a *App) newJanitor() (*janitor.Janitor, error) {
	hot := func() time.Duration { return a.live().cfg.Windows.Hot.Std() }
	tasks := []janitor.Task{
		{Name: taskSeal, Every: time.Minute, Frees: true, Step: func(ctx context.Context) (janitor.Done, error) {
			slice := min(max(hot()/4, time.Minute), time.Hour) // a hot file holds so much time, or less
			if _, err := a.store.Seal(ctx, slice); err != nil {
				return janitor.Done{}, err
			}
			return stepDone(a.store.Move(ctx))
		}},
		{Name: taskMerge, Every: 10 * time.Minute, Step: func(ctx context.Context) (janitor.Done, error) {
			return stepDone(a.store.Merge(ctx, dedup.At(time.Now().Add(-hot()))))
		}},
		{Name: taskExpire, Every: 10 * time.Minute, Frees: true, Step: func(ctx context.Context) (janitor.Done, error) {
			return a.expire(ctx, clockSynchronised())
		}},
		{Name: taskUnlink, Every: 10 * time.Minute, Frees: true, Step: func(ctx context.Context) (janitor.Done, error) {
			grace := unlinkGrace
			if a.disk.blocked() != "" {
				grace = 0
			}
			return stepDone(a.store.Unlink(ctx, grace))
		}},
		{Name: taskVerify, Every: 24 * time.Hour, Step: func(ctx context.Context) (janitor.Done, error) {
			v, err := a.store.VerifyNext(ctx)
			return janitor.Done{Examined: uint64(v.Bytes), More: err == nil && !v.Last}, err
		}},
		{Name: taskLedger, Every: time.Hour, Frees: true, Step: func(context.Context) (janitor.Done, error) {
			removed, err := a.ledger.Expire(time.Now())
			return janitor.Done{Removed: uint64(removed), More: removed > 0 && err == nil}, err
		}},
		{Name: taskDead, Every: time.Hour, Step: func(ctx context.Context) (janitor.Done, error) {
			return a.dropDead(ctx, time.Now())
		}},
		{Name: taskPurge, Every: time.Minute, Frees: true, Step: func(ctx context.Context) (janitor.Done, error) {
			return a.purge(ctx, time.Now())
		}},
		{Name: taskTemp, Every: time.Hour, Step: func(ctx context.Context) (janitor.Done, error) {
			done, err := sweepTemp(ctx, a.cfg.DataDir, time.Now())
			return done, errors.Join(err, a.cfg.commands().Sweep(time.Now()))
		}},
	}
	a.clock.look(time.Now()) // the first expire comes when it has been watched for long enough
	j, err := janitor.New(janitor.Config{Tasks: tasks, Dir: filepath.Join(a.cfg.DataDir, "janitor"), Logger: a.log.With("component", "janitor")})
	if err != nil {
		return nil, fmt.Errorf("open janitor: %w", err)
	}
	return j, nil
}

func stepDone(s boltstore.Step, err error) (janitor.Done, error) {
	return janitor.Done{
		Examined: s.Keys + s.Carried + s.Expired, Removed: s.Expired, Bytes: s.Bytes, More: s.More && err == nil,
	}, err
}

// expire moves the horizon to now, if the clock can be believed, and takes away
// what has expired by it.
func (a *App) expire(ctx context.Context, trusted bool) (janitor.Done, error) {
	now := time.Now()
	if err := mayMove(a.store.Horizon(), dedup.At(now), a.clock.sinceStep(now), trusted); err != nil {
		return janitor.Done{}, err
	}
	if err := a.store.MoveHorizon(ctx, dedup.At(now)); err != nil {
		return janitor.Done{}, err
	}
	return stepDone(a.store.Expire(ctx))
}

// runJanitor works until the stop of the handlers is over.
func (a *App) runJanitor(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.janitor.Run(ctx)
	}()
	a.running.Go(func() { a.watchClock(ctx) })
	a.down.onStop("janitor", func(context.Context) error { cancel(); <-done; return nil })
}

func (a *App) watchClock(ctx context.Context) {
	tick := time.NewTicker(clockEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if by := a.clock.look(time.Now()); by != 0 {
			a.log.Warn("the clock stepped: nothing expires for a while", "by", by.Round(time.Millisecond), "steady_for", clockSteady)
		}
	}
}

// janitorRun runs a task for an operator.
func (a *App) janitorRun(ctx context.Context, task string, confirmClock bool) (janitor.Report, error) {
	if task == taskExpire && confirmClock {
		began := time.Now()
		if err := a.store.MoveHorizon(ctx, dedup.At(began)); err != nil {
			return janitor.Report{}, err
		}
		a.clock.trust(began)
		a.log.Warn("the clock was confirmed by an operator", "time", began.UTC().Format(time.RFC3339))
	}
	return a.janitor.RunNow(ctx, task)
}

// janitorWarnings says what is overdue. Where the disk is short, too, nobody else
// makes room.
func (a *App) janitorWarnings() []string {
	all := overdueWarnings(a.janitor.States(), a.disk.blocked() != "")
	if w := a.clock.warning(time.Now()); w != "" {
		all = append(all, w)
	}
	return all
}

func overdueWarnings(states []janitor.State, short bool) []string {
	var all []string
	for _, s := range states {
		if !s.Overdue {
			continue
		}
		text := fmt.Sprintf("janitor: %s has not succeeded for %s", s.Task, s.Age.Round(time.Second))
		if s.Last != nil && s.Last.Error != "" {
			text += ": " + s.Last.Error
		}
		if s.Frees && short {
			text += "; it would give disk space back"
		}
		all = append(all, text)
	}
	return all
}

// janitorBackend is what the admin API looks into.
func (a *App) janitorBackend() admin.Janitor {
	return admin.Janitor{States: a.janitor.States, Reports: a.janitor.Reports, Run: a.janitorRun}
}

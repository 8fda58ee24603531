package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// How a replay goes on.
const (
	saveEvery = time.Second           // its state is saved
	lookEvery = 20 * time.Millisecond // it looks whether a handler has room
	tryEvery  = time.Second           // it tries again what failed
)

// The crash points of a replay, for ReplayConfig.Fault.
const (
	pointReplayed    = "after-replayed"     // a run is written, the replay's state is not
	pointReplaySaved = "after-replay-saved" // both are
)

// job is the work on one replay.
type job struct {
	r     *Replays
	rp    Replay // as of the end of the last event
	now   tally  // of the present event
	saved time.Time
	last  time.Time              // when the last run was begun
	begun map[string][]event.Key // by handler: runs of this replay that may not have had their first attempt
}

// tally counts what became of the choices of one event. It counts only when the
// whole event is dealt with: what is interrupted is looked at again from there.
type tally struct {
	written uint64
	skipped []Skip
}

// work goes on with a replay until it is over, or somebody ends ctx.
func (r *Replays) work(ctx context.Context, rp Replay) {
	j := &job{r: r, rp: rp, saved: r.now(), begun: make(map[string][]event.Key)}
	for ctx.Err() == nil {
		err := j.through(ctx)
		if err == nil {
			j.rp.State, j.rp.Ended, j.rp.Position = ReplayDone, r.now().UTC(), j.rp.To
			break
		}
		if ctx.Err() == nil {
			j.failed(err)
			if wait(ctx, tryEvery) != nil {
				break
			}
		}
	}
	j.rp.Waiting = ""
	j.publish(true)
	r.mu.Lock()
	r.cancel()
	r.active = ""
	r.mu.Unlock()
	if j.rp.State == ReplayDone {
		r.log.Info("replay done", "replay", j.rp.ID, "examined", j.rp.Examined, "written", j.rp.Written, "errors", j.rp.Errors)
	}
}

// through goes from the replay's position to its end.
func (j *job) through(ctx context.Context) error {
	j.now = tally{}
	if req := &j.rp.Request; req.Dead {
		// The list of dead letters is looked at from its beginning. What was retried
		// is no longer on it; what runs in a batch is met, and counted, again.
		if req.Batch != "" {
			j.rp.Written = 0
		}
		j.rp.Examined, j.rp.Skipped = j.rp.Written, map[Skip]uint64{}
	}
	return j.r.each(ctx, &j.rp.Request, j.rp.Created, j.rp.Position+1, j.rp.To,
		func(c choice) error { return j.one(ctx, c) }, j.passed)
}

// one deals with one choice: it counts why it is left alone, or begins its run when
// its handler has room.
func (j *job) one(ctx context.Context, c choice) (err error) {
	skip := c.skip
	if skip == "" {
		if err := j.await(ctx, c.handler); err != nil {
			return err
		}
		if skip, err = j.begin(ctx, &c); err != nil {
			return err
		}
	}
	if skip == "" {
		j.last = j.r.now()
		j.begun[c.handler.ID] = append(j.begun[c.handler.ID], c.key)
		j.r.fault(pointReplayed)
	}
	if skip == "" || c.begun(&j.rp) {
		j.now.written++
	} else {
		j.now.skipped = append(j.now.skipped, skip)
	}
	if j.rp.Request.Dead { // there is no position that would tell
		j.settle()
		j.publish(skip == "")
	}
	return nil
}

// settle adds up what became of the present event.
func (j *job) settle() {
	j.rp.Examined += j.now.written + uint64(len(j.now.skipped))
	j.rp.Written += j.now.written
	for _, skip := range j.now.skipped {
		j.rp.Skipped[skip]++
	}
	j.now = tally{}
}

// begin writes the record of a run that is due now, or takes a dead letter up
// again. It gives the reason where somebody was faster.
func (j *job) begin(ctx context.Context, c *choice) (Skip, error) {
	r, req := j.r, &j.rp.Request
	if req.Dead && req.Batch == "" {
		_, err := r.s.resolve(ctx, c.own, dedup.ResolveRetry, "replay "+j.rp.ID)
		if errors.Is(err, dedup.ErrFenced) {
			return SkipChanged, nil
		}
		return "", err
	}
	ev := &c.message.Event
	parked, err := j.keep(ctx, c)
	if err != nil {
		return "", err
	}
	res, err := r.s.b.Store.Do(ctx, c.key, dedup.Put{
		State: dedup.Waiting, Effect: c.handler.Effect, Fingerprint: ev.Fingerprint, Origin: event.OriginReplay,
		Seq: c.message.Seq, Due: dedup.At(r.now()), Parked: parked,
		Reason: dedup.Reason{Code: dedup.ReasonReplay, Detail: j.rp.ID + " by " + j.rp.Who},
	})
	switch {
	case errors.Is(err, dedup.ErrDamaged):
		j.rp.Errors++
		return SkipDamaged, nil
	case err != nil:
		return "", fmt.Errorf("begin run: %w", err)
	}
	return verdictSkip(res.Verdict, req.Batch != ""), nil
}

// keep copies the event of a dead letter that the queue itself no longer holds, for
// its run in a batch.
func (j *job) keep(ctx context.Context, c *choice) (parked bool, err error) {
	if !j.rp.Request.Dead {
		return false, nil
	}
	m, err := j.r.s.b.Queue.Get(ctx, c.message.Seq)
	m.Event.Batch = j.rp.Request.Batch
	if err == nil && c.key.IsRunOf(&m.Event, c.handler.ID) {
		return false, nil
	}
	if err != nil && !errors.Is(err, queue.ErrMissing) {
		return false, err
	}
	return true, j.r.s.b.Queue.Park(ctx, c.handler.ID, c.key, &c.message.Event)
}

// passed notes that everything up to a sequence is dealt with.
func (j *job) passed(seq uint64) error {
	j.settle()
	j.rp.Position = seq
	j.publish(j.r.now().Sub(j.saved) >= saveEvery)
	return nil
}

// publish lets people see the progress, and saves it when save is set. A state that
// somebody has set meanwhile stays.
func (j *job) publish(save bool) {
	r := j.r
	r.mu.Lock()
	defer r.mu.Unlock()
	shown := r.all[j.rp.ID]
	was := *shown
	*shown = j.rp.clone()
	if was.State != ReplayRuns {
		shown.State, shown.Ended = was.State, was.Ended
	}
	if !save {
		return
	}
	j.saved = r.now()
	if err := r.save(shown); err != nil {
		j.rp.Errors++
		j.rp.Error = "its state could not be saved"
		r.log.Warn("state of replay not saved, it goes on", "replay", j.rp.ID, "error", err)
		return
	}
	r.fault(pointReplaySaved)
}

// failed counts what went wrong and will be tried again.
func (j *job) failed(err error) {
	j.rp.Errors++
	j.rp.Error = asError(err).Message
	j.publish(false)
	j.r.log.Warn("replay met an error, trying again", "replay", j.rp.ID, "error", err)
}

// await returns when the rate allows another run and the handler has room for it:
// live events go first.
func (j *job) await(ctx context.Context, h Handler) error {
	if next := j.last.Add(time.Duration(float64(time.Second) / j.rp.Request.Rate)); !j.last.IsZero() {
		if err := wait(ctx, next.Sub(j.r.now())); err != nil {
			return err
		}
	}
	for {
		busy, err := j.outstanding(ctx, h)
		if err != nil {
			return err
		}
		if busy < h.Concurrency && h.Room(ctx) {
			break
		}
		if j.rp.Waiting == "" {
			j.rp.Waiting = "handler " + h.Name + " has no room: live events go first, and a paused or held handler gets none"
			j.publish(false)
		}
		if err := wait(ctx, lookEvery); err != nil {
			return err
		}
	}
	j.rp.Waiting = ""
	return nil
}

// outstanding is how many runs of this replay at a handler have not had their first
// attempt.
func (j *job) outstanding(ctx context.Context, h Handler) (int, error) {
	var left []event.Key
	now := dedup.At(j.r.now())
	for _, key := range j.begun[h.ID] {
		rec, err := j.r.record(ctx, key)
		if err != nil && !errors.Is(err, dedup.ErrDamaged) {
			return 0, err
		}
		if rec != nil && (rec.State == dedup.Started || rec.State == dedup.Waiting && rec.Attempts == 0 && rec.Due <= now) {
			left = append(left, key)
		}
	}
	j.begun[h.ID] = left
	return len(left), nil
}

// wait returns after d, or with ctx's error when that ends before.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

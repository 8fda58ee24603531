package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// The pauses between tries to write down what has happened.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// settleLater settles r beside the workers. It waits while too many runs are
// being settled.
func (p *Pool) settleLater(ctx context.Context, r *run, s settlement) {
	if !p.async(ctx, func() {
		defer p.claims.leave(r.key.Tuple)
		p.settle(ctx, r, s)
		p.exit(r, r.again || s.action == postpone)
	}) {
		p.claims.leave(r.key.Tuple)
		p.leave(r)
		p.exit(r, r.again)
	}
}

// async runs fn on a slot. It is false when ctx ended before there was one.
func (p *Pool) async(ctx context.Context, fn func()) bool {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	p.obs.settling.Add(1)
	go func() { // drain waits for it
		defer func() { <-p.slots }()
		defer p.obs.settling.Add(-1)
		fn()
	}()
	return true
}

// settle writes down what has happened: a copy of the event where the record
// will need one, the record, and only then, if that compare-and-set won, the
// ack. What cannot be written is tried again for as long as the pool lives: a
// run is never given up as "not done".
func (p *Pool) settle(ctx context.Context, r *run, s settlement) {
	if !r.claimed {
		if _, _, err := p.ownRecord(ctx, r); err != nil {
			p.leave(r)
			return
		}
	}
	parked, copied := r.rec.Parked, false
	if s.park && !parked {
		var err error
		if copied, err = p.park(ctx, r); err != nil {
			p.leave(r)
			return
		}
		parked = copied
	}
	if s.action == commit {
		p.fault(pointCommit)
	}
	res, err := p.write(ctx, r.key, p.op(r, s, parked))
	if copied && (err == nil || errors.Is(err, dedup.ErrFenced)) {
		p.checkCopy(ctx, r, &res)
	}
	if errors.Is(err, dedup.ErrFenced) {
		// Somebody else owns the run now, and the store knows it: its delivery
		// comes again and is a duplicate.
		p.obs.fenced.Add(1)
		p.log.Warn("claim was lost before it could be settled", "event_id", r.eventID(), "run_id", r.key.RunID())
	}
	if err != nil {
		p.leave(r)
		return
	}
	if res.Verdict == dedup.Mismatch { // another payload was faster
		p.settle(ctx, r, s)
		return
	}
	p.fault(settledPoint(s.action))
	p.tell(r, s, res)
	if parked && res.Record.State == dedup.Done {
		p.unpark(ctx, r)
	}
	p.finish(r)
}

// op is the store's operation for s. The first record of a run that never held
// a claim is Put.
func (p *Pool) op(r *run, s settlement, parked bool) dedup.Op {
	if !r.claimed {
		put := dedup.Put{
			State: dedup.Dead, Effect: p.spec.Effect, Fingerprint: r.ev.Fingerprint, Origin: r.ev.Origin,
			Seq: r.seq, Reason: s.reason, Parked: parked,
		}
		if s.counts {
			put.Attempts = 1
		}
		if s.action == postpone {
			put.State, put.Due = dedup.Waiting, s.due
		}
		return put
	}
	switch fence := r.rec.Fence; s.action {
	case postpone:
		return dedup.Defer{Fence: fence, Due: s.due, Counts: s.counts, Reason: s.reason, Parked: parked}
	case bury:
		return dedup.Bury{Fence: fence, Counts: s.counts, Reason: s.reason, Parked: parked}
	case doubt:
		return dedup.Doubt{Fence: fence, Reason: s.reason, Parked: parked}
	default:
		return dedup.Commit{Fence: fence, Outcome: dedup.OutcomeDone, Retain: p.spec.Retain}
	}
}

// shelve gives an event that is not to be run the record that says so: DEAD or
// IN_DOUBT with a copy of its own, or DONE, dropped.
func (p *Pool) shelve(ctx context.Context, r *run, state dedup.State, reason dedup.Reason) {
	if !p.async(ctx, func() { p.shelveNow(ctx, r, state, reason) }) {
		p.leave(r)
	}
}

func (p *Pool) shelveNow(ctx context.Context, r *run, state dedup.State, reason dedup.Reason) {
	for {
		rec, found, err := p.ownRecord(ctx, r)
		again := false
		switch {
		case err == nil && found:
			p.obs.verdict(verdictOn(rec.State))
			p.suppressed(r, verdictOn(rec.State), &rec)
		case err == nil:
			again, err = p.shelveNew(ctx, r, state, reason)
		}
		if err != nil {
			p.leave(r)
			return
		}
		if !again {
			p.finish(r)
			return
		}
	}
}

// shelveNew stores the first record of an event that is not to be run. Again
// says that another payload under its identity was faster.
func (p *Pool) shelveNew(ctx context.Context, r *run, state dedup.State, reason dedup.Reason) (again bool, err error) {
	copied := false
	if state != dedup.Done {
		if copied, err = p.park(ctx, r); err != nil {
			return false, err
		}
	}
	res, err := p.write(ctx, r.key, dedup.Put{
		State: state, Effect: p.spec.Effect, Fingerprint: r.ev.Fingerprint, Origin: r.ev.Origin, Seq: r.seq,
		Retain: p.spec.Retain, Reason: reason, Parked: copied,
	})
	if err != nil {
		return false, err
	}
	if copied {
		p.checkCopy(ctx, r, &res)
	}
	if res.Verdict == dedup.Mismatch {
		return true, nil
	}
	p.obs.verdict(res.Verdict)
	switch {
	case res.Verdict != dedup.Created: // somebody was faster
		p.suppressed(r, res.Verdict, &res.Record)
	case r.against != nil:
		p.suppressed(r, dedup.Mismatch, r.against)
	}
	if res.Record.State == dedup.Dead {
		p.fault(settledPoint(bury))
	}
	switch {
	case res.Verdict != dedup.Created:
	case state == dedup.Dead:
		p.obs.buried.Add(1)
		p.log.Warn("event parked unseen", "reason", reason.Code, "event_id", r.eventID(), "run_id", r.key.RunID())
	case state == dedup.InDoubt:
		p.obs.doubted.Add(1)
		p.log.Warn("event held unseen, somebody has to decide", "reason", reason.Code, "event_id", r.eventID(), "run_id", r.key.RunID())
	}
	return false, nil
}

// verdictOn is what Put answers where there is a record.
func verdictOn(s dedup.State) dedup.Verdict {
	return [...]dedup.Verdict{
		dedup.Started: dedup.Busy, dedup.Waiting: dedup.NotYet, dedup.InDoubt: dedup.Doubtful,
		dedup.Dead: dedup.Buried, dedup.Done: dedup.AlreadyDone,
	}[s]
}

// write applies op and returns when its result is on stable storage, or with
// ErrFenced, or when the pool or the store ends.
func (p *Pool) write(ctx context.Context, key event.Key, op dedup.Op) (res dedup.Result, err error) {
	err = p.persist(ctx, &p.obs.storeErrors, func() (err error) {
		res, err = p.store.Do(ctx, key, op)
		return err
	})
	return res, err
}

// persist tries do until it succeeds or can no longer succeed.
func (p *Pool) persist(ctx context.Context, failures *atomic.Uint64, do func() error) error {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := do()
		if err == nil || hopeless(err) {
			return err
		}
		if failures.Add(1); pause == firstRetry {
			p.log.Warn("outcome not stored, trying again until it is", "error", err)
		}
		if sleep(ctx, pause) != nil {
			return err
		}
	}
}

func hopeless(err error) bool {
	return errors.Is(err, dedup.ErrFenced) || errors.Is(err, dedup.ErrDamaged) || errors.Is(err, dedup.ErrClosed) ||
		errors.Is(err, queue.ErrClosed)
}

// finish acks the delivery and notes the progress. The record is durable, or
// the run needs none.
func (p *Pool) finish(r *run) {
	if !r.delivered {
		return
	}
	d, to := p.open.settle(r.seq)
	if d != nil {
		if err := d.Ack(); err != nil { // it comes again, as a duplicate
			p.obs.queueErrors.Add(1)
			p.log.Debug("delivery not acked", "seq", r.seq, "error", err)
		}
	}
	if to > 0 {
		p.progress.rose()
	}
}

// leave lets the delivery come again when its time has run out.
func (p *Pool) leave(r *run) {
	r.again = true
	if r.delivered {
		p.open.leave(r.seq)
	}
}

// giveBack lets the delivery come again in 30 s. It is for a claim store that
// does not answer, and for nothing else: retries come from the store.
func (p *Pool) giveBack(r *run) {
	r.again = true
	if !r.delivered {
		return
	}
	p.obs.giveBacks.Add(1)
	if d := p.open.leave(r.seq); d != nil {
		if err := d.Nak(nakDelay); err != nil {
			p.obs.queueErrors.Add(1)
			p.log.Debug("delivery not given back", "seq", r.seq, "error", err)
		}
	}
}

// reclaimLost gives back the claims that were granted without anybody hearing of
// it: nobody runs under them, and nothing else would ever wake them.
func (p *Pool) reclaimLost(ctx context.Context) {
	for _, key := range p.claims.allLost() {
		p.claims.enter(key.Tuple)
		err := p.reclaim(ctx, key)
		p.claims.leave(key.Tuple)
		if err != nil && !errors.Is(err, dedup.ErrFenced) {
			p.obs.storeErrors.Add(1)
			return
		}
	}
}

func (p *Pool) reclaim(ctx context.Context, key event.Key) error {
	rec, found, err := p.store.Get(ctx, key)
	if err != nil || !p.claims.alone(key.Tuple) {
		return err
	}
	if found && rec.State == dedup.Started && rec.Owner == dedup.InProc && rec.Fence.Epoch() == p.store.Epoch() {
		_, err := p.store.Do(ctx, key, dedup.Defer{
			Fence: rec.Fence, Due: dedup.At(p.now()), Reason: dedup.Reason{Code: "grant-lost", Detail: "the claim store did not answer"},
		})
		if err != nil {
			return err
		}
		p.obs.lostGrants.Add(1)
	}
	p.claims.setLost(key, false)
	return nil
}

// tell counts and logs how a run ended.
func (p *Pool) tell(r *run, s settlement, res dedup.Result) {
	if res.Verdict != 0 { // of Put: the first record, or one that was there
		p.obs.verdict(res.Verdict)
		if res.Verdict != dedup.Created {
			return
		}
	}
	attrs := []any{
		"event_id", r.eventID(), "run_id", r.key.RunID(), "attempts", res.Record.Attempts,
		"reason", s.reason.Code, "detail", s.reason.Detail,
	}
	switch s.action {
	case postpone:
		p.obs.retried.Add(1)
		p.log.Debug("run will be tried again", append(attrs, "due", s.due.Std())...)
	case bury:
		p.obs.buried.Add(1)
		p.log.Warn("run is a dead letter", attrs...)
	case doubt:
		p.obs.doubted.Add(1)
		p.log.Warn("run is in doubt, somebody has to decide", attrs...)
	}
}

func (r *run) eventID() string {
	if r.ev != nil {
		return r.ev.ID()
	}
	parts, err := event.DecodeKey(r.key.Tuple)
	if err != nil {
		return ""
	}
	return parts.EventID()
}

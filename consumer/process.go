package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// deliver takes one delivery from the queue to its end: it is filtered out,
// parked unseen, or run. It is called by a free worker, and reports whether the
// handler was called.
func (p *Pool) deliver(ctx context.Context, d *queue.Delivery, trial bool) bool {
	r := &run{ev: &d.Event, key: event.KeyFor(&d.Event, p.spec.ID), seq: d.Seq, delivered: true, trial: trial}
	switch reason := p.spec.Unrunnable(r.ev); {
	case !p.spec.Matches(r.ev.Source, r.ev.Type):
		p.obs.filtered.Add(1)
		p.finish(r)
	case reason != "":
		p.shelve(ctx, r, dedup.Dead, dedup.Reason{Code: reason})
	case pastEvent(p.spec.Effect, d.Seq, p.doubtTo):
		p.shelve(ctx, r, dedup.InDoubt, dedup.Reason{Code: dedup.ReasonTimeWentBack, Detail: "it may have run in time that this data directory does not know of"})
	case p.spec.Effect == dedup.Idempotent && !p.strict(ctx, r.key):
		p.runUnclaimed(ctx, r)
	case !p.enter(r):
		p.block(ctx, r)
	default:
		p.runClaimed(ctx, r)
	}
	return r.reached
}

// wake takes one record that is due to its end. Whatever made it wait, it is to
// run now: neither types nor parking are looked at again. It reports whether the
// handler was called.
func (p *Pool) wake(ctx context.Context, rec *dedup.Record, trial bool) bool {
	if p.gate.closedFor() > 0 {
		return false // the store shows it again
	}
	if rec.State == dedup.Started { // an external owner's lease has ended
		if err := p.reaper.reap(ctx, rec); err != nil {
			p.obs.storeErrors.Add(1)
			p.log.Warn("ended lease not settled, trying again", "run_id", rec.Key.RunID(), "error", err)
		}
		return false
	}
	r := &run{key: rec.Key, seq: rec.Seq, rec: *rec, trial: trial}
	var err error
	switch r.ev, err = fetch(ctx, p.queue, p.spec.ID, rec); {
	case err == nil && !p.enter(r): // it is called when its turn has come
	case err == nil:
		p.runClaimed(ctx, r)
	case errors.Is(err, queue.ErrMissing):
		r.claimed = true // nobody runs what waits: the record's own fence settles it
		p.claims.enter(r.key.Tuple)
		p.settleLater(ctx, r, settlement{action: bury, reason: dedup.Reason{
			Code: dedup.ReasonEventMissing, Detail: "the queue no longer holds the event",
		}})
	default:
		p.obs.queueErrors.Add(1)
		p.log.Warn("event of a due run not read, trying again", "run_id", r.key.RunID(), "error", err)
	}
	return r.reached
}

// runClaimed asks for the claim, and if it is granted makes the attempt and
// settles it. Any other verdict means that the store owns the key: the delivery
// has nothing to add and is acked.
func (p *Pool) runClaimed(ctx context.Context, r *run) {
	p.claims.enter(r.key.Tuple)
	granted := p.acquire(ctx, r)
	if granted {
		p.fault(pointAcquire)
		if answer, ok := p.attempt(ctx, r); ok {
			p.settleLater(ctx, r, p.spec.decide(answer, p.facts(r)))
			return // settling leaves the claim
		}
	}
	p.exit(r, r.again)
	p.claims.leave(r.key.Tuple)
}

// acquire asks for the claim and deals with every verdict but Granted.
func (p *Pool) acquire(ctx context.Context, r *run) bool {
	if p.gate.closedFor() > 0 {
		p.giveBack(r)
		return false
	}
	if e, waits := p.side.find(r.key); waits && r.delivered {
		p.besideDone(r, &e)
		return false
	}
	res, err := p.ask(ctx, r, false)
	if err == nil && p.leadsNowhere(ctx, r, &res) {
		res, err = p.ask(ctx, r, true)
	}
	if err != nil {
		p.unanswered(ctx, r, err)
		return false
	}
	if p.gate.open() {
		p.log.Info("claim store answers again")
	}
	p.obs.verdict(res.Verdict)
	switch res.Verdict {
	case dedup.Granted:
		r.rec, r.claimed = res.Record, true
		return true
	case dedup.Mismatch:
		p.mismatch(ctx, r, &res.Record)
	default:
		r.again = res.Verdict == dedup.NotYet || res.Verdict == dedup.Busy
		p.log.Debug("duplicate suppressed", "verdict", res.Verdict.String(),
			"event_id", r.ev.ID(), "run_id", r.key.RunID(), "seq", r.seq)
		p.suppressed(r, res.Verdict, &res.Record)
		if p.isDuplicate(r, &res) {
			p.duplicate(ctx, r)
			return false
		}
		p.finish(r)
	}
	return false
}

// ask does the Acquire. It remembers one that was not answered, for that may
// have been granted.
func (p *Pool) ask(ctx context.Context, r *run, replaceSeq bool) (dedup.Result, error) {
	op := dedup.Acquire{
		Effect: p.spec.Effect, Owner: dedup.InProc, Seq: r.seq, ReplaceSeq: replaceSeq,
		Origin: r.ev.Origin, Fingerprint: r.ev.Fingerprint,
	}
	if !r.delivered { // the record's own run: what it was made from is not in question
		op.Origin, op.Fingerprint = r.rec.Origin, r.rec.Fingerprint
	}
	res, err := p.store.Do(ctx, r.key, op)
	if err != nil || res.Verdict != dedup.Busy { // busy may be with the very grant that was lost
		p.claims.setLost(r.key, err != nil)
	}
	return res, err
}

// leadsNowhere reports whether a record that does not run now would not find its
// event later. This delivery is about to be acked and has the same event: the
// record takes over its sequence.
func (p *Pool) leadsNowhere(ctx context.Context, r *run, res *dedup.Result) bool {
	if !r.delivered || res.Verdict != dedup.Busy && res.Verdict != dedup.NotYet || res.Record.Seq == r.seq {
		return false
	}
	_, err := fetch(ctx, p.queue, p.spec.ID, &res.Record)
	return err != nil
}

// attempt calls the handler once, within its timeout. It is false when the pool
// was killed meanwhile: then the answer means nothing and the claim stays.
func (p *Pool) attempt(ctx context.Context, r *run) (Answer, bool) {
	bounded, cancel := context.WithTimeout(ctx, p.spec.Timeout)
	defer cancel()
	p.obs.inFlight.Add(1)
	began := time.Now()
	answer := p.handle(bounded, &Attempt{
		Event: r.ev, Key: r.key, Handler: p.spec.ID, Number: int(r.rec.Attempts) + 1, Fence: r.rec.Fence,
		DuplicateOf: p.original(ctx, r),
	})
	p.obs.times.add(time.Since(began))
	p.obs.inFlight.Add(-1)
	p.fault(pointRun)
	if ctx.Err() != nil {
		p.leave(r)
		return Answer{}, false
	}
	p.obs.answer(answer)
	p.noted(r, answer)
	return answer, true
}

// handle calls the handler. Nobody knows what one that panics has done.
func (p *Pool) handle(ctx context.Context, a *Attempt) (answer Answer) {
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("handler panicked", "event_id", a.Event.ID(), "run_id", a.Key.RunID(), "stack", string(debug.Stack()))
			answer = Answer{Class: Unknown, Reason: dedup.Reason{Code: "panic", Detail: "the handler's code panicked"}}
		}
	}()
	return p.spec.Handler.Handle(ctx, a)
}

// facts gathers what decides about the answer of a run.
func (p *Pool) facts(r *run) facts {
	f := facts{
		effect: max(r.rec.Effect, p.spec.Effect), attempts: int(r.rec.Attempts),
		firstSeen: r.rec.FirstSeen.Std(), now: p.now(), random: rand.Float64(), trial: r.trial,
	}
	if !r.claimed {
		f.firstSeen = f.now
	}
	return f
}

// runUnclaimed runs an event of an idempotent handler. Only a failure makes a
// record, and so a retry.
func (p *Pool) runUnclaimed(ctx context.Context, r *run) {
	answer, ok := p.attempt(ctx, r)
	switch {
	case !ok:
	case answer.Class == Done:
		p.finish(r)
	default:
		p.claims.enter(r.key.Tuple)
		p.settleLater(ctx, r, p.spec.decide(answer, p.facts(r)))
	}
}

// unanswered deals with a claim store that did not say whether the run may
// begin.
func (p *Pool) unanswered(ctx context.Context, r *run, err error) {
	if ctx.Err() != nil || errors.Is(err, dedup.ErrClosed) {
		p.leave(r) // the pool ends
		return
	}
	p.obs.storeErrors.Add(1)
	if !errors.Is(err, dedup.ErrUnavailable) {
		p.log.Error("claim refused by the store", "event_id", r.ev.ID(), "run_id", r.key.RunID(), "error", err)
		p.leave(r) // this event's trouble, not the store's
		return
	}
	switch {
	case p.spec.StoreUnavailable == Allow && r.delivered:
		p.runAllowed(ctx, r)
		return
	case p.spec.StoreUnavailable == Refuse && p.gate.shut():
		p.log.Warn("claim store does not answer, nothing runs until it does", "error", err)
	}
	p.giveBack(r)
}

// runAllowed runs without a claim, as "allow" wants it. See StoreUnavailable.
func (p *Pool) runAllowed(ctx context.Context, r *run) {
	if p.side.full() {
		p.giveBack(r)
		return
	}
	answer, ok := p.attempt(ctx, r)
	switch {
	case !ok:
		return
	case answer.Class != Done:
		p.giveBack(r)
		return
	}
	p.obs.unclaimed.Add(1)
	if err := p.side.add(newSideEntry(r, &p.spec, p.now())); err != nil {
		p.obs.storeErrors.Add(1)
		p.log.Warn("run without a claim not written down, it will run again", "event_id", r.eventID(), "run_id", r.key.RunID(), "error", err)
		p.giveBack(r)
		return
	}
	p.claims.setLost(r.key, false)
	p.finish(r)
}

// besideDone deals with a delivery whose run is in the side log: it is a duplicate.
// Another payload waits for the store, which knows what to do with it.
func (p *Pool) besideDone(r *run, e *sideEntry) {
	if e.Origin == r.ev.Origin && e.fingerprint().Differs(r.ev.Fingerprint) {
		p.giveBack(r)
		return
	}
	p.obs.verdict(dedup.AlreadyDone)
	p.finish(r)
}

// mismatch deals with another payload under a known identity: it has a key of
// its own, so that its repeats are duplicates of it.
func (p *Pool) mismatch(ctx context.Context, r *run, rec *dedup.Record) {
	other := *r
	other.against = rec
	other.key = event.MismatchKey(r.ev, p.spec.ID)
	state := dedup.Dead
	if p.spec.OnMismatch == MismatchDrop {
		state = dedup.Done
	}
	p.shelve(ctx, &other, state, dedup.Reason{Code: dedup.ReasonMismatch})
}

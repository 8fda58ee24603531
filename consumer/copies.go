package consumer

import (
	"context"
	"errors"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// ownRecord looks up the record of a run that holds no claim. Another payload
// under a known identity has a key of its own, which r then gets: a record, and
// a copy, that are not its own must not stand for it.
func (p *Pool) ownRecord(ctx context.Context, r *run) (rec dedup.Record, found bool, err error) {
	for {
		err = p.persist(ctx, &p.obs.storeErrors, func() (err error) {
			rec, found, err = p.store.Get(ctx, r.key)
			return err
		})
		other := event.MismatchKey(r.ev, p.spec.ID)
		if err != nil || !found || r.key == other || rec.Origin != r.ev.Origin || !rec.Fingerprint.Differs(r.ev.Fingerprint) {
			return rec, found, err
		}
		p.obs.verdict(dedup.Mismatch)
		first := rec
		r.key, r.against = other, &first
	}
}

// park copies the event, so that its record pins nothing in the queue. It is
// false when there is no room for the copy: then the record goes on with its
// sequence, which still holds the event.
func (p *Pool) park(ctx context.Context, r *run) (copied bool, err error) {
	err = p.persist(ctx, &p.obs.parkErrors, func() error {
		err := p.queue.Park(ctx, p.spec.ID, r.key, r.ev)
		full := errors.Is(err, queue.ErrFull)
		p.obs.parkedFull.Store(full)
		copied = err == nil
		if full && p.inQueue(ctx, r) {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return false, err
	case copied:
		p.fault(pointPark)
	default:
		p.obs.uncopied.Add(1)
		p.log.Warn("no room for a copy of the event, it keeps its place in the queue",
			"event_id", r.eventID(), "run_id", r.key.RunID())
	}
	return copied, nil
}

// inQueue reports whether the record that r has, or is to get, finds its event
// in the stream.
func (p *Pool) inQueue(ctx context.Context, r *run) bool {
	rec := r.rec
	if !r.claimed {
		rec = dedup.Record{Key: r.key, Seq: r.seq, Origin: r.ev.Origin}
	}
	_, err := inStream(ctx, p.queue, p.spec.ID, &rec)
	return err == nil
}

// unpark removes the copy of a run that is done. A copy that stays does no harm.
func (p *Pool) unpark(ctx context.Context, r *run) {
	if err := p.queue.Unpark(ctx, p.spec.ID, r.key); err != nil {
		p.obs.queueErrors.Add(1)
		p.log.Warn("copy of a finished run not removed", "run_id", r.key.RunID(), "error", err)
	}
}

// checkCopy looks at the copy that r has made after the record has turned out
// not to be r's to write: it is removed if nobody knows of it, and put back if
// it has replaced that of another payload.
func (p *Pool) checkCopy(ctx context.Context, r *run, res *dedup.Result) {
	rec := &res.Record
	switch {
	case unknownCopy(rec):
		p.unpark(ctx, r)
	case rec.Parked && res.Verdict == dedup.Mismatch:
		ev, err := inStream(ctx, p.queue, p.spec.ID, rec)
		if err == nil {
			err = p.queue.Park(ctx, p.spec.ID, rec.Key, ev)
		}
		if err != nil {
			p.obs.parkErrors.Add(1)
			p.log.Error("copy replaced by another payload's", "run_id", r.key.RunID(), "error", err)
		}
	}
}

// unknownCopy reports whether a copy under the record's key is nobody's. While
// somebody runs he may just have made it.
func unknownCopy(rec *dedup.Record) bool {
	return !rec.Parked && rec.State != dedup.Started
}

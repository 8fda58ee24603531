package consumer

import (
	"context"

	"idemd/dedup"
	"idemd/event"
)

// isDuplicate reports whether a delivery that was not granted is a duplicate to
// be dealt with. The delivery that was run may come again after a crash, or from
// where the progress was saved last: that is none. Nor is what reconciliation
// found.
func (p *Pool) isDuplicate(r *run, res *dedup.Result) bool {
	return p.spec.OnDuplicate != OnDuplicateDrop && r.delivered && res.Verdict == dedup.AlreadyDone &&
		res.Record.Seq != r.seq && r.ev.Origin == event.OriginCallback
}

// duplicate gives a duplicate the record that OnDuplicate wants, and acks it after
// that. However often the delivery comes, it gets one record only.
func (p *Pool) duplicate(ctx context.Context, r *run) {
	deal := p.buryDuplicate
	if p.spec.OnDuplicate.Handler() != "" {
		deal = p.passDuplicate
	}
	if !p.async(ctx, func() {
		if err := deal(ctx, r); err != nil {
			p.leave(r)
			return
		}
		p.finish(r)
	}) {
		p.leave(r)
	}
}

// passDuplicate gives the duplicate to the compensating handler: a run that is
// due now, under a key that this delivery alone has. That handler's own effect is
// noted when it is claimed.
func (p *Pool) passDuplicate(ctx context.Context, r *run) error {
	to := p.spec.OnDuplicate.Handler()
	key := event.DuplicateKey(r.ev, to, p.spec.ID, r.seq)
	res, err := p.write(ctx, key, dedup.Put{
		State: dedup.Waiting, Effect: dedup.Idempotent, Fingerprint: r.ev.Fingerprint, Origin: r.ev.Origin,
		Seq: r.seq, Due: dedup.At(p.now()), Reason: dedup.Reason{Code: dedup.ReasonDuplicate},
	})
	if err == nil {
		p.toldDuplicate(r, key, &res)
	}
	return err
}

// buryDuplicate makes the duplicate a dead letter. The records of an event's
// duplicates are numbered, so that a storm of them fills nothing.
func (p *Pool) buryDuplicate(ctx context.Context, r *run) error {
	for n := uint64(1); n <= MaxDuplicates; n++ {
		own := *r
		own.key = event.DuplicateKey(r.ev, p.spec.ID, p.spec.ID, n)
		rec, err := p.buriedAs(ctx, &own)
		if err != nil || rec.Seq == r.seq {
			return err
		}
	}
	p.obs.duplicatesOver.Add(1)
	p.log.Warn("duplicate suppressed: its event has dead letters of as many duplicates as are kept",
		"event_id", r.eventID(), "run_id", r.key.RunID(), "seq", r.seq)
	return nil
}

// buriedAs gives the record at r's key, which it makes where there is none.
func (p *Pool) buriedAs(ctx context.Context, r *run) (rec dedup.Record, err error) {
	var found bool
	err = p.persist(ctx, &p.obs.storeErrors, func() (err error) {
		rec, found, err = p.store.Get(ctx, r.key)
		return err
	})
	if err != nil || found {
		return rec, err
	}
	copied, err := p.park(ctx, r)
	if err != nil {
		return rec, err
	}
	res, err := p.write(ctx, r.key, dedup.Put{
		State: dedup.Dead, Effect: p.spec.Effect, Fingerprint: r.ev.Fingerprint, Origin: r.ev.Origin, Seq: r.seq,
		Reason: dedup.Reason{Code: dedup.ReasonDuplicate}, Parked: copied,
	})
	if err != nil {
		return rec, err
	}
	if copied {
		p.checkCopy(ctx, r, &res)
	}
	p.toldDuplicate(r, r.key, &res)
	return res.Record, nil
}

func (p *Pool) toldDuplicate(r *run, key event.Key, res *dedup.Result) {
	p.fault(pointDuplicate)
	if res.Verdict == dedup.Created {
		p.obs.duplicates.Add(1)
		p.log.Info("duplicate has a run of its own", "on_duplicate", string(p.spec.OnDuplicate), "event_id", r.eventID(),
			"run_id", key.RunID(), "seq", r.seq)
	}
}

// original gives the run whose duplicate r is, nil when r is none.
func (p *Pool) original(ctx context.Context, r *run) *dedup.Record {
	if r.delivered { // such runs come from records only
		return nil
	}
	parts, err := event.DecodeKey(r.key.Tuple)
	if err != nil || parts.DuplicateOf == "" {
		return nil
	}
	key := event.KeyFor(r.ev, parts.DuplicateOf)
	rec, found, err := p.store.Get(ctx, key)
	if err != nil || !found { // expired, or the store is busy with its own trouble
		return &dedup.Record{Key: key}
	}
	return &rec
}

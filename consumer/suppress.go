package consumer

import (
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Suppression is a delivery that was not run, because its event has a record at
// this handler.
type Suppression struct {
	At      time.Time
	Handler string       // id
	Event   *event.Event // as it was delivered; not to be changed or kept
	Seq     uint64       // of the delivery
	Key     event.Key    // of Record
	Verdict dedup.Verdict
	Record  *dedup.Record // not to be changed or kept
}

// suppressed tells that r is not run because of rec. Of the record's own runs,
// which no delivery stands behind, nothing is told.
func (p *Pool) suppressed(r *run, v dedup.Verdict, rec *dedup.Record) {
	if p.suppression == nil || !r.delivered {
		return
	}
	p.suppression(Suppression{
		At: p.now(), Handler: p.spec.ID, Event: r.ev, Seq: r.seq, Key: rec.Key, Verdict: v, Record: rec,
	})
}

package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"idemd/dedup"
)

// Observe counts what a pool does. The zero value is ready for use, and may
// outlive the pool, so that counts go on over a reload.
type Observe struct {
	byClass   [len(classNames)]atomic.Uint64
	byVerdict [verdicts]atomic.Uint64

	filtered, retried, buried, doubted       atomic.Uint64
	fenced, lostGrants, unclaimed, giveBacks atomic.Uint64
	storeErrors, parkErrors, queueErrors     atomic.Uint64
	redelivered, uncopied                    atomic.Uint64
	unserialized                             atomic.Uint64
	duplicates, duplicatesOver               atomic.Uint64
	inFlight, settling, unreaped             atomic.Int64
	parkedFull                               atomic.Bool
	lastReason                               atomic.Pointer[dedup.Reason]
	times                                    runTimes
}

// verdicts is one more than the largest Verdict.
const verdicts = int(dedup.Created) + 1

func (o *Observe) verdict(v dedup.Verdict) {
	if int(v) < len(o.byVerdict) {
		o.byVerdict[v].Add(1)
	}
}

func (o *Observe) answer(a Answer) {
	if int(a.Class) < len(o.byClass) {
		o.byClass[a.Class].Add(1)
	}
	if a.Class != Done {
		o.lastReason.Store(&a.Reason)
	}
}

// Snapshot is a picture of a pool. Counts are since the process started.
type Snapshot struct {
	Handler     string            `json:"handler"`
	Runs        map[string]uint64 `json:"runs"`         // finished attempts by class
	Verdicts    map[string]uint64 `json:"verdicts"`     // answers of the claim store; all but granted suppressed a run
	Filtered    uint64            `json:"filtered"`     // deliveries of types that the handler does not list
	Retried     uint64            `json:"retried"`      // runs that wait for another attempt
	Buried      uint64            `json:"buried"`       // runs that became dead letters
	Doubted     uint64            `json:"doubted"`      // runs that became in doubt
	Fenced      uint64            `json:"fenced"`       // settles that came too late and changed nothing
	LostGrants  uint64            `json:"lost_grants"`  // claims given back because nobody had heard of their grant
	Unclaimed   uint64            `json:"unclaimed"`    // runs without a claim while the store was down
	GivenBack   uint64            `json:"given_back"`   // deliveries that come again in 30 s
	Redelivered uint64            `json:"redelivered"`  // deliveries that came again while they were open
	StoreErrors uint64            `json:"store_errors"` // operations that the claim store did not answer
	ParkErrors  uint64            `json:"park_errors"`  // copies that could not be parked at once
	QueueErrors uint64            `json:"queue_errors"` // acks and marks that were not sent
	Unserial    uint64            `json:"unserialized"` // events without the value of serialize_by: they wait for nobody
	Blocked     int               `json:"blocked"`      // runs that wait for their turn
	Duplicates  uint64            `json:"duplicates"`   // duplicates that got a record of their own
	DupsOver    uint64            `json:"dups_over"`    // duplicates over MaxDuplicates of their event: suppressed
	Uncopied    uint64            `json:"uncopied"`     // runs that went on without a copy: there was no room for it
	ParkedFull  bool              `json:"parked_full"`  // there was no room for the last copy
	Unreaped    int64             `json:"unreaped"`     // runs of dead processes that could not be settled yet
	Times       RunTimes          `json:"times"`        // of attempts
	InFlight    int64             `json:"in_flight"`    // attempts that are running
	Settling    int64             `json:"settling"`     // runs whose record is being written
	LastReason  dedup.Reason      `json:"last_reason"`  // of the last attempt that was not done
	Oldest      time.Time         `json:"oldest"`       // when the oldest open delivery was stored; zero when none is open
	StoreDown   bool              `json:"store_down"`   // nothing is taken: the claim store does not answer
	Held        time.Time         `json:"held"`         // since when one event is tried from time to time, for all failed; zero when not
	Paused      time.Time         `json:"paused"`       // since when nothing is taken, by hand; zero when not
	SettledTo   uint64            `json:"settled_to"`   // every delivery up to here that came is settled; what is saved, Progress tells
}

// snapshot gives the counts.
func (o *Observe) snapshot() Snapshot {
	s := Snapshot{
		Runs: make(map[string]uint64), Verdicts: make(map[string]uint64),
		Filtered: o.filtered.Load(), Retried: o.retried.Load(), Buried: o.buried.Load(), Doubted: o.doubted.Load(),
		Fenced: o.fenced.Load(), LostGrants: o.lostGrants.Load(), Unclaimed: o.unclaimed.Load(), GivenBack: o.giveBacks.Load(),
		Redelivered: o.redelivered.Load(), Duplicates: o.duplicates.Load(), DupsOver: o.duplicatesOver.Load(),
		StoreErrors: o.storeErrors.Load(), ParkErrors: o.parkErrors.Load(), QueueErrors: o.queueErrors.Load(),
		Unserial: o.unserialized.Load(), Uncopied: o.uncopied.Load(), ParkedFull: o.parkedFull.Load(), Unreaped: o.unreaped.Load(),
		Times: o.times.snapshot(), InFlight: o.inFlight.Load(), Settling: o.settling.Load(),
	}
	for c := Done; int(c) < len(o.byClass); c++ {
		s.Runs[c.String()] = o.byClass[c].Load()
	}
	for v := dedup.Granted; int(v) < len(o.byVerdict); v++ {
		s.Verdicts[v.String()] = o.byVerdict[v].Load()
	}
	if r := o.lastReason.Load(); r != nil {
		s.LastReason = *r
	}
	return s
}

// Pending is how many events the handler has not been offered yet.
func (p *Pool) Pending(ctx context.Context) (uint64, error) {
	return p.face.Load().consumer.Pending(ctx)
}

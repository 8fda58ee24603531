package dedup

import "time"

// Resolution is what a probe or an operator decides.
type Resolution uint8

// The resolutions. Retry and Drop are for DEAD and IN_DOUBT, the others for
// IN_DOUBT only.
const (
	ResolveDone  Resolution = iota + 1 // the effect happened
	ResolveRetry                       // run it now, attempts counted anew
	ResolveDrop                        // never run it
	ResolveBury                        // make it a dead letter
)

// Resolve ends IN_DOUBT or DEAD by somebody's word. Fence is the one that was
// shown to them; the record gets a new one, so that of two words one counts.
type Resolve struct {
	Fence  Fence
	To     Resolution
	Retain time.Duration // for a DONE record
	Reason Reason
}

func (op Resolve) decide(cur *Record, env Env) Result {
	known := cur.State == InDoubt || cur.State == Dead && (op.To == ResolveRetry || op.To == ResolveDrop)
	if cur.Fence != op.Fence || !known {
		return fenced(cur)
	}
	r := *cur
	r.Fence = env.Next
	switch op.To {
	case ResolveDone:
		return done(r, OutcomeDone, op.Retain, op.Reason, env)
	case ResolveDrop:
		return done(r, OutcomeDropped, op.Retain, op.Reason, env)
	case ResolveRetry:
		r.State, r.Due, r.Attempts, r.Reason, r.Committed = Waiting, env.Now, 0, op.Reason, 0
	case ResolveBury:
		r.State, r.Reason, r.Committed = Dead, op.Reason, env.Now
	default:
		return fenced(cur)
	}
	return Result{Record: r, Write: true}
}

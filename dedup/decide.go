package dedup

import (
	"cmp"
	"strings"
	"time"

	"idemd/event"
)

// Verdict is the answer to Acquire and Put.
type Verdict uint8

// The verdicts. Only Granted lets a run begin and keeps its delivery open; with
// any other one the store owns the key and the delivery is acked.
const (
	Granted     Verdict = iota + 1 // run now, under Record.Fence
	AlreadyDone                    // settled before
	Busy                           // another holder runs it
	NotYet                         // it waits for its Due
	Doubtful                       // it is IN_DOUBT
	Buried                         // it is DEAD
	Mismatch                       // known identity, other payload; nothing was changed
	Created                        // Put: the record is new
)

var verdictNames = [...]string{"", "granted", "done", "busy", "waiting", "in_doubt", "dead", "mismatch", "created"}

// String gives the verdict's name in logs and metrics.
func (v Verdict) String() string { return name(verdictNames[:], uint8(v)) }

// Env is what a decision needs beside the record and the operation.
type Env struct {
	Now     Time
	Horizon Time   // a DONE record is expired iff Expires < Horizon
	Next    Fence  // the fence of a new grant; its epoch is the present one
	Host    string // for Record.Host
}

// Result is a decision. Unless Write is set the store changes nothing.
type Result struct {
	Verdict Verdict // of Acquire and Put
	Record  Record  // as it stands after the operation; zero where none was found
	Write   bool    // Record is to be stored
	Fenced  bool    // the operation's fence or state is not the record's: nothing was changed
	// Ride: the caller may be answered before Record is on stable storage. Only
	// a grant of a retryable in-process run may: if it is lost, the delivery is
	// still open and the run is repeated under a new fence.
	Ride bool
}

// Op is one operation of the protocol: Acquire, Put, Commit, Defer, Bury, Doubt,
// Renew, Expire, Resolve.
type Op interface {
	decide(cur *Record, env Env) Result
}

// Decide applies op to the record of a key. cur is nil when there is none. It
// has no side effects and reads no clock.
func Decide(cur *Record, key event.Key, op Op, env Env) Result {
	if cur == nil || cur.State == Free || Expired(cur, env.Horizon) {
		cur = &Record{Key: key}
	}
	res := op.decide(cur, env)
	res.Record.Reason.Detail = cutDetail(res.Record.Reason.Detail)
	return res
}

// cutDetail keeps the first MaxDetail bytes, and of those whole characters.
func cutDetail(s string) string {
	if len(s) <= MaxDetail {
		return s
	}
	return strings.ToValidUTF8(s[:MaxDetail], "")
}

// Expired reports whether a record counts as forgotten. The horizon, not the
// clock, decides: a clock that jumps expires nothing.
func Expired(r *Record, horizon Time) bool {
	return r.State == Done && r.Expires < horizon
}

func fenced(cur *Record) Result { return Result{Record: *cur, Fenced: true} }

func unchanged(cur *Record, v Verdict) Result { return Result{Record: *cur, Verdict: v} }

// Acquire asks for the right to run. It is the point of no return: after
// Granted the run may have had its effect.
type Acquire struct {
	Effect      Effect
	Owner       Owner
	Lease       time.Duration // external owners
	Fingerprint event.Fingerprint
	Origin      event.Origin
	Seq         uint64
	ReplaceSeq  bool // the record's sequence no longer holds this key: take Seq instead
}

func (op Acquire) decide(cur *Record, env Env) Result {
	switch {
	case cur.State == Free:
		return op.grant(Record{
			Key: cur.Key, FirstSeen: env.Now, Origin: op.Origin, Fingerprint: op.Fingerprint, Seq: op.Seq,
		}, env)
	case otherPayload(cur, op.Origin, op.Fingerprint):
		return unchanged(cur, Mismatch)
	case cur.State == Done:
		return unchanged(cur, AlreadyDone)
	case cur.State == Dead:
		return unchanged(cur, Buried)
	case cur.State == InDoubt:
		return unchanged(cur, Doubtful)
	case cur.State == Waiting && cur.Due <= env.Now:
		return op.grant(op.adopt(*cur), env)
	case cur.State == Waiting:
		return op.pass(cur, NotYet)
	case leaseEnded(cur, env) && cur.Seq == 0:
		// Nobody else would ever look at it: no event stands behind it.
		r := ownerGone(cur, Expire{Due: env.Now}, env)
		r.Record = op.adopt(r.Record)
		if r.Record.State == InDoubt {
			r.Verdict = Doubtful
			return r
		}
		return op.grant(r.Record, env)
	}
	return op.pass(cur, Busy)
}

// otherPayload reports whether the record was made from another payload than that
// of fp, which came the same way: from different origins the payloads of one event
// differ.
func otherPayload(cur *Record, origin event.Origin, fp event.Fingerprint) bool {
	return cur.State != Free && cur.Origin == origin && cur.Fingerprint.Differs(fp)
}

func (op Acquire) grant(r Record, env Env) Result {
	r.State, r.Owner, r.Fence, r.Host = Started, op.Owner, env.Next, env.Host
	r.Effect = max(r.Effect, op.Effect)
	r.Started, r.Due = env.Now, 0
	r.Lease, r.LeaseFor = 0, 0
	if op.Owner == External {
		r.Lease, r.LeaseFor = env.Now.Add(op.Lease), op.Lease
	}
	ride := r.Effect != Irrevocable && op.Owner == InProc
	return Result{Verdict: Granted, Record: r, Write: true, Ride: ride}
}

// pass answers v, and takes over the delivery's sequence where the record's own
// would lead nowhere.
func (op Acquire) pass(cur *Record, v Verdict) Result {
	r := op.adopt(*cur)
	return Result{Verdict: v, Record: r, Write: r.Seq != cur.Seq}
}

func (op Acquire) adopt(r Record) Record {
	if op.Seq != 0 && (r.Seq == 0 || op.ReplaceSeq) {
		r.Seq = op.Seq
	}
	return r
}

// leaseEnded reports whether an external owner has lost its claim by time.
func leaseEnded(r *Record, env Env) bool {
	return r.State == Started && r.Owner == External && r.Lease <= env.Now
}

// Put stores the first record of a run that never held a claim: an event that
// is parked unseen, a dropped one, the first failure of an idempotent run, a
// replay, or an event that may have run in time that was lost. Where a record
// exists, nothing is changed and the verdict tells its state; or that it is of
// another payload from the same origin, Mismatch.
type Put struct {
	State       State // Waiting, InDoubt, Dead or Done
	Effect      Effect
	Fingerprint event.Fingerprint
	Origin      event.Origin
	Seq         uint64
	Attempts    uint32
	Due         Time          // Waiting
	Retain      time.Duration // Done: until it expires
	Outcome     Outcome       // Done: OutcomeDropped when 0
	Reason      Reason
	Parked      bool
}

func (op Put) decide(cur *Record, env Env) Result {
	if otherPayload(cur, op.Origin, op.Fingerprint) {
		return unchanged(cur, Mismatch)
	}
	switch cur.State {
	case Started:
		return unchanged(cur, Busy)
	case Waiting:
		return unchanged(cur, NotYet)
	case InDoubt:
		return unchanged(cur, Doubtful)
	case Dead:
		return unchanged(cur, Buried)
	case Done:
		return unchanged(cur, AlreadyDone)
	}
	r := Record{
		Key: cur.Key, State: op.State, Owner: InProc, Effect: op.Effect, Fence: env.Next, Attempts: op.Attempts,
		FirstSeen: env.Now, Host: env.Host, Reason: op.Reason, Origin: op.Origin,
		Fingerprint: op.Fingerprint, Seq: op.Seq, Parked: op.Parked,
	}
	switch op.State {
	case Waiting:
		r.Due = op.Due
	case Done:
		r.Outcome, r.Committed, r.Expires = cmp.Or(op.Outcome, OutcomeDropped), env.Now, env.Now.Add(op.Retain)
	case Dead:
		r.Committed = env.Now
	case InDoubt:
	default:
		return fenced(cur)
	}
	return Result{Verdict: Created, Record: r, Write: true}
}

// Commit settles a run for good. A report of success is also taken from the
// holder of a run that meanwhile is IN_DOUBT: nobody ran after it.
type Commit struct {
	Fence   Fence
	Outcome Outcome
	Retain  time.Duration // from now on, a duplicate is told for this long
	Reason  Reason
}

func (op Commit) decide(cur *Record, env Env) Result {
	switch {
	case cur.Fence != op.Fence:
		return fenced(cur)
	case cur.State == Done:
		return unchanged(cur, 0)
	case cur.State != Started && cur.State != InDoubt:
		return fenced(cur)
	}
	r := *cur
	r.Attempts += count(cur.State == Started) // doubt has counted it already
	return done(r, op.Outcome, op.Retain, op.Reason, env)
}

func done(r Record, outcome Outcome, retain time.Duration, reason Reason, env Env) Result {
	r.State, r.Outcome, r.Reason = Done, outcome, reason
	r.Committed, r.Expires = env.Now, env.Now.Add(retain)
	r.Lease, r.Due = 0, 0
	return Result{Record: r, Write: true}
}

// Defer ends an attempt without a settled outcome: it runs again at Due.
type Defer struct {
	Fence  Fence
	Due    Time
	Counts bool // it was an attempt
	Reason Reason
	Parked bool // the event has a copy in the parked stream now
}

func (op Defer) decide(cur *Record, _ Env) Result {
	switch {
	case cur.Fence != op.Fence:
		return fenced(cur)
	case cur.State == Waiting:
		return unchanged(cur, 0)
	case cur.State != Started:
		return fenced(cur)
	}
	r := *cur
	r.State, r.Due, r.Lease, r.Reason = Waiting, op.Due, 0, op.Reason
	r.Parked = r.Parked || op.Parked
	r.Attempts += count(op.Counts)
	return Result{Record: r, Write: true}
}

// Bury gives a run up: a dead letter. It also ends one that waits, when there is
// nothing left to run.
type Bury struct {
	Fence  Fence
	Counts bool // it was an attempt
	Reason Reason
	Parked bool
}

func (op Bury) decide(cur *Record, env Env) Result {
	switch {
	case cur.Fence != op.Fence:
		return fenced(cur)
	case cur.State == Dead:
		return unchanged(cur, 0)
	case cur.State != Started && cur.State != Waiting:
		return fenced(cur)
	}
	r := *cur
	r.State, r.Due, r.Lease, r.Reason, r.Committed = Dead, 0, 0, op.Reason, env.Now
	r.Parked = r.Parked || op.Parked
	r.Attempts += count(op.Counts)
	return Result{Record: r, Write: true}
}

// Doubt ends an attempt whose outcome nobody knows. The fence stays, so that
// late evidence is still accepted.
type Doubt struct {
	Fence  Fence
	Waits  bool // it is about a run that waits, not about an attempt: it may have been made in time that was lost
	Reason Reason
	Parked bool
}

func (op Doubt) decide(cur *Record, _ Env) Result {
	switch {
	case cur.Fence != op.Fence:
		return fenced(cur)
	case cur.State == InDoubt:
		return unchanged(cur, 0)
	case op.Waits && cur.State == Waiting:
		r := doubt(*cur, op.Reason, op.Parked)
		r.Attempts = cur.Attempts
		return Result{Record: r, Write: true}
	case op.Waits || cur.State != Started:
		return fenced(cur)
	}
	return Result{Record: doubt(*cur, op.Reason, op.Parked), Write: true}
}

func doubt(r Record, reason Reason, parked bool) Record {
	r.State, r.Due, r.Lease, r.Reason = InDoubt, 0, 0, reason
	r.Parked = r.Parked || parked
	r.Attempts++
	return r
}

// Renew is an external owner's heartbeat: one more lease from now.
type Renew struct {
	Fence Fence
}

func (op Renew) decide(cur *Record, env Env) Result {
	if cur.Fence != op.Fence || cur.State != Started || cur.Owner != External {
		return fenced(cur)
	}
	r := *cur
	r.Lease = env.Now.Add(r.LeaseFor)
	return Result{Record: r, Write: true}
}

// Expire settles a STARTED run whose owner is gone: an in-process one of a dead
// epoch, or an external one whose lease has ended. It is fenced off for any
// other record.
type Expire struct {
	Fence       Fence
	Due         Time   // when a retryable run may run again
	MaxAttempts uint32 // with this many finished attempts it is DEAD; 0 means no bound
	Parked      bool   // the event has a copy in the parked stream now
}

func (op Expire) decide(cur *Record, env Env) Result {
	gone := leaseEnded(cur, env) ||
		cur.State == Started && cur.Owner == InProc && cur.Fence.Epoch() < env.Next.Epoch()
	if cur.Fence != op.Fence || !gone {
		return fenced(cur)
	}
	return ownerGone(cur, op, env)
}

func ownerGone(cur *Record, op Expire, env Env) Result {
	reason := Reason{Code: ReasonOwnerGone}
	r := *cur
	switch {
	case cur.Effect == Irrevocable:
		r = doubt(r, reason, op.Parked)
	case cur.Seq == 0 && !cur.Parked:
		// Nothing can be run again from here: whoever claims next is free to.
		r.State, r.Lease, r.Attempts = Free, 0, r.Attempts+1
	case op.MaxAttempts > 0 && r.Attempts+1 >= op.MaxAttempts:
		r.State, r.Due, r.Lease, r.Attempts, r.Committed = Dead, 0, 0, r.Attempts+1, env.Now
		r.Reason = Reason{Code: ReasonExhausted, Detail: "the process ended during the last attempt"}
		r.Parked = r.Parked || op.Parked
	default:
		r.State, r.Due, r.Lease, r.Attempts, r.Reason = Waiting, op.Due, 0, r.Attempts+1, reason
		r.Parked = r.Parked || op.Parked
	}
	return Result{Record: r, Write: true}
}

func count(counts bool) uint32 {
	if counts {
		return 1
	}
	return 0
}

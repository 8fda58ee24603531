// Package dedup is the claim protocol: which run of which event may start, who
// may settle it, and what its record says. Decide is the whole protocol as one
// pure function; a Store is the I/O around it.
//
//	          Acquire                 Commit
//	(free) ─────────────▶ STARTED ─────────────────▶ DONE (outcome done | dropped)
//	   ▲                    │ │ │
//	   │   Defer: no effect,│ │ └── Doubt: unknown, irrevocable ─▶ IN_DOUBT ─ Resolve ─▶ DONE | WAITING | DEAD
//	   │   or unknown and   │ └──── Bury: permanent, exhausted ──▶ DEAD ───── Resolve ─▶ WAITING | DONE(dropped)
//	   │   retryable        ▼
//	   └─ expiry (DONE)   WAITING(due, attempts) ─ due ─▶ STARTED
//
// Every change is a compare-and-set on (state, fence). Whoever holds an older
// fence can change nothing.
package dedup

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"idemd/event"
)

// State is where a run stands. The zero value means that there is no record.
type State uint8

// The states.
const (
	Free    State = iota // no record, or one that says so
	Started              // granted; the run may have had its effect
	Waiting              // will run at Due
	InDoubt              // nobody knows whether the effect happened; a probe or a person decides
	Dead                 // will not run by itself; an operator decides
	Done                 // settled for good, until it expires
)

var stateNames = [...]string{"free", "started", "waiting", "in_doubt", "dead", "done"}

// String gives the state's name in CLI, API and metrics.
func (s State) String() string { return name(stateNames[:], uint8(s)) }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) error {
	n, err := parseName("state", stateNames[:], b)
	*s = State(n)
	return err
}

// Open reports whether a record in this state still needs somebody: it never
// expires and is never moved out of the hot part.
func (s State) Open() bool { return s == Started || s == Waiting || s == InDoubt || s == Dead }

// Effect says what happens outside when a handler runs twice. The greater one
// is the stricter one.
type Effect uint8

// The effects.
const (
	Idempotent  Effect = iota + 1 // running twice changes nothing
	Retryable                     // an unknown outcome is repeated under the same Idempotency-Key
	Irrevocable                   // an unknown outcome is never repeated by idemd
)

var effectNames = [...]string{"", "idempotent", "retryable", "irrevocable"}

// String gives the effect's name as it stands in the configuration.
func (e Effect) String() string { return name(effectNames[:], uint8(e)) }

// MarshalText implements encoding.TextMarshaler.
func (e Effect) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Effect) UnmarshalText(b []byte) error {
	n, err := parseName("effect", effectNames[:], b)
	*e = Effect(n)
	return err
}

// Owner says what a claim's life hangs on.
type Owner uint8

// The kinds of owner.
const (
	InProc   Owner = iota + 1 // dies with the process; no lease on disk
	External                  // survives a restart; holds a lease and renews it
)

var ownerNames = [...]string{"", "inproc", "external"}

// String gives the owner's name.
func (o Owner) String() string { return name(ownerNames[:], uint8(o)) }

// MarshalText implements encoding.TextMarshaler.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Owner) UnmarshalText(b []byte) error {
	n, err := parseName("owner", ownerNames[:], b)
	*o = Owner(n)
	return err
}

// Outcome says how a DONE record came to its end.
type Outcome uint8

// The outcomes.
const (
	OutcomeDone    Outcome = iota + 1 // the handler did it
	OutcomeDropped                    // it will not be done, by policy or by an operator
)

var outcomeNames = [...]string{"", "done", "dropped"}

// String gives the outcome's name.
func (o Outcome) String() string { return name(outcomeNames[:], uint8(o)) }

// MarshalText implements encoding.TextMarshaler.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Outcome) UnmarshalText(b []byte) error {
	n, err := parseName("outcome", outcomeNames[:], b)
	*o = Outcome(n)
	return err
}

func name(names []string, n uint8) string {
	if int(n) < len(names) {
		return names[n]
	}
	return "unknown(" + strconv.Itoa(int(n)) + ")"
}

func parseName(what string, names []string, b []byte) (uint8, error) {
	for i, n := range names {
		if n == string(b) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q", what, b)
}

// Fence numbers grants: epoch x 2^40 + counter, one series for the whole store,
// never reused, so that a late settle of an earlier grant is told from the
// present one. In JSON it is a string: it does not fit a float.
type Fence uint64

const epochShift = 40

// MaxEpoch is the last epoch that a fence can tell.
const MaxEpoch = 1<<(64-epochShift) - 1

// NewFence gives the fence of the counter-th grant of an epoch. Of an epoch over
// MaxEpoch the fence would lose the highest bits, and be less than older ones: a
// Store must not begin such an epoch. The counter has 40 bits.
func NewFence(epoch uint32, counter uint64) Fence {
	return Fence(uint64(epoch)<<epochShift | counter&(1<<epochShift-1))
}

// Epoch is the process life in which the fence was given out.
func (f Fence) Epoch() uint32 { return uint32(f >> epochShift) }

// MarshalJSON writes the fence as a string.
func (f Fence) MarshalJSON() ([]byte, error) {
	return json.Marshal(strconv.FormatUint(uint64(f), 10))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Fence) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("parse fence: %w", err)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return fmt.Errorf("parse fence: %w", err)
	}
	*f = Fence(n)
	return nil
}

// Reason says why a run is where it is: a short code for machines and, at most
// MaxDetail bytes long, the words for people. Neither holds a payload or secret.
type Reason struct {
	Code   string `json:"code,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// MaxDetail is the longest Reason.Detail in bytes that a record keeps.
const MaxDetail = 256

// The reason codes that idemd itself gives; handlers' answers give others
// (see consumer.Classify).
const (
	ReasonOwnerGone    = "owner-gone"     // the process ended during the run
	ReasonExhausted    = "exhausted"      // the last attempt failed as well
	ReasonEventMissing = "event-missing"  // the queue no longer holds the event
	ReasonMismatch     = "mismatch"       // another payload came under a known identity
	ReasonUnkeyed      = "unkeyed"        // no identity, and the effect cannot be undone
	ReasonUnparsed     = "unparsed"       // authentic, but not understood
	ReasonOversize     = "id-too-long"    // an id over event.MaxID bytes
	ReasonDuplicate    = "duplicate"      // the event had been done when it came again
	ReasonReplay       = "replay"         // a replay asked for it
	ReasonTimeWentBack = "time-went-back" // it may have run in time that this data directory does not know of
	ReasonBlocked      = "blocked"        // it waits for its turn
	ReasonUnclaimed    = "unclaimed"      // it ran while the claim store did not answer
	ReasonOld          = "old"            // nobody wanted a dead letter for as long as it is kept
	ReasonRetired      = "retired"        // its handler or source is gone for good
	ReasonOperator     = "operator"       // somebody decided
)

// Time is a moment as the store keeps it: nanoseconds since 1970, UTC, 0 for
// never.
type Time int64

// At converts t; the zero time gives 0.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixNano())
}

// Std converts back, in UTC.
func (t Time) Std() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(t)).UTC()
}

// Add gives the moment d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// MarshalJSON writes RFC 3339, or null for never.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(t.Std())
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Time) UnmarshalJSON(b []byte) error {
	var std *time.Time
	if err := json.Unmarshal(b, &std); err != nil {
		return fmt.Errorf("parse time: %w", err)
	}
	*t = 0
	if std != nil {
		*t = At(*std)
	}
	return nil
}

// Record is what the store knows of one run.
type Record struct {
	Key         event.Key
	State       State
	Owner       Owner
	Effect      Effect // the strictest effect it ever started under
	Outcome     Outcome
	Fence       Fence
	Attempts    uint32 // finished attempts that count
	FirstSeen   Time
	Started     Time          // of the last grant
	Lease       Time          // external owners: until when the claim holds
	LeaseFor    time.Duration // external owners: one full lease
	Due         Time          // WAITING: when it may run
	Committed   Time          // DONE: since when (processed_at); DEAD: since when, 0 where an older idemd wrote it
	Expires     Time          // DONE: when a duplicate would be new again
	Host        string        // where the last grant was given (processing_host)
	Reason      Reason
	Origin      event.Origin
	Fingerprint event.Fingerprint
	Seq         uint64 // stream sequence of the event; 0 when none stands behind it
	Parked      bool   // the event has a copy in the parked stream
}

// WakeAt is when somebody must look at the record again; 0 when only an
// operator, or nobody, needs to.
func (r *Record) WakeAt() Time {
	switch {
	case r.State == Waiting:
		return max(r.Due, 1)
	case r.State == Started && r.Owner == External:
		return max(r.Lease, 1)
	}
	return 0
}

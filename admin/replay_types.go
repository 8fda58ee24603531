package admin

import (
	"time"

	"idemd/dedup"
)

// ReplayRequest says which events are to be run again, and how. Zero fields do not
// restrict.
type ReplayRequest struct {
	Since      time.Time `json:"since,omitzero"` // stored at this time or later; as far back as the replay limit when zero
	Until      time.Time `json:"until,omitzero"` // stored before it; now when zero
	Source     string    `json:"source,omitempty"`
	Type       string    `json:"type,omitempty"`       // exact, or with a trailing *
	Handler    string    `json:"handler,omitempty"`    // all that want the event when empty
	Seq        uint64    `json:"seq,omitempty"`        // only the event at this sequence
	Dead       bool      `json:"dead,omitempty"`       // dead letters, in place of events that have no record
	Reason     string    `json:"reason,omitempty"`     // of the dead letters: only with this code
	Batch      string    `json:"batch,omitempty"`      // run each once more, in this batch
	Concurrent bool      `json:"concurrent,omitempty"` // in a batch: also beside a run that has not ended
	Rate       float64   `json:"rate,omitempty"`       // runs begun in a second, at most; DefaultRate when 0
}

// The bounds of ReplayRequest.Rate.
const (
	DefaultRate = 100
	MaxRate     = 10000
)

// Skip says why a replay leaves a chosen event alone at a handler.
type Skip string

// The reasons. Beside them there are those of events that no handler may run:
// dedup.ReasonUnkeyed, ReasonUnparsed and ReasonOversize.
const (
	SkipDone     Skip = "done"           // it has run
	SkipOpen     Skip = "open"           // it runs, or waits for another attempt
	SkipDoubt    Skip = "in-doubt"       // a person has to decide about it first
	SkipDead     Skip = "dead"           // a dead letter, which --dead or dead retry runs
	SkipInBatch  Skip = "in-batch"       // the batch has it already
	SkipRunning  Skip = "running"        // its ordinary run has not ended: not beside it without --concurrent
	SkipRepeat   Skip = "repeat"         // in a plan: another delivery of an event that is counted already
	SkipTooOld   Skip = "too-old"        // older than the replay limit
	SkipBefore   Skip = "before-handler" // the handler began later
	SkipPending  Skip = "pending"        // the handler has it still before it
	SkipMismatch Skip = "mismatch"       // another payload has its identity
	SkipMissing  Skip = "event-missing"  // the queue no longer holds it
	SkipChanged  Skip = "changed"        // somebody decided about it meanwhile
	SkipDamaged  Skip = "damaged"        // its record cannot be read
	SkipGone     Skip = "no-handler"     // its handler is no longer configured
)

// ReplayPlan is what a replay would do at this moment.
type ReplayPlan struct {
	Request  ReplayRequest  `json:"request"` // with ids in place of names, and the bounds in time
	Handlers []HandlerPlan  `json:"handlers"`
	Runs     uint64         `json:"runs"`   // of all handlers
	Sample   []ReplaySample `json:"sample"` // of the first events that would run
}

// HandlerPlan is one handler's part of a plan.
type HandlerPlan struct {
	Handler string          `json:"handler"`
	Effect  dedup.Effect    `json:"effect"`
	Matches uint64          `json:"matches"` // chosen events that it wants
	Done    uint64          `json:"done"`    // of these: have run
	Open    uint64          `json:"open"`    // wait, run, are in doubt or dead
	Runs    uint64          `json:"runs"`    // would run
	Unknown uint64          `json:"unknown"` // of those that would run: nothing is known of a run
	Skipped map[Skip]uint64 `json:"skipped"` // all that would not run, by reason
}

// ReplaySample is one event of a plan.
type ReplaySample struct {
	Event
	Runs []string `json:"runs"` // names of the handlers that would run it
}

// SampleSize is how many events a plan shows.
const SampleSize = 10

// ReplayState says where a replay stands.
type ReplayState string

// The states. The first three last over a restart.
const (
	ReplayQueued   ReplayState = "queued" // another one runs
	ReplayRuns     ReplayState = "running"
	ReplayPaused   ReplayState = "paused"
	ReplayDone     ReplayState = "done"
	ReplayCanceled ReplayState = "canceled"
)

// Over reports whether nothing more comes.
func (s ReplayState) Over() bool { return s == ReplayDone || s == ReplayCanceled }

// ReplayAction is what a person can do to a replay.
type ReplayAction string

// The actions.
const (
	PauseReplay  ReplayAction = "pause"
	ResumeReplay ReplayAction = "resume"
	CancelReplay ReplayAction = "cancel"
)

// Replay is a replay with its progress; when it is over, its report.
type Replay struct {
	ID       string          `json:"id"` // rpl_ and 26 characters
	Request  ReplayRequest   `json:"request"`
	Who      string          `json:"who"`
	Created  time.Time       `json:"created"`
	Ended    time.Time       `json:"ended,omitzero"`
	State    ReplayState     `json:"state"`
	Waiting  string          `json:"waiting,omitempty"` // for what, at this moment
	From     uint64          `json:"from"`              // first sequence; 0 for dead letters
	To       uint64          `json:"to"`                // last one
	Position uint64          `json:"position"`          // everything up to here is dealt with
	Examined uint64          `json:"examined"`          // chosen events, for each handler that wants them
	Written  uint64          `json:"written"`           // runs begun
	Skipped  map[Skip]uint64 `json:"skipped"`
	Errors   uint64          `json:"errors"` // tries that failed; each was repeated, but for damaged records
	Error    string          `json:"error,omitempty"`
}

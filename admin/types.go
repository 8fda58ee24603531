// Package admin is how people look into a running idemd: the API over its unix
// socket, the types that travel there, and the client that the command line
// uses. Times are UTC; fences are texts. It also runs the replays that operators
// ask for: they decide nothing that the claim store does not.
package admin

import (
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Page is a part of a list.
type Page[T any] struct {
	Items []T    `json:"items"` // never null
	Next  string `json:"next"`  // cursor of the next page; empty at the end
}

// Status is the state of the process.
type Status struct {
	Version     string          `json:"version"`
	PID         int             `json:"pid"`
	Started     time.Time       `json:"started"`
	Ready       bool            `json:"ready"` // requests are accepted
	Warnings    []string        `json:"warnings"`
	ConfigFile  string          `json:"config_file"` // empty for the demo
	Environment string          `json:"environment"`
	DataDir     string          `json:"data_dir"`
	Listen      string          `json:"listen"` // the receiver's address
	Sources     []SourceStatus  `json:"sources"`
	Handlers    []HandlerStatus `json:"handlers"`
	Queue       QueueStatus     `json:"queue"`
	Store       dedup.Stats     `json:"store"`
	Reload      *Reload         `json:"reload,omitempty"` // the last time that the configuration was read again
	Quarantine  *Quarantine     `json:"quarantine,omitempty"`
}

// SourceStatus is one source since the process began.
type SourceStatus struct {
	Name     string            `json:"name"`
	ID       string            `json:"id"`
	Scheme   string            `json:"scheme"`
	Path     string            `json:"path"`
	Counters map[string]uint64 `json:"counters"` // outcome of requests -> number
}

// HandlerStatus is one handler: what it has counted since the process began, and
// what is open.
type HandlerStatus struct {
	Name     string            `json:"name"`
	ID       string            `json:"id"`
	Effect   dedup.Effect      `json:"effect"`
	State    HandlerState      `json:"state"`
	Pending  uint64            `json:"pending"` // events that it has not seen yet
	Running  int               `json:"running"` // attempts at this moment
	Open     map[string]int    `json:"open"`    // state -> runs that still need somebody
	Counters map[string]uint64 `json:"counters"`
}

// HandlerState says whether a handler is given events.
type HandlerState string

// The states.
const (
	HandlerRuns   HandlerState = "runs"
	HandlerHeld   HandlerState = "held"   // ten events in a row failed: one is tried from time to time
	HandlerPaused HandlerState = "paused" // by hand: it gets none
)

// HandlerAction is what a person can do to a handler.
type HandlerAction string

// The actions.
const (
	PauseHandler  HandlerAction = "pause"
	ResumeHandler HandlerAction = "resume" // also of one that is held
)

// QueueStatus is the queue at this moment.
type QueueStatus struct {
	FirstSeq uint64 `json:"first_seq"` // of the oldest event
	LastSeq  uint64 `json:"last_seq"`  // of the newest event
	Durable  uint64 `json:"durable"`   // up to here events survive a power cut
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"` // 0 when not known
	Parked   uint64 `json:"parked"`    // copies of events of dead, doubtful and long waiting runs
	Foreign  uint64 `json:"foreign"`   // stored messages that are no events
}

// Event is one stored event.
type Event struct {
	ID          string       `json:"id"` // evt_...
	Seq         uint64       `json:"seq"`
	Source      string       `json:"source"` // its id
	Type        string       `json:"type"`
	PlatformID  string       `json:"platform_id"` // what makes it the same event as another
	Kind        event.Kind   `json:"kind"`        // what PlatformID was made from
	Tenant      string       `json:"tenant"`
	Time        *time.Time   `json:"time"` // when it happened, as the platform says; null when it does not
	Received    time.Time    `json:"received"`
	Origin      event.Origin `json:"origin"`
	Batch       string       `json:"batch"`
	ContentType string       `json:"content_type"`
	Size        int          `json:"size"`     // bytes of the body
	Handlers    []string     `json:"handlers"` // names of those that want it; empty: unrouted
}

// EventDetail is one event with all that came under its id.
type EventDetail struct {
	Event
	Count      int        `json:"count"`      // of deliveries
	Deliveries []Delivery `json:"deliveries"` // the oldest 100, oldest first
	Partial    bool       `json:"partial"`    // still older ones were not looked for

	// Suppressions are the deliveries that handlers did not run, by handler. Not
	// in Why, which has them at its handlers.
	Suppressions map[string][]Suppression `json:"suppressions,omitempty"`

	Body       string `json:"body,omitempty"`        // only if asked for
	BodyBase64 []byte `json:"body_base64,omitempty"` // in place of Body where that is no UTF-8
}

// Payload is the event's body, where it was asked for.
func (d *EventDetail) Payload() []byte {
	if d.BodyBase64 != nil {
		return d.BodyBase64
	}
	return []byte(d.Body)
}

// Delivery is one of the requests that brought an event.
type Delivery struct {
	Seq      uint64       `json:"seq"`
	Received time.Time    `json:"received"`
	Origin   event.Origin `json:"origin"`
	Differs  bool         `json:"differs"` // its payload is not that of the oldest one
}

// Run is one event at one handler, as the claim store knows it.
type Run struct {
	ID          string       `json:"id"`       // run_..., the Idempotency-Key
	EventID     string       `json:"event_id"` // evt_...
	Handler     string       `json:"handler"`  // its name; its id when it is no longer configured
	Source      string       `json:"source"`
	PlatformID  string       `json:"platform_id"`
	Tenant      string       `json:"tenant"`
	Batch       string       `json:"batch"`
	Mismatch    bool         `json:"mismatch"`     // another payload under a known identity
	DuplicateOf string       `json:"duplicate_of"` // of a duplicate: the id of the handler that had the event
	State       dedup.State  `json:"state"`
	Outcome     string       `json:"outcome"` // of a done one: done or dropped
	Reason      dedup.Reason `json:"reason"`
	Effect      dedup.Effect `json:"effect"`
	Fence       dedup.Fence  `json:"fence"`
	Attempts    uint32       `json:"attempts"`
	FirstSeen   dedup.Time   `json:"first_seen"`
	Started     dedup.Time   `json:"started"`
	Due         dedup.Time   `json:"due"`
	Committed   dedup.Time   `json:"committed"` // of one that is settled or a dead letter: since when
	Expires     dedup.Time   `json:"expires"`
	Drops       dedup.Time   `json:"drops"` // of a dead letter: when it is dropped, unless somebody decides before
	Host        string       `json:"host"`
	Origin      event.Origin `json:"origin"`
	Seq         uint64       `json:"seq"`    // of the event that it runs
	Parked      bool         `json:"parked"` // the event has a copy of its own
	Event       *Event       `json:"event,omitempty"`
	Body        []byte       `json:"body,omitempty"`
	Explanation *Explanation `json:"explanation,omitempty"`

	Output string `json:"output,omitempty"` // the end of what its command said in the last attempt, which failed
}

// Explanation says in words why a handler did what it did with an event.
type Explanation struct {
	State string `json:"state"` // the record's, or what stands for one: "unseen", "done", ...
	Text  string `json:"text"`
}

// Why explains one event.
type Why struct {
	Event    EventDetail  `json:"event"`
	Handlers []HandlerWhy `json:"handlers"` // all of them, also those that do not want it
}

// HandlerWhy is what one handler did with an event.
type HandlerWhy struct {
	Handler     string       `json:"handler"`
	Effect      dedup.Effect `json:"effect"`
	Explanation Explanation  `json:"explanation"`
	Run         *Run         `json:"run"` // null without a record

	InBatches []Run `json:"in_batches,omitempty"` // its runs in batches, that of the newest batch first

	Suppressions []Suppression `json:"suppressions,omitempty"` // deliveries of it that were not run, oldest first
}

// EventFilter chooses events. Zero fields do not restrict.
type EventFilter struct {
	Source   string        // id or name
	Type     string        // exact, or with a trailing *
	Since    time.Duration // stored no longer ago than this
	Unrouted bool          // no handler wants it
}

// RunFilter chooses runs. Zero fields do not restrict.
type RunFilter struct {
	Handler string `json:"handler,omitempty"` // id or name
	Reason  string `json:"reason,omitempty"`  // reason code
}

// List is one of the two lists of runs that wait for a person.
type List string

// The lists.
const (
	DeadList  List = "dead"
	DoubtList List = "doubt"
)

// Resolution is what a person decides about a run.
type Resolution string

// The resolutions. Done and Bury are for the doubt list only.
const (
	AsDone  Resolution = "done"  // the effect happened
	AsRetry Resolution = "retry" // run it now, attempts counted anew
	AsDrop  Resolution = "drop"  // never run it
	AsDead  Resolution = "dead"  // make it a dead letter
)

// Resolve is the request that decides about one run or, with All, about all
// that the filter chooses.
type Resolve struct {
	As    Resolution  `json:"as"`
	Fence dedup.Fence `json:"fence,omitempty"` // the one that was shown; 0: whichever it is
	Note  string      `json:"note,omitempty"`  // why; kept in the record
}

// Resolved says what ResolveAll did.
type Resolved struct {
	Resolved  int `json:"resolved"`
	Conflicts int `json:"conflicts"` // somebody else was faster
}

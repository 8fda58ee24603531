// Package event holds the value that travels through idemd, its identity and
// its key. It decides when two requests are the same event; everything else
// (receiver, queue, dedup, consumer) only carries that decision.
package event

import "time"

// Event is one authenticated callback, or what stands for one.
type Event struct {
	Source      string      // source id; never empty
	Type        string      // platform's kind, case kept, e.g. "change_contact.create_user"
	Identity    Identity    // what makes it the same event as another
	Time        time.Time   // when the platform says it happened; zero when it does not say
	Received    time.Time   // when idemd read the request, wall clock
	Origin      Origin      // how it came in
	Batch       string      // registered batch id; empty for ordinary events
	Fingerprint Fingerprint // of the payload; zero when none was taken
	ContentType string      // media type of Body
	Body        []byte      // what handlers get
}

// Type names that idemd itself gives.
const (
	// TypeUnparsed marks an authentic payload that could not be parsed. Body is
	// the raw plaintext. Handlers must list it by name to get it.
	TypeUnparsed = "unparsed"
)

// Origin says by which road an event reached idemd.
type Origin string

// The roads. They are the values of the header Idemd-Origin.
const (
	OriginCallback  Origin = "callback"  // the platform called
	OriginReplay    Origin = "replay"    // an operator asked for it again
	OriginReconcile Origin = "reconcile" // idemd found it at the platform
)

// Valid reports whether o is one of the roads above.
func (o Origin) Valid() bool {
	return o == OriginCallback || o == OriginReplay || o == OriginReconcile
}

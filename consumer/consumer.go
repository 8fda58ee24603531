// Package consumer brings events to handlers: deliver, claim, handle, settle.
//
// One Pool serves one handler. For each delivery it asks the claim store for the
// right to run (process.go tells the story), makes one attempt, classifies the
// answer by one table (answer.go), decides what follows (policy.go) and settles:
// store first, queue second (settle.go). Retries come from the store's heap of
// wake-ups, not from the queue.
package consumer

import (
	"context"

	"idemd/dedup"
	"idemd/event"
)

// Attempt is one call of a handler.
type Attempt struct {
	Event   *event.Event // not to be changed
	Key     event.Key    // its RunID is the same in every attempt
	Handler string       // handler id
	Number  int          // 1 for the first attempt; after one that does not count it stays
	Fence   dedup.Fence  // of the claim; 0 when the run needs none
	// DuplicateOf is the run whose duplicate this is, when it is one that has a
	// run of its own; else nil. Only the run's key is certain to be there.
	DuplicateOf *dedup.Record
}

// Handler makes attempts. Handle is called from many goroutines. It must return
// soon after ctx is done, and must not try again by itself: one attempt is one
// request on the wire, or one process. A run that panics counts as Unknown.
type Handler interface {
	Handle(ctx context.Context, a *Attempt) Answer
}

var (
	_ Handler = (*HTTP)(nil)
	_ Handler = (*Exec)(nil)
	_ Handler = (*Log)(nil)
)

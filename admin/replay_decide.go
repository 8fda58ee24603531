package admin

import (
	"time"

	"idemd/dedup"
)

// candidate is what is known of a chosen event at one handler that wants it, when
// a replay comes to it.
type candidate struct {
	seq        uint64
	age        time.Duration // since it was stored
	limit      time.Duration // older ones are not run again
	progress   dedup.Progress
	unrunnable string // why no handler may run it; "" when one may
	batch      bool   // it is to run in a batch
	concurrent bool   // even beside its ordinary run
	mismatch   bool   // another payload has its identity, and own is not of this one

	own    *dedup.Record // of its ordinary run; nil without one
	forced *dedup.Record // of its run in the batch; nil without one
}

// skips decides whether a replay leaves a candidate alone, and why; "" when it
// runs it. Without a batch only what has no record runs: what is done stays done.
// In a batch everything runs once more, once.
func (c *candidate) skips() Skip {
	switch {
	case c.age > c.limit:
		return SkipTooOld
	case c.unrunnable != "":
		return Skip(c.unrunnable)
	case c.batch && c.forced != nil:
		return SkipInBatch
	case c.batch && c.own != nil && c.own.State == dedup.Started && !c.concurrent:
		return SkipRunning
	case c.batch:
		return ""
	case c.mismatch:
		return SkipMismatch
	case c.own != nil:
		return skipFor(c.own.State)
	case c.seq < c.progress.FirstSeq:
		return SkipBefore
	case c.seq > c.progress.SettledTo:
		return SkipPending
	}
	return ""
}

// skipFor is what a record in this state means for a replay without a batch.
func skipFor(s dedup.State) Skip {
	switch s {
	case dedup.Done:
		return SkipDone
	case dedup.Dead:
		return SkipDead
	case dedup.InDoubt:
		return SkipDoubt
	case dedup.Started, dedup.Waiting:
		return SkipOpen
	}
	return ""
}

// verdictSkip is what the store's answer to Put means; "" when the run is written.
func verdictSkip(v dedup.Verdict, batch bool) Skip {
	switch {
	case v == dedup.Created:
		return ""
	case v == dedup.Mismatch:
		return SkipMismatch
	case batch:
		return SkipInBatch
	case v == dedup.AlreadyDone:
		return SkipDone
	case v == dedup.Buried:
		return SkipDead
	case v == dedup.Doubtful:
		return SkipDoubt
	}
	return SkipOpen
}

// count puts a decision into the plan of its handler.
func (h *HandlerPlan) count(skip Skip, unknown bool) {
	h.Matches++
	switch skip {
	case "":
		h.Runs++
		if unknown {
			h.Unknown++
		}
		return
	case SkipDone:
		h.Done++
	case SkipOpen, SkipDoubt, SkipDead, SkipRunning:
		h.Open++
	}
	h.Skipped[skip]++
}

// replayLimit is how old an event may be that is run again: older than the window,
// nothing tells whether it has run.
func (h *Handler) replayLimit() time.Duration { return min(h.ReplayLimit, h.Retain) }

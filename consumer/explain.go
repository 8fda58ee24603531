package consumer

import (
	"fmt"
	"time"

	"idemd/dedup"
)

// Why is what is known about one event and one handler.
type Why struct {
	Handler  string // the handler's name
	Effect   dedup.Effect
	Matches  bool           // the handler lists the event's source and type
	Seq      uint64         // stream sequence of the event that was asked about
	Record   *dedup.Record  // the run's; nil when there is none
	Progress dedup.Progress // the handler's
	Held     bool           // the handler fails on everything: one event is tried from time to time
	Paused   bool           // by hand
	Now      time.Time      // its location is used for times

	Behind  uint64 // the event that this one waits for in its lane; 0: none that is known
	InOrder bool   // hold_order

	OnDuplicate OnDuplicate // the handler's; empty where it does not matter
}

// Explain says in one sentence what happened to the event at the handler, and
// why.
func Explain(w Why) string {
	if w.Record == nil || w.copied() && w.Seq < w.Progress.FirstSeq {
		return w.noRecord()
	}
	r := w.Record
	switch mismatch := r.Reason.Code == dedup.ReasonMismatch; {
	case mismatch && r.State == dedup.Dead:
		return w.otherPayload("it is a dead letter (on_mismatch = \"park\") and waits for \"idemd dead retry\" or \"idemd dead drop\"")
	case mismatch && r.State == dedup.Done:
		return w.otherPayload("it was dropped (on_mismatch = \"drop\") at " + w.at(r.Committed))
	}
	switch r.State {
	case dedup.Done:
		return w.done()
	case dedup.Started:
		if w.copied() {
			return fmt.Sprintf("Busy: %s runs attempt %d of the same event (sequence %d) since %s; this copy was suppressed.",
				w.Handler, r.Attempts+1, r.Seq, w.at(r.Started))
		}
		return fmt.Sprintf("Running: attempt %d at %s began at %s and has not ended.", r.Attempts+1, w.Handler, w.at(r.Started))
	case dedup.Waiting:
		if r.Reason.Code == dedup.ReasonBlocked {
			return w.blocked()
		}
		kept := w.kept()
		if kept != "" {
			kept = ", but " + kept
		}
		return fmt.Sprintf("Waiting: %s%s; %s gets it again at %s%s%s.",
			attempts(r.Attempts), because(r.Reason), w.Handler, w.at(r.Due), w.duplicate(), kept)
	case dedup.Dead:
		return fmt.Sprintf("Dead letter: %s gets it no more, %s%s; it waits for \"idemd dead retry\" or \"idemd dead drop\"%s.",
			w.Handler, attempts(r.Attempts), because(r.Reason), w.duplicate())
	case dedup.InDoubt:
		return fmt.Sprintf("In doubt: nobody knows whether attempt %d at %s had its effect%s; it is never repeated by itself and waits for \"idemd doubt resolve\"%s.",
			r.Attempts, w.Handler, because(r.Reason), w.duplicate())
	}
	return w.noRecord()
}

// otherPayload tells of an event whose identity another payload had first.
func (w *Why) otherPayload(end string) string {
	return fmt.Sprintf("Mismatch: another payload came first under the same identity, so %s did not run this one; %s.", w.Handler, end)
}

func (w *Why) noRecord() string {
	switch {
	case !w.Matches:
		return fmt.Sprintf("Filtered out: %s does not list this source and type.", w.Handler)
	case w.Seq < w.Progress.FirstSeq:
		again := ""
		if w.Record != nil {
			again = fmt.Sprintf("; it had the same event when it came again (sequence %d)", w.Record.Seq)
		}
		return fmt.Sprintf("Not for it: %s began later, with sequence %d%s.", w.Handler, w.Progress.FirstSeq, again)
	case w.Effect == dedup.Idempotent && w.Seq <= w.Progress.SettledTo:
		return fmt.Sprintf("Done: %s has run it; an idempotent handler leaves a record only after a failure.", w.Handler)
	case w.Seq <= w.Progress.SettledTo:
		return fmt.Sprintf("Forgotten: %s settled it, and the record has expired.", w.Handler)
	}
	if kept := w.kept(); kept != "" {
		return fmt.Sprintf("Not yet: %s has no record of it, for %s.", w.Handler, kept)
	}
	return fmt.Sprintf("Not yet: %s has no record of it, it waits for a free worker.", w.Handler)
}

// kept says what keeps events from the handler.
func (w *Why) kept() string {
	switch {
	case w.Paused:
		return "it is paused by hand until idemd handler resume"
	case w.Held:
		return "it is held, for ten events in a row failed: one is tried every 30 s until one succeeds"
	}
	return ""
}

// blocked tells of a run that waits for its turn.
func (w *Why) blocked() string {
	by := "another event with the same value of serialize_by"
	if w.Behind != 0 {
		by = fmt.Sprintf("the event of sequence %d, which has the same value of serialize_by,", w.Behind)
	}
	until := "ends"
	if w.InOrder {
		until = "is done, a dead letter or in doubt"
	}
	return fmt.Sprintf("Blocked: it is no attempt; %s gets it when %s %s%s.", w.Handler, by, until, w.duplicate())
}

func (w *Why) done() string {
	r := w.Record
	switch {
	case r.Outcome == dedup.OutcomeDropped:
		return fmt.Sprintf("Dropped: %s will not get it, settled at %s%s.", w.Handler, w.at(r.Committed), because(r.Reason))
	case r.Reason.Code == dedup.ReasonOperator:
		return fmt.Sprintf("Done: so an operator decided for %s at %s%s%s.", w.Handler, w.at(r.Committed), because(r.Reason), w.duplicate())
	case w.copied():
		own := ""
		if w.OnDuplicate != "" && w.OnDuplicate != OnDuplicateDrop {
			own = fmt.Sprintf(" It has a run of its own by on_duplicate = %q.", w.OnDuplicate)
		}
		return fmt.Sprintf("Duplicate: suppressed, for %s had the same event (sequence %d), done at %s.%s", w.Handler, r.Seq, w.at(r.Committed), own)
	}
	return fmt.Sprintf("Done: %s ran it, finished at %s, %s.", w.Handler, w.at(r.Committed), attempts(r.Attempts))
}

// copied reports whether the run belongs to another delivery of the event.
func (w *Why) copied() bool { return w.Seq != 0 && w.Record.Seq != 0 && w.Seq != w.Record.Seq }

func (w *Why) duplicate() string {
	if w.copied() {
		return fmt.Sprintf(" (a duplicate: the run is of sequence %d)", w.Record.Seq)
	}
	return ""
}

func (w *Why) at(t dedup.Time) string {
	return t.Std().In(w.Now.Location()).Format("2006-01-02 15:04:05")
}

func attempts(n uint32) string { return plural(int(n), "attempt") + " made" }

func because(r dedup.Reason) string {
	switch {
	case r.Code == "":
		return ""
	case r.Detail == "":
		return fmt.Sprintf(" (%s)", r.Code)
	}
	return fmt.Sprintf(" (%s: %s)", r.Code, r.Detail)
}

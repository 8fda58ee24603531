package consumer

import (
	"testing"
	"time"

	"idemd/dedup"
)

func TestExplain(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := dedup.At(now)
	why := dedup.Reason{Code: "http-500", Detail: "answered 500 Internal Server Error"}
	for _, c := range []struct {
		name string
		w    Why
		want string
	}{
		{"done", Why{Seq: 7, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDone, Seq: 7, Committed: at, Attempts: 2}},
			"Done: crm ran it, finished at 2026-03-01 12:00:00, 2 attempts made."},
		{"duplicate", Why{Seq: 9, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDone, Seq: 7, Committed: at, Attempts: 1}},
			"Duplicate: suppressed, for crm had the same event (sequence 7), done at 2026-03-01 12:00:00."},
		{"dropped", Why{Seq: 7, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDropped, Seq: 7, Committed: at, Reason: dedup.Reason{Code: dedup.ReasonOperator, Detail: "no"}}},
			"Dropped: crm will not get it, settled at 2026-03-01 12:00:00 (operator: no)."},
		{"mismatch, dropped", Why{Seq: 7, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDropped, Seq: 7, Committed: at, Reason: dedup.Reason{Code: dedup.ReasonMismatch}}},
			`Mismatch: another payload came first under the same identity, so crm did not run this one; it was dropped (on_mismatch = "drop") at 2026-03-01 12:00:00.`},
		{"mismatch, parked", Why{Seq: 7, Record: &dedup.Record{State: dedup.Dead, Seq: 7, Reason: dedup.Reason{Code: dedup.ReasonMismatch}}},
			`Mismatch: another payload came first under the same identity, so crm did not run this one; it is a dead letter (on_mismatch = "park") and waits for "idemd dead retry" or "idemd dead drop".`},
		{"duplicate, dealt with", Why{Seq: 9, OnDuplicate: OnDuplicateDead, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDone, Seq: 7, Committed: at, Attempts: 1}},
			`Duplicate: suppressed, for crm had the same event (sequence 7), done at 2026-03-01 12:00:00. It has a run of its own by on_duplicate = "dead-letter".`},
		{"running", Why{Seq: 7, Record: &dedup.Record{State: dedup.Started, Seq: 7, Started: at, Attempts: 1}},
			"Running: attempt 2 at crm began at 2026-03-01 12:00:00 and has not ended."},
		{"busy", Why{Seq: 9, Record: &dedup.Record{State: dedup.Started, Seq: 7, Started: at}},
			"Busy: crm runs attempt 1 of the same event (sequence 7) since 2026-03-01 12:00:00; this copy was suppressed."},
		{"waiting", Why{Seq: 7, Record: &dedup.Record{State: dedup.Waiting, Seq: 7, Due: at, Attempts: 1, Reason: why}},
			"Waiting: 1 attempt made (http-500: answered 500 Internal Server Error); crm gets it again at 2026-03-01 12:00:00."},
		{"blocked", Why{Seq: 7, Record: &dedup.Record{State: dedup.Waiting, Seq: 7, Due: at, Reason: dedup.Reason{Code: dedup.ReasonBlocked}}},
			"Blocked: it is no attempt; crm gets it when another event with the same value of serialize_by ends."},
		{"blocked behind one", Why{Seq: 7, Behind: 5, InOrder: true, Record: &dedup.Record{State: dedup.Waiting, Seq: 7, Due: at, Reason: dedup.Reason{Code: dedup.ReasonBlocked}}},
			"Blocked: it is no attempt; crm gets it when the event of sequence 5, which has the same value of serialize_by, is done, a dead letter or in doubt."},
		{"waiting, a copy", Why{Seq: 9, Record: &dedup.Record{State: dedup.Waiting, Seq: 7, Due: at, Attempts: 1, Reason: why}},
			"Waiting: 1 attempt made (http-500: answered 500 Internal Server Error); crm gets it again at 2026-03-01 12:00:00 (a duplicate: the run is of sequence 7)."},
		{"dead", Why{Seq: 7, Record: &dedup.Record{State: dedup.Dead, Seq: 7, Attempts: 5, Reason: why}},
			`Dead letter: crm gets it no more, 5 attempts made (http-500: answered 500 Internal Server Error); it waits for "idemd dead retry" or "idemd dead drop".`},
		{"in doubt", Why{Seq: 7, Record: &dedup.Record{State: dedup.InDoubt, Seq: 7, Attempts: 1, Reason: dedup.Reason{Code: dedup.ReasonOwnerGone}}},
			`In doubt: nobody knows whether attempt 1 at crm had its effect (owner-gone); it is never repeated by itself and waits for "idemd doubt resolve".`},
		{"no record yet", Why{Matches: true, Seq: 7, Effect: dedup.Retryable, Progress: dedup.Progress{FirstSeq: 1, SettledTo: 6}},
			"Not yet: crm has no record of it, it waits for a free worker."},
		{"no record yet, paused", Why{Matches: true, Seq: 7, Paused: true, Effect: dedup.Retryable, Progress: dedup.Progress{FirstSeq: 1, SettledTo: 6}},
			"Not yet: crm has no record of it, for it is paused by hand until idemd handler resume."},
		{"waiting, held", Why{Seq: 7, Held: true, Record: &dedup.Record{State: dedup.Waiting, Seq: 7, Due: at, Attempts: 1, Reason: why}},
			"Waiting: 1 attempt made (http-500: answered 500 Internal Server Error); crm gets it again at 2026-03-01 12:00:00, but it is held, for ten events in a row failed: one is tried every 30 s until one succeeds."},
		{"forgotten", Why{Matches: true, Seq: 7, Effect: dedup.Retryable, Progress: dedup.Progress{FirstSeq: 1, SettledTo: 9}},
			"Forgotten: crm settled it, and the record has expired."},
		{"idempotent", Why{Matches: true, Seq: 7, Effect: dedup.Idempotent, Progress: dedup.Progress{FirstSeq: 1, SettledTo: 7}},
			"Done: crm has run it; an idempotent handler leaves a record only after a failure."},
		{"before its time", Why{Matches: true, Seq: 7, Effect: dedup.Retryable, Progress: dedup.Progress{FirstSeq: 8}},
			"Not for it: crm began later, with sequence 8."},
		{"before its time, came again", Why{Matches: true, Seq: 7, Progress: dedup.Progress{FirstSeq: 8}, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDone, Seq: 9, Committed: at}},
			"Not for it: crm began later, with sequence 8; it had the same event when it came again (sequence 9)."},
		{"decided", Why{Seq: 7, Record: &dedup.Record{State: dedup.Done, Outcome: dedup.OutcomeDone, Seq: 7, Committed: at, Reason: dedup.Reason{Code: dedup.ReasonOperator, Detail: "checked (was: http-500)"}}},
			"Done: so an operator decided for crm at 2026-03-01 12:00:00 (operator: checked (was: http-500))."},
		{"filtered out", Why{Seq: 7, Progress: dedup.Progress{FirstSeq: 1}},
			"Filtered out: crm does not list this source and type."},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.w.Handler, c.w.Now = "crm", now
			if got := Explain(c.w); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

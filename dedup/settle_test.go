package dedup_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"idemd/dedup"
	"idemd/event"
)

func TestDecide_CommitStartsTheRetention(t *testing.T) {
	cur := record(dedup.Started, external(now+hour))
	res := decide(t, cur, dedup.Commit{Fence: mine, Outcome: dedup.OutcomeDone, Retain: 30 * 24 * time.Hour})
	wantRecord(t, res, with(cur, func(r *dedup.Record) {
		r.State, r.Outcome, r.Attempts = dedup.Done, dedup.OutcomeDone, 1
		r.Committed, r.Expires, r.Lease = now, now.Add(30*24*time.Hour), 0
	}))
}

// Case 27: a commit that was durable though it seemed to fail is done again.
func TestDecide_ACommitTwiceIsOneCommit(t *testing.T) {
	op := dedup.Commit{Fence: mine, Outcome: dedup.OutcomeDone, Retain: time.Hour}
	first := decide(t, record(dedup.Started), op)
	later := env
	later.Now += hour / 2
	again := dedup.Decide(&first.Record, first.Record.Key, op, later)
	if again.Write || again.Fenced || again.Record != first.Record {
		t.Errorf("second commit: %+v", again)
	}
}

// Late evidence: nobody ran after an IN_DOUBT run, so its holder's word counts.
// The attempt was counted when it became IN_DOUBT.
func TestDecide_LateEvidenceEndsTheDoubt(t *testing.T) {
	doubt := decide(t, record(dedup.Started, irrevocable), dedup.Doubt{Fence: mine, Reason: dedup.Reason{Code: "timeout"}})
	if doubt.Record.Attempts != 1 || doubt.Record.Fence != mine {
		t.Fatalf("doubt: %+v", doubt.Record)
	}
	res := decide(t, &doubt.Record, dedup.Commit{Fence: mine, Outcome: dedup.OutcomeDone, Retain: time.Hour})
	if res.Record.State != dedup.Done || res.Record.Attempts != 1 || res.Record.Reason.Code != "" {
		t.Errorf("commit: %+v", res.Record)
	}
}

func TestDecide_DeferAndBuryCountOnlyAttempts(t *testing.T) {
	cur := record(dedup.Started, external(now+hour), func(r *dedup.Record) { r.Attempts = 2 })
	reason := dedup.Reason{Code: "http-500", Detail: "server error"}
	for _, counts := range []bool{true, false} {
		want := map[bool]uint32{true: 3, false: 2}[counts]
		res := decide(t, cur, dedup.Defer{Fence: mine, Due: now + hour, Counts: counts, Reason: reason, Parked: true})
		wantRecord(t, res, with(cur, func(r *dedup.Record) {
			r.State, r.Due, r.Lease, r.Attempts, r.Reason, r.Parked = dedup.Waiting, now+hour, 0, want, reason, true
		}))
		res = decide(t, cur, dedup.Bury{Fence: mine, Counts: counts, Reason: reason})
		wantRecord(t, res, with(cur, func(r *dedup.Record) {
			r.State, r.Lease, r.Attempts, r.Reason, r.Committed = dedup.Dead, 0, want, reason, now
		}))
	}
}

func TestDecide_AParkedCopyIsNotForgotten(t *testing.T) {
	parked := func(r *dedup.Record) { r.Parked = true }
	cur := record(dedup.Started, parked)
	for _, op := range []dedup.Op{dedup.Defer{Fence: mine}, dedup.Bury{Fence: mine}, dedup.Doubt{Fence: mine}} {
		if !decide(t, cur, op).Record.Parked {
			t.Errorf("%T forgot the parked copy", op)
		}
	}
}

// Case 15: a heartbeat is one more lease from now, also when the clock went back.
func TestDecide_RenewGivesOneLeaseFromNow(t *testing.T) {
	for _, lease := range []dedup.Time{now - 1, now + 1, now + 100*hour} {
		res := decide(t, record(dedup.Started, external(lease)), dedup.Renew{Fence: mine})
		if !res.Write || res.Record.Lease != now.Add(time.Minute) {
			t.Errorf("lease %d becomes %d", lease-now, res.Record.Lease-now)
		}
	}
}

// The owner is gone: the table of who wakes whom. Cases 11, 12, 33, 39.
func TestDecide_OwnerGone(t *testing.T) {
	attempts := func(n uint32) func(*dedup.Record) { return func(r *dedup.Record) { r.Attempts = n } }
	parked := func(r *dedup.Record) { r.Parked = true }
	for _, tc := range []struct {
		name   string
		change []func(*dedup.Record)
		max    uint32
		state  dedup.State
		reason string
	}{
		{"retryable", nil, 5, dedup.Waiting, dedup.ReasonOwnerGone},
		{"irrevocable", []func(*dedup.Record){irrevocable}, 5, dedup.InDoubt, dedup.ReasonOwnerGone},
		{"exhausted", []func(*dedup.Record){attempts(4)}, 5, dedup.Dead, dedup.ReasonExhausted},
		{"one attempt left", []func(*dedup.Record){attempts(3)}, 5, dedup.Waiting, dedup.ReasonOwnerGone},
		{"no bound", []func(*dedup.Record){attempts(1000)}, 0, dedup.Waiting, dedup.ReasonOwnerGone},
		{"irrevocable and exhausted", []func(*dedup.Record){irrevocable, attempts(4)}, 5, dedup.InDoubt, dedup.ReasonOwnerGone},
		{"no event", []func(*dedup.Record){noEvent}, 5, dedup.Free, ""},
		{"no event but a parked copy", []func(*dedup.Record){noEvent, parked}, 5, dedup.Waiting, dedup.ReasonOwnerGone},
		{"no event, irrevocable", []func(*dedup.Record){noEvent, irrevocable}, 5, dedup.InDoubt, dedup.ReasonOwnerGone},
	} {
		for owner, gone := range map[string]func(*dedup.Record){"inproc": deadEpoch, "external": external(now)} {
			cur := record(dedup.Started, append(tc.change, gone)...)
			res := decide(t, cur, dedup.Expire{Fence: cur.Fence, Due: now + hour, MaxAttempts: tc.max})
			r := res.Record
			if !res.Write || r.State != tc.state || r.Reason.Code != tc.reason || r.Attempts != cur.Attempts+1 || r.Fence != cur.Fence || r.Lease != 0 {
				t.Errorf("%s, %s: %+v", tc.name, owner, r)
			}
			if (r.Due != 0) != (tc.state == dedup.Waiting) {
				t.Errorf("%s, %s: due %d", tc.name, owner, r.Due)
			}
		}
	}
}

// Cases 35, 39: an in-process claim ends with its process, not with the clock; an
// external one with its lease, not with our process.
func TestDecide_ALivingOwnerIsNotExpired(t *testing.T) {
	for name, cur := range map[string]*dedup.Record{
		"inproc, long ago":           record(dedup.Started, func(r *dedup.Record) { r.Started = now - 1000*hour }),
		"external":                   record(dedup.Started, external(now+1)),
		"external of another epoch":  record(dedup.Started, external(now+1), deadEpoch),
		"waiting of another epoch":   record(dedup.Waiting, deadEpoch),
		"in doubt, of another epoch": record(dedup.InDoubt, deadEpoch),
	} {
		if res := decide(t, cur, dedup.Expire{Fence: cur.Fence}); !res.Fenced {
			t.Errorf("%s: %+v", name, res)
		}
	}
}

// An external claim without an event has nobody who would expire it: the next one
// who asks does.
func TestDecide_AcquireTakesAnEndedClaimOver(t *testing.T) {
	op := dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: event.OriginCallback, Seq: 9}
	cur := record(dedup.Started, external(now), noEvent)
	res := decide(t, cur, op)
	wantRecord(t, res, with(cur, func(r *dedup.Record) {
		r.Owner, r.Lease, r.LeaseFor, r.Fence, r.Started = dedup.InProc, 0, 0, next, now
		r.Host, r.Attempts, r.Seq = "host-2", 1, 9
	}))
	if res.Verdict != dedup.Granted {
		t.Errorf("verdict %v", res.Verdict)
	}
	res = decide(t, record(dedup.Started, external(now), noEvent, irrevocable), op)
	if r := res.Record; res.Verdict != dedup.Doubtful || !res.Write || r.State != dedup.InDoubt || r.Fence != mine || r.Seq != 9 {
		t.Errorf("irrevocable: %+v", res)
	}
}

// Case 31: of two operators one counts; what they were shown is what they decide.
func TestDecide_ResolveTakesANewFence(t *testing.T) {
	for _, state := range []dedup.State{dedup.InDoubt, dedup.Dead} {
		cur := record(state, func(r *dedup.Record) { r.Attempts = 5 })
		first := decide(t, cur, dedup.Resolve{Fence: mine, To: dedup.ResolveRetry})
		if r := first.Record; r.State != dedup.Waiting || r.Fence != next || r.Due != now || r.Attempts != 0 {
			t.Errorf("%v: %+v", state, r)
		}
		for _, to := range []dedup.Resolution{dedup.ResolveDone, dedup.ResolveRetry, dedup.ResolveDrop, dedup.ResolveBury} {
			if second := decide(t, &first.Record, dedup.Resolve{Fence: mine, To: to}); !second.Fenced {
				t.Errorf("%v: second word %d: %+v", state, to, second)
			}
		}
		if late := decide(t, &first.Record, dedup.Commit{Fence: mine}); !late.Fenced {
			t.Errorf("%v: late commit: %+v", state, late)
		}
	}
}

func TestDecide_ResolveSaysHowItEnded(t *testing.T) {
	op := dedup.Resolve{Fence: mine, Retain: time.Hour, Reason: dedup.Reason{Code: dedup.ReasonOperator}}
	for to, want := range map[dedup.Resolution]dedup.Outcome{
		dedup.ResolveDone: dedup.OutcomeDone, dedup.ResolveDrop: dedup.OutcomeDropped,
	} {
		op.To = to
		r := decide(t, record(dedup.InDoubt), op).Record
		if r.Outcome != want || r.Committed != now || r.Expires != now+hour || r.Reason.Code != dedup.ReasonOperator {
			t.Errorf("%d: %+v", to, r)
		}
	}
	op.To = 99
	if res := decide(t, record(dedup.InDoubt), op); !res.Fenced || res.Write {
		t.Errorf("an unknown resolution: %+v", res)
	}
}

func TestDecide_PutStoresWhatNeverRan(t *testing.T) {
	put := dedup.Put{
		State: dedup.Done, Effect: dedup.Retryable, Seq: 4, Attempts: 1, Due: now, Retain: time.Hour,
		Reason: dedup.Reason{Code: dedup.ReasonMismatch}, Parked: true, Origin: event.OriginReplay,
	}
	base := dedup.Record{
		Key: testKey("1"), Owner: dedup.InProc, Effect: dedup.Retryable, Fence: next, Attempts: 1, FirstSeen: now,
		Host: "host-2", Reason: put.Reason, Origin: event.OriginReplay, Seq: 4, Parked: true,
	}
	wantRecord(t, decide(t, nil, put), with(&base, func(r *dedup.Record) {
		r.State, r.Outcome, r.Committed, r.Expires = dedup.Done, dedup.OutcomeDropped, now, now+hour
	}))
	put.State = dedup.Waiting
	wantRecord(t, decide(t, nil, put), with(&base, func(r *dedup.Record) { r.State, r.Due = dedup.Waiting, now }))
	put.State = dedup.Dead
	wantRecord(t, decide(t, nil, put), with(&base, func(r *dedup.Record) { r.State, r.Committed = dedup.Dead, now }))
	put.State = dedup.InDoubt // case 104: it may have run in time that was lost
	wantRecord(t, decide(t, nil, put), with(&base, func(r *dedup.Record) { r.State = dedup.InDoubt }))
	for _, state := range []dedup.State{dedup.Free, dedup.Started} {
		put.State = state
		if res := decide(t, nil, put); !res.Fenced || res.Write {
			t.Errorf("put of %v: %+v", state, res)
		}
	}
}

// Cases 35 to 37, 52: the horizon expires records, not the clock; and nothing that
// is still open (case 44).
func TestDecide_OnlyTheHorizonExpires(t *testing.T) {
	op := dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: event.OriginCallback}
	for _, tc := range []struct {
		expires dedup.Time
		want    dedup.Verdict
	}{{env.Horizon - 1, dedup.Granted}, {env.Horizon, dedup.AlreadyDone}, {now - hour, dedup.AlreadyDone}} {
		cur := record(dedup.Done, func(r *dedup.Record) { r.Expires = tc.expires })
		if res := decide(t, cur, op); res.Verdict != tc.want {
			t.Errorf("expires %d after the horizon: %v", tc.expires-env.Horizon, res.Verdict)
		}
	}
	for _, state := range []dedup.State{dedup.Started, dedup.Waiting, dedup.InDoubt, dedup.Dead} {
		if dedup.Expired(record(state, expired), env.Horizon) {
			t.Errorf("%v expired", state)
		}
	}
}

// An expired record's fence gives no right to what comes after it (ABA).
func TestDecide_AnExpiredRecordLeavesNothing(t *testing.T) {
	cur := record(dedup.Done, expired, func(r *dedup.Record) { r.Attempts, r.Parked = 3, true })
	res := decide(t, cur, dedup.Acquire{Effect: dedup.Idempotent, Owner: dedup.InProc, Origin: event.OriginReconcile, Seq: 1})
	wantRecord(t, res, dedup.Record{
		Key: testKey("1"), State: dedup.Started, Owner: dedup.InProc, Effect: dedup.Idempotent, Fence: next,
		FirstSeen: now, Started: now, Host: "host-2", Origin: event.OriginReconcile, Seq: 1,
	})
}

func TestDecide_DetailIsBounded(t *testing.T) {
	long := strings.Repeat("x", dedup.MaxDetail-1) + "é and more"
	res := decide(t, record(dedup.Started), dedup.Bury{Fence: mine, Reason: dedup.Reason{Code: "c", Detail: long}})
	got := res.Record.Reason.Detail
	if len(got) != dedup.MaxDetail-1 || !utf8.ValidString(got) {
		t.Errorf("%d bytes, %q at the end", len(got), got[len(got)-2:])
	}
}

// A dead letter says since when it is one, however it became one, and no longer
// once somebody retries it.
func TestDecide_DeadLettersSaySinceWhen(t *testing.T) {
	for name, res := range map[string]dedup.Result{
		"last attempt":    decide(t, record(dedup.Started), dedup.Bury{Fence: mine}),
		"nothing to run":  decide(t, record(dedup.Waiting), dedup.Bury{Fence: mine}),
		"never run":       decide(t, nil, dedup.Put{State: dedup.Dead, Effect: dedup.Retryable}),
		"somebody's word": decide(t, record(dedup.InDoubt), dedup.Resolve{Fence: mine, To: dedup.ResolveBury}),
	} {
		if res.Record.State != dedup.Dead || res.Record.Committed != now {
			t.Errorf("%s: %+v", name, res.Record)
		}
		if again := decide(t, &res.Record, dedup.Resolve{Fence: res.Record.Fence, To: dedup.ResolveRetry}); again.Record.Committed != 0 {
			t.Errorf("%s, retried: %+v", name, again.Record)
		}
	}
}

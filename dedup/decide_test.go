package dedup_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

const (
	epoch = 6
	mine  = dedup.Fence(epoch<<40 | 10) // of the record under test
	other = dedup.Fence(epoch<<40 | 9)  // an older grant
	next  = dedup.Fence(epoch<<40 | 11)
	now   = dedup.Time(1_800_000_000_000_000_000)
	hour  = dedup.Time(time.Hour)
)

var env = dedup.Env{Now: now, Horizon: now - 100*hour, Next: next, Host: "host-2"}

func testKey(id string) event.Key {
	e := event.Event{Source: "src", Identity: event.NewIdentity("t", event.KindPlatform, "", id)}
	return event.KeyFor(&e, "crm")
}

// record is one of the given state, as the first grant left it.
func record(state dedup.State, change ...func(*dedup.Record)) *dedup.Record {
	r := &dedup.Record{
		Key: testKey("1"), State: state, Owner: dedup.InProc, Effect: dedup.Retryable, Fence: mine,
		FirstSeen: now - hour, Started: now - hour, Host: "host-1", Origin: event.OriginCallback, Seq: 7,
	}
	switch state {
	case dedup.Waiting:
		r.Due = now + hour
	case dedup.Done:
		r.Outcome, r.Committed, r.Expires = dedup.OutcomeDone, now-hour, now+hour
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func external(lease dedup.Time) func(*dedup.Record) {
	return func(r *dedup.Record) { r.Owner, r.Lease, r.LeaseFor = dedup.External, lease, time.Minute }
}

func irrevocable(r *dedup.Record) { r.Effect = dedup.Irrevocable }
func noEvent(r *dedup.Record)     { r.Seq = 0 }
func due(r *dedup.Record)         { r.Due = now }
func expired(r *dedup.Record)     { r.Expires = env.Horizon - 1 }
func deadEpoch(r *dedup.Record)   { r.Fence = dedup.NewFence(epoch-1, 10) }

// The whole protocol on one page: what each operation does to each state, at the
// record's own fence. A cell is the verdict, if the operation gives one, and what
// the record becomes: "=" unchanged, ">state" written, "x" fenced off.
const protocol = `
state          acquire         put             commit defer    bury  doubt     doubt?    renew    expire   done  retry    drop  bury!
none           granted>started created>waiting x      x        x     x         x         x        x        x     x        x     x
free           granted>started created>waiting x      x        x     x         x         x        x        x     x        x     x
started        busy=           busy=           >done  >waiting >dead >in_doubt x         x        x        x     x        x     x
orphan         busy=           busy=           >done  >waiting >dead >in_doubt x         x        >waiting x     x        x     x
held           busy=           busy=           >done  >waiting >dead >in_doubt x         >started x        x     x        x     x
ended          busy=           busy=           >done  >waiting >dead >in_doubt x         >started >waiting x     x        x     x
ended-no-event granted>started busy=           >done  >waiting >dead >in_doubt x         >started >free    x     x        x     x
waiting        waiting=        waiting=        x      =        >dead x         >in_doubt x        x        x     x        x     x
waiting-due    granted>started waiting=        x      =        >dead x         >in_doubt x        x        x     x        x     x
in_doubt       in_doubt=       in_doubt=       >done  x        x     =         =         x        x        >done >waiting >done >dead
dead           dead=           dead=           x      x        =     x         x         x        x        x     >waiting >done x
done           done=           done=           =      x        x     x         x         x        x        x     x        x     x
expired        granted>started created>waiting x      x        x     x         x         x        x        x     x        x     x
`

var protocolRows = map[string]*dedup.Record{
	"none":           nil,
	"free":           record(dedup.Free),
	"started":        record(dedup.Started),
	"orphan":         record(dedup.Started, deadEpoch),
	"held":           record(dedup.Started, external(now+1)),
	"ended":          record(dedup.Started, external(now)),
	"ended-no-event": record(dedup.Started, external(now), noEvent),
	"waiting":        record(dedup.Waiting),
	"waiting-due":    record(dedup.Waiting, due),
	"in_doubt":       record(dedup.InDoubt),
	"dead":           record(dedup.Dead),
	"done":           record(dedup.Done),
	"expired":        record(dedup.Done, expired),
}

func protocolOps(f dedup.Fence) map[string]dedup.Op {
	return map[string]dedup.Op{
		"acquire": dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: event.OriginCallback, Seq: 7},
		"put":     dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Due: now + hour, Seq: 7},
		"commit":  dedup.Commit{Fence: f, Outcome: dedup.OutcomeDone, Retain: time.Hour},
		"defer":   dedup.Defer{Fence: f, Due: now + hour},
		"bury":    dedup.Bury{Fence: f},
		"doubt":   dedup.Doubt{Fence: f},
		"doubt?":  dedup.Doubt{Fence: f, Waits: true},
		"renew":   dedup.Renew{Fence: f},
		"expire":  dedup.Expire{Fence: f, Due: now + hour},
		"done":    dedup.Resolve{Fence: f, To: dedup.ResolveDone},
		"retry":   dedup.Resolve{Fence: f, To: dedup.ResolveRetry},
		"drop":    dedup.Resolve{Fence: f, To: dedup.ResolveDrop},
		"bury!":   dedup.Resolve{Fence: f, To: dedup.ResolveBury},
	}
}

func TestDecide_EveryOperationInEveryState(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(protocol), "\n")
	columns := strings.Fields(lines[0])[1:]
	if len(lines)-1 != len(protocolRows) || len(columns) != len(protocolOps(0)) {
		t.Fatalf("the table has %d rows and %d columns", len(lines)-1, len(columns))
	}
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		cur := protocolRows[cells[0]]
		fence := mine
		if cur != nil {
			fence = cur.Fence
		}
		for i, op := range columns {
			if got := cell(cur, protocolOps(fence)[op]); got != cells[1+i] {
				t.Errorf("%s of %s: %s, want %s", op, cells[0], got, cells[1+i])
			}
		}
	}
}

// cell applies op and says what became of it. It also checks what holds for every
// decision.
func cell(cur *dedup.Record, op dedup.Op) string {
	key := testKey("1")
	before := dedup.Record{Key: key}
	if cur != nil {
		before = *cur
	}
	res := dedup.Decide(cur, key, op, env)
	switch {
	case cur != nil && *cur != before:
		return "changed its argument"
	case res.Write && res.Fenced, res.Record.Key != key, res.Ride && !res.Write:
		return "contradicts itself"
	case res.Fenced:
		return "x"
	case res.Write:
		return res.Verdict.String() + ">" + res.Record.State.String()
	case res.Record != before:
		return "changed without a write"
	}
	return res.Verdict.String() + "="
}

// Cases 13, 14, 15: whoever lost the claim can neither commit, release nor renew.
func TestDecide_AnOlderFenceChangesNothing(t *testing.T) {
	for name, cur := range protocolRows {
		for op := range protocolOps(0) {
			if op == "acquire" || op == "put" {
				continue
			}
			for _, stale := range []dedup.Fence{other, 0} {
				if got := cell(cur, protocolOps(stale)[op]); got != "x" {
					t.Errorf("%s of %s at fence %d: %s, want it fenced off", op, name, stale, got)
				}
			}
		}
	}
}

func decide(t *testing.T, cur *dedup.Record, op dedup.Op) dedup.Result {
	t.Helper()
	return dedup.Decide(cur, testKey("1"), op, env)
}

func wantRecord(t *testing.T, res dedup.Result, want dedup.Record) {
	t.Helper()
	if !res.Write || res.Fenced {
		t.Errorf("nothing was written: %+v", res)
	}
	if d := cmp.Diff(want, res.Record); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
}

// with is cur after change.
func with(cur *dedup.Record, change func(*dedup.Record)) dedup.Record {
	r := *cur
	change(&r)
	return r
}

func TestDecide_AFirstGrantWritesWhatItKnows(t *testing.T) {
	print1 := event.Fingerprint{Sum: [32]byte{1}}
	res := decide(t, nil, dedup.Acquire{
		Effect: dedup.Irrevocable, Owner: dedup.External, Lease: time.Minute,
		Fingerprint: print1, Origin: event.OriginReplay, Seq: 9,
	})
	wantRecord(t, res, dedup.Record{
		Key: testKey("1"), State: dedup.Started, Owner: dedup.External, Effect: dedup.Irrevocable, Fence: next,
		FirstSeen: now, Started: now, Lease: now.Add(time.Minute), LeaseFor: time.Minute, Host: "host-2",
		Origin: event.OriginReplay, Fingerprint: print1, Seq: 9,
	})
}

// Case 11: the repeat runs under a new fence; what the record knows stays.
func TestDecide_ARetryKeepsHistoryUnderANewFence(t *testing.T) {
	cur := record(dedup.Waiting, due)
	cur.Attempts, cur.Parked, cur.Reason = 2, true, dedup.Reason{Code: "http-500"}
	res := decide(t, cur, dedup.Acquire{Effect: dedup.Idempotent, Owner: dedup.InProc, Origin: event.OriginCallback})
	wantRecord(t, res, with(cur, func(r *dedup.Record) {
		r.State, r.Fence, r.Started, r.Due, r.Host = dedup.Started, next, now, 0, "host-2"
	}))
}

func TestDecide_TheStrictestEffectStays(t *testing.T) {
	cur := record(dedup.Waiting, due, irrevocable)
	res := decide(t, cur, dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: event.OriginCallback})
	if res.Record.Effect != dedup.Irrevocable || res.Ride {
		t.Errorf("effect %v, ride %t", res.Record.Effect, res.Ride)
	}
}

// Case 10: only what may be repeated, and is open in the queue, may be granted
// before it is on stable storage.
func TestDecide_OnlyRepeatableInProcessGrantsRide(t *testing.T) {
	for _, tc := range []struct {
		effect dedup.Effect
		owner  dedup.Owner
		ride   bool
	}{
		{dedup.Idempotent, dedup.InProc, true},
		{dedup.Retryable, dedup.InProc, true},
		{dedup.Irrevocable, dedup.InProc, false},
		{dedup.Retryable, dedup.External, false},
	} {
		res := decide(t, nil, dedup.Acquire{Effect: tc.effect, Owner: tc.owner, Lease: time.Minute})
		if res.Verdict != dedup.Granted || res.Ride != tc.ride {
			t.Errorf("%v %v: %v, ride %t", tc.effect, tc.owner, res.Verdict, res.Ride)
		}
	}
}

// Cases 1 to 3: while one holds the key, everybody else is told so, and the
// record does not change.
func TestDecide_OneHolderAtATime(t *testing.T) {
	first := decide(t, nil, dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Seq: 7})
	for range 100 {
		res := decide(t, &first.Record, dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Seq: 8})
		if res.Verdict != dedup.Busy || res.Write || res.Record != first.Record {
			t.Fatalf("second acquire: %+v", res)
		}
	}
}

// Cases 101, 102: another payload under a known identity is told apart, unless
// origin or rules differ; by the first attempt and by the first failure of one
// that holds no claim.
func TestDecide_AnotherPayloadIsAMismatchInEveryState(t *testing.T) {
	print1 := event.Fingerprint{Sum: [32]byte{1}, Rules: [8]byte{1}}
	otherBody := event.Fingerprint{Sum: [32]byte{2}, Rules: [8]byte{1}}
	otherRules := event.Fingerprint{Sum: [32]byte{2}, Rules: [8]byte{2}}
	ops := map[string]func(event.Origin, event.Fingerprint) dedup.Op{
		"acquire": func(origin event.Origin, fp event.Fingerprint) dedup.Op {
			return dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.InProc, Origin: origin, Fingerprint: fp, Seq: 8}
		},
		"put": func(origin event.Origin, fp event.Fingerprint) dedup.Op {
			return dedup.Put{State: dedup.Waiting, Effect: dedup.Idempotent, Origin: origin, Fingerprint: fp, Seq: 8}
		},
	}
	for _, state := range []dedup.State{dedup.Started, dedup.Waiting, dedup.InDoubt, dedup.Dead, dedup.Done} {
		cur := record(state, func(r *dedup.Record) { r.Fingerprint = print1 })
		for name, op := range ops {
			if res := decide(t, cur, op(event.OriginCallback, otherBody)); res.Verdict != dedup.Mismatch || res.Write || res.Record != *cur {
				t.Errorf("%s of %v: %+v", name, state, res)
			}
			for what, op := range map[string]dedup.Op{
				"same payload": op(event.OriginCallback, print1),
				"other rules":  op(event.OriginCallback, otherRules),
				"no print":     op(event.OriginCallback, event.Fingerprint{}),
				"other origin": op(event.OriginReconcile, otherBody),
			} {
				if v := decide(t, cur, op).Verdict; v == dedup.Mismatch || v == dedup.Granted || v == dedup.Created {
					t.Errorf("%s of %v, %s: %v", name, state, what, v)
				}
			}
		}
	}
	for name, op := range ops {
		for what, cur := range map[string]*dedup.Record{
			"none": nil, "free": record(dedup.Free), "expired": record(dedup.Done, expired),
		} {
			if cur != nil {
				cur.Fingerprint = print1
			}
			if v := decide(t, cur, op(event.OriginCallback, otherBody)).Verdict; v != dedup.Granted && v != dedup.Created {
				t.Errorf("%s of %s: %v", name, what, v)
			}
		}
	}
}

func TestDecide_BusyAndWaitingAdoptASequence(t *testing.T) {
	for _, tc := range []struct {
		name    string
		has     uint64
		op      dedup.Acquire
		wantSeq uint64
	}{
		{"has none", 0, dedup.Acquire{Seq: 9}, 9},
		{"has one", 7, dedup.Acquire{Seq: 9}, 7},
		{"its own leads nowhere", 7, dedup.Acquire{Seq: 9, ReplaceSeq: true}, 9},
		{"nothing to adopt", 7, dedup.Acquire{ReplaceSeq: true}, 7},
	} {
		for _, cur := range []*dedup.Record{record(dedup.Started), record(dedup.Waiting), record(dedup.Waiting, due)} {
			cur.Seq = tc.has
			tc.op.Effect, tc.op.Owner, tc.op.Origin = dedup.Retryable, dedup.InProc, event.OriginCallback
			res := decide(t, cur, tc.op)
			if res.Record.Seq != tc.wantSeq || res.Write != (tc.wantSeq != tc.has || res.Verdict == dedup.Granted) {
				t.Errorf("%s, %v: sequence %d, written %t", tc.name, cur.State, res.Record.Seq, res.Write)
			}
		}
	}
}

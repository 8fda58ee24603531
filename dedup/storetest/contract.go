package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// contract is what holds within one life of a store.
func contract() []sentence {
	return []sentence{
		{"Do_AppliesTheDecision", doApplies},
		{"Do_ReturnsErrFencedWithTheRecordAsItStands", doFenced},
		{"Do_RefusesWhatIsNotAKey", doNotAKey},
		{"Do_EndsWithItsContext", doContext},
		{"Do_GrantsOneOfManyAtOnce", doManyAtOnce},
		{"Do_FollowsAcquireOfTheSameMoment", doSameMoment},
		{"Get_SeesAGrantAtOnce", getGrant},
		{"Get_SaysWhenThereIsNone", getNone},
		{"List_OldestChangeFirstInPages", listOrder},
		{"List_Filters", listFilters},
		{"Due_AtItsMomentSoonestFirst", dueOrder},
		{"Due_OnceInRearmAfter", dueRearm},
		{"Due_FollowsTheRecord", dueFollows},
		{"Due_ForgetsNobodyWhenTheLimitIsReached", dueLimit},
		{"Wake_WhenSomethingIsDueSooner", wakeSooner},
		{"Begin_OnlyANewHandlerBegins", beginOnce},
		{"Begin_BringsBackWhatIsBeyondTheStream", beginBrings},
		{"Epoch_IsInEveryFence", epochInFences},
		{"Stats_Count", statsCount},
		{"Failed_IsQuiet", failedQuiet},
		{"Close_EndsTheStore", closeEnds},
	}
}

func doApplies(h *harness) {
	k := key("crm", "1")
	g := h.grant(k, acquire(7))
	want := dedup.Record{
		Key: k, State: dedup.Started, Owner: dedup.InProc, Effect: dedup.Irrevocable, Fence: g.Fence,
		FirstSeen: now(), Started: now(), Host: g.Host, Origin: event.OriginCallback, Seq: 7,
	}
	if g != want {
		h.Errorf("granted %+v\nwant %+v", g, want)
	}
	h.wantRecord(k, want)
	h.pass(time.Minute)
	res := h.do(k, commit(g.Fence))
	want.State, want.Outcome, want.Attempts = dedup.Done, dedup.OutcomeDone, 1
	want.Committed, want.Expires = now(), now().Add(time.Hour)
	if res.Record != want {
		h.Errorf("committed %+v\nwant %+v", res.Record, want)
	}
	h.wantRecord(k, want)
	if v := h.do(k, acquire(8)).Verdict; v != dedup.AlreadyDone {
		h.Errorf("a duplicate is %v", v)
	}
}

func doFenced(h *harness) {
	k := key("crm", "1")
	g := h.grant(k, acquire(7))
	for _, op := range []dedup.Op{
		commit(g.Fence + 1), dedup.Defer{Fence: g.Fence - 1}, dedup.Bury{}, dedup.Doubt{Fence: 1},
		dedup.Renew{Fence: g.Fence}, dedup.Expire{Fence: g.Fence}, dedup.Resolve{Fence: g.Fence, To: dedup.ResolveDone},
	} {
		res, err := h.s.Do(h.Context(), k, op)
		if !errors.Is(err, dedup.ErrFenced) || res.Record != g {
			h.Errorf("%T: %+v, %v", op, res.Record, err)
		}
	}
	h.wantRecord(k, g)
	if _, err := h.s.Do(h.Context(), key("crm", "2"), commit(g.Fence)); !errors.Is(err, dedup.ErrFenced) {
		h.Errorf("commit of an unknown key: %v", err)
	}
}

func doNotAKey(h *harness) {
	if _, err := h.s.Do(h.Context(), event.Key{Tuple: "x"}, acquire(1)); !errors.Is(err, event.ErrTuple) {
		h.Errorf("error %v", err)
	}
}

func doContext(h *harness) {
	ctx, cancel := context.WithCancel(h.Context())
	cancel()
	if _, err := h.s.Do(ctx, key("crm", "1"), acquire(1)); err != nil && !errors.Is(err, context.Canceled) {
		h.Errorf("error %v", err)
	}
	if _, _, err := h.s.Get(ctx, key("crm", "1")); !errors.Is(err, context.Canceled) {
		h.Errorf("get: %v", err)
	}
}

// Cases 1 and 3.
func doManyAtOnce(h *harness) {
	var granted, busy atomic.Int32
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			op := acquire(uint64(i + 1))
			if i%2 == 0 {
				op.Effect = dedup.Retryable
			}
			res, err := h.s.Do(h.Context(), key("crm", "1"), op)
			switch {
			case err != nil:
				h.Errorf("acquire: %v", err)
			case res.Verdict == dedup.Granted:
				granted.Add(1)
			case res.Verdict == dedup.Busy:
				busy.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 || busy.Load() != 99 {
		h.Errorf("%d granted, %d busy", granted.Load(), busy.Load())
	}
}

// Many keys go through grant and commit at the same moment; each commit finds
// its grant, ridden or not.
func doSameMoment(h *harness) {
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			k, op := key("crm", name(i)), acquire(1)
			if i%2 == 0 {
				op.Effect = dedup.Retryable
			}
			res, err := h.s.Do(h.Context(), k, op)
			if err == nil {
				_, err = h.s.Do(h.Context(), k, commit(res.Record.Fence))
			}
			if err != nil {
				h.Errorf("pair %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if s := h.s.Stats(); s.Keys != 50 || len(s.Open) != 0 {
		h.Errorf("stats %+v", s)
	}
}

func getGrant(h *harness) {
	op := acquire(1)
	op.Effect = dedup.Retryable
	g := h.grant(key("crm", "1"), op)
	h.wantRecord(key("crm", "1"), g)
	if got := h.list(dedup.Filter{}, 10); !slices.Equal(got, []string{"1"}) {
		h.Errorf("listed %v", got)
	}
	if v := h.do(key("crm", "1"), op).Verdict; v != dedup.Busy {
		h.Errorf("a second acquire is %v", v)
	}
	h.wantNone(key("mail", "1"))
}

func getNone(h *harness) {
	k := key("crm", "1")
	h.wantNone(k)
	op := claim(time.Minute)
	op.Seq = 0
	g := h.grant(k, op)
	h.pass(time.Minute)
	if res := h.do(k, dedup.Expire{Fence: g.Fence}); res.Record.State != dedup.Free {
		h.Fatalf("expired %+v", res.Record)
	}
	h.wantNone(k)
	h.grant(k, op)
}

func listOrder(h *harness) {
	var fences []dedup.Fence
	for i := range 7 {
		fences = append(fences, h.grant(key("crm", name(i)), acquire(1)).Fence)
	}
	h.do(key("crm", "k2"), dedup.Bury{Fence: fences[2]})
	h.do(key("crm", "k0"), dedup.Doubt{Fence: fences[0]})
	h.do(key("crm", "k4"), commit(fences[4]))
	want := []string{"k1", "k3", "k5", "k6", "k2", "k0"}
	for _, page := range []int{1, 2, 3, 6, 7} {
		if got := h.list(dedup.Filter{}, page); !slices.Equal(got, want) {
			h.Errorf("in pages of %d: %v, want %v", page, got, want)
		}
	}
	if _, _, err := h.s.List(h.Context(), dedup.Filter{}, "x", 1); err == nil {
		h.Error("a cursor that is none was taken")
	}
}

func listFilters(h *harness) {
	h.grant(key("crm", "started"), acquire(1))
	h.grant(key("crm", "held"), claim(time.Minute))
	h.do(key("mail", "waiting"), waiting(now()))
	g := h.grant(key("mail", "dead"), acquire(1))
	h.do(key("mail", "dead"), dedup.Bury{Fence: g.Fence, Reason: dedup.Reason{Code: "http-400"}})
	g = h.grant(key("crm", "doubt"), acquire(1))
	h.do(key("crm", "doubt"), dedup.Doubt{Fence: g.Fence, Reason: dedup.Reason{Code: "timeout"}})
	for _, tc := range []struct {
		f    dedup.Filter
		want string
	}{
		{dedup.Filter{}, "started held waiting dead doubt"},
		{dedup.Filter{States: []dedup.State{dedup.Started}}, "started held"},
		{dedup.Filter{States: []dedup.State{dedup.Dead, dedup.InDoubt}}, "dead doubt"},
		{dedup.Filter{Handler: "mail"}, "waiting dead"},
		{dedup.Filter{Handler: "none"}, ""},
		{dedup.Filter{Reason: "timeout"}, "doubt"},
		{dedup.Filter{Owner: dedup.External}, "held"},
		{dedup.Filter{Handler: "crm", Owner: dedup.InProc}, "started doubt"},
		{dedup.Filter{DeadOnly: true}, ""},
	} {
		if d := cmp.Diff(strings.Fields(tc.want), h.list(tc.f, 2)); d != "" {
			h.Errorf("%+v (-want +got):\n%s", tc.f, d)
		}
	}
}

func epochInFences(h *harness) {
	g := h.grant(key("crm", "1"), acquire(1))
	p := h.do(key("crm", "2"), waiting(now())).Record
	if g.Fence.Epoch() != h.s.Epoch() || p.Fence.Epoch() != h.s.Epoch() || p.Fence <= g.Fence {
		h.Errorf("fences %d, %d in epoch %d", g.Fence, p.Fence, h.s.Epoch())
	}
}

func statsCount(h *harness) {
	g := h.grant(key("crm", "1"), acquire(1))
	h.do(key("crm", "1"), commit(g.Fence))
	h.grant(key("crm", "2"), acquire(1))
	h.do(key("mail", "1"), waiting(now()))
	h.do(key("mail", "2"), waiting(now()))
	got := h.s.Stats()
	want := map[string]map[string]int{"crm": {"started": 1}, "mail": {"waiting": 2}}
	if d := cmp.Diff(want, got.Open); d != "" || got.Keys != 4 || got.LastNumber != 5 || got.Epoch != h.s.Epoch() {
		h.Errorf("stats %+v, open (-want +got):\n%s", got, d)
	}
}

func failedQuiet(h *harness) {
	select {
	case err := <-h.s.Failed():
		h.Errorf("failed: %v", err)
	default:
	}
}

func closeEnds(h *harness) {
	g := h.grant(key("crm", "1"), acquire(1))
	for range 2 {
		if err := h.s.Close(); err != nil {
			h.Fatalf("close: %v", err)
		}
	}
	ctx := h.Context()
	_, err := h.s.Do(ctx, key("crm", "1"), commit(g.Fence))
	_, _, errGet := h.s.Get(ctx, key("crm", "1"))
	_, _, errList := h.s.List(ctx, dedup.Filter{}, "", 1)
	_, _, errDue := h.s.Due(ctx, "crm", now(), 1)
	_, errBegin := h.s.Begin(ctx, "crm", 1)
	for what, err := range map[string]error{
		"do": err, "get": errGet, "list": errList, "due": errDue, "begin": errBegin, "check": h.s.Check(ctx),
	} {
		if !errors.Is(err, dedup.ErrClosed) {
			h.Errorf("%s: %v", what, err)
		}
	}
}

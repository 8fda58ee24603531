package storetest

import (
	"slices"
	"time"

	"idemd/dedup"
)

// durability is what one life of a store leaves to the next, after Close and
// after a crash.
func durability() []sentence {
	return []sentence{
		{"Do_IsDurableWhenItReturns", doDurable},
		{"Do_ACommitIsNeverDurableWithoutItsGrant", doFIFO},
		{"Do_ARiddenGrantIsDurableSoon", doRideSoon},
		{"Begin_IsDurableWhenItReturns", beginDurable},
		{"Settle_IsDurableAfterClose", settleClose},
		{"Settle_IsDurableWithinTwoSeconds", settleSoon},
		{"Epoch_Grows", epochGrows},
		{"List_TellsTheDeadEpochs", listDead},
		{"Due_KnowsEverythingAfterAStart", dueAfterStart},
		{"ExternalClaims_GetOneFullLeaseFromTheStart", leaseAfterStart},
		{"Close_MakesRiddenGrantsDurable", closeRide},
	}
}

// both runs test once with a clean end between the lives and once with a crash.
func (h *harness) both(test func(prefix string, next func())) {
	h.Helper()
	test("closed-", h.reopen)
	test("crashed-", h.crash)
}

func doDurable(h *harness) {
	h.both(func(prefix string, next func()) {
		reason := dedup.Reason{Code: "c", Detail: "d"}
		for id, op := range map[string]func(f dedup.Fence) dedup.Op{
			"started": nil,
			"done":    func(f dedup.Fence) dedup.Op { return commit(f) },
			"waiting": func(f dedup.Fence) dedup.Op { return dedup.Defer{Fence: f, Due: now(), Counts: true, Reason: reason} },
			"dead":    func(f dedup.Fence) dedup.Op { return dedup.Bury{Fence: f, Reason: reason, Parked: true} },
			"doubt":   func(f dedup.Fence) dedup.Op { return dedup.Doubt{Fence: f, Reason: reason} },
		} {
			g := h.grant(key("crm", prefix+id), acquire(1))
			if op != nil {
				g = h.do(key("crm", prefix+id), op(g.Fence)).Record
			}
			next()
			h.wantRecord(key("crm", prefix+id), g)
			if err := h.s.Check(h.Context()); err != nil {
				h.Errorf("%s: check: %v", id, err)
			}
		}
	})
}

func doFIFO(h *harness) {
	op := acquire(1)
	op.Effect = dedup.Retryable
	first := h.grant(key("crm", "first"), op)
	second := h.grant(key("crm", "second"), op)
	done := h.do(key("crm", "second"), commit(second.Fence))
	h.crash()
	h.wantRecord(key("crm", "second"), done.Record)
	h.wantRecord(key("crm", "first"), first)
}

func doRideSoon(h *harness) {
	op := acquire(1)
	op.Effect = dedup.Retryable
	g := h.grant(key("crm", "1"), op)
	h.pass(time.Second)
	h.crash()
	h.wantRecord(key("crm", "1"), g)
}

func closeRide(h *harness) {
	op := acquire(1)
	op.Effect = dedup.Retryable
	g := h.grant(key("crm", "1"), op)
	h.reopen()
	h.wantRecord(key("crm", "1"), g)
}

func beginDurable(h *harness) {
	h.both(func(prefix string, next func()) {
		h.wantProgress(prefix, 7, dedup.Progress{FirstSeq: 7})
		next()
		h.wantProgress(prefix, 9, dedup.Progress{FirstSeq: 7})
		h.s.Settle(prefix, 100)
		h.pass(time.Minute)
		h.wantProgress(prefix, 4, dedup.Progress{FirstSeq: 4, SettledTo: 3})
		next()
		h.wantProgress(prefix, 200, dedup.Progress{FirstSeq: 4, SettledTo: 3})
	})
}

func settleClose(h *harness) {
	h.wantProgress("crm", 1, dedup.Progress{FirstSeq: 1})
	h.s.Settle("crm", 5)
	h.reopen()
	h.wantProgress("crm", 6, dedup.Progress{FirstSeq: 1, SettledTo: 5})
}

func settleSoon(h *harness) {
	h.wantProgress("crm", 1, dedup.Progress{FirstSeq: 1})
	h.pass(time.Minute)
	h.s.Settle("crm", 5)
	h.pass(2 * time.Second)
	h.crash()
	h.wantProgress("crm", 6, dedup.Progress{FirstSeq: 1, SettledTo: 5})
}

func epochGrows(h *harness) {
	h.both(func(prefix string, next func()) {
		g := h.grant(key("crm", prefix), acquire(1))
		before := h.s.Epoch()
		next()
		if h.s.Epoch() <= before {
			h.Errorf("epoch %d after %d", h.s.Epoch(), before)
		}
		if f := h.grant(key("crm", prefix+"next"), acquire(1)).Fence; f <= g.Fence || f.Epoch() != h.s.Epoch() {
			h.Errorf("fence %d after %d", f, g.Fence)
		}
	})
}

func listDead(h *harness) {
	h.both(func(prefix string, next func()) {
		g := h.grant(key("crm", prefix+"orphan"), acquire(1))
		h.grant(key("crm", prefix+"held"), claim(time.Hour))
		h.do(key("crm", prefix+"waiting"), waiting(now()))
		next()
		h.grant(key("crm", prefix+"mine"), acquire(1))
		if got := h.list(dedup.Filter{DeadOnly: true}, 1); !slices.Equal(got, []string{prefix + "orphan"}) {
			h.Errorf("of dead epochs: %v", got)
		}
		h.do(key("crm", prefix+"orphan"), dedup.Expire{Fence: g.Fence})
		h.do(key("crm", prefix+"mine"), commit(h.fence(prefix+"mine")))
	})
}

// fence is that of the crm handler's record.
func (h *harness) fence(id string) dedup.Fence {
	h.Helper()
	r, ok, err := h.s.Get(h.Context(), key("crm", id))
	if err != nil || !ok {
		h.Fatalf("get: %t, %v", ok, err)
	}
	return r.Fence
}

func dueAfterStart(h *harness) {
	h.do(key("crm", "b"), waiting(now().Add(time.Hour)))
	h.do(key("crm", "a"), waiting(now()))
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	h.reopen()
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	h.crash()
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	h.pass(time.Hour)
	h.wantDue("crm", 10, []string{"a", "b"}, dedup.RearmAfter)
}

// Case 39, and 36: a lease is never longer than a full one from the start.
func leaseAfterStart(h *harness) {
	h.both(func(prefix string, next func()) {
		k := key("crm", prefix)
		g := h.grant(k, claim(time.Minute))
		h.pass(time.Hour)
		next()
		want := g
		want.Lease = now().Add(time.Minute)
		h.wantRecord(k, want)
		h.wantDue("crm", 10, []string{}, time.Minute)
		h.pass(30 * time.Second)
		h.do(k, dedup.Renew{Fence: g.Fence})
		h.do(k, commit(g.Fence))
	})
}

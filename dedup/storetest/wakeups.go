package storetest

import (
	"slices"
	"time"

	"idemd/dedup"
)

func (h *harness) wantDue(handler string, limit int, want []string, next time.Duration) {
	h.Helper()
	got, in := h.due(handler, limit)
	if !slices.Equal(got, want) || in != next {
		h.Errorf("due %v, the next in %v; want %v, %v", got, in, want, next)
	}
}

func dueOrder(h *harness) {
	h.wantDue("crm", 10, []string{}, -1)
	h.do(key("crm", "b"), waiting(now().Add(2*time.Second)))
	h.do(key("crm", "a"), waiting(now().Add(time.Second)))
	h.do(key("crm", "c"), waiting(now().Add(time.Hour)))
	h.do(key("mail", "d"), waiting(now()))
	h.grant(key("crm", "run"), acquire(1))
	h.wantDue("crm", 10, []string{}, time.Second)
	h.pass(time.Second - 1)
	h.wantDue("crm", 10, []string{}, 1)
	h.pass(1)
	h.wantDue("crm", 0, []string{}, 0)
	h.pass(time.Second)
	h.wantDue("crm", 10, []string{"a", "b"}, dedup.RearmAfter)
	h.wantDue("mail", 10, []string{"d"}, dedup.RearmAfter)
}

func dueRearm(h *harness) {
	h.do(key("crm", "a"), waiting(now()))
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	h.wantDue("crm", 10, []string{}, dedup.RearmAfter)
	h.pass(dedup.RearmAfter - 1)
	h.wantDue("crm", 10, []string{}, 1)
	h.pass(1)
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	// A record that only takes over another sequence is not due once more.
	h.grant(key("mail", "b"), claim(time.Second))
	h.pass(time.Second)
	h.wantDue("mail", 10, []string{"b"}, dedup.RearmAfter)
	op := acquire(9)
	op.ReplaceSeq = true
	if res := h.do(key("mail", "b"), op); res.Verdict != dedup.Busy || res.Record.Seq != 9 {
		h.Errorf("a duplicate is %v, sequence %d", res.Verdict, res.Record.Seq)
	}
	h.wantDue("mail", 10, []string{}, dedup.RearmAfter)
}

func dueFollows(h *harness) {
	k := key("crm", "a")
	g := h.grant(k, claim(time.Minute))
	h.wantDue("crm", 10, []string{}, time.Minute)
	h.pass(30 * time.Second)
	h.do(k, dedup.Renew{Fence: g.Fence})
	h.wantDue("crm", 10, []string{}, time.Minute)
	h.pass(time.Minute)
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	h.do(k, dedup.Expire{Fence: g.Fence, Due: now().Add(time.Second)})
	h.wantDue("crm", 10, []string{}, time.Second)
	h.pass(time.Second)
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	g = h.grant(k, acquire(1))
	h.wantDue("crm", 10, []string{}, -1)
	h.do(k, dedup.Defer{Fence: g.Fence, Due: now()})
	h.wantDue("crm", 10, []string{"a"}, dedup.RearmAfter)
	g = h.grant(k, acquire(1))
	h.do(k, commit(g.Fence))
	h.wantDue("crm", 10, []string{}, -1)
}

func dueLimit(h *harness) {
	for i := range 5 {
		h.do(key("crm", name(i)), waiting(now().Add(time.Duration(i))))
	}
	h.pass(time.Second)
	h.wantDue("crm", 2, []string{"k0", "k1"}, 2-time.Second)
	h.wantDue("crm", 2, []string{"k2", "k3"}, 4-time.Second)
	h.wantDue("crm", 2, []string{"k4"}, dedup.RearmAfter)
}

func wakeSooner(h *harness) {
	h.wantDue("crm", 10, []string{}, -1)
	if h.woken("crm") {
		h.Error("woken for nothing")
	}
	h.do(key("crm", "a"), waiting(now().Add(time.Minute)))
	if !h.woken("crm") {
		h.Error("not woken for the first one")
	}
	h.wantDue("crm", 10, []string{}, time.Minute)
	h.do(key("crm", "b"), waiting(now().Add(time.Hour)))
	h.do(key("mail", "c"), waiting(now()))
	h.grant(key("crm", "run"), acquire(1))
	if h.woken("crm") {
		h.Error("woken for what is later, another's or only runs")
	}
	h.do(key("crm", "d"), waiting(now().Add(2*time.Second)))
	h.grant(key("crm", "e"), claim(time.Second))
	if !h.woken("crm") || h.woken("crm") {
		h.Error("not woken once for two that are sooner")
	}
	h.wantDue("crm", 10, []string{}, time.Second)
}

func beginOnce(h *harness) {
	h.Helper()
	for _, first := range []uint64{7, 9} {
		p, err := h.s.Begin(h.Context(), "crm", first)
		if err != nil || p != (dedup.Progress{FirstSeq: 7}) {
			h.Errorf("begin at %d: %+v, %v", first, p, err)
		}
	}
	h.s.Settle("crm", 12)
	h.s.Settle("crm", 11)
	h.s.Settle("unknown", 99)
	h.wantProgress("crm", 13, dedup.Progress{FirstSeq: 7, SettledTo: 12})
	h.wantProgress("unknown", 1, dedup.Progress{FirstSeq: 1})
}

// The stream is shorter than it was, or was made anew.
func beginBrings(h *harness) {
	h.wantProgress("crm", 7, dedup.Progress{FirstSeq: 7})
	h.s.Settle("crm", 100)
	h.wantProgress("crm", 51, dedup.Progress{FirstSeq: 7, SettledTo: 50})
	h.s.Settle("crm", 60)
	h.wantProgress("crm", 101, dedup.Progress{FirstSeq: 7, SettledTo: 60})
	h.wantProgress("crm", 1, dedup.Progress{FirstSeq: 1})
	h.s.Settle("crm", 2)
	h.wantProgress("crm", 101, dedup.Progress{FirstSeq: 1, SettledTo: 2})
}

// wantProgress lets handler begin in a stream whose next event is first.
func (h *harness) wantProgress(handler string, first uint64, want dedup.Progress) {
	h.Helper()
	if p, err := h.s.Begin(h.Context(), handler, first); err != nil || p != want {
		h.Errorf("progress of %s: %+v, %v; want %+v", handler, p, err, want)
	}
}

package admin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
)

// Cases 69, 70, 74: which chosen event a replay runs at a handler.
func TestCandidate_Skips(t *testing.T) {
	in := func(s dedup.State) *dedup.Record { return &dedup.Record{State: s} }
	base := candidate{seq: 5, age: time.Hour, limit: 24 * time.Hour, progress: dedup.Progress{FirstSeq: 3, SettledTo: 9}}
	for _, c := range []struct {
		name   string
		change func(*candidate)
		plain  Skip // without a batch
		forced Skip // in one
	}{
		{"no record", func(*candidate) {}, "", ""},
		{"done", func(c *candidate) { c.own = in(dedup.Done) }, SkipDone, ""},
		{"dead", func(c *candidate) { c.own = in(dedup.Dead) }, SkipDead, ""},
		{"in doubt", func(c *candidate) { c.own = in(dedup.InDoubt) }, SkipDoubt, ""},
		{"waiting", func(c *candidate) { c.own = in(dedup.Waiting) }, SkipOpen, ""},
		{"started", func(c *candidate) { c.own = in(dedup.Started) }, SkipOpen, SkipRunning},
		{"started, concurrent", func(c *candidate) { c.own, c.concurrent = in(dedup.Started), true }, SkipOpen, ""},
		{"in the batch", func(c *candidate) { c.own, c.forced = in(dedup.Done), in(dedup.Done) }, SkipDone, SkipInBatch},
		{"at the limit", func(c *candidate) { c.age = c.limit }, "", ""},
		{"beyond the limit", func(c *candidate) { c.age = c.limit + 1 }, SkipTooOld, SkipTooOld},
		{"before the handler", func(c *candidate) { c.seq = 2 }, SkipBefore, ""},
		{"its first", func(c *candidate) { c.seq = 3 }, "", ""},
		{"its last", func(c *candidate) { c.seq = 9 }, "", ""},
		{"still before it", func(c *candidate) { c.seq = 10 }, SkipPending, ""},
		{"before the handler, came again and done", func(c *candidate) { c.seq, c.own = 2, in(dedup.Done) }, SkipDone, ""},
		{"not to be run", func(c *candidate) { c.unrunnable = dedup.ReasonUnkeyed }, "unkeyed", "unkeyed"},
		{"another payload", func(c *candidate) { c.mismatch = true }, SkipMismatch, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			one := base
			c.change(&one)
			if got := one.skips(); got != c.plain {
				t.Errorf("without a batch: %q, want %q", got, c.plain)
			}
			one.batch = true
			if got := one.skips(); got != c.forced {
				t.Errorf("in a batch: %q, want %q", got, c.forced)
			}
		})
	}
}

func TestVerdictSkip(t *testing.T) {
	for v, want := range map[dedup.Verdict][2]Skip{
		dedup.Created: {"", ""}, dedup.Mismatch: {SkipMismatch, SkipMismatch}, dedup.AlreadyDone: {SkipDone, SkipInBatch},
		dedup.Buried: {SkipDead, SkipInBatch}, dedup.Doubtful: {SkipDoubt, SkipInBatch}, dedup.Busy: {SkipOpen, SkipInBatch}, dedup.NotYet: {SkipOpen, SkipInBatch},
	} {
		if got := [2]Skip{verdictSkip(v, false), verdictSkip(v, true)}; got != want {
			t.Errorf("%s: %q, want %q", v, got, want)
		}
	}
}

func TestHandlerPlan_Counts(t *testing.T) {
	h := HandlerPlan{Skipped: map[Skip]uint64{}}
	for _, skip := range []Skip{"", "", SkipDone, SkipOpen, SkipDead, SkipDoubt, SkipRunning, SkipTooOld} {
		h.count(skip, skip == "" && h.Runs == 0)
	}
	want := HandlerPlan{Matches: 8, Runs: 2, Unknown: 1, Done: 1, Open: 4, Skipped: map[Skip]uint64{
		SkipDone: 1, SkipOpen: 1, SkipDead: 1, SkipDoubt: 1, SkipRunning: 1, SkipTooOld: 1,
	}}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Case 70: the shorter of replay limit and window bounds a replay.
func TestHandler_ReplayLimit(t *testing.T) {
	h := Handler{ReplayLimit: 2 * time.Hour, Retain: time.Hour}
	if got := h.replayLimit(); got != time.Hour {
		t.Errorf("got %s", got)
	}
}

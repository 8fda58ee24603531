package boltstore

import (
	"path/filepath"
	"testing"
	"time"

	"idemd/dedup"
)

// A duplicate a second before and after its record leaves the hot window is told,
// one in the last second of its retention, too, and one in the first second after
// it is new.
func TestWindows_AroundTheirEnds(t *testing.T) {
	const hot, retain = 2 * time.Hour, 48 * time.Hour
	done := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	now := done
	s := openWith(t, Config{Dir: filepath.Join(t.TempDir(), "dedup"), Now: func() time.Time { return now }}, lazyMachine())
	key := testKey("crm", "e1")
	g := mustDo(t, s, key, durable).Record
	mustDo(t, s, key, dedup.Commit{Fence: g.Fence, Retain: retain, Outcome: dedup.OutcomeDone})
	sealAndMove(t, s)
	for _, c := range []struct {
		what    string
		at      time.Duration // after the commit
		cold    bool
		verdict dedup.Verdict
	}{
		{"at once", 0, false, dedup.AlreadyDone},
		{"a second before it leaves the hot window", hot - time.Second, false, dedup.AlreadyDone},
		{"a second after", hot + time.Second, true, dedup.AlreadyDone},
		{"in the last second", retain - time.Second, true, dedup.AlreadyDone},
		{"in the first second", retain + time.Second, false, dedup.Granted},
	} {
		now = done.Add(c.at)
		for { // the janitor's steps of that moment
			step, err := s.Merge(t.Context(), dedup.At(now.Add(-hot)))
			if err != nil {
				t.Fatal(err)
			}
			if !step.More {
				break
			}
		}
		if err := s.MoveHorizon(t.Context(), dedup.At(now)); err != nil {
			t.Fatal(err)
		}
		mustStep(t, s.Expire)
		if cold := s.Stats().Parts["cold"].Keys > 0; cold != c.cold {
			t.Errorf("%s: in the cold part: %t", c.what, cold)
		}
		if v := mustDo(t, s, key, durable).Verdict; v != c.verdict {
			t.Errorf("%s: %v, want %v", c.what, v, c.verdict)
		}
	}
}

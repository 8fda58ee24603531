package app

import (
	"strings"
	"testing"
	"time"

	"idemd/dedup"
)

// R30, R75, cases 35 to 37: what a clock that is wrong may expire is nothing.
func TestMayMove(t *testing.T) {
	const day = 24 * time.Hour
	horizon := dedup.Time(1_800_000_000_000_000_000)
	for _, c := range []struct {
		name    string
		ahead   time.Duration // of the horizon
		steady  time.Duration
		trusted bool
		want    string
	}{
		{"steady", 10 * time.Minute, clockSteady, false, ""},
		{"just started, or just stepped", 10 * time.Minute, clockSteady - 1, true, "evenly"},
		{"a day on", day, clockSteady, false, ""},
		{"more than a day on", day + 1, clockSteady, false, "--confirm-clock"},
		{"more than a day on, the clock is synchronised", 400 * day, clockSteady, true, ""},
		{"backwards", -time.Hour, clockSteady, false, ""}, // MoveHorizon goes forwards only
	} {
		err := mayMove(horizon, horizon.Add(c.ahead), c.steady, c.trusted)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestClockWatch_StepsAreSeen(t *testing.T) {
	var c clockWatch
	now := time.Now()
	if by := c.look(now); by != 0 {
		t.Errorf("the first look found a step by %s", by)
	}
	later := now.Add(clockEvery)
	if by := c.look(later); by != 0 || c.warning(later) != "" {
		t.Errorf("an even clock stepped by %s", by)
	}
	for _, by := range []time.Duration{5 * time.Minute, -5 * time.Minute, 24 * time.Hour, -24 * time.Hour} {
		c := clockWatch{last: now, steady: now}
		c.note(later, by)
		if c.steps != 1 || c.sinceStep(later) != 0 || c.warning(later) == "" {
			t.Errorf("a step by %s was not noticed: %+v", by, &c)
		}
		even := later.Add(clockSteady + time.Second)
		if c.warning(even) != "" || c.sinceStep(even) < clockSteady {
			t.Errorf("after a step by %s the clock never is even again", by)
		}
	}
	small := clockWatch{last: now, steady: now}
	if small.note(later, clockStep); small.steps != 0 {
		t.Error("a small correction is a step")
	}
}

package app

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"idemd/dedup"
)

const (
	clockEvery  = 10 * time.Second // between two looks at the clock
	clockStep   = time.Minute      // more than this against the monotonic clock is a step
	clockSteady = 10 * time.Minute // how long it must have gone evenly before anything expires by it
	clockJump   = 24 * time.Hour   // beyond this somebody else must say that it is right
)

// clockWatch compares the wall clock with the monotonic one. Records expire by
// the store's horizon, and the horizon follows the wall clock only while that
// goes evenly: a wrong clock must expire nothing.
type clockWatch struct {
	mu     sync.Mutex
	last   time.Time // with its monotonic part
	steady time.Time // since when there was no step
	steps  int
	by     time.Duration // of the last one
}

// drift is by how much the wall clock went ahead of the monotonic one between two
// readings: negative when it fell behind. A machine that was paused or suspended
// drifts, too.
func drift(before, now time.Time) time.Duration {
	return now.Round(0).Sub(before.Round(0)) - now.Sub(before)
}

// look takes a reading, and gives the step that it found, 0 when there is none.
func (c *clockWatch) look(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() {
		c.last, c.steady = now, now
		return 0
	}
	return c.note(now, drift(c.last, now))
}

// note takes in a reading that drifted by so much since the last one, and gives
// it back when it is a step. The caller holds mu.
func (c *clockWatch) note(now time.Time, by time.Duration) time.Duration {
	c.last = now
	if by.Abs() <= clockStep {
		return 0
	}
	c.steps, c.by, c.steady = c.steps+1, by, now
	return by
}

// trust takes an operator's word that the clock is right.
func (c *clockWatch) trust(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.steady = now, now.Add(-clockSteady)
}

// sinceStep is for how long the clock has gone evenly.
func (c *clockWatch) sinceStep(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.steady)
}

// warning is for status; empty when there is nothing to say.
func (c *clockWatch) warning(now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.steps == 0 || now.Sub(c.steady) > clockSteady {
		return ""
	}
	return fmt.Sprintf("the clock stepped by %s, %s ago: nothing expires until it has gone evenly for %s",
		c.by.Round(time.Second), now.Sub(c.steady).Round(time.Second), clockSteady)
}

// mayMove decides whether the horizon may move to wall. Trusted says that the
// kernel calls the clock synchronised, or that an operator has confirmed it.
func mayMove(horizon, wall dedup.Time, steady time.Duration, trusted bool) error {
	switch {
	case steady < clockSteady:
		return fmt.Errorf("the clock has gone evenly for %s only: nothing expires before %s", steady.Round(time.Second), clockSteady)
	case wall > horizon.Add(clockJump) && !trusted:
		return fmt.Errorf("it is more than a day since anything expired, and the kernel does not call the clock synchronised: "+
			"start a time service, or if %s is right, say so: idemd janitor run expire --confirm-clock", wall.Std().UTC().Format(time.RFC3339))
	}
	return nil
}

// clockSynchronised reports whether the kernel says so.
func clockSynchronised() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}

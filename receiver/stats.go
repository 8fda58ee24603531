package receiver

import (
	"sync"
	"sync/atomic"
	"time"

	"idemd/event"
)

// Reason says why an event was not taken.
type Reason string

// Reasons that lie with us: the request may have been good. The platform is
// told in the source's way.
const (
	ReasonStarting Reason = "starting"
	ReasonBlocked  Reason = "blocked"
	ReasonDraining Reason = "draining"
	ReasonInFlight Reason = "in-flight" // too many requests at a time
	ReasonReading  Reason = "reading"   // too many bodies at a time, or too long ones
	ReasonPublish  Reason = "publish"   // the event could not be stored
)

// Reasons that lie with the request.
const (
	ReasonAuth      Reason = "auth"
	ReasonMalformed Reason = "malformed"
	ReasonTooLarge  Reason = "too-large"
	ReasonSlow      Reason = "slow"
)

// reasons is the order of counters.refused.
func reasons() [10]Reason {
	return [...]Reason{
		ReasonStarting, ReasonBlocked, ReasonDraining, ReasonInFlight, ReasonReading, ReasonPublish,
		ReasonAuth, ReasonMalformed, ReasonTooLarge, ReasonSlow,
	}
}

// SourceStats is what one source has counted.
type SourceStats struct {
	Source      string            // its id
	Accepted    uint64            // stored and answered 200
	Unparsed    uint64            // of these, not understood
	Unkeyed     uint64            // of these, without identity
	Oversize    uint64            // of these, with an id over event.MaxID
	Challenges  uint64            // URL verifications answered
	Refused     map[Reason]uint64 // all reasons, also those never seen
	Secrets     [2]uint64         // authenticated requests by the index of the secret
	Repeats     uint64            // XML paths that repeat without being declared to
	RepeatPaths []string          // the first of these
	Holding     int64             // requests held at this moment
}

// maxRepeatPaths bounds how many undeclared paths are remembered.
const maxRepeatPaths = 64

type counters struct {
	accepted, unparsed, unkeyed, oversize, challenges, repeats atomic.Uint64
	refused                                                    [10]atomic.Uint64
	secrets                                                    [2]atomic.Uint64

	mu          sync.Mutex
	repeatPaths []string
}

func (c *counters) refuse(reason Reason) {
	for i, r := range reasons() {
		if r == reason {
			c.refused[i].Add(1)
		}
	}
}

func (c *counters) accept(ev *event.Event) {
	c.accepted.Add(1)
	if ev.Type == event.TypeUnparsed {
		c.unparsed.Add(1)
	}
	switch ev.Identity.Kind {
	case event.KindUnkeyed:
		c.unkeyed.Add(1)
	case event.KindOversize:
		c.oversize.Add(1)
	}
}

// repeat counts undeclared paths and gives those that are new.
func (c *counters) repeat(paths []string) (fresh []string) {
	c.repeats.Add(uint64(len(paths)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range paths {
		if len(c.repeatPaths) < maxRepeatPaths && !contains(c.repeatPaths, []byte(p)) {
			c.repeatPaths = append(c.repeatPaths, p)
			fresh = append(fresh, p)
		}
	}
	return fresh
}

func (c *counters) stats(id string, holding int64) SourceStats {
	s := SourceStats{
		Source:     id,
		Accepted:   c.accepted.Load(),
		Unparsed:   c.unparsed.Load(),
		Unkeyed:    c.unkeyed.Load(),
		Oversize:   c.oversize.Load(),
		Challenges: c.challenges.Load(),
		Repeats:    c.repeats.Load(),
		Refused:    make(map[Reason]uint64, len(c.refused)),
		Secrets:    [2]uint64{c.secrets[0].Load(), c.secrets[1].Load()},
		Holding:    holding,
	}
	for i, r := range reasons() {
		s.Refused[r] = c.refused[i].Load()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.RepeatPaths = append([]string(nil), c.repeatPaths...)
	return s
}

// logLimit lets one line through per logEvery, so that a flood of bad requests
// is no flood of lines.
type logLimit struct {
	mu      sync.Mutex
	next    time.Time
	skipped int
}

const logEvery = 10 * time.Second

// allow reports whether to log now, and how many lines were left out before.
func (l *logLimit) allow(now time.Time) (ok bool, skipped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.skipped++
		return false, 0
	}
	skipped, l.skipped, l.next = l.skipped, 0, now.Add(logEvery)
	return true, skipped
}

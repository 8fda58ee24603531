package consumer

import (
	"fmt"
	"time"

	"idemd/dedup"
)

// The bounds of an answer that says when to run again.
const (
	defaultWait = 30 * time.Second
	minWait     = time.Second
)

// MaxWait is the longest wait that an answer can ask for.
const MaxWait = time.Hour

// parkAfter is how long a run may wait before it owns a copy of its event, so
// that it pins nothing in the queue.
const parkAfter = time.Hour

// action is what becomes of a run after an attempt.
type action uint8

const (
	commit   action = iota + 1 // DONE
	postpone                   // WAITING
	bury                       // DEAD
	doubt                      // IN_DOUBT
)

// settlement is a decided action.
type settlement struct {
	action action
	counts bool       // the attempt counts
	due    dedup.Time // postpone
	park   bool       // the event needs a copy first
	reason dedup.Reason
}

// facts is what the decision needs beside the answer.
type facts struct {
	effect    dedup.Effect // the strictest effect the run ever started under
	attempts  int          // that count, before this one
	firstSeen time.Time
	now       time.Time
	random    float64 // 0 <= random < 1, for the jitter
	trial     bool    // the handler is held: a failure is no attempt
}

// decide says what follows from an answer. It has no side effects.
func (s *Spec) decide(a Answer, f facts) settlement {
	switch {
	case a.Class == Done:
		return settlement{action: commit, counts: true}
	case a.Class == Permanent:
		return settlement{action: bury, counts: true, park: true, reason: a.Reason}
	case a.Class == Wait && !(a.Hearsay && f.effect == dedup.Irrevocable):
		return s.again(a, f, false, min(orDefault(a.After, defaultWait), MaxWait))
	case a.Class == NoEffect && a.Endless:
		return s.again(a, f, false, patience(s.Retry, f.now.Sub(f.firstSeen)))
	case a.Class != NoEffect && f.effect == dedup.Irrevocable:
		return settlement{action: doubt, counts: true, park: true, reason: a.Reason}
	case f.trial:
		return s.again(a, f, false, patience(s.Retry, f.now.Sub(f.firstSeen)))
	case f.attempts+1 >= s.MaxAttempts():
		return s.giveUp(a.Reason, "after "+plural(f.attempts+1, "attempt"), true)
	}
	return s.again(a, f, true, backoff(s.Retry, f.attempts+1))
}

// again runs once more after delay, unless the replay limit comes first.
func (s *Spec) again(a Answer, f facts, counts bool, delay time.Duration) settlement {
	delay = jitter(delay, s.Jitter, f.random)
	due := f.now.Add(delay)
	if due.Sub(f.firstSeen) > s.ReplayLimit {
		return s.giveUp(a.Reason, fmt.Sprintf("first seen longer ago than the replay limit of %v", s.ReplayLimit), counts)
	}
	return settlement{
		action: postpone, counts: counts, due: dedup.At(due), park: delay > parkAfter, reason: a.Reason,
	}
}

func (s *Spec) giveUp(reason dedup.Reason, why string, counts bool) settlement {
	if reason.Detail != "" {
		why = reason.Detail + ", " + why
	}
	return settlement{action: bury, counts: counts, park: true, reason: dedup.Reason{Code: reason.Code, Detail: why}}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// backoff is the delay after the given number of finished attempts, at least
// one; the last one repeats.
func backoff(retry []time.Duration, attempts int) time.Duration {
	if len(retry) == 0 {
		retry = DefaultRetry()
	}
	return retry[min(max(attempts, 1), len(retry))-1]
}

// patience is the delay after an answer that says nothing about the event: as
// long as the run has been tried already, within the first and the last delay.
func patience(retry []time.Duration, age time.Duration) time.Duration {
	if len(retry) == 0 {
		retry = DefaultRetry()
	}
	return max(min(age, retry[len(retry)-1]), retry[0])
}

// jitter spreads d over d to d*(1+share): never early.
func jitter(d time.Duration, share, random float64) time.Duration {
	return d + time.Duration(float64(d)*share*random)
}

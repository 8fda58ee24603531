package ledger

import (
	"time"

	"idemd/event"
)

// The bounds of what is told one by one.
const (
	singles   = 10          // suppressions under one key that are told one by one
	maxStorms = 32768       // keys that are followed, in each of two generations
	firstStep = time.Second // after which a storm's count is written down; each time it doubles
	lastStep  = time.Minute
)

// storms tells the first suppressions under a key one by one and counts the
// rest.
type storms struct {
	keys, older map[event.Hash]*storm
	dirty       map[event.Hash]*storm // with a count that is not written down
	write       func(*Entry)
}

type storm struct {
	seen int
	sum  *Entry // counted and not written down; nil when there is none
	next time.Time
	step time.Duration
}

func newStorms(write func(*Entry)) *storms {
	return &storms{keys: map[event.Hash]*storm{}, dirty: map[event.Hash]*storm{}, write: write}
}

// note writes e, or counts it.
func (s *storms) note(e *Entry, now time.Time) {
	st := s.keys[e.Key]
	if st == nil {
		st = s.remember(e.Key)
	}
	if st.seen < singles {
		st.seen++
		s.write(e)
		return
	}
	sum := *e
	if st.sum != nil {
		sum.Count += st.sum.Count
		sum.First = st.sum.First
		if st.sum.Arrival && (!sum.Arrival || st.sum.Delay() > sum.Delay()) { // for the distribution, after a restart
			sum.Arrival, sum.Received, sum.FirstSeen = true, st.sum.Received, st.sum.FirstSeen
		}
	} else if st.step == 0 {
		st.step, st.next = firstStep, now.Add(firstStep)
	}
	st.sum = &sum
	s.dirty[e.Key] = st
}

// remember begins to follow a key, or goes on. When there are too many, those
// that were not seen for longest are forgotten: under them the next suppressions
// are told one by one again.
func (s *storms) remember(key event.Hash) *storm {
	st := s.older[key]
	if st == nil {
		st = &storm{}
	} else {
		delete(s.older, key)
	}
	if len(s.keys) >= maxStorms {
		for k, old := range s.older {
			s.settle(k, old)
		}
		s.older, s.keys = s.keys, map[event.Hash]*storm{}
	}
	s.keys[key] = st
	return st
}

// settle writes down what was only counted.
func (s *storms) settle(key event.Hash, st *storm) {
	if st.sum != nil {
		s.write(st.sum)
		st.sum = nil
	}
	delete(s.dirty, key)
}

// due writes down the counts whose time has come; all of them when all is set.
func (s *storms) due(now time.Time, all bool) {
	for key, st := range s.dirty {
		if !all && now.Before(st.next) {
			continue
		}
		s.settle(key, st)
		st.step = min(2*st.step, lastStep)
		st.next = now.Add(st.step)
	}
}

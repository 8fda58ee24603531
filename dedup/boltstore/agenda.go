package boltstore

import (
	"container/heap"

	"idemd/dedup"
)

// agenda is what one handler has open, and when somebody must look at it again.
type agenda struct {
	open   [dedup.Done]int // by state
	alarms alarms
	told   dedup.Time // what Due said last about the next alarm; 0 for none
	wake   chan struct{}
}

// ring sets the alarm of s, and wakes whoever was told of a later one.
func (a *agenda) ring(s *slot, at dedup.Time) {
	a.alarms.set(s, at)
	if at == 0 || a.told != 0 && at >= a.told {
		return
	}
	a.told = at
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// due gives the slots whose alarm is at or before now, soonest first, at most
// limit of them, and sets their alarms anew; and the time of the next alarm.
func (a *agenda) due(now dedup.Time, limit int) ([]*slot, dedup.Time) {
	var out []*slot
	for len(out) < limit && len(a.alarms) > 0 && a.alarms[0].alarm <= now {
		s := a.alarms[0]
		out = append(out, s)
		a.alarms.set(s, now.Add(dedup.RearmAfter))
	}
	a.told = 0
	if len(a.alarms) > 0 {
		a.told = a.alarms[0].alarm
	}
	return out, a.told
}

// alarms is a heap of slots, the soonest alarm first.
type alarms []*slot

// set gives s the alarm at; 0 takes it out.
func (h *alarms) set(s *slot, at dedup.Time) {
	was := s.alarm
	s.alarm = at
	switch {
	case was == 0 && at == 0:
	case was == 0:
		heap.Push(h, s)
	case at == 0:
		heap.Remove(h, s.heap)
	default:
		heap.Fix(h, s.heap)
	}
}

func (h alarms) Len() int { return len(h) }
func (h alarms) Less(i, j int) bool {
	if h[i].alarm != h[j].alarm {
		return h[i].alarm < h[j].alarm
	}
	return h[i].change < h[j].change
}

func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

// Push implements heap.Interface.
func (h *alarms) Push(v any) {
	if s, ok := v.(*slot); ok {
		s.heap = len(*h)
		*h = append(*h, s)
	}
}

// Pop implements heap.Interface.
func (h *alarms) Pop() any {
	old := *h
	n := len(old) - 1
	s := old[n]
	old[n] = nil
	*h = old[:n]
	return s
}

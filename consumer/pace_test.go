package consumer

import (
	"testing"
	"time"

	"idemd/dedup"
)

// Neither a backlog nor retries that are all due make it faster; what does not
// reach the handler takes no place.
func TestPool_KeepsToItsRate(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: repeat(Answer{Class: NoEffect, Endless: true, Reason: dedup.Reason{Code: "x"}}, 5)}
		s := spec("crm", h)
		s.MaxRate, s.Types = 2, []string{"change_contact.*"}
		p := r.start(s)
		for range 200 {
			ev := newEvent("filtered")
			ev.Type = "other"
			r.publish(ev)
		}
		all := r.publishMany(20)
		advance(2*time.Second + 100*time.Millisecond)
		if n := len(h.seen()); n < 4 || n > 6 {
			t.Errorf("%d attempts in two seconds, want 2 a second", n)
		}
		advance(time.Minute)
		calls := h.wantCalls(t, 25)
		for i := range calls[1:] {
			if d := calls[i+1].at.Sub(calls[i].at); d < 400*time.Millisecond {
				t.Errorf("attempt %d came %v after the one before", i+1, d)
			}
		}
		for _, ev := range all {
			r.wantState("crm", ev, dedup.Done, "")
		}
		if s := p.Snapshot(); s.Filtered != 200 {
			t.Errorf("%d filtered", s.Filtered)
		}
	})
}

func TestPool_StopsWhileItWaitsForItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := spec("crm", &script{})
		s.MaxRate = 0.001
		p := r.start(s)
		r.publishMany(5)
		settleDown()
		began := time.Now()
		if err := p.Stop(t.Context()); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("stop: %v after %v", err, time.Since(began))
		}
	})
}

func TestSpec_RefusesRatesThatAreNone(t *testing.T) {
	for rate, want := range map[float64]int{0: 0, 0.001: 0, 1e6: 0, -1: 1, 0.0001: 1, 1e7: 1} {
		s := spec("crm", &script{})
		s.MaxRate = rate
		if problems := s.Validate(); len(problems) != want {
			t.Errorf("%v: %v", rate, problems)
		}
	}
}

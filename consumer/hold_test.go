package consumer

import (
	"fmt"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// failing is a handler that fails until it is mended.
func failing(answer Answer) *script { return &script{answers: repeat(answer, 100_000)} }

func (s *script) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = nil
}

func (r *rig) publishMany(n int) []*event.Event {
	r.t.Helper()
	var all []*event.Event
	for i := range n {
		ev := newEvent(fmt.Sprintf("e%02d", i))
		r.publish(ev)
		all = append(all, ev)
	}
	return all
}

func (r *rig) attempts(handler string, all []*event.Event) (sum uint32) {
	r.t.Helper()
	for _, ev := range all {
		rec, _ := r.record(handler, ev)
		sum += rec.Attempts
	}
	return sum
}

// A handler that fails on ten events in a row is held: one event every 30 s, no
// attempt used, and when one succeeds all the others run.
func TestPool_HoldsAHandlerThatFailsOnEveryEvent(t *testing.T) {
	for _, answer := range []Answer{status(500), status(401), {Class: NoEffect, Reason: dedup.Reason{Code: "http-500"}}} {
		t.Run(answer.Class.String()+answer.Reason.Code, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := failing(answer)
				s := spec("crm", h)
				s.Concurrency = 1
				p := r.start(s)
				all := r.publishMany(40)
				settleDown()
				h.wantCalls(t, 10)
				used := r.attempts("crm", all)
				if s := p.Snapshot(); s.Held.IsZero() || !s.Paused.IsZero() {
					t.Errorf("not held: %+v", s)
				}
				advance(29*time.Second - time.Millisecond)
				h.wantCalls(t, 10)
				advance(2 * time.Second)
				h.wantCalls(t, 11)
				advance(10 * time.Minute)
				if n := len(h.seen()); n < 11+18 || n > 11+21 {
					t.Errorf("%d tries in ten minutes, want 20", n-11)
				}
				if now := r.attempts("crm", all); now != used {
					t.Errorf("tries used up %d attempts", now-used)
				}
				h.mend()
				advance(32 * time.Second)
				if !p.Snapshot().Held.IsZero() {
					t.Error("still held after a success")
				}
				advance(15 * time.Minute)
				for _, ev := range all {
					r.wantState("crm", ev, dedup.Done, "")
				}
			})
		})
	}
}

func TestPool_TriesOneEventAtATimeWithManyWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := failing(status(401))
		p := r.start(spec("crm", h)) // 8 workers
		r.publishMany(60)
		settleDown()
		first := len(h.seen())
		if first < 10 || first > 17 {
			t.Errorf("%d calls before it was held", first)
		}
		advance(10 * time.Minute)
		if n := len(h.seen()) - first; n < 18 || n > 21 {
			t.Errorf("%d tries in ten minutes, want 20", n)
		}
		p.Resume() // by hand: all of them, at once
		settleDown()
		if n := len(h.seen()) - first; n < 28 || n > 40 {
			t.Errorf("%d calls after it was resumed, want about 30", n)
		}
	})
}

// What tells only about one event, and one event that fails often, hold nothing.
func TestPool_IsNotHeldWhileItWorksForOthers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var answers []Answer
		for range 4 {
			answers = append(append(answers, repeat(status(401), 9)...), status(400))
			answers = append(append(answers, repeat(status(500), 9)...), Answer{Class: Done})
		}
		h := &script{answers: answers}
		s := spec("crm", h)
		s.Concurrency = 1
		p := r.start(s)
		r.publishMany(80)
		settleDown()
		h.wantCalls(t, 80)
		if !p.Snapshot().Held.IsZero() {
			t.Error("it is held")
		}
	})
	bubble(t, func(t *testing.T, r *rig) {
		h := failing(status(401))
		p := r.start(spec("crm", h))
		r.publishMany(9)
		advance(time.Hour)
		if n := len(h.seen()); n < 30 || !p.Snapshot().Held.IsZero() {
			t.Errorf("nine events: %d calls, held %v", n, p.Snapshot().Held)
		}
	})
}

func TestPool_AnIrrevocableTrialOfUnknownOutcomeIsInDoubt(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := spec("crm", failing(status(500)))
		s.Effect, s.Concurrency = dedup.Irrevocable, 1
		r.start(s)
		all := r.publishMany(20)
		advance(45 * time.Second)
		doubts := 0
		for _, ev := range all {
			if rec, _ := r.record("crm", ev); rec.State == dedup.InDoubt {
				doubts++
			}
		}
		if doubts != 11 {
			t.Errorf("%d events are in doubt, want the ten and the one that was tried", doubts)
		}
	})
}

func TestPool_PausedByHandTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{status(401)}}
		p := r.start(spec("crm", h))
		waiting := newEvent("w")
		r.publish(waiting)
		settleDown()
		p.Pause()
		all := r.publishMany(30)
		advance(5 * time.Minute)
		h.wantCalls(t, 1)
		if s := p.Snapshot(); s.Paused.IsZero() {
			t.Errorf("snapshot %+v", s)
		}
		p.Resume()
		settleDown()
		for _, ev := range append(all, waiting) {
			r.wantState("crm", ev, dedup.Done, "")
		}
		if s := p.Snapshot(); !s.Paused.IsZero() || s.Redelivered != 0 {
			t.Errorf("snapshot %+v", s)
		}
		h.wantCalls(t, 32)
	})
}

func TestPool_StopsWhilePausedOrHeld(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.start(spec("crm", failing(status(401))))
		r.publishMany(20)
		settleDown()
		p.Pause()
		settleDown()
		began := time.Now()
		if err := p.Stop(t.Context()); err != nil || time.Since(began) > 3*time.Second {
			t.Errorf("stop: %v after %v", err, time.Since(began))
		}
	})
}

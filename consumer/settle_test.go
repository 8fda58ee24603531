package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

var errDisk = fmt.Errorf("%w: disk", dedup.ErrUnavailable)

// failing lets the operations that match fail, n times, without or with effect.
func (f *faulty) failing(n int, applied bool, match func(dedup.Op) bool) {
	f.set(func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error) {
		if !match(op) {
			return do()
		}
		f.mu.Lock()
		n--
		fail := n >= 0
		f.mu.Unlock()
		if !fail {
			return do()
		}
		if applied {
			if _, err := do(); err != nil {
				return dedup.Result{}, err
			}
		}
		return dedup.Result{}, errDisk
	})
}

func isOp[T dedup.Op](op dedup.Op) bool {
	_, ok := op.(T)
	return ok
}

// Case 26: an outcome that cannot be written is tried until it can; the run is
// never given up and never repeated. Case 27: it may have been written.
func TestPool_SettleIsTriedUntilItIsWritten(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer Answer
		effect dedup.Effect
		match  func(dedup.Op) bool
		state  dedup.State
		reason string
	}{
		{"commit", Answer{Class: Done}, dedup.Irrevocable, isOp[dedup.Commit], dedup.Done, ""},
		{"defer", status(500), dedup.Retryable, isOp[dedup.Defer], dedup.Waiting, "http-500"},
		{"bury", status(400), dedup.Retryable, isOp[dedup.Bury], dedup.Dead, "http-400"},
		{"doubt", status(500), dedup.Irrevocable, isOp[dedup.Doubt], dedup.InDoubt, "http-500"},
		{"put", status(500), dedup.Idempotent, isOp[dedup.Put], dedup.Waiting, "http-500"},
	} {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s applied=%v", c.name, applied), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					r.store.failing(20, applied, c.match)
					h := &script{answers: []Answer{c.answer}}
					s := spec("crm", h)
					s.Effect = c.effect
					s.Retry = []time.Duration{50 * time.Minute} // far away
					p := r.start(s)
					ev := newEvent("e1")
					seq := r.publish(ev)
					advance(10 * time.Second)
					if s := p.Snapshot(); s.SettledTo >= seq || s.Settling != 1 || s.StoreErrors < 5 || s.Oldest.IsZero() {
						t.Errorf("snapshot while the store is down: %+v", s)
					}
					if rec, _ := r.record("crm", ev); !applied && rec.State != dedup.Started && c.effect != dedup.Idempotent {
						t.Errorf("record while the store is down: %+v", rec)
					}
					advance(5 * time.Minute)
					h.wantCalls(t, 1)
					if rec := r.wantState("crm", ev, c.state, c.reason); rec.Attempts != 1 {
						t.Errorf("record is %+v", rec)
					}
					if s := p.Snapshot(); s.SettledTo != seq || s.Settling != 0 || s.Verdicts["busy"] != 0 {
						t.Errorf("snapshot is %+v", s)
					}
				})
			})
		}
	}
}

// The same for a run that a due retry began.
func TestPool_CommitOfARetryIsTriedUntilItIsWritten(t *testing.T) {
	for _, applied := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *rig) {
			r.store.failing(20, applied, isOp[dedup.Commit])
			h := &script{answers: []Answer{status(500), {Class: Done}}}
			s := spec("crm", h)
			s.Retry = []time.Duration{time.Minute}
			p := r.start(s)
			ev := newEvent("e1")
			r.publish(ev)
			advance(70 * time.Second)
			if rec, _ := r.record("crm", ev); !applied && rec.State != dedup.Started {
				t.Errorf("record while the store is down: %+v", rec)
			}
			advance(5 * time.Minute)
			h.wantCalls(t, 2)
			if rec := r.wantState("crm", ev, dedup.Done, ""); rec.Attempts != 2 {
				t.Errorf("record is %+v", rec)
			}
			if s := p.Snapshot(); s.StoreErrors < 5 || s.Settling != 0 {
				t.Errorf("snapshot is %+v", s)
			}
		})
	}
}

// The same for the copy: without it the record stays as it was.
func TestPool_RecordWaitsForItsCopy(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h := &script{answers: []Answer{status(400)}}
		p := r.start(spec("crm", h))
		ev := newEvent("e1")
		// An event over the queue's bound cannot be copied at all.
		h.do = func(_ context.Context, a *Attempt) { a.Event.Body = make([]byte, 8<<20) }
		r.publish(ev)
		advance(30 * time.Second)
		r.wantState("crm", ev, dedup.Started, "")
		if s := p.Snapshot(); s.ParkErrors < 5 || s.SettledTo != 0 || s.Buried != 0 {
			t.Errorf("snapshot is %+v", s)
		}
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop: %v", err)
		}
		h.wantCalls(t, 1)
	})
}

// Cases 13, 14: who has lost the claim changes nothing and acks nothing; the
// delivery comes again and is a duplicate.
func TestPool_FencedWorkerDoesNothing(t *testing.T) {
	for _, answer := range []Answer{{Class: Done}, status(500), status(400)} {
		t.Run(answer.Class.String()+answer.Reason.Code, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{answers: []Answer{answer}, hold: make(chan struct{})}
				p := r.startWith(Config{Spec: spec("crm", h), AckWait: 30 * time.Second})
				ev := newEvent("e1")
				seq := r.publish(ev)
				settleDown()
				key, old := event.KeyFor(ev, "crm"), h.wantCalls(t, 1)[0].fence
				r.do(key, dedup.Doubt{Fence: old})
				res := r.do(key, dedup.Resolve{Fence: old, To: dedup.ResolveDone, Retain: time.Hour})
				close(h.hold)
				settleDown()
				if rec, _ := r.recordOf(key); rec != res.Record {
					t.Errorf("record is %+v, want %+v", rec, res.Record)
				}
				if r.parked("crm", key) {
					t.Error("a copy is left that no record knows of")
				}
				if s := p.Snapshot(); s.Fenced != 1 || s.SettledTo >= seq {
					t.Errorf("snapshot is %+v", s)
				}
				advance(time.Minute)
				h.wantCalls(t, 1)
				if s := p.Snapshot(); s.Verdicts["done"] != 1 || s.SettledTo != seq {
					t.Errorf("snapshot after the redelivery is %+v", s)
				}
			})
		})
	}
}

// Case 61, R25 "refuse": nothing runs while the store does not answer; what was
// delivered comes again in 30 s.
func TestPool_RefuseRunsNothingWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		down := true
		r.store.set(func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error) {
			if down && isOp[dedup.Acquire](op) {
				return dedup.Result{}, errDisk
			}
			return do()
		})
		h := &script{}
		s := spec("crm", h)
		s.Effect = dedup.Irrevocable
		p := r.start(s)
		for i := range 50 {
			r.publish(newEvent(string(rune('A' + i))))
		}
		advance(10*time.Minute + time.Second)
		h.wantCalls(t, 0)
		snap := p.Snapshot()
		if !snap.StoreDown || snap.GivenBack == 0 || snap.StoreErrors > 100 || snap.SettledTo != 0 {
			t.Errorf("snapshot is %+v", snap)
		}
		r.store.mu.Lock()
		down = false
		r.store.mu.Unlock()
		advance(2 * time.Minute)
		h.wantCalls(t, 50)
		if s := p.Snapshot(); s.StoreDown || s.SettledTo != 50 {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

// R25 "allow": runs go on without a claim; success is acked, failure comes again.
func TestPool_AllowRunsWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.store.failing(1<<30, false, isOp[dedup.Acquire])
		h := &script{answers: []Answer{{Class: Done}, status(400)}}
		s := spec("crm", h)
		s.StoreUnavailable = Allow
		p := r.start(s)
		r.publish(newEvent("e1"))
		settleDown()
		r.publish(newEvent("e2"))
		settleDown()
		calls := h.wantCalls(t, 2)
		if calls[0].fence != 0 {
			t.Errorf("attempt was %+v", calls[0])
		}
		advance(40 * time.Second)
		calls = h.wantCalls(t, 3)
		if d := calls[2].at.Sub(calls[1].at); calls[2].event != "e2" || d < 29*time.Second {
			t.Errorf("attempt was %+v, after %v", calls[2], d)
		}
		if s := p.Snapshot(); s.Unclaimed != 2 || s.GivenBack != 1 || s.SettledTo != 2 || s.StoreDown {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

// A grant that the store made without saying so is given back, from a first
// delivery and from a due run, also when a copy has found the key busy
// meanwhile: else nobody would ever run it.
func TestPool_LostGrantIsReclaimed(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  []Answer
		copies int
	}{
		{"first delivery", nil, 0},
		{"first delivery and a copy", nil, 1},
		{"due run", []Answer{status(401)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{answers: c.first}
				s := spec("crm", h)
				s.Effect = dedup.Irrevocable
				p := r.start(s)
				ev := newEvent("e1")
				if c.first == nil {
					r.store.failing(1, true, isOp[dedup.Acquire])
				}
				r.publish(ev)
				advance(2 * time.Second)
				r.store.set(nil)
				if c.first != nil {
					r.store.failing(1, true, isOp[dedup.Acquire])
				}
				for range c.copies {
					r.publish(ev)
				}
				advance(2 * time.Minute)
				h.wantCalls(t, len(c.first)+1)
				r.wantState("crm", ev, dedup.Done, "")
				if s := p.Snapshot(); s.LostGrants != 1 || s.SettledTo != uint64(1+c.copies) {
					t.Errorf("snapshot is %+v", s)
				}
			})
		})
	}
}

// A claim is reclaimed only while no worker of the pool is about to run it.
func TestPool_ReclaimLeavesAGrantToItsWorker(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p := r.start(spec("crm", &script{}))
		ev := newEvent("e1")
		key := event.KeyFor(ev, "crm")
		p.claims.enter(key.Tuple) // a worker asks
		p.claims.setLost(key, true)
		r.grant(key, dedup.Irrevocable, 1)
		advance(2 * time.Minute)
		r.wantState("crm", ev, dedup.Started, "")
		p.claims.leave(key.Tuple)
		advance(2 * time.Minute)
		if rec, _ := r.recordOf(key); rec.State == dedup.Started || p.claims.anyLost() {
			t.Errorf("a grant that nobody runs stays: %+v", rec)
		}
	})
}

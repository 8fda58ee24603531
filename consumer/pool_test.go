package consumer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// advance lets d pass in a bubble.
func advance(d time.Duration) { time.Sleep(d) }

// settleDown lets everything happen that happens at once.
func settleDown() { advance(time.Second) }

// bubble runs f with a rig in virtual time.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

func TestPool_RunsAnEventOnceAndSettlesIt(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		p := r.start(spec("crm", h))
		ev := newEvent("e1")
		seq := r.publish(ev)
		settleDown()
		c := h.wantCalls(t, 1)[0]
		key := event.KeyFor(ev, "crm")
		if c.event != "e1" || c.run != key.RunID() || c.number != 1 || c.origin != event.OriginCallback {
			t.Errorf("attempt was %+v", c)
		}
		rec := r.wantState("crm", ev, dedup.Done, "")
		if rec.Fence != c.fence || rec.Attempts != 1 || rec.Seq != seq || rec.Outcome != dedup.OutcomeDone {
			t.Errorf("record is %+v", rec)
		}
		if s := p.Snapshot(); s.SettledTo != seq || s.Runs["done"] != 1 || s.Verdicts["granted"] != 1 || s.InFlight != 0 || !s.Oldest.IsZero() {
			t.Errorf("snapshot is %+v", s)
		}
		time.Sleep(5 * time.Minute) // it was acked: it does not come again
		h.wantCalls(t, 1)
		if s := p.Snapshot(); s.Verdicts["done"] != 0 {
			t.Errorf("it was delivered again: %+v", s.Verdicts)
		}
	})
}

// Show 4: each attempt 0 to +10 % after its delay, just before it nothing, then
// a dead letter with its reason, which a retry by hand runs once.
func TestPool_RetriesAfterEachDelayThenBuries(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: repeat(status(500), 5)}
		r.start(spec("crm", h))
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		for i, delay := range DefaultRetry() {
			last := h.wantCalls(t, i+1)[i].at
			if rec := r.wantState("crm", ev, dedup.Waiting, "http-500"); rec.Attempts != uint32(i+1) || rec.Parked {
				t.Fatalf("record after attempt %d: %+v", i+1, rec)
			}
			time.Sleep(time.Until(last.Add(delay - time.Nanosecond)))
			synctest.Wait()
			h.wantCalls(t, i+1)
			time.Sleep(delay/10 + time.Second)
			c := h.wantCalls(t, i+2)[i+1]
			if got := c.at.Sub(last); got < delay || got > delay+delay/10+50*time.Millisecond || c.number != i+2 {
				t.Errorf("attempt %d came %v after the one before, want %v to +10 %%", c.number, got, delay)
			}
		}
		rec := r.wantState("crm", ev, dedup.Dead, "http-500")
		if rec.Attempts != 5 || !rec.Parked || rec.Reason.Detail != "answered 500 Internal Server Error, after 5 attempts" {
			t.Errorf("record is %+v", rec)
		}
		if !r.parked("crm", rec.Key) {
			t.Error("a dead letter without a copy")
		}
		time.Sleep(time.Hour)
		calls := h.wantCalls(t, 5)

		// Case 76: same key, new fence, attempts counted anew.
		r.do(rec.Key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveRetry, Reason: dedup.Reason{Code: dedup.ReasonOperator}})
		settleDown()
		c := h.wantCalls(t, 6)[5]
		if c.number != 1 || c.run != calls[0].run || c.fence <= calls[4].fence {
			t.Errorf("retry by hand was %+v", c)
		}
		r.wantState("crm", ev, dedup.Done, "")
		if r.parked("crm", rec.Key) {
			t.Error("the copy of a run that is done is still there")
		}
	})
}

// An answer that says nothing about the event does not use up its attempts: it
// is tried again, at the last delay, until the replay limit.
func TestPool_EndlessAnswerEndsAtTheReplayLimit(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: repeat(status(404), 1000)}
		s := spec("crm", h)
		s.ReplayLimit = time.Hour
		r.start(s)
		ev := newEvent("e1")
		r.publish(ev)
		time.Sleep(40 * time.Minute)
		if rec := r.wantState("crm", ev, dedup.Waiting, "http-404"); rec.Attempts != 0 {
			t.Errorf("%d attempts are used up", rec.Attempts)
		}
		if n := len(h.seen()); n < 6 {
			t.Errorf("%d attempts in 40 minutes", n)
		}
		time.Sleep(30 * time.Minute)
		rec := r.wantState("crm", ev, dedup.Dead, "http-404")
		wantContains(t, rec.Reason.Detail, "replay limit of 1h0m0s")
		last := h.seen()[len(h.seen())-1].at
		if age := last.Sub(rec.FirstSeen.Std()); age > time.Hour {
			t.Errorf("an attempt was made %v after the event was first seen", age)
		}
	})
}

// Cases 1 to 4: a copy of an event that is running, waits, is done, in doubt or
// dead is counted, acked and not run, and uses up no attempt.
func TestPool_DuplicatesAreSuppressedInEveryState(t *testing.T) {
	for _, c := range []struct {
		verdict string
		answer  Answer
		effect  dedup.Effect
		state   dedup.State
		reason  string
	}{
		{"busy", Answer{}, dedup.Retryable, dedup.Started, ""},
		{"done", Answer{Class: Done}, dedup.Retryable, dedup.Done, ""},
		{"waiting", status(500), dedup.Retryable, dedup.Waiting, "http-500"},
		{"in_doubt", status(500), dedup.Irrevocable, dedup.InDoubt, "http-500"},
		{"dead", status(400), dedup.Retryable, dedup.Dead, "http-400"},
	} {
		t.Run(c.verdict, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{answers: []Answer{c.answer}}
				if c.state == dedup.Started {
					h.hold = make(chan struct{})
					defer close(h.hold)
				}
				s := spec("crm", h)
				s.Effect = c.effect
				p := r.start(s)
				ev := newEvent("e1")
				r.publish(ev)
				settleDown()
				var last uint64
				for range 100 {
					last = r.publish(ev)
				}
				settleDown()
				h.wantCalls(t, 1)
				rec := r.wantState("crm", ev, c.state, c.reason)
				if rec.Attempts > 1 || rec.Seq != 1 {
					t.Errorf("record is %+v", rec)
				}
				snap := p.Snapshot()
				if snap.Verdicts[c.verdict] != 100 {
					t.Errorf("verdicts are %v", snap.Verdicts)
				}
				want := last
				if c.state == dedup.Started {
					want = 0 // the first delivery is open
				}
				if snap.SettledTo != want {
					t.Errorf("settled to %d, want %d", snap.SettledTo, want)
				}
			})
		})
	}
}

// Case 3: all copies at once.
func TestPool_AHundredCopiesAtOnceRunOnce(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ev, h := newEvent("e1"), &script{}
		s := spec("crm", h)
		s.Concurrency = 32
		p := r.start(s)
		for range 100 {
			go func() {
				if _, err := r.queue.Publish(t.Context(), ev); err != nil {
					t.Error(err)
				}
			}()
		}
		settleDown()
		h.wantCalls(t, 1)
		snap := p.Snapshot()
		if snap.Verdicts["granted"] != 1 || snap.Verdicts["busy"]+snap.Verdicts["done"] != 99 || snap.SettledTo != 100 {
			t.Errorf("snapshot is %+v", snap)
		}
	})
}

// Case 5, show 5: handlers do not influence each other, and one that is added
// later begins with the next event (case 78).
func TestPool_HandlersAreIndependent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		good, bad, late := &script{}, &script{answers: repeat(status(400), 10)}, &script{}
		r.start(spec("good", good))
		r.start(spec("bad", bad))
		first := newEvent("e1")
		r.publish(first)
		settleDown()
		r.start(spec("late", late))
		second := newEvent("e2")
		r.publish(second)
		settleDown()
		good.wantCalls(t, 2)
		bad.wantCalls(t, 2)
		if c := late.wantCalls(t, 1)[0]; c.event != "e2" {
			t.Errorf("the late handler got %+v", c)
		}
		r.wantState("good", first, dedup.Done, "")
		r.wantState("bad", first, dedup.Dead, "http-400")
		r.wantState("late", first, dedup.Free, "")
	})
}

// Case 24: a stop lets running attempts end within their time.
func TestPool_StopWaitsForRunningAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{hold: make(chan struct{})}
		p := r.start(spec("crm", h))
		ev, next := newEvent("e1"), newEvent("e2")
		r.publish(ev)
		settleDown()
		time.AfterFunc(10*time.Second, func() { close(h.hold) })
		began := time.Now()
		if err := p.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 10*time.Second || took > 10*time.Second+lastSave { // and the last acks
			t.Errorf("stop took %v", took)
		}
		r.wantState("crm", ev, dedup.Done, "")
		r.publish(next)
		settleDown()
		h.wantCalls(t, 1)
		if err := p.Stop(t.Context()); err != nil {
			t.Errorf("second stop: %v", err)
		}
	})
}

// Case 24: what does not end in time keeps its claim, and the next start treats
// it like a crash.
func TestPool_StopThatIsCutLeavesClaims(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{hold: make(chan struct{})}
		defer close(h.hold)
		p := r.start(spec("crm", h))
		ev := newEvent("e1")
		seq := r.publish(ev)
		settleDown()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("stop: %v", err)
		}
		r.wantState("crm", ev, dedup.Started, "")
		if s := p.Snapshot(); s.SettledTo >= seq || s.Runs["unknown"] != 0 {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

func TestPool_StopBeforeRun(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		p, err := NewPool(t.Context(), Config{Spec: spec("crm", &script{}), Queue: r.queue, Store: r.store, Logger: r.log})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := p.Run(t.Context()); err != nil {
			t.Errorf("run after stop: %v", err)
		}
	})
}

func TestPool_StartStopStress(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		for i := range 20 {
			r.publish(newEvent(string(rune('a' + i))))
			p, err := NewPool(t.Context(), Config{Spec: spec("crm", h), Queue: r.queue, Store: r.store, Logger: r.log})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.Run(t.Context()) }()
			if i%2 == 0 {
				settleDown()
			}
			for range 3 {
				go func() {
					if err := p.Stop(context.Background()); err != nil {
						t.Error(err)
					}
				}()
			}
			if err := p.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		r.start(spec("crm", h))
		settleDown()
		h.wantCalls(t, 19) // all but the first, which came before the handler
	})
}

// A worker is free once its answer is classified: while a commit waits for the
// disk the next event runs, up to the bound.
func TestPool_WaitingCommitsDoNotHoldWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		release := make(chan struct{})
		r.store.set(func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error) {
			if _, ok := op.(dedup.Commit); ok {
				<-release
			}
			return do()
		})
		h := &script{}
		s := spec("crm", h)
		s.Concurrency = 1
		p := r.start(s)
		for i := range 10 {
			r.publish(newEvent(string(rune('a' + i))))
		}
		settleDown()
		h.wantCalls(t, 4+1) // four commits wait, the fifth run waits for a place
		close(release)
		settleDown()
		h.wantCalls(t, 10)
		if s := p.Snapshot(); s.SettledTo != 10 || s.Settling != 0 {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

// Open deliveries are marked: an attempt that is longer than AckWait is not
// delivered again.
func TestPool_LongAttemptIsNotDeliveredAgain(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{hold: make(chan struct{})}
		s := spec("crm", h)
		s.Timeout = 10 * time.Minute
		p := r.startWith(Config{Spec: s, AckWait: 9 * time.Second})
		ev := newEvent("e1")
		r.publish(ev)
		time.Sleep(5 * time.Minute)
		if s := p.Snapshot(); s.Verdicts["busy"] != 0 || s.InFlight != 1 || s.Redelivered != 0 {
			t.Errorf("snapshot is %+v", s)
		}
		close(h.hold)
		settleDown()
		h.wantCalls(t, 1)
		r.wantState("crm", ev, dedup.Done, "")
	})
}

func TestPool_RefusesASpecThatIsNotValid(t *testing.T) {
	s := spec("crm", &script{})
	s.Effect, s.StoreUnavailable = dedup.Irrevocable, Allow
	_, err := NewPool(t.Context(), Config{Spec: s})
	if err == nil {
		t.Fatal("no error")
	}
	wantContains(t, err.Error(), "crm", "store_unavailable", "twice")
}

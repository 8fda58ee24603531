package consumer

import (
	"context"
	"net/http"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// duplicates gives the records of the duplicates of ev, which had at crm.
func (r *rig) duplicates(ev *event.Event, handler string, numbers ...uint64) []dedup.Record {
	r.t.Helper()
	var all []dedup.Record
	for _, n := range numbers {
		if rec, found := r.recordOf(event.DuplicateKey(ev, handler, "crm", n)); found {
			all = append(all, rec)
		}
	}
	return all
}

// R43: a duplicate of a run that is done becomes a dead letter with the reason,
// each arrival one of its own, up to the bound.
func TestPool_DuplicatesAreDeadLetters(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		s := spec("crm", h)
		s.OnDuplicate = OnDuplicateDead
		p := r.start(s)
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		for range MaxDuplicates + 2 {
			r.publish(ev)
			settleDown()
		}
		h.wantCalls(t, 1)
		recs := r.duplicates(ev, "crm", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		if len(recs) != MaxDuplicates {
			t.Fatalf("%d records, want %d", len(recs), MaxDuplicates)
		}
		for i, rec := range recs {
			if rec.State != dedup.Dead || rec.Reason.Code != dedup.ReasonDuplicate || rec.Seq != uint64(i+2) || !r.parked("crm", rec.Key) {
				t.Errorf("duplicate %d is %+v", i+1, rec)
			}
		}
		if snap := p.Snapshot(); snap.Duplicates != MaxDuplicates || snap.DupsOver != 2 || snap.SettledTo != MaxDuplicates+3 {
			t.Errorf("snapshot %+v", snap)
		}
		// By hand one runs, under its own key and saying what it is.
		r.do(recs[0].Key, dedup.Resolve{Fence: recs[0].Fence, To: dedup.ResolveRetry})
		settleDown()
		if c := h.wantCalls(t, 2)[1]; c.run != recs[0].Key.RunID() {
			t.Errorf("attempt was %+v", c)
		}
	})
}

// R43: the compensating handler gets one run for each duplicate, with what it
// duplicates; a delivery that comes again is not one more.
func TestPool_DuplicatesRunTheCompensatingHandler(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var headers []http.Header
		undo := &script{do: func(_ context.Context, a *Attempt) {
			h := http.Header{}
			setEventHeaders(h, a)
			headers = append(headers, h)
		}}
		h := &script{}
		s := spec("crm", h)
		s.OnDuplicate = OnDuplicateHandler + "undo"
		r.start(s)
		c := spec("undo", undo)
		c.DuplicatesOnly, c.Concurrency = true, 1
		r.start(c)
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		undo.wantCalls(t, 0)
		r.publish(ev)
		r.publish(ev)
		settleDown()
		h.wantCalls(t, 1)
		undo.wantCalls(t, 2)
		rec := r.wantState("crm", ev, dedup.Done, "")
		for _, got := range headers {
			if got.Get("Idemd-Duplicate-Of") != rec.Key.RunID() || got.Get("Idemd-Duplicate-State") != "done" ||
				got.Get("Idemd-Duplicate-Committed") != rec.Committed.Std().Format(time.RFC3339Nano) || got.Get("Ce-Id") != ev.ID() {
				t.Errorf("headers %v", got)
			}
		}
		if recs := r.duplicates(ev, "undo", 2, 3); len(recs) != 2 || recs[0].State != dedup.Done || recs[1].State != dedup.Done {
			t.Errorf("records %+v", recs)
		}
	})
}

// What a crash between the record and the ack makes of it: the same delivery
// again, which must not be one more duplicate. And the delivery that was run is
// no duplicate of itself.
func TestPool_ARedeliveryIsNoFurtherDuplicate(t *testing.T) {
	for _, policy := range []OnDuplicate{OnDuplicateDead, OnDuplicateHandler + "undo"} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				s := spec("crm", &script{})
				s.OnDuplicate = policy
				ev := newEvent("e1")
				if _, err := r.bolt.Begin(t.Context(), "crm", 1); err != nil {
					t.Fatal(err)
				}
				first, second := r.publish(ev), r.publish(ev)
				for range 3 { // each pool gets both deliveries: nothing of the progress was saved
					p, err := NewPool(t.Context(), Config{Spec: s, Queue: r.queue, Store: r.store, Logger: r.log})
					if err != nil {
						t.Fatal(err)
					}
					for _, seq := range []uint64{first, second} {
						one := newEvent("e1")
						run := &run{ev: one, key: event.KeyFor(one, "crm"), seq: seq, delivered: true}
						p.runClaimed(t.Context(), run)
						p.drain()
						p.slots = make(chan struct{}, cap(p.slots))
					}
					if err := p.Stop(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				n := len(r.duplicates(ev, "crm", 1, 2, 3, 4, 5)) + len(r.duplicates(ev, "undo", first, second))
				if n != 1 {
					t.Errorf("%d records of duplicates, want 1", n)
				}
			})
		})
	}
}

// What comes while the run is not over, what an operator or reconciliation
// brings, is suppressed as ever.
func TestPool_OnlyDeliveriesOfADoneRunAreDuplicates(t *testing.T) {
	p := &Pool{spec: Spec{OnDuplicate: OnDuplicateDead}}
	done := dedup.Result{Verdict: dedup.AlreadyDone, Record: dedup.Record{Seq: 1}}
	callback, found := newEvent("e1"), newEvent("e1")
	found.Origin = event.OriginReconcile
	for _, c := range []struct {
		name string
		r    run
		res  dedup.Result
		want bool
	}{
		{"another delivery", run{ev: callback, seq: 2, delivered: true}, done, true},
		{"the same delivery", run{ev: callback, seq: 1, delivered: true}, done, false},
		{"a due record", run{ev: callback, seq: 2}, done, false},
		{"reconciled", run{ev: found, seq: 2, delivered: true}, done, false},
		{"busy", run{ev: callback, seq: 2, delivered: true}, dedup.Result{Verdict: dedup.Busy}, false},
		{"waiting", run{ev: callback, seq: 2, delivered: true}, dedup.Result{Verdict: dedup.NotYet}, false},
		{"dead", run{ev: callback, seq: 2, delivered: true}, dedup.Result{Verdict: dedup.Buried}, false},
	} {
		if got := p.isDuplicate(&c.r, &c.res); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	p.spec.OnDuplicate = OnDuplicateDrop
	if p.isDuplicate(&run{ev: callback, seq: 2, delivered: true}, &done) {
		t.Error("drop makes a record")
	}
}

func TestSpec_OnDuplicate(t *testing.T) {
	for _, c := range []struct {
		policy OnDuplicate
		effect dedup.Effect
		bad    bool
	}{
		{"", dedup.Idempotent, false},
		{OnDuplicateDrop, dedup.Idempotent, false},
		{OnDuplicateDead, dedup.Idempotent, true},
		{OnDuplicateDead, dedup.Irrevocable, false},
		{"handler:undo", dedup.Retryable, false},
		{"handler:undo", dedup.Idempotent, true},
		{"handler:crm", dedup.Retryable, true},
		{"handler:", dedup.Retryable, true},
		{"undo", dedup.Retryable, true},
	} {
		s := spec("crm", &script{})
		s.OnDuplicate, s.Effect = c.policy, c.effect
		problems := s.Validate()
		if (len(problems) > 0) != c.bad || c.bad && problems[0].Field != "on_duplicate" {
			t.Errorf("%q, %s: %v", c.policy, c.effect, problems)
		}
	}
}

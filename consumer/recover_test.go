package consumer

import (
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

func TestStartSeq(t *testing.T) {
	for _, c := range []struct{ first, settled, last, want uint64 }{
		{1, 0, 0, 1},     // new handler, empty queue
		{11, 0, 10, 11},  // new handler begins at "now"
		{11, 0, 20, 11},  // nothing settled yet
		{11, 15, 20, 16}, // goes on
		{11, 20, 20, 21}, // all settled
		{11, 15, 12, 13}, // the queue is older than the progress
		{11, 0, 5, 6},    // older than the handler's beginning
		{1, 100, 0, 1},   // the queue is empty
	} {
		if got := StartSeq(dedup.Progress{FirstSeq: c.first, SettledTo: c.settled}, c.last); got != c.want {
			t.Errorf("StartSeq(%d, %d; %d) = %d, want %d", c.first, c.settled, c.last, got, c.want)
		}
	}
}

// Cases 11, 12: what a dead process held is settled by its effect, from a first
// delivery and from a due run, before anything runs.
func TestRecover_SettlesRunsOfADeadProcess(t *testing.T) {
	tests := []struct {
		name     string
		effect   dedup.Effect
		attempts int  // finished before the one that was cut
		stored   bool // the queue has the event
		handler  string
		want     dedup.State
		reason   string
		parked   bool
		after    dedup.State // when the pool has run
	}{
		{"irrevocable", dedup.Irrevocable, 0, true, "crm", dedup.InDoubt, dedup.ReasonOwnerGone, true, dedup.InDoubt},
		{"irrevocable, due", dedup.Irrevocable, 2, true, "crm", dedup.InDoubt, dedup.ReasonOwnerGone, true, dedup.InDoubt},
		{"irrevocable, event gone", dedup.Irrevocable, 0, false, "crm", dedup.InDoubt, dedup.ReasonOwnerGone, false, dedup.InDoubt},
		{"retryable", dedup.Retryable, 0, true, "crm", dedup.Waiting, dedup.ReasonOwnerGone, false, dedup.Done},
		{"retryable, due", dedup.Retryable, 2, true, "crm", dedup.Waiting, dedup.ReasonOwnerGone, false, dedup.Done},
		{"retryable, exhausted", dedup.Retryable, 4, true, "crm", dedup.Dead, dedup.ReasonExhausted, true, dedup.Dead},
		{"retryable, event gone", dedup.Retryable, 0, false, "crm", dedup.Waiting, dedup.ReasonOwnerGone, false, dedup.Dead},
		{"handler gone", dedup.Retryable, 0, true, "old", dedup.Waiting, dedup.ReasonOwnerGone, false, dedup.Waiting},
		{"handler gone, irrevocable", dedup.Irrevocable, 0, true, "old", dedup.InDoubt, dedup.ReasonOwnerGone, true, dedup.InDoubt},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				ev := newEvent("e1")
				seq := uint64(999)
				if c.stored {
					seq = r.publish(ev)
				}
				key := event.KeyFor(ev, c.handler)
				fence := r.grant(key, c.effect, seq)
				for range c.attempts {
					r.do(key, dedup.Defer{Fence: fence, Counts: true})
					fence = r.grant(key, c.effect, seq)
				}
				h := &script{}
				s := spec("crm", h)
				s.Effect = c.effect
				r.restart()
				began := time.Now()
				recovery := Recovery{Store: r.store, Queue: r.queue, Specs: []Spec{s}, Logger: r.log}
				for range 2 { // a second pass finds nothing
					if err := Recover(t.Context(), recovery); err != nil {
						t.Fatal(err)
					}
				}
				rec := r.wantState(c.handler, ev, c.want, c.reason)
				if rec.Attempts != uint32(c.attempts+1) || rec.Parked != c.parked || r.parked(c.handler, key) != c.parked || rec.Fence != fence {
					t.Errorf("record is %+v, want fence %v", rec, fence)
				}
				if c.want == dedup.Waiting {
					want := DefaultRetry()[c.attempts]
					if d := rec.Due.Std().Sub(began); d < want || d > want+want/10 {
						t.Errorf("it is due after %v, want %v to +10 %%", d, want)
					}
				}
				r.start(s)
				advance(5 * time.Minute)
				if rec, _ := r.recordOf(key); rec.State != c.after {
					t.Errorf("in the end the record is %+v", rec)
				}
				if c.after != dedup.Done {
					h.wantCalls(t, 0)
				} else if call := h.wantCalls(t, 1)[0]; call.number != c.attempts+2 || call.run != key.RunID() || call.fence <= fence {
					t.Errorf("the next attempt was %+v", call)
				}
			})
		})
	}
}

func (r *rig) grant(key event.Key, effect dedup.Effect, seq uint64) dedup.Fence {
	r.t.Helper()
	res := r.do(key, dedup.Acquire{Effect: effect, Owner: dedup.InProc, Seq: seq, Origin: event.OriginCallback})
	if res.Verdict != dedup.Granted {
		r.t.Fatalf("verdict %v", res.Verdict)
	}
	return res.Record.Fence
}

// A run that is still held in this process, or by somebody outside, is not
// touched.
func TestRecover_LeavesTheLivingAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ev, outside := newEvent("e1"), newEvent("e2")
		fence := r.grant(event.KeyFor(ev, "crm"), dedup.Retryable, 1)
		r.do(event.KeyFor(outside, "crm"), dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.External, Lease: time.Hour, Seq: 1})
		if err := Recover(t.Context(), Recovery{Store: r.store, Queue: r.queue, Logger: r.log}); err != nil {
			t.Fatal(err)
		}
		if rec := r.wantState("crm", ev, dedup.Started, ""); rec.Fence != fence {
			t.Errorf("record is %+v", rec)
		}
		r.wantState("crm", outside, dedup.Started, "")
	})
}

// A claim that somebody outside holds ends with its lease.
func TestPool_EndedLeaseOfAnExternalOwnerIsSettled(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := spec("crm", &script{})
		s.Sources = []string{"wecom"}
		r.start(s)
		once, again := newEvent("once"), newEvent("again")
		for _, c := range []struct {
			ev     *event.Event
			effect dedup.Effect
		}{{once, dedup.Irrevocable}, {again, dedup.Retryable}} {
			other := *c.ev
			other.Source = "elsewhere" // so that the pool has no delivery of its own to it
			r.do(event.KeyFor(&other, "crm"), dedup.Acquire{
				Effect: c.effect, Owner: dedup.External, Lease: time.Minute, Seq: r.publish(&other), Origin: other.Origin,
			})
			*c.ev = other
		}
		advance(59 * time.Second)
		r.wantState("crm", once, dedup.Started, "")
		advance(2 * time.Second)
		r.wantState("crm", once, dedup.InDoubt, dedup.ReasonOwnerGone)
		r.wantState("crm", again, dedup.Waiting, dedup.ReasonOwnerGone)
		advance(time.Minute)
		r.wantState("crm", again, dedup.Done, "")
	})
}

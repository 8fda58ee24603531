package consumer

import (
	"context"
	"strings"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

func boom(context.Context, *Attempt) { panic("secret payload") }

// Cases 12, 23, 28: an attempt that nobody knows the outcome of is never
// repeated for an irrevocable handler, and repeated under the same key for a
// retryable one. Case 25: a panic is such an attempt.
func TestPool_UnknownOutcomeGoesByEffect(t *testing.T) {
	unknown := Answer{Class: Unknown, Reason: dedup.Reason{Code: "timeout"}}
	for _, c := range []struct {
		name   string
		effect dedup.Effect
		h      *script
		reason string
		calls  int
	}{
		{"irrevocable", dedup.Irrevocable, &script{answers: []Answer{unknown}}, "timeout", 1},
		{"irrevocable panics", dedup.Irrevocable, &script{do: boom}, "panic", 1},
		{"retryable", dedup.Retryable, &script{answers: []Answer{unknown}}, "", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				s := spec("crm", c.h)
				s.Effect = c.effect
				p := r.start(s)
				ev := newEvent("e1")
				r.publish(ev)
				advance(30 * time.Minute)
				calls := c.h.wantCalls(t, c.calls)
				if c.calls == 2 {
					r.wantState("crm", ev, dedup.Done, "")
					if calls[0].run != calls[1].run || calls[1].number != 2 || calls[1].fence <= calls[0].fence {
						t.Errorf("attempts were %+v", calls)
					}
					return
				}
				rec := r.wantState("crm", ev, dedup.InDoubt, c.reason)
				if rec.Attempts != 1 || rec.Fence != calls[0].fence || !rec.Parked || !r.parked("crm", rec.Key) {
					t.Errorf("record is %+v", rec)
				}
				if s := p.Snapshot(); s.Doubted != 1 || s.Runs["unknown"] != 1 || s.LastReason.Code != c.reason || s.SettledTo != 1 {
					t.Errorf("snapshot is %+v", s)
				}
			})
		})
	}
}

// An answer that says that nothing happened is repeated for an irrevocable
// handler as well; Permanent is a dead letter at once.
func TestPool_IrrevocableIsRepeatedOnlyWithoutEffect(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{status(401), {Class: NoEffect}, status(422)}}
		s := spec("crm", h)
		s.Effect = dedup.Irrevocable
		r.start(s)
		ev := newEvent("e1")
		r.publish(ev)
		advance(time.Hour)
		h.wantCalls(t, 3)
		if rec := r.wantState("crm", ev, dedup.Dead, "http-422"); rec.Attempts != 2 { // 401 is none
			t.Errorf("record is %+v", rec)
		}
	})
}

func TestPool_EventOfAnotherTypeLeavesNoRecord(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		s := spec("crm", h)
		s.Types = []string{"change_contact.update_*", "message.text"}
		p := r.start(s)
		ev := newEvent("e1")
		seq := r.publish(ev)
		wanted := newEvent("e2")
		wanted.Type = "change_contact.update_user"
		r.publish(wanted)
		settleDown()
		if c := h.wantCalls(t, 1)[0]; c.event != "e2" {
			t.Errorf("attempt was %+v", c)
		}
		r.wantState("crm", ev, dedup.Free, "")
		if s := p.Snapshot(); s.Filtered != 1 || s.SettledTo != seq+1 {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

// Cases 87, 95: what cannot be told apart, read or kept is parked unseen, with a
// copy, once; a retry by hand runs it.
func TestPool_ParksUnseen(t *testing.T) {
	oversize, unparsed, unkeyed := newEvent(strings.Repeat("x", event.MaxID+1)), newEvent("e1"), newEvent("null")
	unparsed.Type = event.TypeUnparsed
	for _, c := range []struct {
		reason string
		ev     *event.Event
		effect dedup.Effect
		types  []string
	}{
		{dedup.ReasonOversize, oversize, dedup.Retryable, nil},
		{dedup.ReasonOversize, oversize, dedup.Idempotent, nil},
		{dedup.ReasonUnparsed, unparsed, dedup.Retryable, []string{"message.text"}},
		{dedup.ReasonUnparsed, unparsed, dedup.Retryable, []string{"*"}},
		{dedup.ReasonUnkeyed, unkeyed, dedup.Irrevocable, nil},
	} {
		t.Run(c.reason+" "+c.effect.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{}
				s := spec("crm", h)
				s.Effect, s.Types = c.effect, c.types
				p := r.start(s)
				c.ev.Received = time.Now()
				r.publish(c.ev)
				r.publish(c.ev)
				settleDown()
				h.wantCalls(t, 0)
				rec := r.wantState("crm", c.ev, dedup.Dead, c.reason)
				if !rec.Parked || !r.parked("crm", rec.Key) || rec.Seq == 0 {
					t.Errorf("record is %+v", rec)
				}
				if s := p.Snapshot(); s.Buried != 1 || s.SettledTo != 2 {
					t.Errorf("snapshot is %+v", s)
				}
				r.do(rec.Key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveRetry})
				settleDown()
				h.wantCalls(t, 1)
				r.wantState("crm", c.ev, dedup.Done, "")
			})
		})
	}
}

// Case 87: events without an id run each for itself where a second run is
// bearable, and one that could not be parsed runs where it is listed by name.
func TestPool_RunsUnkeyedAndListedUnparsedEvents(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		s := spec("crm", h)
		s.Types = []string{event.TypeUnparsed, "change_contact.*"}
		r.start(s)
		unparsed := newEvent("e1")
		unparsed.Type = event.TypeUnparsed
		r.publish(unparsed)
		r.publish(newEvent(""))
		r.publish(newEvent("0"))
		settleDown()
		h.wantCalls(t, 3)
	})
}

func withBody(ev *event.Event, body string) *event.Event {
	other := *ev
	other.Body = []byte(body)
	other.Fingerprint = event.NewFingerprintRules(nil).Of(other.Body)
	return &other
}

// Case 101: another payload under a known id is neither run nor dropped in
// silence, and its repeats are duplicates of it.
func TestPool_MismatchByPolicy(t *testing.T) {
	for _, policy := range []OnMismatch{MismatchPark, MismatchDrop} {
		t.Run(string(policy), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{}
				s := spec("crm", h)
				s.OnMismatch = policy
				p := r.start(s)
				first := withBody(newEvent("e1"), `{"a":1}`)
				other := withBody(first, `{"a":2}`)
				r.publish(first)
				settleDown()
				for range 3 {
					r.publish(other)
				}
				settleDown()
				h.wantCalls(t, 1)
				r.wantState("crm", first, dedup.Done, "")
				key := event.MismatchKey(other, "crm")
				rec, found := r.recordOf(key)
				if !found || rec.Reason.Code != dedup.ReasonMismatch || p.Snapshot().SettledTo != 4 {
					t.Fatalf("record is %+v, snapshot %+v", rec, p.Snapshot())
				}
				if policy == MismatchDrop {
					if rec.State != dedup.Done || rec.Outcome != dedup.OutcomeDropped || r.parked("crm", key) {
						t.Errorf("record is %+v", rec)
					}
					return
				}
				if rec.State != dedup.Dead || !r.parked("crm", key) {
					t.Errorf("record is %+v", rec)
				}
				// By hand it runs, under its own key.
				r.do(key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveRetry})
				settleDown()
				if c := h.wantCalls(t, 2)[1]; c.run != key.RunID() {
					t.Errorf("attempt was %+v", c)
				}
				if rec, _ := r.recordOf(key); rec.State != dedup.Done {
					t.Errorf("record is %+v", rec)
				}
			})
		})
	}
}

// R32: an idempotent run that succeeds writes nothing; its first failure makes
// the record that brings it back.
func TestPool_IdempotentHandlerTakesNoClaimOnSuccess(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{{Class: Done}, {Class: Done}, status(500), status(400)}}
		s := spec("crm", h)
		s.Effect, s.StoreUnavailable = dedup.Idempotent, ""
		p := r.start(s)
		good, bad, dead := newEvent("good"), newEvent("bad"), newEvent("dead")
		r.publish(good)
		r.publish(good)
		settleDown()
		h.wantCalls(t, 2)
		r.wantState("crm", good, dedup.Free, "")
		if n := r.bolt.Stats().LastNumber; n != 0 {
			t.Errorf("%d records were written", n)
		}
		r.publish(bad)
		settleDown()
		if rec := r.wantState("crm", bad, dedup.Waiting, "http-500"); rec.Attempts != 1 {
			t.Errorf("record is %+v", rec)
		}
		r.publish(dead)
		settleDown()
		if rec := r.wantState("crm", dead, dedup.Dead, "http-400"); rec.Attempts != 1 || !rec.Parked {
			t.Errorf("record is %+v", rec)
		}
		advance(time.Minute)
		if c := h.wantCalls(t, 5)[4]; c.event != "bad" || c.number != 2 || c.fence == 0 {
			t.Errorf("retry was %+v", c)
		}
		if rec := r.wantState("crm", bad, dedup.Done, ""); rec.Attempts != 2 {
			t.Errorf("record is %+v", rec)
		}
		if s := p.Snapshot(); s.SettledTo != 4 {
			t.Errorf("snapshot is %+v", s)
		}
	})
}

// A record whose own sequence no longer holds its event takes over that of a
// copy, which is acked.
func TestPool_WaitingRecordTakesOverACopysSequence(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		r.start(spec("crm", h))
		ev := newEvent("e1")
		r.publish(newEvent("other")) // sequence 1: another event
		settleDown()
		for i, stale := range []uint64{1, 0, 999} {
			ev.Batch = string(rune('a' + i))
			key := event.KeyFor(ev, "crm")
			r.do(key, dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Origin: ev.Origin, Seq: stale, Due: dedup.At(time.Now().Add(time.Hour))})
			seq := r.publish(ev)
			settleDown()
			if rec, _ := r.recordOf(key); rec.Seq != seq || rec.State != dedup.Waiting {
				t.Errorf("record with sequence %d is now %+v, want sequence %d", stale, rec, seq)
			}
			// One that finds its event keeps it.
			r.publish(ev)
			settleDown()
			if rec, _ := r.recordOf(key); rec.Seq != seq {
				t.Errorf("record left its good sequence %d for %d", seq, rec.Seq)
			}
		}
		advance(time.Hour)
		h.wantCalls(t, 4)
	})
}

// A replay is a record without a delivery: it runs in its batch, from the event
// at its sequence, and says that it is a replay.
func TestPool_RunsAReplayInItsBatch(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		r.start(spec("crm", h))
		ev := newEvent("e1")
		seq := r.publish(ev)
		settleDown()
		again := *ev
		again.Batch = "b1"
		r.do(event.KeyFor(&again, "crm"), dedup.Put{
			State: dedup.Waiting, Effect: dedup.Retryable, Origin: event.OriginReplay, Seq: seq, Due: dedup.At(time.Now()),
		})
		settleDown()
		if c := h.wantCalls(t, 2)[1]; c.batch != "b1" || c.origin != event.OriginReplay || c.event != "e1" {
			t.Errorf("attempt was %+v", c)
		}
		r.wantState("crm", &again, dedup.Done, "")
	})
}

func TestPool_WaitingRunWithoutItsEventIsDead(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		r.start(spec("crm", h))
		r.publish(newEvent("other"))
		settleDown()
		for i, seq := range []uint64{0, 1, 999} {
			ev := newEvent("gone" + string(rune('a'+i)))
			r.do(event.KeyFor(ev, "crm"), dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Origin: ev.Origin, Seq: seq, Due: dedup.At(time.Now())})
			settleDown()
			rec := r.wantState("crm", ev, dedup.Dead, dedup.ReasonEventMissing)
			if rec.Attempts != 0 {
				t.Errorf("record is %+v", rec)
			}
		}
		h.wantCalls(t, 1)
	})
}

// A run that waits for more than an hour owns a copy, and runs from it when the
// queue has forgotten the event.
func TestPool_LongWaitOwnsACopy(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{status(500)}}
		s := spec("crm", h)
		s.Retry = []time.Duration{65 * time.Minute}
		r.start(s)
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		rec := r.wantState("crm", ev, dedup.Waiting, "http-500")
		if !rec.Parked || !r.parked("crm", rec.Key) {
			t.Fatalf("record is %+v", rec)
		}
		lost := newEvent("e2")
		key := event.KeyFor(lost, "crm")
		if err := r.queue.Park(t.Context(), "crm", key, lost); err != nil {
			t.Fatal(err)
		}
		r.do(key, dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Origin: lost.Origin, Seq: 999, Due: dedup.At(time.Now()), Parked: true})
		settleDown()
		if c := h.wantCalls(t, 2)[1]; c.event != "e2" {
			t.Errorf("attempt was %+v", c)
		}
		if r.parked("crm", key) {
			t.Error("the copy of a run that is done is still there")
		}
		advance(75 * time.Minute)
		h.wantCalls(t, 3)
	})
}

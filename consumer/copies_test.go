package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

func big(id string) *event.Event {
	ev := newEvent(id)
	ev.Body = make([]byte, 1<<20)
	return ev
}

// fillParked uses up the room for copies. What it returns makes room again.
func (r *rig) fillParked() (makeRoom func()) {
	r.t.Helper()
	var copies []event.Key
	for {
		ev := big(fmt.Sprint("fill", len(copies)))
		key := event.KeyFor(ev, "other")
		err := r.queue.Park(r.t.Context(), "other", key, ev)
		if errors.Is(err, queue.ErrFull) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		copies = append(copies, key)
	}
	if st, err := r.queue.State(r.t.Context()); err != nil || st.ParkedBytes > st.ParkedMax || st.ParkedMax-st.ParkedBytes > 2<<20 {
		r.t.Errorf("state of a full queue of copies: %+v, %v", st, err)
	}
	return func() {
		r.t.Helper()
		for _, key := range copies {
			if err := r.queue.Unpark(context.Background(), "other", key); err != nil {
				r.t.Error(err)
			}
		}
	}
}

// A copy that finds no room neither stalls the handler nor loses the event: the
// record goes on with its sequence.
func TestPool_WithoutRoomForCopiesGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		makeRoom := r.fillParked()
		const n = 6
		h := &script{answers: repeat(status(400), n)}
		s := spec("crm", h)
		s.Concurrency = 1
		p := r.start(s)
		for i := range n {
			r.publish(big(fmt.Sprint("bad", i)))
		}
		r.publish(newEvent("good"))
		settleDown()
		r.wantState("crm", newEvent("good"), dedup.Done, "")
		bad := big("bad0")
		rec := r.wantState("crm", bad, dedup.Dead, "http-400")
		if rec.Parked || r.parked("crm", rec.Key) {
			t.Errorf("record is %+v", rec)
		}
		if s := p.Snapshot(); !s.ParkedFull || s.Uncopied != n || s.SettledTo != n+1 {
			t.Errorf("snapshot is %+v", s)
		}
		r.do(rec.Key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveRetry})
		settleDown()
		r.wantState("crm", bad, dedup.Done, "")

		makeRoom()
		h.mu.Lock()
		h.answers = []Answer{status(400)}
		h.mu.Unlock()
		r.publish(big("later"))
		settleDown()
		if rec := r.wantState("crm", big("later"), dedup.Dead, "http-400"); !rec.Parked || p.Snapshot().ParkedFull {
			t.Errorf("with room again: %+v", rec)
		}
	})
}

func TestPool_WithoutRoomForCopiesShelves(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.fillParked()
		p := r.start(spec("crm", &script{}))
		ev := big("e1")
		ev.Type = event.TypeUnparsed
		r.publish(ev)
		settleDown()
		if rec := r.wantState("crm", ev, dedup.Dead, dedup.ReasonUnparsed); rec.Parked || p.Snapshot().SettledTo != 1 {
			t.Errorf("record is %+v", rec)
		}
	})
}

// A full queue of copies never keeps the process from starting.
func TestRecover_WithoutRoomForCopiesGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		once, last := big("once"), big("last")
		r.grant(event.KeyFor(once, "crm"), dedup.Irrevocable, r.publish(once))
		r.grant(event.KeyFor(last, "crm"), dedup.Retryable, r.publish(last))
		r.fillParked()
		r.restart()
		s := spec("crm", &script{})
		s.Retry = []time.Duration{}
		if err := Recover(t.Context(), Recovery{Store: r.store, Queue: r.queue, Specs: []Spec{s}, Logger: r.log}); err != nil {
			t.Fatal(err)
		}
		if rec := r.wantState("crm", once, dedup.InDoubt, dedup.ReasonOwnerGone); rec.Parked {
			t.Errorf("record is %+v", rec)
		}
		if rec := r.wantState("crm", last, dedup.Dead, dedup.ReasonExhausted); rec.Parked {
			t.Errorf("record is %+v", rec)
		}
	})
}

// A run whose event cannot be read at the start is left to its pool.
func TestRecover_LeavesWhatItCannotReadToThePool(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		closed, err := queue.Open(t.Context(), queue.Config{Dir: filepath.Join(r.dir, "closed"), MaxBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if err := closed.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		ev, other := newEvent("e1"), newEvent("e2")
		r.grant(event.KeyFor(ev, "crm"), dedup.Irrevocable, r.publish(ev))
		r.grant(event.KeyFor(other, "crm"), dedup.Retryable, r.publish(other))
		r.restart()
		h := &script{}
		s := spec("crm", h)
		s.Effect = dedup.Irrevocable
		if err := Recover(t.Context(), Recovery{Store: r.store, Queue: closed, Specs: []Spec{s}, Logger: r.log}); err != nil {
			t.Fatal(err)
		}
		r.wantState("crm", ev, dedup.Started, "")
		r.wantState("crm", other, dedup.Waiting, dedup.ReasonOwnerGone)

		r.store.failing(1, false, isOp[dedup.Expire])
		p := r.start(s)
		settleDown()
		r.wantState("crm", ev, dedup.Started, "")
		if n := p.Snapshot().Unreaped; n != 1 {
			t.Errorf("%d runs are left", n)
		}
		advance(dedup.RearmAfter)
		if rec := r.wantState("crm", ev, dedup.InDoubt, dedup.ReasonOwnerGone); !rec.Parked {
			t.Errorf("record is %+v", rec)
		}
		if n := p.Snapshot().Unreaped; n != 0 {
			t.Errorf("%d runs are left", n)
		}
	})
}

// Somebody else may settle the run between the copy and the record: then the
// copy is nobody's, and nothing was settled here.
func TestRecover_LeavesNoCopyOfARunThatSomebodySettled(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		ev := newEvent("e1")
		key := event.KeyFor(ev, "crm")
		fence := r.grant(key, dedup.Irrevocable, r.publish(ev))
		r.restart()
		r.store.set(func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error) {
			if isOp[dedup.Expire](op) {
				if !r.parked("crm", key) {
					t.Error("there was no copy")
				}
				r.do(key, dedup.Commit{Fence: fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
			}
			return do()
		})
		var log bytes.Buffer
		recovery := Recovery{Store: r.store, Queue: r.queue, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := Recover(t.Context(), recovery); err != nil {
			t.Fatal(err)
		}
		r.wantState("crm", ev, dedup.Done, "")
		if r.parked("crm", key) || log.Len() > 0 {
			t.Errorf("copy left: %v; log: %s", r.parked("crm", key), &log)
		}
	})
}

// Another payload under the identity of an idempotent run has its own record
// when it fails, and so its own retries.
func TestPool_IdempotentFailureOfAnotherPayloadIsItsOwn(t *testing.T) {
	for name, answer := range map[string]Answer{"done": {Class: Done}, "dead": status(400)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				h := &script{answers: []Answer{status(500), answer, status(400)}}
				s := spec("crm", h)
				s.Effect, s.StoreUnavailable = dedup.Idempotent, ""
				p := r.start(s)
				first := withBody(newEvent("e1"), `{"v":"A"}`)
				other := withBody(first, `{"v":"B"}`)
				r.publish(first)
				advance(20 * time.Second)
				before, _ := r.record("crm", first)
				r.publish(other)
				settleDown()
				if rec, _ := r.record("crm", first); rec != before {
					t.Errorf("the first payload's record became %+v", rec)
				}
				key := event.MismatchKey(other, "crm")
				rec, found := r.recordOf(key)
				if !found || rec.State != dedup.Dead || !rec.Parked || p.Snapshot().SettledTo != 2 {
					t.Fatalf("record is %+v", rec)
				}
				for key, want := range map[event.Key]string{before.Key: `{"v":"A"}`, key: `{"v":"B"}`} {
					m, err := r.queue.Parked(t.Context(), "crm", key)
					if err == nil && string(m.Event.Body) != want || err != nil && (key == rec.Key || before.Parked) {
						t.Errorf("copy under %s is %s, %v", key.RunID(), m.Event.Body, err)
					}
				}
				r.do(key, dedup.Resolve{Fence: rec.Fence, To: dedup.ResolveRetry})
				settleDown()
				if rec, _ := r.recordOf(key); rec.State != dedup.Done {
					t.Errorf("in the end its record is %+v", rec)
				}
			})
		})
	}
}

// The same when the first payload's record is written at that very moment: its
// copy is put back.
func TestPool_RacingPayloadsKeepTheirCopies(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{status(400)}}
		s := spec("crm", h)
		s.Effect, s.StoreUnavailable = dedup.Idempotent, ""
		first := withBody(newEvent("e1"), `{"v":"A"}`)
		other := withBody(first, `{"v":"B"}`)
		key, own := event.KeyFor(first, "crm"), event.MismatchKey(other, "crm")
		seq := r.publish(first)
		h.do = func(_ context.Context, a *Attempt) {
			if string(a.Event.Body) == string(first.Body) {
				t.Error("the first payload ran")
			}
		}
		r.bolt.Settle("crm", seq)
		raced := false
		r.store.set(func(op dedup.Op, do func() (dedup.Result, error)) (dedup.Result, error) {
			if isOp[dedup.Put](op) && !raced {
				raced = true
				r.do(key, dedup.Put{
					State: dedup.Dead, Effect: dedup.Idempotent, Fingerprint: first.Fingerprint, Origin: first.Origin, Seq: seq, Parked: true,
				})
			}
			return do()
		})
		r.start(s)
		r.publish(other)
		settleDown()
		if rec, _ := r.recordOf(own); rec.State != dedup.Dead || !rec.Parked {
			t.Fatalf("record is %+v", rec)
		}
		for key, want := range map[event.Key]string{key: `{"v":"A"}`, own: `{"v":"B"}`} {
			if m, err := r.queue.Parked(t.Context(), "crm", key); err != nil || string(m.Event.Body) != want {
				t.Errorf("copy is %s, %v; want %s", m.Event.Body, err, want)
			}
		}
	})
}

// Two payloads of one identity that are both parked unseen are two dead letters.
func TestPool_ParksUnseenPayloadsApart(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.start(spec("crm", &script{}))
		first := withBody(newEvent("e1"), `{"v":"A"}`)
		first.Type = event.TypeUnparsed
		other := withBody(first, `{"v":"B"}`)
		for range 2 {
			r.publish(first)
			settleDown() // or the other one could be the first to get a record
			r.publish(other)
		}
		settleDown()
		for _, key := range []event.Key{event.KeyFor(first, "crm"), event.MismatchKey(other, "crm")} {
			if rec, _ := r.recordOf(key); rec.State != dedup.Dead || !rec.Parked || !r.parked("crm", key) {
				t.Errorf("record is %+v", rec)
			}
		}
	})
}

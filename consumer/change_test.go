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

// closing is a handler that says that it was closed.
type closing struct {
	*script
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// A running attempt ends under the old Spec, what comes after it runs under the
// new one, and a pause stays.
func TestPool_ChangeCutsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		before, after := &closing{script: &script{hold: make(chan struct{})}}, &script{}
		old := spec("crm", before)
		old.Concurrency = 1
		p := r.start(old)
		first, second, third := newEvent("e1"), newEvent("e2"), newEvent("e3")
		r.publish(first)
		settleDown()
		r.publish(second) // waits for the one worker
		settleDown()
		p.Pause()
		p.Resume()
		time.AfterFunc(10*time.Second, func() { close(before.hold) })
		next := spec("crm", after)
		next.Name, next.Concurrency = "renamed", 2
		began := time.Now()
		if err := p.Change(t.Context(), next, r.log); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 10*time.Second || !before.closed {
			t.Errorf("changed after %v, old handler closed: %t", took, before.closed)
		}
		settleDown()
		r.wantState("crm", first, dedup.Done, "")
		r.wantState("crm", second, dedup.Done, "")
		before.wantCalls(t, 1)
		after.wantCalls(t, 1)

		p.Pause()
		if err := p.Change(t.Context(), next, r.log); err != nil {
			t.Fatal(err)
		}
		r.publish(third)
		settleDown()
		after.wantCalls(t, 1)
		p.Resume()
		settleDown()
		after.wantCalls(t, 2)
		if s := p.Snapshot(); s.Runs["done"] != 3 || s.Handler != "crm" {
			t.Errorf("got %+v", s)
		}
	})
}

// Changes of everything that a Spec may change, under load: each event runs once.
func TestPool_ChangesUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{do: func(context.Context, *Attempt) { advance(3 * time.Millisecond) }}
		retried := repeat(status(500), 9) // one more and it is held
		h.answers = retried
		base := spec("crm", h)
		base.Concurrency, base.Retry = 2, []time.Duration{time.Second, time.Second, time.Second, time.Second, time.Second, time.Second}
		p := r.start(base)
		const events = 300
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for i := range events {
				r.publish(newEvent(fmt.Sprint("e", i)))
				advance(5 * time.Millisecond)
			}
		}()
		changes := 0
		for done := false; !done; changes++ {
			next := base
			next.Concurrency = 1 + changes%3
			next.MaxRate = float64(changes%2) * 10_000
			next.Timeout = time.Duration(20+changes%5) * time.Second
			if changes%4 == 1 {
				next.Sources = []string{"wecom", fmt.Sprint("other", changes)}
			}
			if err := p.Change(t.Context(), next, r.log); err != nil {
				t.Fatal(err)
			}
			advance(20 * time.Millisecond)
			select {
			case <-sent:
				done = true
			default:
			}
		}
		advance(50 * time.Second) // nothing had to be delivered again for it, which takes a minute
		if calls := h.seen(); len(calls) != events+len(retried) || changes < 20 {
			t.Errorf("%d attempts after %d changes, want %d", len(calls), changes, events+len(retried))
		}
		for i := range events {
			r.wantState("crm", newEvent(fmt.Sprint("e", i)), dedup.Done, "")
		}
	})
}

// A record keeps the effect that it began under.
func TestPool_ChangeToIdempotentKeepsWhatIsStricter(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		strict := spec("crm", h)
		strict.Effect = dedup.Irrevocable
		p := r.start(strict)
		r.publish(newEvent("e1"))
		settleDown()
		h.wantCalls(t, 1)
		loose := Spec{ID: "crm", Effect: dedup.Idempotent, Handler: h}
		if err := p.Change(t.Context(), loose, r.log); err != nil {
			t.Fatal(err)
		}
		r.publish(newEvent("e1"))
		settleDown()
		h.wantCalls(t, 1)
		for range 2 {
			r.publish(newEvent("e2"))
			settleDown()
		}
		h.wantCalls(t, 3)
		if rec, found := r.record("crm", newEvent("e2")); found {
			t.Errorf("an idempotent run has a record: %+v", rec)
		}
	})
}

func TestPool_ChangeRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		p := r.start(spec("crm", h))
		other, bad := spec("erp", h), spec("crm", h)
		bad.Effect = 0
		for _, s := range []Spec{other, bad} {
			if err := p.Change(t.Context(), s, r.log); err == nil {
				t.Error("changed")
			}
		}
		if err := p.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Change(t.Context(), spec("crm", h), r.log); !errors.Is(err, ErrStopped) {
			t.Errorf("after stop: %v", err)
		}
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		if _, found := r.recordOf(event.KeyFor(ev, "crm")); found {
			t.Error("it runs after its stop")
		}
	})
}

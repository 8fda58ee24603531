package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"idemd/dedup"
)

// A delivery that is lost on its way holds the saved progress back, whatever is
// settled after it: a restart before it comes again delivers it.
func TestPool_LostDeliveryHoldsProgressBack(t *testing.T) {
	for _, restart := range []bool{true, false} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				const n, hole = 10, 4
				h := &script{}
				s := spec("crm", h)
				s.Effect, s.StoreUnavailable = dedup.Idempotent, "" // no record would tell
				dropped := false
				cfg := Config{Spec: s, lost: func(seq uint64) bool {
					lost := seq == hole && !dropped
					dropped = dropped || lost
					return lost
				}}
				p, stop := r.run(cfg)
				for i := range n {
					r.publish(newEvent(fmt.Sprint(i + 1)))
				}
				time.Sleep(10 * time.Second)
				h.wantCalls(t, n-1)
				if got := p.Progress(); got != (dedup.Progress{FirstSeq: 1, SettledTo: hole - 1}) {
					t.Errorf("progress with a lost delivery: %+v", got)
				}
				if restart {
					stop()
					r.restart()
					p, stop = r.run(Config{Spec: s})
				}
				time.Sleep(70 * time.Second)
				calls, ran := h.seen(), false
				for _, c := range calls {
					ran = ran || c.event == fmt.Sprint(hole)
				}
				if !ran {
					t.Errorf("the lost event never ran: %+v", calls)
				}
				if got := p.Progress().SettledTo; got != n {
					t.Errorf("in the end progress is %d", got)
				}
				stop()
			})
		})
	}
}

// The last acks count before Run ends: after a clean stop nothing comes again.
func TestPool_StopSavesAllProgress(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{}
		s := spec("crm", h)
		s.Effect, s.StoreUnavailable = dedup.Idempotent, ""
		h.do = func(context.Context, *Attempt) { time.Sleep(time.Second) }
		cfg := Config{Spec: s}
		p, stop := r.run(cfg)
		for i := range 5 {
			r.publish(newEvent(fmt.Sprint(i + 1)))
		}
		time.Sleep(time.Second / 2)
		began := time.Now()
		stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("stop took %v", took)
		}
		if got := p.Progress().SettledTo; got != 5 {
			t.Errorf("progress is %d", got)
		}
		r.restart()
		_, stop = r.run(cfg)
		time.Sleep(5 * time.Second)
		stop()
		h.wantCalls(t, 5)
	})
}

// A progress beyond the stream's end is brought back for good: what comes under
// those sequences later is not skipped by another start.
func TestPool_ProgressBeyondTheStreamIsBroughtBack(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		if _, err := r.store.Begin(t.Context(), "crm", 1); err != nil {
			t.Fatal(err)
		}
		r.store.Settle("crm", 1000)
		h := &script{hold: make(chan struct{})}
		s := spec("crm", h)
		s.Concurrency = 1
		p := r.start(s)
		for i := range 10 {
			r.publish(newEvent(fmt.Sprint(i + 1)))
		}
		settleDown()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Stop(ended); err == nil { // cut short: nothing is settled
			t.Error("stop was not cut")
		}
		r.restart()
		if err := Recover(t.Context(), Recovery{Store: r.store, Queue: r.queue, Specs: []Spec{s}, Logger: r.log}); err != nil {
			t.Fatal(err)
		}
		close(h.hold)
		p, stop := r.run(Config{Spec: s})
		advance(time.Minute)
		stop()
		for i := range 10 {
			r.wantState("crm", newEvent(fmt.Sprint(i+1)), dedup.Done, "")
		}
		if got := p.Progress().SettledTo; got != 10 {
			t.Errorf("progress is %d", got)
		}
	})
}

// run runs a pool until stop.
func (r *rig) run(cfg Config) (p *Pool, stop func()) {
	r.t.Helper()
	cfg.Queue, cfg.Store, cfg.Logger = r.queue, r.store, r.log
	p, err := NewPool(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Run(context.Background()) }()
	return p, func() {
		r.t.Helper()
		if err := p.Stop(context.Background()); err != nil {
			r.t.Errorf("stop: %v", err)
		}
		if err := <-ended; err != nil {
			r.t.Errorf("run: %v", err)
		}
	}
}

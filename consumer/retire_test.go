package consumer

import (
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// What waits or is in doubt becomes a dead letter with a copy; what is settled,
// and what belongs to others, stays.
func TestRetire(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: repeat(status(500), 3)}
		loose, strict, other := spec("loose", h), spec("strict", h), spec("other", h)
		strict.Effect = dedup.Irrevocable
		for _, s := range []*Spec{&loose, &strict, &other} {
			s.Retry = []time.Duration{time.Hour / 2}
			r.start(*s)
		}
		failed, done := newEvent("e1"), newEvent("e2")
		r.publish(failed)
		settleDown()
		r.publish(done)
		settleDown()
		r.wantState("loose", failed, dedup.Waiting, "http-500")
		r.wantState("strict", failed, dedup.InDoubt, "http-500")
		for want := range 2 { // again there is nothing left
			n, err := Retire(t.Context(), Recovery{Store: r.store, Queue: r.queue, Logger: r.log}, []string{"loose", "strict", "nobody"})
			if err != nil || n != 2-2*want {
				t.Fatalf("%d retired, %v", n, err)
			}
		}
		for _, id := range []string{"loose", "strict"} {
			rec := r.wantState(id, failed, dedup.Dead, dedup.ReasonRetired)
			if !rec.Parked || !r.parked(id, event.KeyFor(failed, id)) {
				t.Errorf("%s: no copy of the event", id)
			}
			r.wantState(id, done, dedup.Done, "")
		}
		r.wantState("other", failed, dedup.Waiting, "http-500")
		n, err := Retire(t.Context(), Recovery{Store: r.store, Queue: r.queue, Logger: r.log}, []string{"wecom"})
		if err != nil || n != 1 {
			t.Errorf("of the source: %d, %v", n, err)
		}
		r.wantState("other", failed, dedup.Dead, dedup.ReasonRetired)
	})
}

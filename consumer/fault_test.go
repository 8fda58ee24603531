package consumer

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// Store first, queue second: what record, copy and progress say at each crash
// point, from a first delivery and from a due retry.
func TestPool_OrderOfStoreCopyAndAck(t *testing.T) {
	const permanent, unknown = 400, 500
	for _, c := range []struct {
		effect dedup.Effect
		status int
		want   []string
	}{
		{dedup.Retryable, 200, []string{"after-acquire started", "during-run started", "before-commit started", "after-commit done"}},
		{dedup.Irrevocable, 200, []string{"after-acquire started", "during-run started", "before-commit started", "after-commit done"}},
		{dedup.Retryable, unknown, []string{"after-acquire started", "during-run started", "after-defer waiting"}},
		{dedup.Retryable, permanent, []string{"after-acquire started", "during-run started", "after-park started parked", "after-bury dead parked"}},
		{dedup.Irrevocable, unknown, []string{"after-acquire started", "during-run started", "after-park started parked", "after-doubt in_doubt parked"}},
	} {
		for _, due := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v %d due=%v", c.effect, c.status, due), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					var mu sync.Mutex
					var got []string
					ev := newEvent("e1")
					h := &script{answers: []Answer{status(c.status)}}
					if due {
						h.answers = []Answer{{Class: NoEffect}, status(c.status)}
					}
					s := spec("crm", h)
					s.Effect = c.effect
					s.Retry = []time.Duration{20 * time.Second, 50 * time.Minute}
					var p *Pool
					ready := make(chan struct{})
					p = r.startWith(Config{Spec: s, Fault: func(point string) {
						<-ready
						rec, _ := r.record("crm", ev)
						line := point + " " + rec.State.String()
						if r.parked("crm", event.KeyFor(ev, "crm")) {
							line += " parked"
						}
						if acked := p.Snapshot().SettledTo > 0; acked != due { // the retry's delivery was acked long ago
							line += " acked at the wrong time"
						}
						mu.Lock()
						defer mu.Unlock()
						got = append(got, line)
					}})
					close(ready)
					r.publish(ev)
					settleDown()
					if due {
						mu.Lock()
						got = nil
						mu.Unlock()
						advance(time.Minute)
					}
					mu.Lock()
					defer mu.Unlock()
					if diff := cmp.Diff(c.want, got); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

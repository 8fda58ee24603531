package app

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// With hold_order events are done in the order in which they were stored, one at a
// time, whatever is killed when, and though each of them fails at first.
func TestCrash_HoldOrderOverKills(t *testing.T) {
	const kills, events = 6, 120
	var mu sync.Mutex
	var ended []string // first successes
	done := map[string]bool{}
	var busy, overlaps atomic.Int64
	s := newSink(t, func(c call, n int) int {
		if busy.Add(1) > 1 {
			overlaps.Add(1)
		}
		defer busy.Add(-1)
		<-time.After(time.Millisecond)
		if n == 1 {
			return http.StatusNotFound // no effect
		}
		mu.Lock()
		defer mu.Unlock()
		if !done[c.id] {
			done[c.id] = true
			ended = append(ended, c.id)
		}
		return http.StatusOK
	})
	d := newDaemon(t, handlerTable("line", s.URL, "effect = \"retryable\"\nconcurrency = 8\nserialize_by = \"*\"\nhold_order = true\nretry = [\"5ms\", \"5ms\", \"5ms\", \"5ms\", \"5ms\", \"5ms\"]"))
	d.start("", 0)
	killed := 0
	for i := range events {
		for d.send(fmt.Sprintf("e%03d", i)) != nil { // refused by a daemon that is being killed
			d.start("", 0)
		}
		if killed < kills && rand.IntN(events/kills) == 0 {
			<-time.After(time.Duration(rand.IntN(40)) * time.Millisecond)
			d.kill()
			d.start("", 0)
			killed++
		}
	}
	d.settled()
	d.terminate()
	mu.Lock()
	defer mu.Unlock()
	if len(ended) != events {
		t.Errorf("%d done, want %d", len(ended), events)
	}
	for i, id := range ended {
		if id != fmt.Sprintf("e%03d", i) {
			t.Fatalf("done in the order %v", ended)
		}
	}
	// A request of a killed daemon may still be at the sink when the next one begins.
	if n := overlaps.Load(); n > int64(killed) {
		t.Errorf("%d ran beside another one, after %d kills", n, killed)
	}
	t.Logf("%d events in order, %d kills", events, killed)
}

package app

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// crashHandlers has one handler of each effect, with short retries.
func crashHandlers(url string, effects ...string) string {
	text := ""
	for _, effect := range effects {
		text += fmt.Sprintf(`
[[handler]]
name = %q
sources = ["src"]
kind = "http"
url = %q
effect = %q
timeout = "5s"
concurrency = 4
retry = ["300ms", "300ms", "300ms", "300ms"]
`, effect, url, effect)
		if effect != "idempotent" {
			text += "store_unavailable = \"refuse\"\n"
		}
	}
	return text
}

// crashRow is one row of ARCHITECTURE.md's crash table for one effect.
type crashRow struct {
	point  string
	effect string
	due    bool // crash in the run that a retry began, not in the first one
	// what the sink answers to the calls, in order; 200 after them
	answers []int
	hit     int // which pass of the point is the crash
	// what holds at the end
	calls   int    // requests at the sink
	attempt int    // Idemd-Attempt of the last of them, not found (404) not counted; a retryable grant may be lost with the crash, and then one less
	state   string // where the run ends
}

func crashRows() []crashRow {
	const noEffect, permanent = http.StatusNotFound, http.StatusBadRequest
	var rows []crashRow
	for _, point := range []string{"after-acquire", "during-run", "before-commit"} {
		sent := 1 // did the cut attempt reach the sink?
		if point == "after-acquire" {
			sent = 0
		}
		hit := 2
		if point == "before-commit" {
			hit = 1 // the first attempt commits nothing
		}
		rows = append(rows,
			crashRow{point, "retryable", false, nil, 1, sent + 1, 2, "done"},
			crashRow{point, "retryable", true, []int{noEffect}, hit, 1 + sent + 1, 3, "done"},
			crashRow{point, "irrevocable", false, nil, 1, sent, sent, "in_doubt"},
			crashRow{point, "irrevocable", true, []int{noEffect}, hit, 1 + sent, 1 + sent, "in_doubt"})
	}
	for _, effect := range []string{"retryable", "irrevocable"} {
		rows = append(rows,
			crashRow{"after-commit", effect, false, nil, 1, 1, 1, "done"},
			crashRow{"after-commit", effect, true, []int{noEffect}, 1, 2, 2, "done"},
			crashRow{"after-defer", effect, false, []int{noEffect}, 1, 2, 2, "done"},
			crashRow{"after-defer", effect, true, []int{noEffect, noEffect}, 2, 3, 3, "done"},
			crashRow{"after-bury", effect, false, []int{permanent}, 1, 1, 1, "dead"},
			crashRow{"after-bury", effect, true, []int{noEffect, permanent}, 1, 2, 2, "dead"})
	}
	return append(rows,
		crashRow{"after-doubt", "irrevocable", false, []int{500}, 1, 1, 1, "in_doubt"},
		crashRow{"after-doubt", "irrevocable", true, []int{noEffect, 500}, 1, 2, 2, "in_doubt"},
		// The copy is in PARKED, the record still says STARTED.
		crashRow{"after-park", "retryable", false, []int{permanent}, 1, 2, 2, "done"},
		crashRow{"after-park", "retryable", true, []int{noEffect, permanent}, 1, 3, 3, "done"},
		crashRow{"after-park", "irrevocable", false, []int{permanent}, 1, 1, 1, "in_doubt"},
		crashRow{"after-park", "irrevocable", true, []int{noEffect, permanent}, 1, 2, 2, "in_doubt"},
		// An idempotent run has no record before its first failure.
		crashRow{"during-run", "idempotent", false, nil, 1, 2, 1, "free"},
		crashRow{"after-defer", "idempotent", false, []int{noEffect}, 1, 3, 2, "done"},
	)
}

func TestCrash_AtEachPointOfARun(t *testing.T) {
	for _, row := range crashRows() {
		from := "first delivery"
		if row.due {
			from = "due retry"
		}
		t.Run(fmt.Sprintf("%s/%s/%s", row.point, row.effect, from), func(t *testing.T) {
			t.Parallel()
			runCrashRow(t, row)
		})
	}
}

func runCrashRow(t *testing.T, row crashRow) {
	if row.effect != "irrevocable" {
		// Let the retry be one that counts; an irrevocable run has none of these.
		row.answers = slices.Clone(row.answers)
		for i, status := range row.answers {
			if status == http.StatusNotFound {
				row.answers[i] = http.StatusBadGateway
			}
		}
	}
	for _, status := range row.answers {
		if status == http.StatusNotFound {
			row.attempt = max(row.attempt-1, 1)
		}
	}
	s := newSink(t, func(c call, n int) int {
		if c.id == "e1" && n <= len(row.answers) {
			return row.answers[n-1]
		}
		return http.StatusOK
	})
	d := newDaemon(t, crashHandlers(s.URL, row.effect))
	d.start(row.point, row.hit)
	if err := d.send("e1"); err != nil { // the crash may come before the answer; the event is stored all the same
		t.Log(err)
	}
	d.crashed()

	d.start("", 0)
	d.mustSend("e1") // the platform may well send it again
	d.mustSend("e2") // and life goes on
	until(t, "the run to end as "+row.state, func() bool { return d.state(row.effect, "e1") == row.state })
	until(t, "the next event", func() bool { return len(s.seen(row.effect, "e2")) == 1 })
	calls := s.seen(row.effect, "e1")
	if row.effect == "idempotent" {
		// It takes no claim, so the platform's second copy runs as well.
		until(t, "the idempotent calls", func() bool { return len(s.seen(row.effect, "e1")) >= row.calls })
		return
	}
	if len(calls) != row.calls {
		t.Fatalf("%d calls: %+v; want %d", len(calls), calls, row.calls)
	}
	for _, c := range calls {
		if c.key != calls[0].key || c.key == "" {
			t.Errorf("Idempotency-Key changed: %+v", calls)
		}
	}
	if n := len(calls); n > 0 {
		cut := row.state == "done" && (row.point == "after-acquire" || row.point == "during-run" || row.point == "before-commit" || row.point == "after-park")
		switch last := calls[n-1].attempt; {
		case last == row.attempt:
		case cut && row.effect == "retryable" && last == row.attempt-1:
		default:
			t.Errorf("last attempt is %d, want %d", last, row.attempt)
		}
	}
	d.terminate()
}

// Rows "before the group sync" and "the sync, before the answer": the platform
// saw no success and sends again. With due, a retry of the event is waiting.
func TestCrash_AroundTheGroupSync(t *testing.T) {
	for _, point := range []string{"before-sync", "after-sync"} {
		for _, due := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/due=%v", point, due), func(t *testing.T) {
				t.Parallel()
				s := newSink(t, func(c call, n int) int {
					if due && n == 1 {
						return http.StatusNotFound
					}
					return http.StatusOK
				})
				d := newDaemon(t, crashHandlers(s.URL, "retryable", "irrevocable"))
				calls := 1
				d.start(point, 0)
				if due {
					calls = 2
					d.mustSend("e1")
					until(t, "the retry to wait", func() bool { return d.state("irrevocable", "e1") == "waiting" })
				}
				d.arm()
				if err := d.send("e1"); err == nil {
					t.Error("the platform saw success before the crash")
				}
				d.crashed()
				d.start("", 0)
				d.mustSend("e1")
				for _, h := range []string{"retryable", "irrevocable"} {
					until(t, h+" to be done", func() bool { return d.state(h, "e1") == "done" })
					if got := s.seen(h, "e1"); len(got) != calls {
						t.Errorf("%s: %d calls, want %d: %+v", h, len(got), calls, got)
					}
				}
				d.terminate()
			})
		}
	}
}

// Ten kills at random moments under load. Nothing that was answered is lost;
// only what a kill cut is repeated, and that never for an irrevocable effect.
func TestCrash_RandomKillsUnderLoad(t *testing.T) {
	const kills, senders, concurrency = 10, 22, 4 // 66 requests at a time
	effects := []string{"idempotent", "retryable", "irrevocable"}
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, effects...))
	d.start("", 0)

	load := startLoad(d, senders)
	for range kills {
		// Not a wait for anything: the kill is to come at any moment.
		<-time.After(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		load.pause()
		d.start("", 0)
		load.resume()
	}
	ids := load.stop()
	if len(ids) < kills {
		t.Fatalf("only %d events were accepted", len(ids))
	}

	d.settled()
	doubtful := d.doubtful("irrevocable")
	var cut int
	for _, id := range ids {
		if len(s.seen("idempotent", id)) == 0 {
			t.Errorf("idempotent handler never saw %s", id)
		}
		calls := s.seen("retryable", id)
		switch {
		case len(calls) == 0:
			t.Errorf("retryable handler never saw %s", id)
		case len(calls) > 1:
			cut += len(calls) - 1
			if calls[0].key != calls[1].key {
				t.Errorf("repeat of %s under another key: %+v", id, calls)
			}
		}
		switch calls := s.seen("irrevocable", id); {
		case len(calls) > 1:
			t.Errorf("irrevocable handler saw %s %d times: %+v", id, len(calls), calls)
		case len(calls) == 0 && !doubtful[id]:
			t.Errorf("irrevocable handler never saw %s, and it is not in doubt", id)
		}
	}
	if bound := kills * concurrency; cut > bound || len(doubtful) > bound {
		t.Errorf("%d runs were repeated and %d are in doubt, at most %d were cut", cut, len(doubtful), bound)
	}
	t.Logf("%d events, %d repeats and %d doubts after %d kills", len(ids), cut, len(doubtful), kills)
	d.terminate()
}

// load sends each event three times at the same moment, and each until it is
// accepted.
type load struct {
	d    *daemon
	gate sync.RWMutex // held for writing while the daemon's address changes
	quit chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	ids  []string
}

func startLoad(d *daemon, senders int) *load {
	l := &load{d: d, quit: make(chan struct{})}
	for n := range senders {
		l.wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.quit:
					return
				default:
					l.event(fmt.Sprintf("s%d-%d", n, i))
				}
			}
		})
	}
	return l
}

func (l *load) event(id string) {
	var copies sync.WaitGroup
	for range 3 {
		copies.Go(func() {
			for {
				l.gate.RLock()
				err := l.d.send(id)
				l.gate.RUnlock()
				if err == nil {
					return
				}
			}
		})
	}
	copies.Wait()
	l.mu.Lock()
	l.ids = append(l.ids, id)
	l.mu.Unlock()
}

// pause kills the daemon, which ends the requests under way, and holds the
// senders back until resume.
func (l *load) pause() {
	l.d.kill()
	l.gate.Lock()
}

func (l *load) resume() { l.gate.Unlock() }

func (l *load) stop() []string {
	close(l.quit)
	l.wg.Wait()
	return l.ids
}

package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// envStepKills is how often a daemon is killed while its janitor works.
const envStepKills = "IDEMD_TEST_STEP_KILLS"

// Kills at any moment while journals become hot files, and those cold ones, under
// load: no key is missing, so that a second copy of each event runs nowhere, none
// runs twice, and the store agrees with itself.
func TestCrash_RandomKillsDuringSteps(t *testing.T) {
	kills := 4
	if text := os.Getenv(envStepKills); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "retryable", "irrevocable"))
	d.rewrite("[[source]]", "[windows]\nhot = \"1s\"\n[[source]]")
	d.start("", 0)
	load := startLoad(d, 8)
	tidying, stop := context.WithCancel(t.Context())
	var tidy sync.WaitGroup
	ran := map[string]int{}
	tidy.Go(func() {
		c := d.client()
		for tidying.Err() == nil {
			for _, task := range []string{taskSeal, taskMerge, taskExpire, taskUnlink, taskVerify} {
				// A daemon that is being killed does not answer.
				if r, err := c.RunJanitor(tidying, task, task == taskExpire); err == nil && r.Error == "" {
					ran[task]++
				}
			}
		}
	})
	for range kills {
		<-time.After(time.Duration(50+rand.IntN(400)) * time.Millisecond)
		load.pause()
		d.start("", 0)
		load.resume()
	}
	ids := load.stop()
	stop()
	tidy.Wait()
	d.settled()
	doubtful := d.doubtful("irrevocable")
	before := len(ids)
	for _, id := range ids { // again: everything is known
		d.mustSend(id)
	}
	d.settled()
	for _, id := range ids {
		switch n := len(s.seen("irrevocable", id)); {
		case n > 1:
			t.Errorf("irrevocable handler saw %s %d times", id, n)
		case n == 0 && !doubtful[id]:
			t.Errorf("irrevocable handler never saw %s, and it is not in doubt", id)
		}
		if len(s.seen("retryable", id)) == 0 {
			t.Errorf("retryable handler never saw %s", id)
		}
	}
	d.terminate()
	h, err := holdingsIn(t, d.config)
	if err != nil || h.keys < uint64(2*before) {
		t.Errorf("%d keys for %d events at two handlers, %v", h.keys, before, err)
	}
	t.Logf("%d events, %d in doubt after %d kills; tasks %v", before, len(doubtful), kills, ran)
	if ran[taskSeal] == 0 || ran[taskMerge] == 0 {
		t.Error("the janitor has done nothing")
	}
}

// holdingsIn opens the stopped directory of a configuration, checks its claims and
// says what it holds.
func holdingsIn(t *testing.T, config string) (h holdings, err error) {
	t.Helper()
	cfg, err := Load(config)
	if err != nil {
		return h, err
	}
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		return h, err
	}
	h.keys = a.store.Stats().Keys
	if err = a.store.Check(t.Context()); err == nil {
		var text []string
		for kind, part := range a.store.Stats().Parts {
			text = append(text, fmt.Sprintf("%s: %d files, %d keys", kind, part.Files, part.Keys))
		}
		t.Log(strings.Join(text, "; "))
	}
	if serr := a.stop(); err == nil {
		err = serr
	}
	return h, err
}

package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"idemd/admin"
	"idemd/dedup"
)

// envCopies is how many copies are made of the running directory; defaultCopies
// unless set.
const (
	envCopies     = "IDEMD_TEST_COPIES"
	defaultCopies = 4
)

func copies(t *testing.T) int {
	text := os.Getenv(envCopies)
	if text == "" {
		return defaultCopies
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of copies", envCopies, text)
	}
	return n
}

// begun gives the events whose irrevocable run the sink has seen.
func (s *sink) begun(handler string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for at := range s.calls {
		if id, ok := strings.CutPrefix(at, handler+"/"); ok {
			ids[id] = true
		}
	}
	return ids
}

// A plain cp -a of the running directory is a backup: the copy starts, has every
// event that was answered before it was begun, runs no irrevocable event again
// whose run had begun before it ended, and lists what it cannot know.
func TestCopies_OfTheRunningDirectoryAreWhole(t *testing.T) {
	effects := []string{"idempotent", "retryable", "irrevocable"}
	s := newSink(t, func(_ call, n int) int {
		if n == 1 && time.Now().UnixNano()%5 == 0 {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	d := newDaemon(t, crashHandlers(s.URL, effects...))
	d.start("", 0)
	load := startLoad(d, 1)
	for n := range copies(t) {
		<-time.After(300 * time.Millisecond)
		answered := load.answered()
		var restart sync.WaitGroup
		if n%2 == 1 {
			restart.Go(func() {
				<-time.After(time.Duration(n%7) * 10 * time.Millisecond)
				load.pause()
				d.start("", 0)
				load.resume()
			})
		}
		c := copyRunning(t, d, n)
		begun := s.begun("irrevocable")
		restart.Wait()
		checkCopy(t, c, s, answered, begun)
	}
	load.stop()
}

// copyRunning copies d's directory as an operator would. What vanishes meanwhile
// cp complains about.
func copyRunning(t *testing.T, d *daemon, n int) *daemon {
	t.Helper()
	base := filepath.Join(filepath.Dir(d.config), fmt.Sprint("copy", n))
	c := &daemon{t: t, dir: filepath.Join(base, "data"), config: filepath.Join(base, "idemd.toml")}
	if err := os.Mkdir(base, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("cp", "-a", d.dir, c.dir).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "No such file or directory") {
			t.Fatalf("cp: %v: %s", err, out)
		}
	}
	text, err := os.ReadFile(d.config)
	if err == nil {
		err = os.WriteFile(c.config, []byte(strings.Replace(string(text), strconv.Quote(d.dir), strconv.Quote(c.dir), 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func checkCopy(t *testing.T, c *daemon, original *sink, answered []string, begun map[string]bool) {
	t.Helper()
	own := newSink(t, func(call, int) int { return http.StatusOK })
	text, err := os.ReadFile(c.config)
	if err == nil {
		err = os.WriteFile(c.config, []byte(strings.ReplaceAll(string(text), original.URL, own.URL)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.start("", 0)
	defer func() {
		c.kill()
		own.Close()
		if err := os.RemoveAll(filepath.Dir(c.config)); err != nil {
			t.Error(err)
		}
	}()
	c.settled()
	if missing := c.missing(answered); len(missing) > 0 {
		t.Errorf("%d of %d answered events are missing, %s among them", len(missing), len(answered), missing[0])
	}
	doubtful := c.doubtful("irrevocable")
	again := own.begun("irrevocable")
	for id := range again {
		if begun[id] {
			t.Errorf("irrevocable run of %s was made by the original and by its copy", id)
		}
	}
	for _, id := range answered {
		if !begun[id] && !again[id] && !doubtful[id] {
			t.Errorf("irrevocable run of %s was not made, and is not in doubt", id)
		}
		for _, h := range []string{"retryable", "idempotent"} {
			if len(own.seen(h, id)) == 0 && len(original.seen(h, id)) == 0 {
				t.Errorf("%s never reached %s", id, h)
			}
		}
	}
	t.Logf("copy: %d answered before, %d in doubt, %d irrevocable runs of its own", len(answered), len(doubtful), len(again))
}

// oneIrrevocable is a directory in which one event ran, one waits for its retry,
// and which was stopped cleanly.
func oneIrrevocable(t *testing.T, url string) (dir, config string) {
	t.Helper()
	base, err := os.MkdirTemp("", "idemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	dir = filepath.Join(base, "data")
	config = lifecycleConfig(dir, "127.0.0.1:0", url, "a")
	serveWith(t, config, Options{}, func(d *daemon) {
		d.dir = dir
		d.mustSend("ran")
		until(t, "the run", func() bool { return d.state("a", "ran") == "done" })
		d.mustSend("waits")
		until(t, "the refusal", func() bool { return d.state("a", "waits") == "waiting" })
	})
	return dir, config
}

func serveWith(t *testing.T, config string, opts Options, do func(d *daemon)) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	opts.Ready = func(addr string) { ready <- addr }
	a, err := New(ctx, mustParse(t, config), opts)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	do(&daemon{t: t, addr: <-ready, dir: a.cfg.DataDir})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// refusing is a far side that refuses an event for later.
func refusing(t *testing.T, id string) *sink {
	return newSink(t, func(c call, _ int) int {
		if c.id == id {
			return http.StatusUnauthorized
		}
		return http.StatusOK
	})
}

func reasonsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	c := admin.NewClient(admin.SocketPath(dir))
	defer c.Close()
	page, err := c.Runs(t.Context(), admin.DoubtList, admin.RunFilter{}, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, r := range page.Items {
		reasons[r.PlatformID] = r.Reason.Code
	}
	return reasons
}

// Whatever makes a directory an older state of itself, what waits is held; and
// only once: what comes afterwards is new.
func TestPast_WhatWaitsIsHeld(t *testing.T) {
	s := refusing(t, "waits")
	for _, c := range []struct {
		name string
		opts Options
		make func(t *testing.T, dir string)
		held bool
	}{
		{"the directory itself", Options{}, func(*testing.T, string) {}, false},
		{"a copy", Options{}, func(t *testing.T, dir string) { recopy(t, dir) }, true},
		{"a snapshot of the machine", Options{Restored: true}, func(*testing.T, string) {}, true},
		{"moved after a clean stop", Options{Moved: true}, func(t *testing.T, dir string) { recopy(t, dir) }, false},
		{"put back over itself", Options{}, func(t *testing.T, dir string) { setMark(t, dir, 0, 1000) }, true},
		{"an earlier life put back", Options{}, func(t *testing.T, dir string) { setMark(t, dir, 1, 0) }, true},
		{"put back, and said to be moved", Options{Moved: true}, func(t *testing.T, dir string) { recopy(t, dir); setMark(t, dir, 0, 1000) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, config := oneIrrevocable(t, s.URL)
			c.make(t, dir)
			opts := c.opts
			for range 2 {
				serveWith(t, config, opts, func(d *daemon) {
					want := map[string]string{}
					if c.held {
						want["waits"] = dedup.ReasonTimeWentBack
					}
					if got := reasonsOf(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("in doubt are %v, want %v", got, want)
					}
					id := fmt.Sprint("new", time.Now().UnixNano())
					d.mustSend(id)
					until(t, "a new event to run", func() bool { return d.state("a", id) == "done" })
				})
				opts = Options{}
			}
		})
	}
}

// recopy puts a copy of a stopped directory in its place.
func recopy(t *testing.T, dir string) {
	t.Helper()
	err := errors.Join(os.RemoveAll(dir+".old"), os.Rename(dir, dir+".old"), run("cp", "-a", dir+".old", dir))
	if err != nil {
		t.Fatal(err)
	}
}

// setMark raises the mark outside of the files.
func setMark(t *testing.T, dir string, epochs uint32, records uint64) {
	t.Helper()
	a := &App{dir: mustOpen(t, dir)}
	texts := a.markTexts()
	if err := a.dir.unlock(); err != nil || len(texts) != 1 {
		t.Fatalf("marks %q, %v", texts, err)
	}
	m, err := parseMark(texts[0])
	if err != nil {
		t.Fatal(err)
	}
	m.epoch += epochs
	m.number += records
	if err := setAttr(dir, m); err != nil {
		t.Fatal(err)
	}
}

// Events that came before a copy and have no record may have run: they are held,
// too, also when the start that finds so is cut.
func TestPast_EventsWithoutARecordAreHeld(t *testing.T) {
	s := refusing(t, "waits")
	dir, config := oneIrrevocable(t, s.URL)

	serveWith(t, config, Options{}, func(d *daemon) {
		c := admin.NewClient(admin.SocketPath(dir))
		defer c.Close()
		if _, err := c.ActOnHandler(t.Context(), "a", admin.PauseHandler); err != nil {
			t.Fatal(err)
		}
		d.mustSend("unseen")
	})
	recopy(t, dir)
	serveWith(t, config, Options{}, func(*daemon) {
		until(t, "the unseen event to be held", func() bool { return reasonsOf(t, dir)["unseen"] == dedup.ReasonTimeWentBack })
	})
	if len(s.seen("a", "unseen")) > 0 {
		t.Error("it ran")
	}
}

func TestPast_MovedWithoutACleanStopIsRefused(t *testing.T) {
	s := refusing(t, "")
	d := newDaemon(t, crashHandlers(s.URL, "irrevocable"))
	d.start("", 0)
	d.mustSend("e1")
	d.kill()
	recopy(t, d.dir)
	cfg, err := Load(d.config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), cfg, Options{Moved: true})
	wantOperatorError(t, err, "cannot use the claim store", d.dir)
}

func TestParseMark(t *testing.T) {
	m := mark{"00ff", 7, 9}
	if got, err := parseMark(m.String()); err != nil || got != m {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "idemd mark 1 00ff 7", m.String() + "x", "idemd mark 2 00ff 7 9\n", "idemd mark 1 00ff -7 9\n"} {
		if got, err := parseMark(bad); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

// A replay in a copy may have gone on in the original: it waits for somebody.
func TestPast_ReplaysArePaused(t *testing.T) {
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := unseen(t, s, "irrevocable")
	d.start("", 0)
	rp, err := d.client().StartReplay(t.Context(), admin.ReplayRequest{Rate: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	d.terminate()
	for _, state := range []admin.ReplayState{admin.ReplayRuns, admin.ReplayPaused} {
		d.start("", 0)
		until(t, "the replay to be "+string(state), func() bool {
			is, err := d.client().Replay(t.Context(), rp.ID)
			return err == nil && is.State == state
		})
		d.terminate()
		recopy(t, d.dir)
	}
}

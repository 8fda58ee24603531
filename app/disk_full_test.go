package app

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// diskSize is that of the file system which the test fills.
const diskSize = 256 << 20

// mountSmall mounts a file system of diskSize at path. It is false, and says why,
// where this process may not.
func mountSmall(t *testing.T, path string) bool {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", path, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", diskSize)); err != nil {
		t.Log("NOT TESTED: a small file system cannot be mounted (root may):", err)
		return false
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return true
}

// filler is somebody else who writes to the disk.
type filler struct {
	t    *testing.T
	file *os.File
	size int64
}

func newFiller(t *testing.T, dir string) *filler {
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	return &filler{t: t, file: f}
}

// fill takes all that is free, in no time: the daemon does not see it coming.
func (f *filler) fill() {
	f.t.Helper()
	for chunk := int64(64 << 20); chunk >= 4096; {
		err := unix.Fallocate(int(f.file.Fd()), 0, f.size, chunk)
		switch {
		case err == nil:
			f.size += chunk
		case errors.Is(err, unix.ENOSPC):
			chunk /= 2
		case !errors.Is(err, unix.EINTR):
			f.t.Fatal(err)
		}
	}
}

func (f *filler) remove() {
	f.t.Helper()
	if err := errors.Join(f.file.Close(), os.Remove(f.file.Name())); err != nil {
		f.t.Fatal(err)
	}
}

// steadyLoad sends an event every 2 ms until stop is closed, and notes what was
// answered.
type steadyLoad struct {
	d       *daemon
	stop    chan struct{}
	senders sync.WaitGroup
	next    atomic.Int64
	refused atomic.Int64
	mu      sync.Mutex
	acked   []string
}

func (l *steadyLoad) start() {
	const senders, every = 50, 100 * time.Millisecond
	for range senders {
		l.senders.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				id := fmt.Sprint("e", l.next.Add(1))
				if err := l.d.send(id); err != nil {
					l.refused.Add(1)
					continue
				}
				l.mu.Lock()
				l.acked = append(l.acked, id)
				l.mu.Unlock()
			}
		})
	}
}

func (l *steadyLoad) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// A disk that somebody else fills: events are refused, what was answered is not
// lost, what runs is written down, and service comes back by itself.
func TestFullDisk_ServiceComesBackByItself(t *testing.T) {
	held, release := make(chan struct{}, 8), make(chan struct{})
	s := newSink(t, func(c call, _ int) int {
		if c.id[0] == 'h' {
			held <- struct{}{}
			<-release
		}
		return http.StatusOK
	})
	var once sync.Once
	letGo := func() { once.Do(func() { close(release) }) }
	t.Cleanup(letGo) // before the sink waits for its calls
	d := newDaemon(t, handlerOf("once", "irrevocable", s.URL)+handlerOf("again", "retryable", s.URL))
	if !mountSmall(t, d.dir) {
		return
	}
	t.Cleanup(d.kill)
	d.start("", 1)
	l := &steadyLoad{d: d, stop: make(chan struct{})}
	l.start()
	until(t, "events", func() bool { return l.count() > 300 })
	d.mustSend("h1")
	d.mustSend("h2")
	for range 4 { // two handlers have two events
		<-held
	}

	f := newFiller(t, d.dir)
	f.fill()
	before := l.refused.Load()
	until(t, "refusals", func() bool { return l.refused.Load() > before+100 })
	f.fill() // what idemd has freed meanwhile is not for it alone
	letGo()
	for _, id := range []string{"h1", "h2"} {
		until(t, "a running attempt to be settled on the full disk", func() bool { return d.state("once", id) == "done" && d.state("again", id) == "done" })
	}

	pause := time.NewTimer(2 * time.Second) // the disk stays full for a while
	for full := true; full; {
		select {
		case <-pause.C:
			full = false
		default:
			f.fill()
			until(t, "another refusal", func() bool { return l.refused.Load() > before })
			before = l.refused.Load()
		}
	}
	f.remove()
	freed, had := time.Now(), l.count()
	until(t, "events to be taken again", func() bool { return l.count() > had+100 })
	if took := time.Since(freed); took > 10*time.Second {
		t.Errorf("service came back after %v", took)
	} else {
		t.Logf("service came back after %v; %d refused", took.Round(time.Millisecond), l.refused.Load())
	}
	close(l.stop)
	l.senders.Wait()
	d.settled()
	doubts := d.doubtful("once")
	lost := 0
	for _, id := range append(l.acked, "h1", "h2") {
		if len(s.seen("again", id)) == 0 || len(s.seen("once", id)) == 0 && !doubts[id] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d answered events are lost", lost, len(l.acked))
	}
	for n := range l.next.Load() {
		if id := fmt.Sprint("e", n+1); len(s.seen("once", id)) > 1 {
			t.Errorf("irrevocable: %s ran %d times", id, len(s.seen("once", id)))
		}
	}
	if len(doubts) > 0 {
		t.Errorf("%d runs in doubt, though no run was cut", len(doubts))
	}
	d.terminate()
}

func handlerOf(name, effect, url string) string {
	return fmt.Sprintf(`
[[handler]]
name = %q
sources = ["src"]
kind = "http"
url = %q
effect = %q
timeout = "25s"
concurrency = 16
retry = ["1s"]
store_unavailable = "refuse"
`, name, url, effect)
}

// A disk that is full to the last byte is no reason not to start: nothing is taken
// and nothing begins, what is known is known, and service comes back by itself. Also
// after a kill -9 on it.
func TestFullDisk_StartsOnIt(t *testing.T) {
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, handlerOf("once", "irrevocable", s.URL))
	if !mountSmall(t, d.dir) {
		return
	}
	t.Cleanup(d.kill)
	d.start("", 0)
	d.mustSend("e1")
	until(t, "the run", func() bool { return d.state("once", "e1") == "done" })
	d.terminate()
	f := newFiller(t, d.dir)
	f.fill()
	for range 2 {
		d.start("", 0)
		if err := d.send("e2"); !errors.Is(err, errRefused) {
			t.Fatalf("on a full disk: %v", err)
		}
		st, err := d.client().Status(t.Context())
		if err != nil || st.Ready || len(st.Warnings) == 0 {
			t.Fatalf("%+v, %v", st, err)
		}
		if d.state("once", "e1") != "done" {
			t.Error("e1 is not known to be done")
		}
		d.kill()
	}
	d.start("", 0)
	f.fill() // also of what the ballast has left
	d.kill()
	out, err := d.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the disk is full, idemd cannot even start on it") {
		t.Errorf("without any space: %v, %s", err, tail(string(out), 300))
	}
	f.remove()
	d.start("", 0)
	until(t, "service", func() bool { return d.send("e2") == nil })
	d.handledOnce(s, "e1", "e2")
	d.terminate()
}

func (d *daemon) handledOnce(s *sink, ids ...string) {
	d.t.Helper()
	for _, id := range ids {
		until(d.t, id, func() bool { return d.state("once", id) == "done" })
		if n := len(s.seen("once", id)); n != 1 {
			d.t.Errorf("%s ran %d times", id, n)
		}
	}
}

package app

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"idemd/admin"
)

// envCuts is how many power cuts are simulated; defaultCuts unless set.
const (
	envCuts     = "IDEMD_TEST_POWER_CUTS"
	defaultCuts = 3
)

// disk is a file system of its own in a file. What the file holds is what has
// reached the device: a copy of it is what a power cut leaves.
type disk struct {
	t     *testing.T
	image string
	mount string
}

// newDisk makes and mounts an ext4 file system. It is false, with the reason in
// the log, where that is not possible; in CI it always must be.
func newDisk(t *testing.T, dir string) (*disk, bool) {
	t.Helper()
	d := &disk{t: t, image: filepath.Join(dir, "image"), mount: filepath.Join(dir, "mnt")}
	err := os.Mkdir(d.mount, 0o700)
	if err == nil {
		err = run("truncate", "-s", "512M", d.image)
	}
	if err == nil {
		err = run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", d.image)
	}
	if err == nil {
		err = run("mount", "-o", "loop", d.image, d.mount)
	}
	if err == nil {
		t.Cleanup(d.unmount)
		return d, true
	}
	if os.Getenv("CI") != "" {
		t.Fatal(err)
	}
	t.Logf("NOT TESTED: a power cut needs root, mkfs.ext4 and a loop device: %v", err)
	return nil, false
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (d *disk) unmount() {
	if err := run("umount", d.mount); err != nil && !strings.Contains(err.Error(), "not mounted") {
		d.t.Error(err)
	}
}

// cut gives the disk what it held when image was copied.
func (d *disk) cut(image string) {
	d.t.Helper()
	d.unmount()
	if err := os.Rename(image, d.image); err != nil {
		d.t.Fatal(err)
	}
	if err := run("mount", "-o", "loop", d.image, d.mount); err != nil {
		d.t.Fatal(err)
	}
}

// freeze stops the daemon, and returns when it does nothing more: what it did
// while the disk is copied would be of another moment than the copy.
func (d *daemon) freeze() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		d.t.Fatal(err)
	}
	tasks := fmt.Sprintf("/proc/%d/task", d.cmd.Process.Pid)
	until(d.t, "the daemon to stand still", func() bool {
		threads, err := os.ReadDir(tasks)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, thread := range threads {
			stat, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "stat"))
			if err != nil {
				return false
			}
			// T: stopped. D: in a call that ends and is not heard of.
			_, state, _ := strings.Cut(string(stat), ") ")
			if state == "" || state[0] != 'T' && state[0] != 'D' {
				return false
			}
		}
		return true
	})
}

func cuts(t *testing.T) int {
	text := os.Getenv(envCuts)
	if text == "" {
		return defaultCuts
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of power cuts", envCuts, text)
	}
	return n
}

// Queue and claims together under load: after a power cut nothing that was
// answered is missing, and no irrevocable effect happens twice.
func TestPowerCut_LosesNothingThatWasAnswered(t *testing.T) {
	effects := []string{"idempotent", "retryable", "irrevocable"}
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, effects...))
	base := filepath.Dir(d.config)
	fs, ok := newDisk(t, base)
	if !ok {
		return
	}
	t.Cleanup(d.kill) // before the disk is unmounted
	d.moveTo(fs.mount)

	d.start("", 0)
	load := startLoad(d, 8)
	for range cuts(t) {
		<-time.After(time.Duration(300+rand.IntN(500)) * time.Millisecond)
		image := filepath.Join(base, "cut")
		d.freeze()
		if err := run("cp", "--sparse=always", fs.image, image); err != nil {
			t.Fatal(err)
		}
		load.pause() // kills it
		answered := load.answered()
		fs.cut(image)
		d.start("", 0)
		missing := d.missing(answered)
		if len(missing) > 0 {
			t.Errorf("%d of %d answered events are missing, %s among them", len(missing), len(answered), missing[0])
		}
		load.resume()
	}
	ids := load.stop()
	d.settled()
	doubtful := d.doubtful("irrevocable")
	for _, id := range ids {
		if len(s.seen("idempotent", id)) == 0 || len(s.seen("retryable", id)) == 0 {
			t.Errorf("%s never reached a handler", id)
		}
		switch calls := s.seen("irrevocable", id); {
		case len(calls) > 1:
			t.Errorf("irrevocable handler saw %s %d times: %+v", id, len(calls), calls)
		case len(calls) == 0 && !doubtful[id]:
			t.Errorf("irrevocable handler never saw %s, and it is not in doubt", id)
		}
	}
	t.Logf("%d events, %d in doubt", len(ids), len(doubtful))
	d.terminate()
}

// The test above can fail: a disk that forgets what was synced is noticed.
func TestPowerCut_AForgetfulDiskIsNoticed(t *testing.T) {
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "retryable"))
	base := filepath.Dir(d.config)
	fs, ok := newDisk(t, base)
	if !ok {
		return
	}
	t.Cleanup(d.kill)
	d.moveTo(fs.mount)
	d.start("", 0)
	d.mustSend("before")
	image := filepath.Join(base, "cut")
	if err := run("cp", "--sparse=always", fs.image, image); err != nil {
		t.Fatal(err)
	}
	d.mustSend("after")
	d.kill()
	fs.cut(image)
	d.start("", 0)
	if missing := d.missing([]string{"before", "after"}); len(missing) != 1 || missing[0] != "after" {
		t.Errorf("missing are %v", missing)
	}
}

// moveTo puts the data directory on another file system.
func (d *daemon) moveTo(mount string) {
	d.t.Helper()
	text, err := os.ReadFile(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	dir := filepath.Join(mount, "data")
	moved := strings.Replace(string(text), strconv.Quote(d.dir), strconv.Quote(dir), 1)
	if err := os.WriteFile(d.config, []byte(moved), 0o600); err != nil {
		d.t.Fatal(err)
	}
	d.dir = dir
}

// missing gives the events among ids that the queue does not hold.
func (d *daemon) missing(ids []string) []string {
	d.t.Helper()
	c := admin.NewClient(admin.SocketPath(d.dir))
	defer c.Close()
	held := make(map[string]bool)
	for cursor := ""; ; {
		page, err := c.Events(d.t.Context(), admin.EventFilter{}, cursor, 1000)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, ev := range page.Items {
			held[ev.PlatformID] = true
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	var missing []string
	for _, id := range ids {
		if !held[id] {
			missing = append(missing, id)
		}
	}
	return missing
}

// answered gives the events that were accepted so far.
func (l *load) answered() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.ids...)
}

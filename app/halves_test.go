package app

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"idemd/admin"
)

// usedDir is the data directory of a daemon that took an event and stopped.
func usedDir(t *testing.T) string {
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
	dir := filepath.Join(base, "data")
	serveIn(t, dir, func(d *daemon) {
		d.mustSend("e1")
		until(t, "the first record", func() bool { return d.state("a", "e1") == "waiting" })
	})
	return dir
}

// serveIn runs an app on a directory while do works with it.
func serveIn(t *testing.T, dir string, do func(d *daemon)) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	a, err := New(ctx, mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	do(&daemon{t: t, addr: <-ready, dir: dir})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A directory of which one half is missing or from another directory is never
// started as if nothing were wrong: events or the memory of them would be lost.
func TestApp_HalvesOfADirectoryBelongTogether(t *testing.T) {
	for _, c := range []struct {
		name, what string
		harm       func(dir, other string) error
	}{
		{"queue missing", "cannot open the queue", func(dir, _ string) error { return os.RemoveAll(filepath.Join(dir, "queue")) }},
		{"queue empty", "cannot open the queue", func(dir, _ string) error { return os.RemoveAll(filepath.Join(dir, "queue", "jetstream")) }},
		{"queue of another", "cannot open the queue", func(dir, other string) error { return swap(dir, other, "queue") }},
		{"claims of another", "claim store and VERSION are from different data directories", func(dir, other string) error { return swap(dir, other, "dedup") }},
		{"VERSION missing", "the file VERSION is missing, though the data directory is in use", func(dir, _ string) error { return os.Remove(filepath.Join(dir, "VERSION")) }},
		{"claims and VERSION missing", "cannot use the claim store", func(dir, _ string) error {
			if err := os.Remove(filepath.Join(dir, "VERSION")); err != nil {
				return err
			}
			return os.RemoveAll(filepath.Join(dir, "dedup"))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, other := usedDir(t), usedDir(t)
			if err := c.harm(dir, other); err != nil {
				t.Fatal(err)
			}
			for range 2 { // and refusing changes nothing
				_, err := New(t.Context(), mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{})
				wantOperatorError(t, err, c.what, dir)
			}
		})
	}
}

func swap(dir, other, half string) error {
	if err := os.RemoveAll(filepath.Join(dir, half)); err != nil {
		return err
	}
	return os.Rename(filepath.Join(other, half), filepath.Join(dir, half))
}

// A first start that ended anywhere is finished by the next one.
func TestApp_AnUnfinishedFirstStartIsFinished(t *testing.T) {
	dir := usedDir(t)
	fresh := filepath.Join(filepath.Dir(dir), "fresh")
	a, err := New(t.Context(), mustParse(t, lifecycleConfig(fresh, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(fresh, "VERSION")); err != nil { // it is written last
		t.Fatal(err)
	}
	serveIn(t, fresh, func(d *daemon) { d.mustSend("e1") })
}

// LOCK is no stale file that may be deleted: whoever does gets no second daemon.
func TestApp_DeletedLockDoesNotLetASecondDaemonIn(t *testing.T) {
	dir := usedDir(t)
	serveIn(t, dir, func(d *daemon) {
		if err := os.Remove(filepath.Join(dir, "LOCK")); err != nil {
			t.Fatal(err)
		}
		_, err := New(t.Context(), mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{})
		wantOperatorError(t, err, "another idemd is running on this data directory, though its LOCK is free: the file was deleted or replaced", dir)
		c := admin.NewClient(admin.SocketPath(dir))
		defer c.Close()
		if _, err := c.Status(t.Context()); err != nil {
			t.Errorf("the first daemon lost its socket: %v", err)
		}
		d.mustSend("e2")
	})
}

package app

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What was cut is settled by a start on the full disk it was cut on, and by every
// later one: no start takes more of the space than the one before it has left. Then
// service comes back without a start.
func TestFullDisk_StartSettlesWhatWasCut(t *testing.T) {
	held, release := make(chan struct{}, 8), make(chan struct{})
	s := newSink(t, func(c call, n int) int {
		if c.id == "h" && n == 1 {
			held <- struct{}{}
			<-release
		}
		return http.StatusOK
	})
	d := newDaemon(t, handlerOf("once", "irrevocable", s.URL)+handlerOf("again", "retryable", s.URL))
	if !mountSmall(t, d.dir) {
		return
	}
	t.Cleanup(func() { close(release) }) // before the sink waits for its calls
	t.Cleanup(d.kill)
	d.start("", 0)
	d.mustSend("h")
	<-held
	<-held
	f := newFiller(t, d.dir)
	f.fill()
	d.kill()
	f.fill() // not a byte is left

	// Every life is cut while the disk is full; each costs a journal of what it
	// recorded, and no more.
	var left []int64
	for range 8 {
		d.start("", 0)
		d.wantBlocked()
		until(t, "the cut runs to be settled", func() bool { return d.state("once", "h") == "in_doubt" && d.state("again", "h") == "waiting" })
		if err := d.send("new"); !errors.Is(err, errRefused) {
			t.Fatalf("on a full disk: %v", err)
		}
		d.kill()
		free, err := freeBytes(d.dir)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, free)
	}
	if spent := left[0] - left[len(left)-1]; spent > 4<<20 {
		t.Errorf("seven more starts took %d KiB: %v", spent>>10, left)
	}

	d.start("", 0)
	f.remove()
	until(t, "service", func() bool { return d.send("new") == nil })
	until(t, "the new event's runs", func() bool { return d.state("once", "new") == "done" && d.state("again", "new") == "done" })
	until(t, "the ballast", func() bool {
		info, err := os.Stat(filepath.Join(d.dir, "dedup", "BALLAST"))
		return err == nil && info.Size() == diskSize/16
	})
	if resp := d.readyz(); resp != "ok" {
		t.Errorf("readyz: %s", resp)
	}
	d.terminate()
	d.start("", 0) // or the due run is looked at again in half a minute, as any that met a store that could not take it
	d.settled()
	if calls := s.seen("again", "h"); len(calls) != 2 || calls[0].key != calls[1].key {
		t.Errorf("retryable: %+v", calls)
	}
	if n := len(s.seen("once", "h")); n != 1 || d.state("once", "h") != "in_doubt" {
		t.Errorf("irrevocable: h ran %d times and is %s", n, d.state("once", "h"))
	}
	d.terminate()
}

func (d *daemon) readyz() string {
	d.t.Helper()
	resp, err := sender.Get("http://" + d.addr + "/readyz")
	if err != nil {
		d.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(string(body))
}

func (d *daemon) wantBlocked() {
	d.t.Helper()
	until(d.t, "readyz to say why", func() bool { return d.readyz() == "not ready: too little space is free on the disk" })
}

// Where no start is possible, one sentence says so and how much is to be freed, as
// often as it is tried; with that much, it starts.
func TestFullDisk_SaysWhatAStartNeeds(t *testing.T) {
	d := newDaemon(t, "")
	if !mountSmall(t, d.dir) {
		return
	}
	t.Cleanup(d.kill)
	f := newFiller(t, d.dir)
	f.fill()
	refused := func(when string) {
		t.Helper()
		out, err := d.command().CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the disk is full, idemd cannot even start on it") {
			t.Errorf("%s: %v, %s", when, err, tail(string(out), 300))
		}
	}
	refused("the first start of all")
	refused("and once more")
	f.give(startRoom)
	d.start("", 0)
	d.wantBlocked()
	d.terminate()

	f.fill()
	if err := os.Remove(filepath.Join(d.dir, "dedup", "BALLAST")); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	f.fill()
	for range 3 {
		refused("without a ballast")
	}
	f.give(startRoom)
	d.start("", 0)
	d.wantBlocked()
	f.remove()
	until(t, "service", func() bool { return d.send("e") == nil })
	d.terminate()
}

// give frees n bytes of what was taken.
func (f *filler) give(n int64) {
	f.t.Helper()
	f.size -= n
	if err := f.file.Truncate(f.size); err != nil {
		f.t.Fatal(err)
	}
}

func TestToFree_SaysOnlyWhatIsMissing(t *testing.T) {
	for _, c := range []struct {
		free, files, left int64
		want              string
	}{
		{0, 0, 0, "free 16 MiB more there"},
		{startRoom - 1, 100, 100, "free 1 MiB more there"},
		{startRoom, 1000, 63, "it can hold 63 more files"},
		{startRoom, 1000, 64, ""},
		{startRoom, 0, 0, ""}, // does not count them
	} {
		got := toFree(c.free, c.files, c.left)
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A disk that has bytes and no files left is as full.
func TestFullDisk_WithoutFilesIsSaid(t *testing.T) {
	d := newDaemon(t, "")
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", d.dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700,nr_inodes=8", diskSize)); err != nil {
		t.Log("NOT TESTED: a small file system cannot be mounted (root may):", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	out, err := d.command().CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the disk is full, idemd cannot even start on it") {
		t.Errorf("%v, %s", err, tail(string(out), 300))
	}
}

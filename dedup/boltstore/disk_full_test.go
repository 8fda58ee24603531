package boltstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"idemd/dedup"
)

// A real disk: another writer fills it, and takes what is left again and again.
func TestStore_RecordsOutcomesOnADiskThatSomebodyFills(t *testing.T) {
	root := t.TempDir()
	if err := unix.Mount("none", root, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
		t.Log("NOT TESTED: a small file system cannot be mounted (root may):", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(root, "dedup")
	s := openTest(t, Config{Dir: dir, Ballast: 2 << 20})
	const runs = 4000 // their outcomes need more than what the journal reaches ahead
	fences := make([]dedup.Fence, runs)
	for i := range fences {
		fences[i] = mustDo(t, s, testKey("crm", fmt.Sprint("r", i)), ride).Record.Fence
	}
	filler, err := os.Create(filepath.Join(root, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	fill(t, filler)
	full := false
	deadline := time.Now().Add(20 * time.Second)
	for i, fence := range fences {
		for {
			_, err := s.Do(t.Context(), testKey("crm", fmt.Sprint("r", i)),
				dedup.Commit{Fence: fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
			if err == nil {
				break
			}
			full = true
			if !errors.Is(err, dedup.ErrUnavailable) || time.Now().After(deadline) {
				t.Fatalf("outcome %d: %v", i, err)
			}
		}
	}
	if !full || !s.Full() {
		t.Error("the disk did not get full")
	}
	fill(t, filler)
	wantUnavailable(t, s, "new", ride)
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.Full() {
		if time.Now().After(deadline) {
			t.Fatal("the disk stays full for the store")
		}
		<-tick.C
	}
	mustDo(t, s, testKey("crm", "new"), ride)
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	after := openTest(t, Config{Dir: dir, MustExist: true, Ballast: 2 << 20})
	for i := range fences {
		wantState(t, after, fmt.Sprint("r", i), dedup.Done)
	}
	wantState(t, after, "new", dedup.Started)
}

// fill takes all that is free.
func fill(t *testing.T, f *os.File) {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at, chunk := info.Size(), int64(4<<20); chunk >= 4096; {
		err := unix.Fallocate(int(f.Fd()), 0, at, chunk)
		switch {
		case err == nil:
			at += chunk
		case errors.Is(err, unix.ENOSPC):
			chunk /= 2
		case !errors.Is(err, unix.EINTR):
			t.Fatal(err)
		}
	}
}

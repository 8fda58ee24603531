package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"idemd/dedup"
	"idemd/event"
)

// stepped is a store whose writer's goroutine is the test's: batches are what the
// test says they are.
type stepped struct {
	*Store
	n       int
	durable []event.Key // of requests that were answered as on stable storage
}

func openStepped(tb testing.TB, dir string, m *machine) *stepped {
	tb.Helper()
	s := newStore(Config{Dir: dir}, m)
	if err := errors.Join(s.prepare(), s.start(tb.Context())); err != nil {
		tb.Fatal(err)
	}
	return &stepped{Store: s}
}

// batch lets the writer have n requests at once, with keys of the given length.
// Those of rides may be answered early.
func (s *stepped) batch(n, long int, rides func(i int) bool) {
	batch := make([]*request, n)
	for i := range batch {
		s.n++
		e := event.Event{
			Source: "src", Batch: strings.Repeat("b", long),
			Identity: event.NewIdentity("t", event.KindPlatform, "", fmt.Sprint(s.n)),
		}
		op := durable
		if rides(i) {
			op = ride
		}
		batch[i] = &request{key: event.KeyFor(&e, "crm"), handler: "crm", op: op, done: make(chan struct{}, 1)}
	}
	s.writer.group(batch)
	for i, r := range batch {
		<-r.done
		if r.err == nil && !rides(i) {
			s.durable = append(s.durable, r.key)
		}
	}
}

// wantFrames reads all journals as the next start would, and wants every frame
// within its bounds and every durable answer in one of them.
func (s *stepped) wantFrames(ctx context.Context, tb rapid.TB, dir string) {
	tb.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "journal-*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		for at := headSize; at+len(frameMark) <= len(b) && string(b[at:at+len(frameMark)]) == frameMark; {
			f, err := parseFrame(b[at:])
			if err != nil || f.count > 1024 || frameHead+f.length > 4<<20 {
				tb.Fatalf("%s at %d: %+v, %v", filepath.Base(path), at, f, err)
			}
			at += frameHead + f.length
		}
	}
	again, err := open(ctx, Config{Dir: dir}, lazyMachine())
	if err != nil {
		tb.Fatal(err)
	}
	for _, key := range s.durable {
		if r, ok, err := again.Get(ctx, key); !ok || err != nil || r.State != dedup.Started {
			tb.Fatalf("a grant that was answered as durable: %v, %t, %v", r.State, ok, err)
		}
	}
	if err := errors.Join(again.Check(ctx), again.Close()); err != nil {
		tb.Fatal(err)
	}
}

// As many ridden grants as may wait, and a full group behind them.
func TestWriter_CutsRidesAndAGroupIntoFrames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dedup")
	s := openStepped(t, dir, lazyMachine())
	s.batch(maxRides-1, 0, func(int) bool { return true })
	s.batch(maxRecords, 0, func(int) bool { return false })
	if err := s.closeFiles(); err != nil {
		t.Fatal(err)
	}
	if ends := frames(t, filepath.Join(dir, journalName(1))); len(ends) != 3 {
		t.Errorf("%d frames", len(ends)-1)
	}
	s.wantFrames(t.Context(), t, dir)
}

// Whatever the mix of rides, waits, long records and writes that fail: every frame
// on disk is one that the next start reads, and what was answered is in it.
func TestWriter_EveryFrameIsWithinItsBounds(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		parent, err := os.MkdirTemp(root, "")
		if err != nil {
			rt.Fatal(err)
		}
		dir := filepath.Join(parent, "dedup")
		fails := false
		m := lazyMachine()
		m.write = func(f *os.File, b []byte, off int64) (int, error) {
			if fails && string(b[:4]) == frameMark {
				n, _ := f.WriteAt(b[:len(b)/2], off)
				return n, syscall.ENOSPC
			}
			return f.WriteAt(b, off)
		}
		s := openStepped(t, dir, m)
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			fails = rapid.IntRange(0, 3).Draw(rt, "fails") == 0
			s.writer.mendAfter = time.Time{}
			n, long := rapid.SampledFrom([]int{1, 10, maxRides - 1, maxRides, maxRecords}).Draw(rt, "requests"), 0
			if n < maxRides && rapid.Bool().Draw(rt, "long") {
				n, long = n%100, maxRecord-500
			}
			waits := rapid.SampledFrom([]int{1, 2, 400, maxRecords + 1}).Draw(rt, "waits")
			s.batch(n, long, func(i int) bool { return (i+1)%waits != 0 })
		}
		if err := s.closeFiles(); err != nil {
			rt.Fatal(err)
		}
		s.wantFrames(t.Context(), rt, dir)
		if err := os.RemoveAll(parent); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestWriter_RefusesAFrameThatNoStartWouldRead(t *testing.T) {
	for name, grow := range map[string]func(w *writer){
		"records": func(w *writer) {
			for len(w.pending) <= maxRecords {
				w.pending = append(w.pending, w.pending[0])
			}
		},
		"bytes": func(w *writer) { w.buf = append(w.buf, make([]byte, maxFrame)...) },
	} {
		s := openStepped(t, filepath.Join(t.TempDir(), "dedup"), lazyMachine())
		s.batch(1, 0, func(int) bool { return true })
		end := s.writer.journal.size
		grow(s.writer)
		if err := s.writer.write(); err == nil || s.writer.journal.size != end {
			t.Errorf("%s: error %v", name, err)
		}
		if err := s.closeFiles(); err != nil {
			t.Fatal(err)
		}
	}
}

package queue

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"idemd/event"
)

// usedQueue is the directory of a queue that held n events and a parked copy
// when it was closed.
func usedQueue(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	err := openAs(t, dir, "a", true, func(q *Queue) {
		for i := range n {
			publish(t, q, newEvent(i))
		}
		ev := newEvent(0)
		if err := q.Park(context.Background(), "crm", event.KeyFor(ev, "crm"), ev); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// crashed makes a closed queue one that was killed.
func crashed(t *testing.T, dir string) {
	t.Helper()
	err := os.Remove(filepath.Join(dir, closedName))
	for _, stream := range []string{streamEvents, streamParked} {
		err = errors.Join(err, os.Remove(filepath.Join(streamDir(dir, stream), "index.db")))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func put1(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerify_FindsEveryFlippedBitOfABlock(t *testing.T) {
	dir := usedQueue(t, 3)
	cfg := Config{Dir: dir}
	for _, stream := range []string{streamEvents, streamParked} {
		path := filepath.Join(streamDir(dir, stream), "1.blk")
		whole := content(t, path)
		if err := verifyErr(t.Context(), cfg); err != nil || len(whole) == 0 {
			t.Fatalf("%s, %d bytes: %v", stream, len(whole), err)
		}
		for i := range whole {
			bad := slices.Clone(whole)
			bad[i] ^= 1 << (i % 8)
			put1(t, path, bad)
			// The last record's checksum is also known to CLOSED; what is before
			// must be found by itself.
			if err := verifyErr(t.Context(), cfg); !errors.Is(err, ErrDamaged) && i < len(whole)-recordSum {
				if stream == streamParked || i >= lastRecord(whole) {
					continue // a torn tail: see below
				}
				t.Fatalf("%s, byte %d of %d: %v", stream, i, len(whole), err)
			}
		}
		put1(t, path, whole)
	}
}

// lastRecord is where the last record of an EVENTS block begins.
func lastRecord(b []byte) int {
	r, last := newReader(streamEvents, 1, b), 0
	for off := 0; off < len(b); {
		_, n, ok := r.at(off)
		if !ok {
			return last
		}
		last, off = off, off+n
	}
	return last
}

// After a kill the end of the newest block may be torn: it was never answered
// for, and the server cuts it. What is known to have been there is missed.
func TestVerify_TellsATornTailFromDamage(t *testing.T) {
	dir := usedQueue(t, 3)
	crashed(t, dir)
	path := filepath.Join(streamDir(dir, streamEvents), "1.blk")
	whole := content(t, path)
	last := lastRecord(whole)
	for cut := last + 1; cut < len(whole); cut++ {
		put1(t, path, whole[:cut])
		if err := verifyErr(t.Context(), Config{Dir: dir}); err != nil {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), err)
		}
		if err := verifyErr(t.Context(), Config{Dir: dir, Last: 3}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d of %d, event 3 known: %v", cut, len(whole), err)
		}
	}
	for i := range last { // not at the end
		bad := slices.Clone(whole)
		bad[i] ^= 0x10
		put1(t, path, bad)
		if err := verifyErr(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d of %d: %v", i, len(whole), err)
		}
	}
	// Sectors that never reached the disk, before one that did.
	hollow := slices.Concat(whole[:last], make([]byte, 1024), whole[last:])
	put1(t, path, hollow)
	if err := verifyErr(t.Context(), Config{Dir: dir}); err != nil {
		t.Errorf("a hole: %v", err)
	}
}

// What a refused start finds, the next one finds again.
func TestOpen_LeavesADamagedQueueAsItIs(t *testing.T) {
	for _, clean := range []bool{true, false} {
		dir := usedQueue(t, 3)
		if !clean {
			crashed(t, dir)
		}
		path := filepath.Join(streamDir(dir, streamEvents), "1.blk")
		bad := content(t, path)
		bad[40] ^= 1
		put1(t, path, bad)
		for range 2 {
			err := openAs(t, dir, "a", false, nil)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Errorf("clean %t: %v", clean, err)
			}
		}
		if !slices.Equal(content(t, path), bad) {
			t.Error("the damaged block was changed")
		}
	}
}

// A block of another queue is right in itself; only what the last stop left
// tells it.
func TestOpen_KnowsItsOwnBlocks(t *testing.T) {
	for name, harm := range map[string]func(msgs, other string) error{
		"another's": func(msgs, other string) error {
			return os.Rename(filepath.Join(other, "1.blk"), filepath.Join(msgs, "1.blk"))
		},
		"one more": func(msgs, other string) error {
			return os.Rename(filepath.Join(other, "1.blk"), filepath.Join(msgs, "2.blk"))
		},
		"missing": func(msgs, _ string) error { return os.Remove(filepath.Join(msgs, "1.blk")) },
		"empty":   func(msgs, _ string) error { return os.Truncate(filepath.Join(msgs, "1.blk"), 0) },
	} {
		dir, other := usedQueue(t, 3), usedQueue(t, 4)
		if err := harm(streamDir(dir, streamEvents), streamDir(other, streamEvents)); err != nil {
			t.Fatal(err)
		}
		if err := openAs(t, dir, "a", false, nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A copy that was made while the original stopped has older blocks than CLOSED.
func TestOpen_ACopyMayBeOfSeveralInstants(t *testing.T) {
	dir, later := usedQueue(t, 3), usedQueue(t, 4)
	if err := os.Rename(filepath.Join(later, closedName), filepath.Join(dir, closedName)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		copy bool
		want error
	}{{false, ErrDamaged}, {true, nil}} {
		q, err := Open(t.Context(), Config{Dir: dir, MaxBytes: testBudget, Incarnation: "a", Copy: c.copy, Logger: logOf(t)})
		if !errors.Is(err, c.want) {
			t.Errorf("copy %t: %v", c.copy, err)
		}
		if err == nil {
			closeQueue(t, q)
		}
	}
}

func FuzzClosed(f *testing.F) {
	b, err := encodeClosed(closed{Streams: map[string][]blockMark{streamEvents: {{Name: "1.blk", Size: 5, End: "00"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(closedHead))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := decodeClosed(b); err == nil {
			if _, err := encodeClosed(c); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzBlock: whatever stands in a block, reading it ends, and a record that is
// taken for right lies inside.
func FuzzBlock(f *testing.F) {
	f.Add([]byte("\x1e\x00\x00\x00"), 0)
	f.Add(make([]byte, 100), 50)
	f.Fuzz(func(t *testing.T, b []byte, off int) {
		if off < 0 || off > len(b) {
			return
		}
		r := newReader(streamEvents, 1, b)
		if _, n, ok := r.at(off); ok && (n < recordHead+recordSum || off+n > len(b)) {
			t.Fatalf("%d bytes at %d of %d", n, off, len(b))
		}
		if at, found := r.behind(off); found && at <= off {
			t.Fatalf("%d is not behind %d", at, off)
		}
	})
}

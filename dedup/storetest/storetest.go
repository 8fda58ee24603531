// Package storetest is the suite that every dedup.Store passes: the contract
// sentence by sentence, and a model that a store must agree with over any
// history. Time is that of a testing/synctest bubble.
package storetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Open opens the store in dir, a new one where dir does not exist yet. It fails t
// when that is not possible.
type Open func(t testing.TB, dir string, now func() time.Time) dedup.Store

// Steps are what a store does beside the operations. Random ones are mixed into the
// model's histories.
type Steps struct {
	// Tidy are steps that nobody may notice.
	Tidy map[string]func(s dedup.Store) error
	// MoveHorizon makes the DONE records expire whose Expires is before to.
	MoveHorizon func(s dedup.Store, to dedup.Time) error
}

// Run runs the whole suite.
func Run(t *testing.T, open Open, steps Steps) {
	run(t, open, append(contract(), durability()...))
	t.Run("Model", func(t *testing.T) { runModel(t, open, true, steps) })
}

// RunVolatile runs what concerns a store that forgets everything at Close.
func RunVolatile(t *testing.T, open Open) {
	run(t, open, contract())
	t.Run("Model", func(t *testing.T) { runModel(t, open, false, Steps{}) })
}

// sentence is one sentence of the contract.
type sentence struct {
	name string
	test func(h *harness)
}

func run(t *testing.T, open Open, sentences []sentence) {
	t.Helper()
	for _, s := range sentences {
		t.Run(s.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				h := &harness{T: t, open: open, dir: filepath.Join(dir, "store")}
				h.s = h.start()
				s.test(h)
				if err := h.s.Check(t.Context()); err != nil && !errors.Is(err, dedup.ErrClosed) {
					t.Errorf("check: %v", err)
				}
			})
		})
	}
}

// harness is a store under test.
type harness struct {
	*testing.T
	open Open
	dir  string
	s    dedup.Store
}

func (h *harness) start() dedup.Store {
	s := h.open(h, h.dir, time.Now)
	h.Cleanup(func() {
		if err := s.Close(); err != nil {
			h.Errorf("close: %v", err)
		}
	})
	return s
}

// pass lets time pass in the bubble.
func (h *harness) pass(d time.Duration) { time.Sleep(d) }

// reopen closes the store and opens it again.
func (h *harness) reopen() {
	h.Helper()
	if err := h.s.Close(); err != nil {
		h.Fatalf("close: %v", err)
	}
	h.s = h.start()
}

// crash goes on with what is on disk at this moment.
func (h *harness) crash() {
	h.Helper()
	next := h.dir + "+"
	if err := copyDir(next, h.dir); err != nil {
		h.Fatalf("copy the store: %v", err)
	}
	h.dir = next
	old := h.s
	h.s = h.start()
	if err := old.Close(); err != nil {
		h.Fatalf("close: %v", err)
	}
}

// copyDir copies what is on disk once the store has nothing more to do.
func copyDir(to, from string) error {
	synctest.Wait()
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}

func key(handler, id string) event.Key {
	e := event.Event{Source: "src", Identity: event.NewIdentity("tenant", event.KindPlatform, "", id)}
	return event.KeyFor(&e, handler)
}

// name is the i-th id.
func name(i int) string { return "k" + strconv.Itoa(i) }

func acquire(seq uint64) dedup.Acquire {
	return dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Origin: event.OriginCallback, Seq: seq}
}

func claim(lease time.Duration) dedup.Acquire {
	return dedup.Acquire{Effect: dedup.Retryable, Owner: dedup.External, Lease: lease, Origin: event.OriginCallback, Seq: 1}
}

func commit(f dedup.Fence) dedup.Commit {
	return dedup.Commit{Fence: f, Outcome: dedup.OutcomeDone, Retain: time.Hour}
}

func waiting(due dedup.Time) dedup.Put {
	return dedup.Put{State: dedup.Waiting, Effect: dedup.Retryable, Origin: event.OriginCallback, Seq: 1, Due: due}
}

func now() dedup.Time { return dedup.At(time.Now()) }

func (h *harness) do(k event.Key, op dedup.Op) dedup.Result {
	h.Helper()
	res, err := h.s.Do(h.Context(), k, op)
	if err != nil {
		h.Fatalf("%T: %v", op, err)
	}
	return res
}

// grant is an Acquire that must be granted.
func (h *harness) grant(k event.Key, op dedup.Acquire) dedup.Record {
	h.Helper()
	res := h.do(k, op)
	if res.Verdict != dedup.Granted {
		h.Fatalf("acquire: %v", res.Verdict)
	}
	return res.Record
}

func (h *harness) wantRecord(k event.Key, want dedup.Record) {
	h.Helper()
	got, ok, err := h.s.Get(h.Context(), k)
	if err != nil || !ok || got != want {
		h.Errorf("got %+v, %t, %v\nwant %+v", got, ok, err, want)
	}
}

func (h *harness) wantNone(k event.Key) {
	h.Helper()
	if got, ok, err := h.s.Get(h.Context(), k); ok || err != nil {
		h.Errorf("got %+v, %t, %v; want none", got, ok, err)
	}
}

// list gives the ids of what f chooses, read in pages of the given size.
func (h *harness) list(f dedup.Filter, page int) []string {
	h.Helper()
	ids := []string{}
	for cursor := ""; ; {
		records, next, err := h.s.List(h.Context(), f, cursor, page)
		if err != nil || len(records) > page {
			h.Fatalf("list: %d records, %v", len(records), err)
		}
		ids = append(ids, idsOf(h, records)...)
		if next == "" {
			return ids
		}
		cursor = next
	}
}

func idsOf(t testing.TB, records []dedup.Record) []string {
	t.Helper()
	ids := []string{}
	for _, r := range records {
		parts, err := event.DecodeKey(r.Key.Tuple)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, parts.Identity.ID)
	}
	return ids
}

// due gives the ids of what is due now, and how long it is until the next.
func (h *harness) due(handler string, limit int) ([]string, time.Duration) {
	h.Helper()
	records, next, err := h.s.Due(h.Context(), handler, now(), limit)
	if err != nil {
		h.Fatalf("due: %v", err)
	}
	if next == 0 {
		return idsOf(h, records), -1
	}
	return idsOf(h, records), time.Duration(next - now())
}

func (h *harness) woken(handler string) bool {
	select {
	case <-h.s.Wake(handler):
		return true
	default:
		return false
	}
}

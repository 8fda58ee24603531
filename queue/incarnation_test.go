package queue

import (
	"context"
	"errors"
	"testing"

	"idemd/event"
)

// openAs opens and closes the queue in dir as the data directory of incarnation.
func openAs(t *testing.T, dir, incarnation string, first bool, with func(*Queue)) error {
	t.Helper()
	q, err := Open(t.Context(), Config{Dir: dir, MaxBytes: testBudget, Incarnation: incarnation, First: first, Logger: logOf(t)})
	if err != nil {
		return err
	}
	if with != nil {
		with(q)
	}
	closeQueue(t, q)
	return nil
}

// A claim store beside a lost or exchanged queue would believe that it has
// settled what it never saw.
func TestOpen_KnowsWhoseQueueItIs(t *testing.T) {
	oneEvent := func(q *Queue) { publish(t, q, newEvent(0)) }
	oneCopy := func(q *Queue) {
		ev := newEvent(0)
		if err := q.Park(context.Background(), "crm", event.KeyFor(ev, "crm"), ev); err != nil {
			t.Fatal(err)
		}
	}
	noCopies := func(q *Queue) {
		if err := q.now().js.DeleteStream(t.Context(), streamParked); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		before func(dir string) error // nil: an empty directory
		first  bool
		want   error
	}{
		{"first start", nil, true, nil},
		{"lost", nil, false, ErrAbsent},
		{"own", func(dir string) error { return openAs(t, dir, "a", true, oneEvent) }, false, nil},
		{"own, one stream lost", func(dir string) error { return openAs(t, dir, "a", true, noCopies) }, false, ErrAbsent},
		{"another's", func(dir string) error { return openAs(t, dir, "b", true, nil) }, false, ErrForeign},
		{"nobody's", func(dir string) error { return openAs(t, dir, "", false, nil) }, false, ErrForeign},
		{"first start again, own", func(dir string) error { return openAs(t, dir, "a", true, oneEvent) }, true, nil},
		{"first start cut short", func(dir string) error { return openAs(t, dir, "b", true, nil) }, true, nil},
		{"first start cut shorter", func(dir string) error { return openAs(t, dir, "b", true, noCopies) }, true, nil},
		{"first start on another's", func(dir string) error { return openAs(t, dir, "b", true, oneEvent) }, true, ErrForeign},
		{"first start on another's copies", func(dir string) error { return openAs(t, dir, "b", true, oneCopy) }, true, ErrForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.before != nil {
				if err := c.before(dir); err != nil {
					t.Fatal(err)
				}
			}
			if err := openAs(t, dir, "a", c.first, nil); !errors.Is(err, c.want) {
				t.Fatalf("open: %v, want %v", err, c.want)
			}
			if c.want == nil { // and it stays ours, also with another budget and for whoever does not ask
				if err := errors.Join(openAs(t, dir, "", false, nil), openAs(t, dir, "a", false, nil)); err != nil {
					t.Error(err)
				}
				if err := openAs(t, dir, "b", false, nil); !errors.Is(err, ErrForeign) {
					t.Errorf("open as another: %v", err)
				}
			}
		})
	}
}

// A queue that is refused is left as it was.
func TestOpen_LeavesAForeignQueueAlone(t *testing.T) {
	dir := t.TempDir()
	park := func(q *Queue) {
		ev := newEvent(0)
		if err := q.Park(t.Context(), "crm", event.KeyFor(ev, "crm"), ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := openAs(t, dir, "b", true, park); err != nil {
		t.Fatal(err)
	}
	if err := openAs(t, dir, "a", true, nil); !errors.Is(err, ErrForeign) {
		t.Fatal(err)
	}
	if err := openAs(t, dir, "b", false, nil); err != nil {
		t.Errorf("its owner: %v", err)
	}
}

func TestOpen_BudgetChangeKeepsTheIncarnation(t *testing.T) {
	dir := t.TempDir()
	if err := openAs(t, dir, "a", true, nil); err != nil {
		t.Fatal(err)
	}
	for _, incarnation := range []string{"", "a"} {
		q := open(t, Config{Dir: dir, MaxBytes: testBudget + int64(1+len(incarnation))<<20, Incarnation: incarnation})
		closeQueue(t, q)
	}
	if err := openAs(t, dir, "a", false, nil); err != nil {
		t.Error(err)
	}
}

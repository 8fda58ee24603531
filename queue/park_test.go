package queue

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"idemd/event"
)

func event0Key() event.Key { return event.KeyFor(newEvent(0), "crm") }

func TestPark_KeepsOneCopyForHandlerAndKey(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	q := open(t, cfg)
	first, second := newEvent(0), newEvent(0)
	second.Batch, second.Body = "b1", []byte("other")
	key := event0Key()
	for _, handler := range []string{"crm", "c.r m"} {
		for _, ev := range []*event.Event{first, second} {
			if err := q.Park(t.Context(), handler, key, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := state(t, q); st.Parked != 2 || st.LastSeq != 0 || st.Durable != 0 {
		t.Errorf("%+v", st)
	}
	closeQueue(t, q)
	q = open(t, cfg)
	for _, handler := range []string{"crm", "c.r m"} {
		m, err := q.Parked(t.Context(), handler, key)
		if diff := cmp.Diff(*second, m.Event); err != nil || diff != "" || m.Seq == 0 {
			t.Errorf("%s: %v %s", handler, err, diff)
		}
	}
	for range 2 { // the second finds nothing, which is fine
		if err := q.Unpark(t.Context(), "crm", key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.Parked(t.Context(), "crm", key); !errors.Is(err, ErrMissing) {
		t.Errorf("after unpark: %v", err)
	}
	if _, err := q.Parked(t.Context(), "c.r m", key); err != nil {
		t.Errorf("the other handler's copy: %v", err)
	}
}

func TestPark_OtherKeyOfTheSameHashIsMissing(t *testing.T) {
	q := open(t, Config{})
	key := event0Key()
	if err := q.Park(t.Context(), "crm", key, newEvent(0)); err != nil {
		t.Fatal(err)
	}
	other := event.Key{Hash: key.Hash, Tuple: event.KeyFor(newEvent(1), "crm").Tuple}
	if _, err := q.Parked(t.Context(), "crm", other); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
	if err := q.Unpark(t.Context(), "crm", other); err != nil {
		t.Error(err)
	}
	if _, err := q.Parked(t.Context(), "crm", key); err != nil {
		t.Error(err)
	}
}

func TestPark_IsDurableOnReturn(t *testing.T) {
	var mu sync.Mutex // the background may sync at any time
	var points []string
	var w watch
	q := open(t, Config{groupSync: wrapped(w.wrap), Fault: func(point string) {
		mu.Lock()
		defer mu.Unlock()
		if len(points) < 3 {
			points = append(points, point)
		}
	}})
	before := w.syncs.Load()
	if err := q.Park(t.Context(), "crm", event0Key(), newEvent(0)); err != nil {
		t.Fatal(err)
	}
	if w.syncs.Load() == before {
		t.Error("park returned without a sync")
	}
	closeQueue(t, q)
	if want := []string{"before-sync", "after-sync", "after-park"}; !slices.Equal(points, want) {
		t.Errorf("points %v, want %v", points, want)
	}
}

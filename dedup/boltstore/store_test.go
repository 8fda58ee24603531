package boltstore

import (
	"path/filepath"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/event"
)

func testKey(handler, id string) event.Key {
	e := event.Event{Source: "src", Identity: event.NewIdentity("t", event.KindPlatform, "", id)}
	return event.KeyFor(&e, handler)
}

func openTest(t *testing.T, cfg Config) *Store {
	t.Helper()
	return openWith(t, cfg, &machine{})
}

func openWith(t *testing.T, cfg Config, m *machine) *Store {
	t.Helper()
	s, err := open(t.Context(), cfg, m)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func mustDo(t *testing.T, s *Store, key event.Key, op dedup.Op) dedup.Result {
	t.Helper()
	r, err := s.Do(t.Context(), key, op)
	if err != nil {
		t.Fatalf("%T: %v", op, err)
	}
	return r
}

func TestStore_CommitSurvivesReopen(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "dedup"), Host: "h"}
	s := openTest(t, cfg)
	key := testKey("crm", "e1")
	g := mustDo(t, s, key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Seq: 7})
	if g.Verdict != dedup.Granted {
		t.Fatalf("verdict %v", g.Verdict)
	}
	c := mustDo(t, s, key, dedup.Commit{Fence: g.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, cfg)
	got, ok, err := s.Get(t.Context(), key)
	if err != nil || !ok || got != c.Record {
		t.Fatalf("got %+v, %t, %v; want %+v", got, ok, err, c.Record)
	}
	if v := mustDo(t, s, key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc}).Verdict; v != dedup.AlreadyDone {
		t.Fatalf("verdict %v", v)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
}

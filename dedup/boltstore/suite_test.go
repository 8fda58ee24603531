package boltstore

import (
	"os"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/dedup/storetest"
	"idemd/event"
)

func TestStore_PassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, now func() time.Time) dedup.Store {
		s, err := open(t.Context(), Config{Dir: dir, Now: now}, lazyMachine())
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return s
	})
}

// noSync stands for a sync where a test is not about surviving one.
func noSync(*os.File) error { return nil }

// Every key has one of two hashes: a hit is nearly always another key's.
func TestStore_PassesTheSuiteWhenHashesCollide(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, now func() time.Time) dedup.Store {
		collide := func(k event.Key) event.Hash { return event.Hash{k.Hash[0] & 1} }
		m := lazyMachine()
		m.hash = collide
		s, err := open(t.Context(), Config{Dir: dir, Now: now}, m)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return s
	})
}

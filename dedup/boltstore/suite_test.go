package boltstore

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/dedup/storetest"
	"idemd/event"
)

var errNotOurs = errors.New("not a store of this package")

// steps are all that a janitor does, in steps that nobody may notice.
func steps() storetest.Steps {
	step := func(do func(ctx context.Context, s *Store) (Step, error)) func(dedup.Store) error {
		return func(d dedup.Store) error {
			s, ok := d.(*Store)
			if !ok {
				return errNotOurs
			}
			_, err := do(context.Background(), s)
			return err
		}
	}
	return storetest.Steps{
		Tidy: map[string]func(dedup.Store) error{
			"seal": step(func(ctx context.Context, s *Store) (Step, error) {
				_, err := s.Seal(ctx, 0)
				return Step{}, err
			}),
			"move": step(func(ctx context.Context, s *Store) (Step, error) { return s.Move(ctx) }),
			"merge": step(func(ctx context.Context, s *Store) (Step, error) {
				return s.Merge(ctx, dedup.At(s.cfg.Now())+1)
			}),
			"merge young": step(func(ctx context.Context, s *Store) (Step, error) { return s.Merge(ctx, 0) }),
			"expired":     step(func(ctx context.Context, s *Store) (Step, error) { return s.Expire(ctx) }),
			"unlink":      step(func(ctx context.Context, s *Store) (Step, error) { return s.Unlink(ctx, time.Hour) }),
			"verify": step(func(ctx context.Context, s *Store) (Step, error) {
				_, err := s.VerifyNext(ctx)
				return Step{}, err
			}),
			"check": func(d dedup.Store) error { return d.Check(context.Background()) },
		},
		MoveHorizon: func(d dedup.Store, to dedup.Time) error {
			s, ok := d.(*Store)
			if !ok {
				return errNotOurs
			}
			return s.MoveHorizon(context.Background(), to)
		},
	}
}

func TestStore_PassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, now func() time.Time) dedup.Store {
		s, err := open(t.Context(), Config{Dir: dir, Now: now}, lazyMachine())
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return s
	}, steps())
}

// noSync stands for a sync where a test is not about surviving one.
func noSync(*os.File) error { return nil }

// Every key has one of two hashes: a hit is nearly always another key's. Journals
// are full after a few records.
func TestStore_PassesTheSuiteWhenHashesCollide(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, now func() time.Time) dedup.Store {
		collide := func(k event.Key) event.Hash { return event.Hash{k.Hash[0] & 1} }
		m := lazyMachine()
		m.hash, m.journalMax = collide, 1000
		s, err := open(t.Context(), Config{Dir: dir, Now: now}, m)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		return s
	}, steps())
}

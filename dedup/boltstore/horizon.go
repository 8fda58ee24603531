package boltstore

import (
	"context"
	"fmt"

	"idemd/dedup"
)

// Horizon is the moment that decides which DONE records have expired: those whose
// Expires is before it.
func (s *Store) Horizon() dedup.Time { return dedup.Time(s.horizon.Load()) }

// MoveHorizon moves the horizon forwards. It is on stable storage before it
// counts, so that no record that counted as expired comes back. A moment that is
// not later than the present horizon changes nothing. The error wraps
// dedup.ErrUnavailable, or is ErrClosed.
func (s *Store) MoveHorizon(ctx context.Context, to dedup.Time) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.marks.Lock()
	defer s.marks.Unlock()
	before := s.pledged
	if to <= before {
		return nil
	}
	s.pledged = to
	if err := s.writeCheckpoint(false); err != nil {
		s.pledged = before
		return fmt.Errorf("move horizon: %w: %w", dedup.ErrUnavailable, err)
	}
	s.horizon.Store(int64(to))
	return nil
}

package boltstore

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"idemd/dedup"
)

// progress is how far each handler has come.
type progress struct {
	mu   sync.Mutex
	of   map[string]dedup.Progress
	past []pastMark // earlier ones, oldest first; for whoever holds marks
}

func (p *progress) snapshot() map[string]dedup.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.of)
}

// Begin implements dedup.Store.
func (s *Store) Begin(ctx context.Context, handler string, first uint64) (dedup.Progress, error) {
	if err := s.ready(ctx); err != nil {
		return dedup.Progress{}, err
	}
	s.marks.Lock()
	defer s.marks.Unlock()
	s.progress.mu.Lock()
	before, known := s.progress.of[handler]
	now := dedup.Progress{FirstSeq: first}
	if known {
		now = before.Within(first)
	}
	s.progress.of[handler] = now
	s.progress.mu.Unlock()
	if known && now == before {
		return now, nil
	}
	if known {
		s.cfg.Logger.Warn("handler's progress is beyond the end of the stream and was brought back",
			"handler", handler, "settled_to", before.SettledTo, "stream_end", first-1)
	}
	if err := s.writeCheckpoint(false); err != nil {
		s.progress.mu.Lock()
		if delete(s.progress.of, handler); known {
			s.progress.of[handler] = before
		}
		s.progress.mu.Unlock()
		return dedup.Progress{}, fmt.Errorf("begin handler: %w: %w", dedup.ErrUnavailable, err)
	}
	return now, nil
}

// Settle implements dedup.Store. A handler that has not begun has no progress,
// and none goes backwards.
func (s *Store) Settle(handler string, to uint64) {
	s.progress.mu.Lock()
	p, ok := s.progress.of[handler]
	news := ok && to > p.SettledTo
	if news {
		p.SettledTo = to
		s.progress.of[handler] = p
	}
	s.progress.mu.Unlock()
	if news {
		s.touch()
	}
}

// SettledTo is how far handler, an id, has come; 0 when it has not begun.
func (s *Store) SettledTo(handler string) uint64 {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.of[handler].SettledTo
}

// touch notes that CHECKPOINT is not up to date.
func (s *Store) touch() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// keepCheckpoint writes CHECKPOINT a while after something has changed.
func (s *Store) keepCheckpoint() {
	defer close(s.idle)
	failing := false
	for {
		select {
		case <-s.dirty:
		case <-s.closing:
			return
		}
		wait := time.NewTimer(s.machine.checkpoint)
		select {
		case <-wait.C:
		case <-s.closing:
			wait.Stop()
			return
		}
		err := s.saveCheckpoint(false)
		if err != nil {
			if !failing {
				s.cfg.Logger.Warn("checkpoint not written, trying again until it is", "error", err)
			}
			if !s.down.Load() {
				s.touch()
			}
		}
		failing = err != nil
	}
}

func (s *Store) saveCheckpoint(clean bool) error {
	s.marks.Lock()
	defer s.marks.Unlock()
	return s.writeCheckpoint(clean)
}

// writeCheckpoint replaces CHECKPOINT. The caller holds marks.
func (s *Store) writeCheckpoint(clean bool) error {
	if s.down.Load() {
		return dedup.ErrUnavailable
	}
	handlers := s.progress.snapshot() // before the number: what is settled has its record below that
	c := checkpoint{
		Incarnation: s.born, LastNumber: s.durable.Load(), Horizon: s.pledged, Clean: clean, Handlers: handlers,
	}
	now := dedup.At(s.cfg.Now())
	c.Past = thinned(append(s.progress.past, pastMark{At: now, LastNumber: c.LastNumber, Handlers: handlers}), now)
	err := s.machine.writeText(s.cfg.Dir, checkpointName, c)
	if err == nil {
		s.progress.past = c.Past
		s.fault("after-checkpoint")
	}
	return s.failOn(err)
}

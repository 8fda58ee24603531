package boltstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"idemd/dedup"
)

// Expire takes away the hot and cold files of which every record has expired. When
// it returns they are closed and wait to be unlinked.
func (s *Store) Expire(ctx context.Context) (Step, error) {
	if err := s.beginStep(ctx, false); err != nil {
		return Step{}, err
	}
	defer s.steps.Unlock()
	c, step, horizon := &change{step: "expire"}, Step{}, s.Horizon()
	for _, t := range s.tables {
		if t.Until < horizon {
			c.tables, step.Took = append(c.tables, t), append(step.Took, t.Name)
			step.Expired, step.Bytes = step.Expired+t.Keys, step.Bytes+t.Size
		}
	}
	if len(c.tables) == 0 {
		return Step{}, nil
	}
	if err := s.inWriter(func(w *writer) error { return w.apply(c) }); err != nil {
		return Step{}, fmt.Errorf("expire tables: %w", err)
	}
	return step, s.closeTables(c)
}

// unlinkAtOnce is how many files one step unlinks.
const unlinkAtOnce = 16

// Unlink removes files that left the others at least grace ago: an hour lets a
// copy of the directory that is being made still find them; below the disk's
// reserve it is none.
func (s *Store) Unlink(ctx context.Context, grace time.Duration) (Step, error) {
	if err := s.beginStep(ctx, false); err != nil {
		return Step{}, err
	}
	defer s.steps.Unlock()
	var step Step
	until := dedup.At(s.cfg.Now()).Add(-grace)
	err := s.inWriter(func(w *writer) error {
		for _, g := range w.names.Gone {
			switch {
			case g.At > until:
			case len(step.Took) == unlinkAtOnce:
				step.More = true
			default:
				step.Took, step.Bytes = append(step.Took, g.name()), step.Bytes+g.size()
			}
		}
		return nil
	})
	if err != nil || len(step.Took) == 0 {
		return Step{}, err
	}
	for _, name := range step.Took {
		if err := os.Remove(filepath.Join(s.cfg.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return Step{}, fmt.Errorf("unlink a file that is not needed: %w", err)
		}
		s.fault("unlink-removed")
	}
	// MANIFEST must not forget a name that a power cut could bring back.
	if err := s.failOn(s.machine.syncDir(s.cfg.Dir)); err != nil {
		return Step{}, err
	}
	err = s.inWriter(func(w *writer) error {
		names := w.names
		names.Gone = slices.DeleteFunc(slices.Clone(names.Gone), func(g goneEntry) bool { return slices.Contains(step.Took, g.name()) })
		if err := s.failOn(s.machine.writeText(s.cfg.Dir, manifestName, names)); err != nil {
			return err
		}
		s.fault("unlink-manifest")
		w.names = names
		s.disk.Add(-step.Bytes)
		return nil
	})
	if err != nil {
		return Step{}, fmt.Errorf("forget unlinked files: %w", err)
	}
	return step, nil
}

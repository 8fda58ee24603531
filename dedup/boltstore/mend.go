package boltstore

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"time"

	"idemd/dedup"
)

// mendEvery is how often the writer tries to get away from a journal that it
// could not write to.
const mendEvery = time.Second

// rotate seals the present journal, cut behind its last good frame, and begins
// the next one.
func (w *writer) rotate() error {
	if err := w.journal.trim(w.s.machine); err != nil {
		return err
	}
	next, err := createJournal(w.s.cfg.Dir, w.s.machine, head{
		number: w.journal.number + 1, epoch: w.s.epoch, incarnation: w.s.born,
		first: w.journal.next(), created: dedup.At(w.s.cfg.Now()),
	})
	if err != nil {
		return err
	}
	names := w.names
	last := len(names.Files) - 1
	names.Files = append(slices.Clone(names.Files[:last]), sealedEntry(w.journal),
		fileEntry{Name: journalName(next.number), First: next.first})
	if err := w.s.machine.writeText(w.s.cfg.Dir, manifestName, names); err != nil {
		return w.s.discard(next, err)
	}
	w.s.fault("after-manifest")
	w.names, w.journal = names, next
	w.s.mu.Lock()
	w.s.journals[next.number] = next
	w.s.mu.Unlock()
	w.s.disk.Add(headSize)
	return nil
}

// mend goes on in a new journal after a failed write. Up to its last good frame
// the old one must be what was written to it, so that the index, which learns of
// a frame only once it is on stable storage, is true to the disk.
func (w *writer) mend() error {
	if err := w.journal.reread(); err != nil {
		return &syncError{path: w.journal.path, err: err}
	}
	if err := w.rotate(); err != nil {
		return err
	}
	if err := w.seize(); err != nil {
		return err
	}
	w.s.cfg.Logger.Warn("claim store goes on in a new journal", "journal", w.journal.number)
	return nil
}

// keepRides leaves in pending the grants that were answered: their owners run,
// and count on their records.
func (w *writer) keepRides() {
	kept := slices.DeleteFunc(slices.Clone(w.pending), func(p pending) bool { return !p.ride })
	w.reset()
	for _, p := range kept {
		if err := w.stage(p.entry, -1, true); err != nil {
			w.s.cfg.Logger.Error("grant cannot be written", "error", err)
			continue
		}
		w.pending[len(w.pending)-1].at = p.at
	}
}

// discard ends a journal that MANIFEST could not be told of.
func (s *Store) discard(j *journal, err error) error {
	errs := []error{err, j.file.Close()}
	var sync *syncError
	if !errors.As(err, &sync) {
		errs = append(errs, os.Remove(j.path))
	}
	return errors.Join(errs...)
}

// reread verifies that the journal's file holds what was written to it.
func (j *journal) reread() error {
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, io.NewSectionReader(j.file, 0, j.size))
	if err != nil {
		return fmt.Errorf("reread journal: %w", err)
	}
	if n != j.size || sum.Sum32() != j.sum {
		return &DataError{Path: j.path, Err: ErrDamaged, Detail: "it is not what was written to it"}
	}
	return nil
}

package boltstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// load verifies every file that MANIFEST names, fills the index, and gives the
// number of the last record. It changes nothing on disk before all is verified;
// then it cuts a torn tail.
func (s *Store) load(ctx context.Context, names *manifest, mark *checkpoint) (uint64, error) {
	last := names.Moved
	var torn *journal
	shared := interned{}
	ended := mark.Clean // by Close: nothing is torn, and CHECKPOINT was written last
	if s.cfg.Copy {
		ended = false
		if err := s.cutShort(names); err != nil {
			return 0, fmt.Errorf("read claim directory: %w", err)
		}
	}
	for i, f := range names.Files {
		j, err := s.openNamed(f, names, last+1)
		if err != nil {
			return 0, err
		}
		s.journals[j.number] = j
		cut, err := s.loadJournal(ctx, j, f, shared)
		if err != nil {
			return 0, err
		}
		if cut {
			torn = j
		}
		if cut && (ended || i < len(names.Files)-1) {
			return 0, &DataError{Path: j.path, Offset: j.size, Err: ErrDamaged, Detail: "it is torn, and was not being written"}
		}
		last = j.next() - 1
		s.disk.Add(j.size)
	}
	path := filepath.Join(s.cfg.Dir, checkpointName)
	if last < mark.LastNumber && !ended { // a restore, not damage: see Past
		s.past.Behind = true
		s.cfg.Logger.Warn("records are missing that were there once: the directory was copied or put back",
			"last_record", last, "checkpoint", mark.LastNumber)
	}
	if last < mark.LastNumber && ended {
		return 0, &DataError{
			Path: path, Err: ErrBehind,
			Detail: fmt.Sprintf("the journals end at record %d, CHECKPOINT at %d", last, mark.LastNumber),
		}
	}
	if ended && last != mark.LastNumber {
		return 0, &DataError{
			Path: path, Err: ErrMismatch,
			Detail: fmt.Sprintf("it was written last, at record %d, but the journals end at %d", mark.LastNumber, last),
		}
	}
	if torn != nil {
		s.cfg.Logger.Info("end of the newest journal cut", "journal", filepath.Base(torn.path), "at", torn.size)
		return last, torn.trim(s.machine)
	}
	return last, nil
}

// openNamed opens a journal and compares its header with what it should be.
func (s *Store) openNamed(f fileEntry, names *manifest, first uint64) (*journal, error) {
	path := filepath.Join(s.cfg.Dir, filepath.Base(f.Name))
	if _, ok := journalNumber(f.Name); !ok || f.First != first {
		return nil, &DataError{Path: filepath.Join(s.cfg.Dir, manifestName), Err: ErrGap,
			Detail: fmt.Sprintf("%s should begin at record %d", f.Name, first)}
	}
	j, err := openJournal(path)
	if err != nil {
		return nil, err
	}
	detail := ""
	switch {
	case j.incarnation != names.Incarnation:
		detail = "it is of another directory"
	case journalName(j.number) != f.Name:
		detail = "it is " + journalName(j.number)
	case j.epoch > names.Epoch:
		detail = "it is newer than MANIFEST"
	case j.first != first:
		detail = fmt.Sprintf("it begins at record %d, not %d", j.first, first)
	default:
		return j, nil
	}
	return nil, errors.Join(&DataError{Path: path, Err: ErrForeign, Detail: detail}, j.file.Close())
}

// loadJournal reads a journal to its end, and reports whether that is torn: what
// comes after the last good frame was being written when the process or the
// machine stopped.
func (s *Store) loadJournal(ctx context.Context, j *journal, f fileEntry, shared interned) (torn bool, err error) {
	info, err := j.file.Stat()
	if err != nil {
		return false, fmt.Errorf("read journal: %w", err)
	}
	if f.Sealed && info.Size() != f.Size {
		return false, &DataError{Path: j.path, Err: ErrMismatch, Detail: fmt.Sprintf("%d bytes, not %d", info.Size(), f.Size)}
	}
	err = j.scan(ctx, info.Size(), func(number uint64, off int64, body []byte) error {
		return s.loadRecord(j, number, off, body, shared)
	})
	var bad *badFrame
	if errors.As(err, &bad) {
		return s.judge(j, f, bad, info.Size())
	}
	if err != nil {
		return false, err
	}
	if sealed := sealedEntry(j); f.Sealed && (f.CRC32C != sealed.CRC32C || f.Records != sealed.Records) {
		return false, &DataError{Path: j.path, Err: ErrMismatch, Detail: "checksum " + sealed.CRC32C + ", not " + f.CRC32C}
	}
	return false, nil
}

// judge tells a torn tail from damage: a journal that is sealed has none, and a
// good frame behind the bad one shows that this one was once good.
func (s *Store) judge(j *journal, f fileEntry, bad *badFrame, size int64) (torn bool, err error) {
	kind, damaged := ErrDamaged, f.Sealed
	if bad.gap {
		kind, damaged = ErrGap, true
	}
	if !damaged {
		if damaged, err = j.frameBehind(bad.offset, size); err != nil {
			return false, err
		}
		if damaged && s.cfg.Copy {
			b := make([]byte, min(size-bad.offset, 1<<20))
			if _, err := j.file.ReadAt(b, bad.offset); err != nil {
				return false, fmt.Errorf("read journal: %w", err)
			}
			damaged = !unread(b, bad.offset)
		}
	}
	if damaged {
		return false, &DataError{Path: j.path, Offset: bad.offset, Err: kind, Detail: bad.detail}
	}
	return true, nil
}

// loadRecord makes a record the latest of its key.
func (s *Store) loadRecord(j *journal, number uint64, off int64, body []byte, shared interned) error {
	rec, change, err := decodeBody(body, shared)
	if err != nil {
		kind := ErrDamaged
		if errors.Is(err, ErrVersion) {
			kind = ErrVersion
		}
		return &DataError{Path: j.path, Offset: off, Err: kind}
	}
	hash := s.machine.hash(rec.Key)
	_, old, err := s.find(hash, rec.Key.Tuple)
	if err != nil {
		return err
	}
	s.index.put(&entry{rec: rec, hash: hash, number: number, change: change, place: placeAt(j.number, off), old: old})
	return nil
}

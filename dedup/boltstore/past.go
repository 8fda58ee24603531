package boltstore

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"idemd/dedup"
)

// Past is what Open found of the lives before.
type Past struct {
	Epoch uint32 // of the last one
	Last  uint64 // number of its last record that is here
	Clean bool   // it ended with Close
	// Behind: records that were on stable storage once are not here. The
	// directory was copied or put back, and what happened since is not known.
	Behind bool
}

// Past says what Open found.
func (s *Store) Past() Past { return s.past }

// Durable is the number of the last record on stable storage.
func (s *Store) Durable() uint64 { return s.durable.Load() }

// cutShort makes names end where a copy of a living directory does. A journal
// that was being written when it was copied is shorter than MANIFEST says, which
// was copied later; those after it were not there yet. Where one of them is
// there, what is missing is in the middle: that is damage, and names stays.
func (s *Store) cutShort(names *manifest) error {
	for i, f := range names.Files {
		info, err := os.Stat(filepath.Join(s.cfg.Dir, filepath.Base(f.Name)))
		missing := errors.Is(err, os.ErrNotExist) || err == nil && i == len(names.Files)-1 && info.Size() < headSize
		if err != nil && !missing {
			return err
		}
		if !missing && (!f.Sealed || info.Size() == f.Size) {
			continue
		}
		for _, later := range names.Files[i+1:] {
			if _, err := os.Stat(filepath.Join(s.cfg.Dir, filepath.Base(later.Name))); !errors.Is(err, os.ErrNotExist) {
				return err // it is there
			}
		}
		keep := names.Files[:i]
		if !missing {
			keep = append(slices.Clone(keep), fileEntry{Name: f.Name, First: f.First})
		}
		s.past.Behind = true
		s.cfg.Logger.Warn("the copy ends before its MANIFEST does", "at", f.Name)
		names.Files = keep
		return nil
	}
	return nil
}

// unread reports whether the bytes from off on, up to the good frame behind
// them, may be such as a copying process had read before they were written, while
// it read what follows afterwards: the end of a page is still empty.
func unread(b []byte, off int64) bool {
	const page, tail = 4096, 8
	for end := (off/page + 1) * page; end <= off+int64(len(b)); end += page {
		from := max(off, end-tail)
		empty := true
		for _, c := range b[from-off : end-off] {
			empty = empty && c == 0
		}
		if empty {
			return true
		}
	}
	return false
}

// pastMark is a progress that was saved, and the record up to which the journals
// must reach for it to be true.
type pastMark struct {
	At         dedup.Time                `json:"at"`
	LastNumber uint64                    `json:"last_number"`
	Handlers   map[string]dedup.Progress `json:"handlers"`
}

// thinned keeps of marks, oldest first, one for every doubling of their age: some
// twenty, whatever their number. The newest always stays.
func thinned(marks []pastMark, now dedup.Time) []pastMark {
	var kept []pastMark
	bucket := -1
	for i := len(marks) - 1; i >= 0; i-- {
		b := 0
		for age := max(now-marks[i].At, 0) / dedup.Time(1e9); age > 0; age /= 2 {
			b++
		}
		// The oldest of a bucket stays, so that marks grow old enough for the next.
		if b == bucket && i != len(marks)-1 && len(kept) > 1 {
			kept[len(kept)-1] = marks[i]
			continue
		}
		bucket = b
		kept = append(kept, marks[i])
	}
	for i, j := 0, len(kept)-1; i < j; i, j = i+1, j-1 {
		kept[i], kept[j] = kept[j], kept[i]
	}
	return kept
}

// restore takes the progress out of CHECKPOINT. Where the journals end before
// it, settled events may lack the record that says so: then the newest progress
// counts that they do reach, and for a handler that has none its beginning.
func (p *progress) restore(mark *checkpoint, last uint64) {
	p.past = mark.Past
	p.of = maps.Clone(mark.Handlers)
	if p.of == nil {
		p.of = map[string]dedup.Progress{}
	}
	if last >= mark.LastNumber {
		return
	}
	for len(p.past) > 0 && p.past[len(p.past)-1].LastNumber > last {
		p.past = p.past[:len(p.past)-1]
	}
	var known map[string]dedup.Progress
	if len(p.past) > 0 {
		known = p.past[len(p.past)-1].Handlers
	}
	for handler, now := range p.of {
		p.of[handler] = dedup.Progress{FirstSeq: now.FirstSeq, SettledTo: known[handler].SettledTo}
	}
}

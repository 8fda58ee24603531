package ledger

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"idemd/dedup"
	"idemd/event"
)

// maxShown bounds the entries that a look-up tells one by one for one handler;
// the later ones are added up.
const maxShown = 50

// Find gives what is known about the runs with these keys, oldest first. Storms,
// and all beyond the first 50 of a handler, are added up by handler and verdict
// into entries whose Count says how many they are. It reads all files: a million
// suppressions take about a tenth of a second.
func (l *Ledger) Find(ctx context.Context, keys ...event.Key) ([]Entry, error) {
	if l == nil {
		return nil, nil
	}
	l.flush(true)
	wanted := map[event.Hash]bool{}
	for _, k := range keys {
		wanted[k.Hash] = true
	}
	f := found{shown: map[string]int{}, seen: map[seqKey]bool{}, sums: map[sumKey]int{}}
	for _, s := range l.readable() {
		if err := s.find(ctx, wanted, f.add); err != nil && !errors.Is(err, fs.ErrNotExist) { // it expired meanwhile
			return nil, err
		}
	}
	slices.SortStableFunc(f.entries, func(a, b Entry) int { return int(min(max(a.First-b.First, -1), 1)) })
	return f.entries, nil
}

// part is a segment as far as it can be read.
type part struct {
	path string
	size int64
}

func (l *Ledger) readable() []part {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []part
	for _, s := range l.segments {
		if s.size > 0 {
			all = append(all, part{s.path, s.size})
		}
	}
	return all
}

func (p part) find(ctx context.Context, wanted map[event.Hash]bool, fn func(Entry)) error {
	var words []string
	_, err := scan(ctx, p.path, p.size, func(b []byte) error {
		switch {
		case len(b) > 0 && b[0] == kindWord:
			words = append(words, string(b[1:]))
		case len(b) >= keyAt+16 && b[0] == kindEntry && wanted[event.Hash(b[keyAt:keyAt+16])]:
			if e, err := decodeEntry(b, words); err == nil {
				fn(e)
			}
		}
		return nil
	})
	return err
}

// found collects entries.
type found struct {
	entries []Entry
	shown   map[string]int // handler -> entries that are told one by one
	seen    map[seqKey]bool
	sums    map[sumKey]int // where the sum is
}

type seqKey struct {
	handler string
	seq     uint64
}

type sumKey struct {
	handler string
	verdict dedup.Verdict
}

func (f *found) add(e Entry) {
	if e.Count == 1 && f.shown[e.Handler] < maxShown {
		f.shown[e.Handler]++
		delivery := seqKey{e.Handler, e.Seq}
		e.Redelivery = e.Redelivery || f.seen[delivery]
		f.seen[delivery] = true
		f.entries = append(f.entries, e)
		return
	}
	key := sumKey{e.Handler, e.Verdict}
	i, there := f.sums[key]
	if !there {
		f.sums[key] = len(f.entries)
		f.entries = append(f.entries, e)
		return
	}
	sum := &f.entries[i]
	e.Count += sum.Count
	e.First = min(e.First, sum.First)
	if sum.At > e.At {
		count, first := e.Count, e.First
		e = *sum
		e.Count, e.First = count, first
	}
	*sum = e
}

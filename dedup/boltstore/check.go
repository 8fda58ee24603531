package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"idemd/dedup"
	"idemd/event"
)

// errCheck begins every finding of Check.
var errCheck = errors.New("claim store is inconsistent")

// Check implements dedup.Store. It reads every file; nothing is written and no step
// is done meanwhile.
func (s *Store) Check(ctx context.Context) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	s.steps.Lock()
	defer s.steps.Unlock()
	r := &request{done: make(chan struct{}, 1), task: func() error { return s.check(ctx) }}
	if err := s.ask(ctx, r); err != nil {
		return err
	}
	return r.err
}

// Barrier returns nil when the writer has answered everything that was asked
// before the call, and the disk has taken a sync of the journal since. A full
// disk is no error of it: the writer says so to whoever asks, and mends itself
// when there is room. The error is that of a write or a sync, ErrClosed, or wraps
// ctx's when ctx ends first.
func (s *Store) Barrier(ctx context.Context) error {
	r := &request{done: make(chan struct{}, 1), task: func() error {
		return s.failOn(s.machine.syncFile(s.writer.journal.file))
	}}
	if err := s.ask(ctx, r); err != nil {
		return err
	}
	if errors.Is(r.err, syscall.ENOSPC) || errors.Is(r.err, syscall.EDQUOT) {
		return nil
	}
	return r.err
}

// check runs in the writer.
func (s *Store) check(ctx context.Context) error {
	c := checker{s: s, gone: map[string]bool{}}
	for _, f := range s.writer.names.Files {
		n, _ := journalNumber(f.Name)
		if err := c.journal(ctx, s.journals[n]); err != nil {
			return err
		}
	}
	if err := c.tables(ctx); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case len(c.gone) > 0:
		return fmt.Errorf("%w: %d keys on disk are not in the index", errCheck, len(c.gone))
	case c.found != s.index.keys:
		return fmt.Errorf("%w: %d keys, but %d records of them on disk", errCheck, s.index.keys, c.found)
	}
	return c.openRecords()
}

// checker compares the disk with the index, record by record in the order in
// which they were written.
type checker struct {
	s     *Store
	found uint64          // records that the index has as their keys' latest
	gone  map[string]bool // tuples that the index does not have; a later record must free them
	open  int             // records of found that are open
}

func (c *checker) journal(ctx context.Context, live *journal) error {
	f, err := os.Open(live.path)
	if err != nil {
		return fmt.Errorf("%w: %w", errCheck, err)
	}
	j := newJournal(live.head, live.path, f, live.encode())
	err = j.scan(ctx, live.size, func(number uint64, off int64, body []byte) error {
		rec, change, err := decodeBody(body, nil)
		if err != nil {
			return err
		}
		return c.record(rec, number, cmp.Or(change, number), placeAt(j.number, off))
	})
	if err == nil && (j.sum != live.sum || j.records != live.records) {
		err = fmt.Errorf("checksum %08x of %d records, not %08x of %d", j.sum, j.records, live.sum, live.records)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s: %w", errCheck, live.path, err)
	}
	return errors.Join(err, f.Close())
}

func (c *checker) record(rec *dedup.Record, number, change uint64, at ref) error {
	hash := c.s.machine.hash(rec.Key)
	_, r, err := c.s.find(hash, rec.Key.Tuple)
	if err != nil {
		return err
	}
	place := r
	if r.isSlot() {
		place = c.s.index.slots[r.slot()].place
	}
	switch {
	case r == noRef && rec.State == dedup.Free:
		delete(c.gone, rec.Key.Tuple)
	case r == noRef:
		c.gone[rec.Key.Tuple] = true
	case place < at:
		return fmt.Errorf("record %d is not in the index, an older one is", number)
	case place == at:
		c.found++
		if r.isSlot() != rec.State.Open() {
			return fmt.Errorf("record %d is %v, the index has it as open: %t", number, rec.State, r.isSlot())
		}
		if r.isSlot() {
			c.open++
			return c.slot(c.s.index.slots[r.slot()], hash, rec, number, change)
		}
	}
	return nil
}

func (c *checker) slot(s *slot, hash event.Hash, rec *dedup.Record, number, change uint64) error {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return err
	}
	c.s.mu.RLock()
	defer c.s.mu.RUnlock()
	same := s.hash == hash && s.number == number && s.change == change && s.fence == rec.Fence && s.state == rec.State &&
		s.owner == rec.Owner && s.reason == rec.Reason.Code && s.wake == rec.WakeAt() &&
		s.of == c.s.index.agendas[parts.Handler]
	switch {
	case !same || s.rec != nil && *s.rec != *rec:
		return fmt.Errorf("record %d is open, and memory has another one", number)
	case (s.alarm == 0) != (s.wake == 0):
		return fmt.Errorf("record %d is to be looked at: %t, has an alarm: %t", number, s.wake != 0, s.alarm != 0)
	case s.alarm != 0 && (s.heap >= len(s.of.alarms) || s.of.alarms[s.heap] != s):
		return fmt.Errorf("record %d is not in the heap", number)
	}
	return nil
}

// openRecords compares the slots with what was found, and the agendas with the
// slots.
func (c *checker) openRecords() error {
	counts := map[*agenda]*[dedup.Done]int{}
	alarms, used := map[*agenda]int{}, 0
	for _, s := range c.s.index.slots {
		if !s.inUse() {
			continue
		}
		used++
		if counts[s.of] == nil {
			counts[s.of] = &[dedup.Done]int{}
		}
		counts[s.of][s.state]++
		if s.alarm != 0 {
			alarms[s.of]++
		}
	}
	if used != c.open {
		return fmt.Errorf("%w: %d open records in memory, %d on disk", errCheck, used, c.open)
	}
	for id, a := range c.s.index.agendas {
		if n := counts[a]; n != nil && *n != a.open || n == nil && a.open != [dedup.Done]int{} {
			return fmt.Errorf("%w: handler %q: open records are miscounted", errCheck, id)
		}
		if len(a.alarms) != alarms[a] {
			return fmt.Errorf("%w: handler %q: %d alarms in the heap, %d set", errCheck, id, len(a.alarms), alarms[a])
		}
		for i := 1; i < len(a.alarms); i++ {
			if a.alarms.Less(i, (i-1)/2) {
				return fmt.Errorf("%w: handler %q: the heap is out of order", errCheck, id)
			}
		}
	}
	return nil
}

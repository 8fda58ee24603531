package boltstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"idemd/dedup"
	"idemd/event"
)

// located is a record that is in memory, or in a file. It stays good without a
// lock: records are never changed and places never reused.
type located struct {
	rec     *dedup.Record
	journal *journal
	off     int64
}

// locate says where r's record is. Readers hold s.mu.
func (s *Store) locate(r ref) located {
	if r.isSlot() {
		slot := s.index.slots[r.slot()]
		if slot.rec != nil {
			return located{rec: slot.rec}
		}
		r = slot.place
	}
	return located{journal: s.journals[r.journal()], off: r.offset()}
}

// load gives the record. The error is dedup.ErrDamaged.
func (l located) load() (*dedup.Record, error) {
	if l.rec != nil {
		return l.rec, nil
	}
	rec, err := l.journal.read(l.off)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", dedup.ErrDamaged, err)
	}
	return rec, nil
}

// find gives the latest record of a key and its ref, for the writer: it alone
// changes the index, so it reads it without the lock.
func (s *Store) find(hash event.Hash, tuple string) (*dedup.Record, ref, error) {
	var buf [4]ref
	for _, r := range s.index.refs(buf[:0], hash) {
		rec, err := s.locate(r).load()
		if err != nil {
			return nil, noRef, err
		}
		if rec.Key.Tuple == tuple {
			return rec, r, nil
		}
	}
	return nil, noRef, nil
}

// ready gives the error that every reading method begins with.
func (s *Store) ready(ctx context.Context) error {
	select {
	case <-s.closing:
		return dedup.ErrClosed
	default:
		return ctx.Err()
	}
}

// Get implements dedup.Store.
func (s *Store) Get(ctx context.Context, key event.Key) (dedup.Record, bool, error) {
	if err := s.ready(ctx); err != nil {
		return dedup.Record{}, false, err
	}
	var buf [4]ref
	var at [4]located
	places := at[:0]
	s.mu.RLock()
	hash := s.machine.hash(key)
	for _, r := range s.index.refs(buf[:0], hash) {
		places = append(places, s.locate(r))
	}
	tables, group := s.tables, s.readers
	group.Add(1)
	s.mu.RUnlock()
	defer group.Done()
	for _, l := range places {
		rec, err := l.load()
		if err != nil {
			return dedup.Record{}, false, fmt.Errorf("get record: %w", err)
		}
		if rec.Key.Tuple == key.Tuple {
			return *rec, !dedup.Expired(rec, s.Horizon()), nil
		}
	}
	rec, err := recall(tables, hash, key.Tuple)
	if err != nil {
		return dedup.Record{}, false, fmt.Errorf("get record: %w", err)
	}
	if rec == nil {
		return dedup.Record{}, false, nil
	}
	return *rec, !dedup.Expired(rec, s.Horizon()), nil
}

// List implements dedup.Store. A cursor is the number that the last record that was
// listed got when it was changed.
func (s *Store) List(ctx context.Context, f dedup.Filter, cursor string, limit int) ([]dedup.Record, string, error) {
	if err := s.ready(ctx); err != nil {
		return nil, "", err
	}
	var after uint64
	if cursor != "" {
		n, err := strconv.ParseUint(cursor, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("parse cursor: %w", err)
		}
		after = n
	}
	page, next, group := s.page(f, after, limit)
	defer group.Done()
	return s.loadAll(page), next, nil
}

// page gives the first limit records that f chooses and that were written after
// number after. They can be read until the caller leaves the group.
func (s *Store) page(f dedup.Filter, after uint64, limit int) ([]located, string, *readers) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	type found struct {
		change uint64
		slot   int
	}
	var all []found
	for i, slot := range s.index.slots {
		if slot.inUse() && slot.change > after && s.chosen(f, slot) {
			all = append(all, found{slot.change, i})
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.change, b.change) })
	next := ""
	if limit = max(limit, 0); len(all) > limit {
		all = all[:limit]
		next = strconv.FormatUint(after, 10)
		if limit > 0 {
			next = strconv.FormatUint(all[limit-1].change, 10)
		}
	}
	page := make([]located, len(all))
	for i, f := range all {
		page[i] = s.locate(slotBit | ref(f.slot))
	}
	s.readers.Add(1)
	return page, next, s.readers
}

func (s *Store) chosen(f dedup.Filter, slot *slot) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, slot.state)) &&
		(f.Handler == "" || s.index.agendas[f.Handler] == slot.of) &&
		(f.Reason == "" || f.Reason == slot.reason) &&
		(f.Owner == 0 || f.Owner == slot.owner) &&
		(!f.DeadOnly || slot.state == dedup.Started && slot.owner == dedup.InProc && slot.fence.Epoch() < s.epoch)
}

// loadAll gives the records that can be read.
func (s *Store) loadAll(places []located) []dedup.Record {
	out := make([]dedup.Record, 0, len(places))
	for _, l := range places {
		rec, err := l.load()
		if err != nil {
			s.cfg.Logger.Error("record left out", "error", err)
			continue
		}
		out = append(out, *rec)
	}
	return out
}

// Due implements dedup.Store.
func (s *Store) Due(ctx context.Context, handler string, now dedup.Time, limit int) ([]dedup.Record, dedup.Time, error) {
	if err := s.ready(ctx); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	slots, next := s.index.agenda(handler).due(now, limit)
	places := make([]located, len(slots))
	for i, slot := range slots {
		places[i] = located{rec: slot.rec}
		if slot.rec == nil {
			places[i] = s.locate(slot.place)
		}
	}
	group := s.readers
	group.Add(1)
	s.mu.Unlock()
	defer group.Done()
	return s.loadAll(places), next, nil
}

// Wake implements dedup.Store.
func (s *Store) Wake(handler string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.agenda(handler).wake
}

// Stats implements dedup.Store.
func (s *Store) Stats() dedup.Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	open := make(map[string]map[string]int, len(s.index.agendas))
	for id, a := range s.index.agendas {
		states := map[string]int{}
		for state, n := range a.open {
			if n > 0 {
				states[dedup.State(state).String()] = n
			}
		}
		if len(states) > 0 {
			open[id] = states
		}
	}
	return dedup.Stats{
		Keys: s.keys(), Open: open, LastNumber: s.durable.Load(), Epoch: s.epoch,
		DiskBytes: s.disk.Load(), Syncs: s.machine.syncs.Load(), Parts: s.parts(),
	}
}

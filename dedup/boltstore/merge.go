package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"idemd/dedup"
	"idemd/event"
)

// Every file costs a look-up its filter, about 0.1 us, so their number is bounded:
// hot files that are too many leave early, and a day's cold files are merged.
const (
	maxHot   = 8         // hot files that may stay, however young they are
	maxDaily = 4         // cold files of one day
	settled  = 24 * 3600 // seconds without a new file after which a day's files become one
	mergeMax = 2_000_000 // keys that one step takes out of hot files, if it is more than one file
)

// maxOpenDays is into how many cold files a step writes at the same time.
const maxOpenDays = 4

// Merge makes cold files, one for each day on which records expire, of hot files
// whose records were all committed before the moment; or one of several that a
// day already has. What has expired is left behind. When it returns the files that
// it took are closed and wait to be unlinked.
func (s *Store) Merge(ctx context.Context, before dedup.Time) (Step, error) {
	if err := s.beginStep(ctx, true); err != nil {
		return Step{}, err
	}
	defer s.steps.Unlock()
	now := dedup.At(s.cfg.Now())
	names := s.tableList()
	take, rest := chooseMerge(names, before, now)
	if len(take) == 0 {
		return Step{}, nil
	}
	step := Step{Took: take}
	c := &change{step: "merge"}
	for _, t := range s.tables { // only steps change it
		if slices.Contains(take, t.Name) {
			c.tables, step.Bytes = append(c.tables, t), step.Bytes+t.Size
		}
	}
	p := &products{s: s, step: c.step, from: take}
	m := &merger{s: s, inputs: c.tables, products: p, pace: s.pacer(ctx), horizon: s.Horizon(), finished: map[string]bool{}}
	err := m.run()
	if err == nil {
		c.made = p.opened
		err = s.inWriter(func(w *writer) error { return w.apply(c) })
	}
	if err != nil {
		return Step{}, fmt.Errorf("merge tables: %w", p.discard(err))
	}
	step.Made, step.Keys, step.Expired = p.names(), m.keys, m.expired
	for _, t := range p.opened {
		rest = append(rest, t.table)
	}
	again, _ := chooseMerge(rest, before, now)
	step.More = len(again) > 0
	return step, s.closeTables(c)
}

// closeTables closes what a change took, once nobody reads it.
func (s *Store) closeTables(c *change) error {
	c.left.Wait()
	var errs []error
	for _, t := range c.tables {
		errs = append(errs, t.close())
	}
	s.fault(c.step + "-closed")
	return errors.Join(errs...)
}

// tableList is what MANIFEST says of the tables. Only steps change it.
func (s *Store) tableList() []table {
	list := make([]table, 0, len(s.tables))
	for _, t := range s.tables {
		list = append(list, t.table)
	}
	return list
}

// chooseMerge says which tables the next step takes, and which it leaves.
func chooseMerge(tables []table, before, now dedup.Time) (take []string, rest []table) {
	days := map[string][]table{}
	var hot []table
	for _, t := range tables {
		if t.hot() {
			hot = append(hot, t)
		} else {
			days[t.day()] = append(days[t.day()], t)
		}
	}
	for _, files := range days {
		if names := chooseDay(files, now); len(names) > len(take) {
			take = names
		}
	}
	if len(take) == 0 {
		take = chooseHot(hot, before)
	}
	rest = slices.DeleteFunc(slices.Clone(tables), func(t table) bool { return slices.Contains(take, t.Name) })
	return take, rest
}

// chooseDay merges a day's files: all but the largest when there is no room for
// another one, all when no other has come for long.
func chooseDay(files []table, now dedup.Time) []string {
	slices.SortFunc(files, func(a, b table) int { return cmp.Or(cmp.Compare(a.Keys, b.Keys), cmp.Compare(a.Name, b.Name)) })
	newest := files[0].Made
	for _, t := range files {
		newest = max(newest, t.Made)
	}
	switch {
	case len(files) >= maxDaily:
		files = files[:max(len(files)-1, 2)]
	case len(files) > 1 && newest.Add(settled*time.Second) <= now:
	default:
		return nil
	}
	return tableNames(files)
}

// chooseHot takes the hot files that left the window, and the oldest of those that
// are too many.
func chooseHot(files []table, before dedup.Time) []string {
	slices.SortFunc(files, func(a, b table) int { return cmp.Or(cmp.Compare(a.Made, b.Made), cmp.Compare(a.Name, b.Name)) })
	var take []table
	var keys uint64
	for i, t := range files {
		if t.Newest >= before && len(files)-i <= maxHot {
			break
		}
		if keys += t.Keys; keys > mergeMax && len(take) > 0 {
			break
		}
		take = append(take, t)
	}
	return tableNames(take)
}

func tableNames(tables []table) []string {
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names
}

// day is the one on which a cold file's records expire, as its name has it.
func (t *table) day() string { return strings.TrimPrefix(t.Name, coldPrefix)[:len(time.DateOnly)] }

func dayOf(expires dedup.Time) string { return expires.Std().Format(time.DateOnly) }

// merger is one merge on its way.
type merger struct {
	s        *Store
	inputs   []*openTable
	products *products
	pace     *pacer
	horizon  dedup.Time
	keys     uint64
	expired  uint64

	days     map[string]*tableWriter // those that are being written
	finished map[string]bool
}

// run goes over the inputs, usually once: as often as it takes when there are more
// days than are written at the same time.
func (m *merger) run() error {
	for more := true; more; {
		m.days, more = map[string]*tableWriter{}, false
		m.expired = 0
		var path string
		err := guarded(&path, func() error {
			var err error
			more, err = m.pass(&path)
			return err
		})
		if err != nil {
			return err
		}
		for day, w := range m.days {
			if err := w.finish(); err != nil {
				return err
			}
			m.finished[day] = true
		}
	}
	return m.products.publish(m.pace)
}

// source is one input on its way.
type source struct {
	table *openTable
	tx    *bbolt.Tx
	next  *bbolt.Cursor
	key   []byte
	value []byte
	sum   uint32
	last  []byte
}

// advance goes on to the next key, and verifies at the end that what was read is
// what was written.
func (s *source) advance(first bool) error {
	s.last = append(s.last[:0], s.key...)
	if first {
		s.key, s.value = s.next.First()
	} else {
		s.key, s.value = s.next.Next()
	}
	if s.key == nil {
		a, _, err := readMeta(s.tx)
		if err != nil || sumText(s.sum) != a.Claims {
			return &DataError{Path: s.table.path, Err: ErrDamaged, Detail: "its records"}
		}
		return nil
	}
	if len(s.key) != len(event.Hash{}) || !first && bytes.Compare(s.key, s.last) <= 0 {
		return &DataError{Path: s.table.path, Err: ErrDamaged, Detail: "the order of its records"}
	}
	s.sum = crc32.Update(crc32.Update(s.sum, castagnoli, s.key), castagnoli, s.value)
	return nil
}

// openSources begins to read the tables. The caller ends every transaction, also
// after an error.
func openSources(tables []*openTable, path *string) ([]*source, error) {
	var sources []*source
	for _, t := range tables {
		*path = t.path
		tx, err := t.db.Begin(false)
		if err != nil {
			return sources, fmt.Errorf("read table: %w", err)
		}
		s := &source{table: t, tx: tx, next: tx.Bucket([]byte(claimsBucket)).Cursor()}
		sources = append(sources, s)
		if err := s.advance(true); err != nil {
			return sources, err
		}
	}
	return sources, nil
}

func closeSources(sources []*source) error {
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.tx.Rollback())
	}
	return errors.Join(errs...)
}

// eachHash calls each for every hash of the sources, in order, with the values that
// they have under it.
func eachHash(sources []*source, path *string, each func(hash event.Hash, from []*source) error) error {
	var same []*source
	for {
		same = same[:0]
		for _, s := range sources {
			if s.key == nil {
				continue
			}
			order := -1
			if len(same) > 0 {
				order = bytes.Compare(s.key, same[0].key)
			}
			if order < 0 {
				same = same[:0]
			}
			if order <= 0 {
				same = append(same, s)
			}
		}
		if len(same) == 0 {
			return nil
		}
		*path = same[0].table.path
		if err := each(event.Hash(same[0].key), same); err != nil {
			return err
		}
		for _, s := range same {
			*path = s.table.path
			if err := s.advance(false); err != nil {
				return err
			}
		}
	}
}

// pass writes the records of up to maxOpenDays days, and reports whether there are
// other days.
func (m *merger) pass(path *string) (more bool, err error) {
	sources, err := openSources(m.inputs, path)
	if err == nil {
		seen := 0
		err = eachHash(sources, path, func(hash event.Hash, from []*source) error {
			left, err := m.hash(hash, from)
			more = more || left
			if seen++; err == nil && seen%surveyBatch == 0 {
				err = m.pace.rest()
			}
			return err
		})
	}
	return more, errors.Join(err, closeSources(sources))
}

// hash writes the latest record of each key with this hash.
func (m *merger) hash(hash event.Hash, from []*source) (more bool, err error) {
	latest := map[string]*dedup.Record{}
	raw := map[string][]byte{}
	for _, s := range from {
		for rest := s.value; len(rest) > 0; {
			rec, next, err := takeRecord(rest)
			if err != nil {
				return false, &DataError{Path: s.table.path, Err: ErrDamaged, Detail: err.Error()}
			}
			if dedup.Expired(rec, m.horizon) {
				m.expired++
			} else if old := latest[rec.Key.Tuple]; old == nil || old.Fence < rec.Fence {
				latest[rec.Key.Tuple], raw[rec.Key.Tuple] = rec, rest[:len(rest)-len(next)]
			}
			rest = next
		}
	}
	byDay := map[string][]byte{}
	for tuple, rec := range latest {
		day := dayOf(rec.Expires)
		w, err := m.writer(day)
		if err != nil {
			return false, err
		}
		if w == nil {
			more = more || !m.finished[day]
			continue
		}
		byDay[day] = append(byDay[day], raw[tuple]...)
		w.note(rec.Committed, rec.Expires)
		m.keys++
	}
	for day, entries := range byDay {
		if err := m.days[day].add(hash, entries); err != nil {
			return false, err
		}
	}
	return more, nil
}

// writer gives the table that is being written for a day, nil when it is not that
// day's turn.
func (m *merger) writer(day string) (*tableWriter, error) {
	w := m.days[day]
	if w != nil || m.finished[day] || len(m.days) == maxOpenDays {
		return w, nil
	}
	w, err := m.products.create(func(n int) string { return fmt.Sprintf("%s%s-%d.db", coldPrefix, day, n) }, 1)
	if err == nil {
		m.days[day] = w
	}
	return w, err
}

package boltstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"idemd/dedup"
)

// loadTables opens the tables that MANIFEST names. It changes nothing on disk.
func (s *Store) loadTables(ctx context.Context, names *manifest) error {
	path := filepath.Join(s.cfg.Dir, manifestName)
	if name, ok := names.wrongName(); ok {
		return &DataError{Path: path, Err: ErrDamaged, Detail: fmt.Sprintf("it names %q", name)}
	}
	names.standIn(func(name string) bool {
		_, err := os.Stat(filepath.Join(s.cfg.Dir, name))
		return err == nil
	})
	for i := range names.Tables {
		if err := ctx.Err(); err != nil {
			return err
		}
		t, err := loadTable(s.cfg.Dir, &names.Tables[i], names.Incarnation)
		var data *DataError
		if errors.As(err, &data) && !errors.Is(err, ErrMissing) {
			return s.suspicious(ctx, data)
		}
		if err != nil {
			return err
		}
		s.tables = append(s.tables, t)
		s.tableNames[t.Name] = true
		s.disk.Add(t.Size)
	}
	for i := range names.Gone {
		s.tableNames[names.Gone[i].name()] = true
		s.disk.Add(names.Gone[i].size())
	}
	return nil
}

// wrongName gives the first name that no file of ours has.
func (m *manifest) wrongName() (string, bool) {
	wrong := func(name string, prefixes ...string) bool {
		return filepath.Base(name) != name || !strings.HasSuffix(name, ".db") ||
			!slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	}
	for _, t := range m.Tables {
		cold := strings.HasPrefix(t.Name, coldPrefix)
		if wrong(t.Name, hotPrefix, coldPrefix) || cold && len(t.Name) < len(coldPrefix+"2006-01-02-1.db") || t.Size < tableHead {
			return t.Name, true
		}
	}
	for i := range m.Gone {
		g := &m.Gone[i]
		if _, journal := journalNumber(g.name()); !journal && wrong(g.name(), hotPrefix, coldPrefix) {
			return g.name(), true
		}
	}
	return "", false
}

// standIn puts the sources of a table that is missing in its place, where all of
// them are still there: in a copy that was made of a running directory MANIFEST
// may be younger than the copy of the directory's list. All tables that were made
// of the same sources go with it.
func (m *manifest) standIn(exists func(name string) bool) {
	for {
		i := slices.IndexFunc(m.Tables, func(t table) bool { return !exists(t.Name) })
		if i < 0 {
			return
		}
		// One that cannot be replaced is missing, and the next ones do not matter.
		from := m.Tables[i].From
		if len(from) == 0 || slices.ContainsFunc(from, func(name string) bool { return !m.obtainable(name, exists) }) {
			return
		}
		for _, t := range m.Tables {
			if slices.Equal(t.From, from) {
				m.Making = append(slices.Clone(m.Making), t.Name) // what there is of it is removed
			}
		}
		m.Tables = slices.DeleteFunc(slices.Clone(m.Tables), func(t table) bool { return slices.Equal(t.From, from) })
		m.bringBack(from)
	}
}

// obtainable reports whether a file that is gone can take its place again.
func (m *manifest) obtainable(name string, exists func(string) bool) bool {
	i := slices.IndexFunc(m.Gone, func(g goneEntry) bool { return g.name() == name })
	if i < 0 {
		return false
	}
	if exists(name) {
		return true
	}
	t := m.Gone[i].Table
	// Names are given out in order, and no table is made of itself.
	return t != nil && len(t.From) > 0 && !slices.Contains(t.From, name) &&
		!slices.ContainsFunc(t.From, func(from string) bool {
			left := *m
			left.Gone = slices.Delete(slices.Clone(m.Gone), i, i+1)
			return !left.obtainable(from, exists)
		})
}

// bringBack makes files that are gone count again.
func (m *manifest) bringBack(names []string) {
	var gone []goneEntry
	for _, g := range m.Gone {
		switch {
		case !slices.Contains(names, g.name()):
			gone = append(gone, g)
		case g.Table != nil:
			m.Tables = append(m.Tables, *g.Table)
		default:
			m.Files = append(slices.Clone(m.Files), *g.Journal)
			m.Moved = min(m.Moved, max(g.Journal.First, 1)-1)
		}
	}
	m.Gone = gone
	slices.SortFunc(m.Files, func(a, b fileEntry) int { return cmp.Compare(a.First, b.First) })
}

// keys is how many keys there are, in memory and in tables. One whose record has
// expired counts until that is taken away, and twice when it was claimed again.
// The caller holds mu.
func (s *Store) keys() uint64 {
	n := s.index.keys
	for _, t := range s.tables {
		n += t.Keys
	}
	return n - min(uint64(s.moving), n)
}

// parts counts the store's files. The caller holds mu.
func (s *Store) parts() map[string]dedup.Part {
	journal := dedup.Part{Files: len(s.journals), Keys: s.index.keys - min(uint64(s.moving), s.index.keys), Bytes: s.disk.Load()}
	hot, cold := dedup.Part{}, dedup.Part{}
	for _, t := range s.tables {
		p := &cold
		if t.hot() {
			p = &hot
		}
		p.Files, p.Keys, p.Bytes = p.Files+1, p.Keys+t.Keys, p.Bytes+t.Size
		if p.Oldest == 0 || t.Oldest < p.Oldest {
			p.Oldest = t.Oldest
		}
		journal.Bytes -= t.Size
	}
	return map[string]dedup.Part{"journal": journal, "hot": hot, "cold": cold}
}

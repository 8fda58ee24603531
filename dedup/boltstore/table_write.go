package boltstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"idemd/dedup"
	"idemd/event"
)

// tableBatch is how many keys go into one of bbolt's transactions, and
// tableBatchBytes how many bytes at most.
const (
	tableBatch      = 10_000
	tableBatchBytes = 4 << 20
)

// tableWriter makes a table: add in the order of the hashes, then finish. What it
// writes is in a file of its own, NAME.tmp, until publish.
type tableWriter struct {
	m      *machine
	table  table
	tmp    string
	path   string
	db     *bbolt.DB
	about  about
	sum    uint32
	keys   [][16]byte
	values [][]byte
	size   int      // of values
	hashes []uint64 // of all keys, for the filter
}

func newTableWriter(m *machine, dir, name string, born incarnation, from []string) (*tableWriter, error) {
	w := &tableWriter{
		m: m, path: filepath.Join(dir, name), tmp: filepath.Join(dir, name) + ".tmp",
		table: table{Name: name, From: from},
		about: about{Version: tableVersion, Incarnation: born, From: from},
	}
	if err := os.Remove(w.tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("make table: %w", err)
	}
	// Nothing of it counts before it is whole: it is synced once, at the end.
	db, err := bbolt.Open(w.tmp, 0o600, &bbolt.Options{
		PageSize: tablePage, NoSync: true, NoGrowSync: true, NoFreelistSync: true,
		FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 30, NoStatistics: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make table: %w", err)
	}
	w.db = db
	return w, nil
}

// add adds the entries of one hash; the slice is the writer's from now on.
func (w *tableWriter) add(hash event.Hash, entries []byte) error {
	w.keys, w.values = append(w.keys, hash), append(w.values, entries)
	w.hashes = append(w.hashes, filterKey(hash))
	w.sum = crc32.Update(crc32.Update(w.sum, castagnoli, hash[:]), castagnoli, entries)
	w.size += len(entries)
	if len(w.keys) < tableBatch && w.size < tableBatchBytes {
		return nil
	}
	return w.flush()
}

// note takes a record's times into account; each record is one key.
func (w *tableWriter) note(committed, expires dedup.Time) {
	t := &w.table
	if t.Keys == 0 {
		t.Newest, t.Oldest, t.Until = committed, expires, expires
	}
	t.Keys++
	t.Newest, t.Oldest, t.Until = max(t.Newest, committed), min(t.Oldest, expires), max(t.Until, expires)
}

func (w *tableWriter) flush() error {
	err := w.db.Update(func(tx *bbolt.Tx) error {
		claims, err := tx.CreateBucketIfNotExists([]byte(claimsBucket))
		if err != nil {
			return err
		}
		claims.FillPercent = 1
		for i, k := range w.keys {
			if err := claims.Put(k[:], w.values[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	clear(w.values)
	w.keys, w.values, w.size = w.keys[:0], w.values[:0], 0
	return nil
}

// finish makes the table whole and puts it on stable storage, under the name
// NAME.tmp.
func (w *tableWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	prints, err := makeFilter(w.hashes)
	if err != nil {
		return err
	}
	w.hashes = nil
	w.table.Claims = sumText(w.sum)
	w.about.Keys, w.about.Claims = w.table.Keys, w.table.Claims
	w.about.Filter = sumText(crc32.Checksum(prints, castagnoli))
	text, err := json.Marshal(w.about)
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	err = w.db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		return errors.Join(meta.Put([]byte(aboutKey), text), meta.Put([]byte(filterName), prints))
	})
	if err = errors.Join(err, w.db.Close()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	w.db = nil
	return w.seal()
}

// seal syncs the file and takes its checksums.
func (w *tableWriter) seal() error {
	f, err := os.OpenFile(w.tmp, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	if err := w.m.syncFile(f); err != nil {
		return errors.Join(err, f.Close())
	}
	size, head, err := readHead(f)
	sum := crc32.New(castagnoli)
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	w.table.Size, w.table.Head, w.table.CRC32C = size, sumText(head), sumText(sum.Sum32())
	return nil
}

// publish gives the table its name. The directory must be synced after it.
func (w *tableWriter) publish() error {
	if err := os.Rename(w.tmp, w.path); err != nil {
		return fmt.Errorf("name table: %w", err)
	}
	return nil
}

// abandon removes what there is of the table.
func (w *tableWriter) abandon() error {
	var errs []error
	if w.db != nil {
		errs = append(errs, w.db.Close())
	}
	for _, path := range []string{w.tmp, w.path} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

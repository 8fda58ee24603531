package boltstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"idemd/dedup"
	"idemd/event"
)

// A table is a bbolt file that is written once, in the order of its keys, and
// then only read. Bucket claims has, under the hash of a key, the entries of the
// DONE records with that hash, as they stand in a journal's frame. Bucket meta has
// what the table says of itself, and its filter.
//
// bbolt does not notice damage, and a damaged page may end the process. So a file
// is only mapped when its size and its first pages, which say where all others
// are, are those of MANIFEST; nothing reads it but guarded functions; and each
// record has a checksum.
const (
	claimsBucket = "claims"
	metaBucket   = "meta"
	aboutKey     = "about"
	filterName   = "filter"

	tableVersion = 1
	tablePage    = 4096
	tableHead    = 2 * tablePage // bbolt's two meta pages

	hotPrefix, coldPrefix = "hot-", "cold-"
)

// about is what a table says of itself.
type about struct {
	Version     int         `json:"version"`
	Incarnation incarnation `json:"incarnation"`
	Keys        uint64      `json:"keys"`
	From        []string    `json:"from"`
	Claims      string      `json:"claims_crc32c"` // of keys and values, in order
	Filter      string      `json:"filter_crc32c"`
}

func sumText(sum uint32) string { return fmt.Sprintf("%08x", sum) }

// openTable is a table that is mapped.
type openTable struct {
	table
	path   string
	db     *bbolt.DB
	tx     *bbolt.Tx // open as long as the filter is used
	filter filter    // in the mapped file

	// A check found damage in it. What it does not find is not known to be absent.
	suspect atomic.Bool
}

func (t *table) hot() bool { return strings.HasPrefix(t.Name, hotPrefix) }

// guarded runs read, which reads a mapped file; a fault in it, or what bbolt says
// of pages that make no sense, is a DataError.
func guarded(path *string, read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &DataError{Path: *path, Err: ErrDamaged, Detail: fmt.Sprint(p)}
		}
	}()
	return read()
}

// loadTable maps a table and verifies what can be verified quickly: size, first
// pages, what it says of itself, filter. The error is a DataError when it is not
// the file in MANIFEST.
func loadTable(dir string, t *table, born incarnation) (*openTable, error) {
	o := &openTable{table: *t, path: filepath.Join(dir, t.Name)}
	if err := verifyHead(o.path, t); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(o.path, 0, &bbolt.Options{ReadOnly: true, Timeout: time.Second, PageSize: tablePage, NoStatistics: true})
	if err != nil {
		return nil, &DataError{Path: o.path, Err: ErrDamaged, Detail: err.Error()}
	}
	o.db = db
	if err := guarded(&o.path, func() error { return o.begin(born) }); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// verifyHead compares a table's size and first pages with MANIFEST. It maps
// nothing.
func verifyHead(path string, t *table) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return &DataError{Path: path, Err: ErrMissing}
	}
	if err != nil {
		return fmt.Errorf("open table: %w", err)
	}
	size, head, err := readHead(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	switch {
	case size != t.Size:
		return &DataError{Path: path, Err: ErrMismatch, Detail: fmt.Sprintf("%d bytes, not %d", size, t.Size)}
	case sumText(head) != t.Head:
		return &DataError{Path: path, Err: ErrMismatch, Detail: "its first pages"}
	}
	return nil
}

func readHead(f *os.File) (size int64, sum uint32, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	b := make([]byte, tableHead)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return info.Size(), crc32.Checksum(b[:n], castagnoli), err
}

func (o *openTable) begin(born incarnation) error {
	var err error
	if o.tx, err = o.db.Begin(false); err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	a, prints, err := readMeta(o.tx)
	switch {
	case errors.Is(err, ErrVersion):
		return &DataError{Path: o.path, Err: ErrVersion}
	case err != nil:
		return &DataError{Path: o.path, Err: ErrDamaged, Detail: err.Error()}
	case a.Incarnation != born:
		return &DataError{Path: o.path, Err: ErrForeign, Detail: "it is of another directory"}
	case a.Keys != o.Keys || a.Claims != o.Claims:
		return &DataError{Path: o.path, Err: ErrMismatch, Detail: fmt.Sprintf("%d keys with checksum %s, not %d with %s", a.Keys, a.Claims, o.Keys, o.Claims)}
	}
	warm(prints)
	if o.filter, err = parseFilter(prints); err != nil || sumText(crc32.Checksum(prints, castagnoli)) != a.Filter {
		return &DataError{Path: o.path, Err: ErrDamaged, Detail: "its filter"}
	}
	return nil
}

// readMeta reads bucket meta. The filter is only good while tx is open.
func readMeta(tx *bbolt.Tx) (about, []byte, error) {
	var a about
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil || tx.Bucket([]byte(claimsBucket)) == nil {
		return a, nil, errors.New("it was never finished")
	}
	if err := json.Unmarshal(meta.Get([]byte(aboutKey)), &a); err != nil {
		return a, nil, fmt.Errorf("what it says of itself: %w", err)
	}
	if a.Version != tableVersion {
		return a, nil, ErrVersion
	}
	return a, meta.Get([]byte(filterName)), nil
}

// find gives the record of a key, nil when there is none. It is called guarded.
func (o *openTable) find(hash event.Hash, tuple string) (*dedup.Record, error) {
	if !o.filter.has(filterKey(hash)) {
		return nil, nil
	}
	var rec *dedup.Record
	err := o.db.View(func(tx *bbolt.Tx) error {
		rest := tx.Bucket([]byte(claimsBucket)).Get(hash[:])
		for len(rest) > 0 && rec == nil {
			r, next, err := takeRecord(rest)
			if err != nil {
				return err
			}
			if r.Key.Tuple == tuple {
				rec = r
			}
			rest = next
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, &DataError{Path: o.path, Err: ErrDamaged, Detail: err.Error()}
	case rec == nil && o.suspect.Load():
		return nil, &DataError{Path: o.path, Err: ErrDamaged, Detail: "it has no record of a key that its filter knows"}
	}
	return rec, nil
}

// takeRecord gives the first record of a table's value, and the rest.
func takeRecord(value []byte) (*dedup.Record, []byte, error) {
	body, rest, err := takeEntry(value)
	if err != nil {
		return nil, nil, err
	}
	rec, err := decodeRecord(body, nil)
	return rec, rest, err
}

func (o *openTable) close() error {
	var errs []error
	if o.tx != nil {
		errs = append(errs, o.tx.Rollback())
	}
	if err := errors.Join(append(errs, o.db.Close())...); err != nil {
		return fmt.Errorf("close table: %w", err)
	}
	return nil
}

package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"

	"idemd/event"
)

// verifySlice is how much of a file one call of VerifyNext reads.
const verifySlice = 16 << 20

// verifying is how far VerifyNext has come. It belongs to whoever holds steps.
type verifying struct {
	name  string // of the table that is read, or was read last
	off   int64
	sum   uint32
	whole bool // its end was reached
}

// Verified says what VerifyNext did.
type Verified struct {
	File  string // "" when there is none to verify
	Bytes int64  // that were read
	Whole bool   // that was its end: its checksum is that of MANIFEST
	Last  bool   // and it was the last one: the next call begins with the first again
}

// VerifyNext reads the next 16 MiB of the hot and cold files, one after the other,
// and compares each with its checksum in MANIFEST. Of a file that is not what was
// written a *DataError tells once in every round; from then on a key that its
// filter knows and that is not found in it is ErrDamaged, not new. If the filter
// itself is damaged the store ends, see Failed: nobody knows which keys are new.
func (s *Store) VerifyNext(ctx context.Context) (Verified, error) {
	if err := s.beginStep(ctx, false); err != nil {
		return Verified{}, err
	}
	defer s.steps.Unlock()
	t, last := s.nextToVerify()
	if t == nil {
		return Verified{Last: true}, nil
	}
	read, err := s.verifying.slice(t.path)
	if err != nil {
		return Verified{}, fmt.Errorf("verify %s: %w", t.Name, err)
	}
	done := Verified{File: t.Name, Bytes: read, Whole: s.verifying.whole}
	if !done.Whole {
		return done, nil
	}
	done.Last = last
	if size := s.verifying.off; size != t.Size || sumText(s.verifying.sum) != t.CRC32C {
		return done, s.distrust(ctx, t)
	}
	return done, nil
}

// nextToVerify gives the table that is being read, or the one after it, in the
// order of their names; and whether it is the last.
func (s *Store) nextToVerify() (next *openTable, last bool) {
	v := &s.verifying
	var end string
	for _, t := range s.tables {
		end = max(end, t.Name)
		begun := v.off > 0 && !v.whole && t.Name == v.name
		if begun {
			next = t
		} else if t.Name > v.name && (next == nil || next.Name != v.name && t.Name < next.Name) {
			next = t
		}
	}
	if next == nil && len(s.tables) > 0 {
		v.name, v.off = "", 0
		return s.nextToVerify()
	}
	if next != nil && (next.Name != v.name || v.whole) {
		*v = verifying{name: next.Name}
	}
	return next, next != nil && next.Name == end
}

// slice reads on.
func (v *verifying) slice(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	var read int64
	buf := make([]byte, 256<<10)
	for read < verifySlice && err == nil {
		var n int
		n, err = f.ReadAt(buf, v.off)
		v.sum = crc32.Update(v.sum, castagnoli, buf[:n])
		v.off, read = v.off+int64(n), read+int64(n)
	}
	v.whole = errors.Is(err, io.EOF)
	if v.whole {
		err = nil
	}
	return read, errors.Join(err, f.Close())
}

// distrust notes that a table is not what was written to it.
func (s *Store) distrust(ctx context.Context, t *openTable) error {
	t.suspect.Store(true)
	data := &DataError{Path: t.path, Err: ErrMismatch, Detail: "its checksum"}
	err := guarded(&t.path, func() error {
		a, prints, err := readMeta(t.tx)
		if err == nil && sumText(crc32.Checksum(prints, castagnoli)) != a.Filter {
			err = errFilter
		}
		return err
	})
	if err != nil {
		data.Detail = "its filter"
		s.fail(data)
		return data
	}
	return s.suspicious(ctx, data)
}

// suspicious adds to what is known of a damaged table what its verification says.
func (s *Store) suspicious(ctx context.Context, data *DataError) error {
	verify := s.cfg.Verify
	if verify == nil {
		verify = func(_ context.Context, path string) error { return VerifyFile(path) }
	}
	if err := verify(ctx, data.Path); err != nil {
		data.Detail += "; " + err.Error()
	} else {
		data.Detail += "; each of its records can be read"
	}
	return data
}

// VerifyFile reads a hot or cold file from its beginning to its end and verifies
// everything in it. The error is a *DataError when it is damaged. What a damaged
// page does is caught as far as it can be: call it in a process that may die.
func VerifyFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("verify file: %w", err)
	}
	damaged := func(detail string) error { return &DataError{Path: path, Err: ErrDamaged, Detail: detail} }
	if info.Size() < tableHead {
		return damaged("it ends early")
	}
	return guarded(&path, func() error {
		db, err := bbolt.Open(path, 0, &bbolt.Options{ReadOnly: true, Timeout: time.Second, NoStatistics: true})
		if err != nil {
			return damaged(err.Error())
		}
		return errors.Join(db.View(func(tx *bbolt.Tx) error { return verifyTable(tx, damaged) }), db.Close())
	})
}

func verifyTable(tx *bbolt.Tx, damaged func(string) error) error {
	a, prints, err := readMeta(tx)
	if err != nil {
		return damaged(err.Error())
	}
	f, err := parseFilter(prints)
	if err != nil || sumText(crc32.Checksum(prints, castagnoli)) != a.Filter {
		return damaged("its filter")
	}
	var keys uint64
	var sum uint32
	var last []byte
	c := tx.Bucket([]byte(claimsBucket)).Cursor()
	for k, value := c.First(); k != nil; k, value = c.Next() {
		if len(k) != len(event.Hash{}) || bytes.Compare(k, last) <= 0 || !f.has(filterKey(event.Hash(k))) {
			return damaged("the order of its records")
		}
		last = append(last[:0], k...)
		sum = crc32.Update(crc32.Update(sum, castagnoli, k), castagnoli, value)
		for rest := value; len(rest) > 0; keys++ {
			if _, rest, err = takeRecord(rest); err != nil {
				return damaged(err.Error())
			}
		}
		if keys > a.Keys {
			break // pages that lead back to earlier ones would have no end
		}
	}
	if keys != a.Keys || sumText(sum) != a.Claims {
		return damaged(fmt.Sprintf("%d keys with checksum %08x, not %d with %s", keys, sum, a.Keys, a.Claims))
	}
	return nil
}

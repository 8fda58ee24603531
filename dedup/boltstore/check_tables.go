package boltstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"idemd/dedup"
	"idemd/event"
)

// tables compares the tables with MANIFEST, byte by byte, and every record in them
// with the others of its key, in other tables and in the index.
func (c *checker) tables(ctx context.Context) error {
	names := c.s.writer.names.Tables
	if len(names) != len(c.s.tables) {
		return fmt.Errorf("%w: MANIFEST names %d tables, %d are open", errCheck, len(names), len(c.s.tables))
	}
	if c.s.moving != 0 {
		return fmt.Errorf("%w: %d keys are said to be on their way", errCheck, c.s.moving)
	}
	for _, t := range c.s.tables {
		if !slices.ContainsFunc(names, func(n table) bool { return n.Name == t.Name && n.CRC32C == t.CRC32C && n.Keys == t.Keys }) {
			return fmt.Errorf("%w: %s is not what MANIFEST says", errCheck, t.Name)
		}
		if err := c.bytes(t); err != nil {
			return fmt.Errorf("%w: %s: %w", errCheck, t.Name, err)
		}
	}
	var path string
	err := guarded(&path, func() error {
		sources, err := openSources(c.s.tables, &path)
		counts := map[*openTable]uint64{}
		if err == nil {
			err = eachHash(sources, &path, func(hash event.Hash, from []*source) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return c.hash(hash, from, counts)
			})
		}
		for t, n := range counts {
			if n != t.Keys {
				err = errors.Join(err, fmt.Errorf("%s has %d keys, not %d", t.Name, n, t.Keys))
			}
		}
		return errors.Join(err, closeSources(sources))
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errCheck, err)
	}
	return nil
}

func (c *checker) bytes(t *openTable) error {
	f, err := os.Open(t.path)
	if err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, f)
	if err == nil && (n != t.Size || sumText(sum.Sum32()) != t.CRC32C) {
		err = fmt.Errorf("%d bytes with checksum %08x, not %d with %s", n, sum.Sum32(), t.Size, t.CRC32C)
	}
	return errors.Join(err, f.Close())
}

// hash verifies the records with one hash: of each key all but the latest have
// expired.
func (c *checker) hash(hash event.Hash, from []*source, counts map[*openTable]uint64) error {
	latest := map[string]*dedup.Record{}
	for _, s := range from {
		for rest := s.value; len(rest) > 0; {
			rec, next, err := takeRecord(rest)
			if err != nil {
				return err
			}
			rest = next
			counts[s.table]++
			switch old := latest[rec.Key.Tuple]; {
			case c.s.machine.hash(rec.Key) != hash || !s.table.filter.has(filterKey(hash)):
				return fmt.Errorf("%s: a record is under another hash, or the filter denies it", s.table.Name)
			case rec.State != dedup.Done || !s.table.hot() && dayOf(rec.Expires) != s.table.day():
				return fmt.Errorf("%s: a record that is %v and expires on %s", s.table.Name, rec.State, dayOf(rec.Expires))
			case rec.Expires > s.table.Until || rec.Expires < s.table.Oldest || rec.Committed > s.table.Newest:
				return fmt.Errorf("%s: a record's times are not within the table's", s.table.Name)
			case old == nil:
				latest[rec.Key.Tuple] = rec
			default:
				if old.Fence > rec.Fence {
					old, rec = rec, old
				}
				if err := c.superseded(old, rec); err != nil {
					return err
				}
				latest[rec.Key.Tuple] = rec
			}
		}
	}
	for tuple, rec := range latest {
		known, _, err := c.s.find(hash, tuple)
		if err != nil {
			return err
		}
		if known != nil {
			if err := c.superseded(rec, known); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *checker) superseded(old, by *dedup.Record) error {
	if old.Fence >= by.Fence {
		return fmt.Errorf("one key has two records of fence %d", old.Fence)
	}
	if !dedup.Expired(old, c.s.Horizon()) {
		return fmt.Errorf("one key has two records that count, of fences %d and %d", old.Fence, by.Fence)
	}
	return nil
}

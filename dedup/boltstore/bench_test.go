package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"idemd/dedup"
)

const (
	benchKeys = 1_000_000
	benchRuns = 5
	benchTime = 400 * time.Millisecond
)

// BenchmarkPairs measures acquire and commit, both durable, against one bbolt
// bucket under the same kind of group commit. Both hold 1M keys before. The runs
// alternate; the figures are medians, the ratio that of the runs side by side.
func BenchmarkPairs(b *testing.B) {
	ours := preloadStore(b, filepath.Join(b.TempDir(), "dedup"))
	theirs := preloadBucket(b, filepath.Join(b.TempDir(), "bucket.db"))
	for _, callers := range []int{64, 256} {
		b.Run(strconv.Itoa(callers)+"callers", func(b *testing.B) { comparePairs(b, callers, ours, theirs) })
	}
}

func comparePairs(b *testing.B, callers int, ours, theirs func(uint64) error) {
	for range b.N {
		var a, z, ratio [benchRuns]float64
		for i := range benchRuns {
			a[i] = pairsPerSecond(b, callers, ours)
			z[i] = pairsPerSecond(b, callers, theirs)
			ratio[i] = a[i] / z[i]
		}
		b.ReportMetric(median(a), "pairs/s")
		b.ReportMetric(median(z), "bbolt-pairs/s")
		b.ReportMetric(median(ratio), "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

func median(runs [benchRuns]float64) float64 {
	slices.Sort(runs[:])
	return runs[benchRuns/2]
}

// pairsPerSecond lets callers make pairs as fast as they can.
func pairsPerSecond(b *testing.B, callers int, pair func(n uint64) error) float64 {
	b.Helper()
	var wg sync.WaitGroup
	var pairs atomic.Int64
	errs := make(chan error, callers)
	begin := time.Now()
	for range callers {
		wg.Go(func() {
			for time.Since(begin) < benchTime {
				if err := pair(rand.Uint64()); err != nil {
					errs <- err
					return
				}
				pairs.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
	return float64(pairs.Load()) / took.Seconds()
}

func benchRecord(n uint64) dedup.Record {
	now := dedup.At(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	return dedup.Record{
		Key: testKey("crm", strconv.FormatUint(n, 36)), State: dedup.Done, Owner: dedup.InProc, Effect: dedup.Irrevocable,
		Outcome: dedup.OutcomeDone, Fence: dedup.NewFence(1, n), Attempts: 1, FirstSeen: now, Started: now,
		Committed: now, Expires: now.Add(30 * 24 * time.Hour), Host: "host-1", Origin: "callback", Seq: n,
	}
}

// preloadStore makes a store with 1M settled keys and gives one pair in it. It
// prints what the keys cost in memory and at the next start.
func preloadStore(b *testing.B, dir string) func(uint64) error {
	b.Helper()
	lazy := &machine{sync: func(*os.File) error { return nil }}
	s, err := open(b.Context(), Config{Dir: dir}, lazy)
	if err != nil {
		b.Fatal(err)
	}
	for n := uint64(0); n < benchKeys; {
		for range maxRecords {
			rec := benchRecord(n)
			if err := s.writer.stage(entry{rec: &rec, hash: rec.Key.Hash, handler: "crm", counted: true}, -1, false); err != nil {
				b.Fatal(err)
			}
			n++
		}
		if err := s.writer.writePending(); err != nil {
			b.Fatal(err)
		}
	}
	for _, j := range s.journals {
		if err := datasync(j.file); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	before := heapBytes()
	begin := time.Now()
	s, err = Open(b.Context(), Config{Dir: dir, MustExist: true})
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(begin)
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	keys := s.Stats().Keys
	heap := heapBytes() - before
	fmt.Printf("# %d keys: index %.1f MiB, %.1f B/key; open and verify %v\n",
		keys, float64(heap)/(1<<20), float64(heap)/float64(keys), took.Round(time.Millisecond))
	return pairIn(s)
}

// pairIn gives a function that makes a pair of a key that was never there.
func pairIn(s *Store) func(uint64) error {
	return func(n uint64) error {
		ctx, key := context.Background(), testKey("crm", "x"+strconv.FormatUint(n, 36))
		g, err := s.Do(ctx, key, dedup.Acquire{Effect: dedup.Irrevocable, Owner: dedup.InProc, Origin: "callback", Seq: n})
		if err != nil || g.Verdict != dedup.Granted {
			return fmt.Errorf("acquire: %v, %w", g.Verdict, err)
		}
		_, err = s.Do(ctx, key, dedup.Commit{Fence: g.Record.Fence, Outcome: dedup.OutcomeDone, Retain: time.Hour})
		return err
	}
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bucket is the layout that the store is measured against.
type bucket struct {
	db   *bbolt.DB
	puts chan *put
}

type put struct {
	key   [16]byte
	value []byte
	fresh bool // the key must not be there
	err   error
	done  chan struct{}
}

func preloadBucket(b *testing.B, path string) func(uint64) error {
	b.Helper()
	return preloadBucketOf(b, path, benchKeys)
}

func preloadBucketOf(b *testing.B, path string, n int) func(uint64) error {
	b.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, InitialMmapSize: 2 << 30, NoSync: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	keys := make([][16]byte, n)
	for i := range keys {
		keys[i] = benchHash(uint64(i))
	}
	slices.SortFunc(keys, func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
	value := make([]byte, 100)
	for chunk := range slices.Chunk(keys, 100_000) {
		err := db.Update(func(tx *bbolt.Tx) error {
			c, err := tx.CreateBucketIfNotExists([]byte("c"))
			for i := 0; i < len(chunk) && err == nil; i++ {
				err = c.Put(chunk[i][:], value)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := db.Sync(); err != nil {
		b.Fatal(err)
	}
	db.NoSync = false
	u := &bucket{db: db, puts: make(chan *put, 4*maxRecords)}
	var writer sync.WaitGroup
	writer.Go(u.write)
	b.Cleanup(func() {
		close(u.puts)
		writer.Wait()
		if err := db.Close(); err != nil {
			b.Error(err)
		}
	})
	return u.pair
}

func benchHash(n uint64) (h [16]byte) {
	r := rand.New(rand.NewPCG(n, 7))
	binary.BigEndian.PutUint64(h[:], r.Uint64())
	binary.BigEndian.PutUint64(h[8:], r.Uint64())
	return h
}

// write is the same group commit: all that waits, one transaction, no timer.
func (u *bucket) write() {
	for p := range u.puts {
		for n := -1; n < len(u.puts) && n < maxRecords; { // as writer.gather does
			n = len(u.puts)
			runtime.Gosched()
		}
		group := []*put{p}
		for len(group) < maxRecords && len(u.puts) > 0 {
			group = append(group, <-u.puts)
		}
		err := u.db.Update(func(tx *bbolt.Tx) error {
			c := tx.Bucket([]byte("c"))
			for _, p := range group {
				if p.fresh && c.Get(p.key[:]) != nil {
					return fmt.Errorf("key %x is there", p.key)
				}
				if err := c.Put(p.key[:], p.value); err != nil {
					return err
				}
			}
			return nil
		})
		for _, p := range group {
			p.err = err
			p.done <- struct{}{}
		}
	}
}

func (u *bucket) pair(n uint64) error {
	p := &put{key: benchHash(n), value: make([]byte, 100), fresh: true, done: make(chan struct{}, 1)}
	for range 2 {
		u.puts <- p
		<-p.done
		if p.err != nil {
			return p.err
		}
		p.fresh, p.value = false, append([]byte("done"), p.value[4:]...)
	}
	return nil
}

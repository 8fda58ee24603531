package boltstore

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"idemd/dedup"
)

const (
	coldKeys = 10_000_000
	coldDays = 30
)

// coldRecord is the n-th of those that expire on a day.
func coldRecord(n uint64, expires time.Time) dedup.Record {
	r := benchRecord(n)
	r.Expires = dedup.At(expires.Add(time.Duration(n%86_400) * time.Second))
	r.Committed = r.Expires.Add(-30 * 24 * time.Hour)
	r.FirstSeen, r.Started = r.Committed, r.Committed
	return r
}

// buildCold makes a store with n keys in one cold file for each of the days from
// first on, and nothing else.
func buildCold(tb testing.TB, dir string, n uint64, first time.Time, days int) {
	tb.Helper()
	first = first.Truncate(24 * time.Hour)
	s, err := open(tb.Context(), Config{Dir: dir}, lazyMachine())
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	var names manifest
	if err := readText(dir, manifestName, &names); err != nil {
		tb.Fatal(err)
	}
	names.Tables = make([]table, days)
	var wg sync.WaitGroup
	work := make(chan int)
	for range 2 {
		wg.Go(func() {
			for day := range work {
				t, err := coldFile(s, names.Incarnation, first.AddDate(0, 0, day), uint64(day)*n/uint64(days), uint64(day+1)*n/uint64(days))
				if err != nil {
					tb.Error(err)
				}
				names.Tables[day] = t
			}
		})
	}
	for day := range days {
		work <- day
	}
	close(work)
	wg.Wait()
	if err := s.machine.writeText(dir, manifestName, names); err != nil {
		tb.Fatal(err)
	}
}

// coldFile writes the keys from the number from up to to.
func coldFile(s *Store, born incarnation, day time.Time, from, to uint64) (table, error) {
	w, err := newTableWriter(s.machine, s.cfg.Dir, coldPrefix+day.Format(time.DateOnly)+"-1.db", born, []string{"bench"})
	if err != nil {
		return table{}, err
	}
	type made struct {
		hash  [16]byte
		entry []byte
	}
	all := make([]made, 0, to-from)
	for n := from; n < to; n++ {
		r := coldRecord(n, day)
		e, err := appendEntry(nil, &r, 0)
		if err != nil {
			return table{}, err
		}
		w.note(r.Committed, r.Expires)
		all = append(all, made{r.Key.Hash, e})
	}
	slices.SortFunc(all, func(a, b made) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	for _, m := range all {
		if err := w.add(m.hash, m.entry); err != nil {
			return table{}, err
		}
	}
	if err := w.finish(); err != nil {
		return table{}, err
	}
	return w.table, w.publish()
}

// fillJournal writes settled keys into the journal until it is full.
func fillJournal(tb testing.TB, s *Store, prefix string) {
	tb.Helper()
	for n := uint64(0); s.writer.journal.size < s.machine.journalMax-maxFrame; {
		for range maxRecords {
			rec := benchRecord(n)
			rec.Key = testKey("crm", prefix+strconv.FormatUint(n, 36))
			rec.Expires = dedup.At(time.Now().Add(30 * 24 * time.Hour))
			if err := s.writer.stage(entry{rec: &rec, hash: rec.Key.Hash, handler: "crm", counted: true}, -1, false); err != nil {
				tb.Fatal(err)
			}
			n++
		}
		if err := s.writer.writePending(); err != nil {
			tb.Fatal(err)
		}
	}
}

// anonymous is the memory of this process that no file stands behind, in bytes.
func anonymous(tb testing.TB) int64 {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n << 10
}

// BenchmarkCold measures a store with 10M keys in cold files.
func BenchmarkCold(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "dedup")
	first := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	begin := time.Now()
	buildCold(b, dir, coldKeys, first, coldDays)
	fmt.Printf("# %d cold keys in %d files made in %v\n", coldKeys, coldDays, time.Since(begin).Round(time.Second))
	debug.FreeOSMemory()
	before := anonymous(b)
	s, err := open(b.Context(), Config{Dir: dir}, lazyMachine())
	if err != nil {
		b.Fatal(err)
	}
	debug.FreeOSMemory()
	fmt.Printf("# their anonymous memory: %.1f MiB\n", float64(anonymous(b)-before)/(1<<20))
	fillJournal(b, s, "j")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	begin = time.Now()
	s, err = Open(b.Context(), Config{Dir: dir, MustExist: true})
	if err != nil {
		b.Fatal(err)
	}
	took := time.Since(begin)
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	debug.FreeOSMemory()
	st := s.Stats()
	fmt.Printf("# open with %d cold keys and a journal of %d MiB with %d keys: %v, %.1f MiB of anonymous memory, %.0f B on disk for each cold key\n",
		st.Parts["cold"].Keys, s.machine.journalMax>>20, st.Parts["journal"].Keys, took.Round(time.Millisecond),
		float64(anonymous(b)-before)/(1<<20), float64(st.Parts["cold"].Bytes)/coldKeys)
	b.Run("missing", func(b *testing.B) { benchMissing(b, s) })
	b.Run("found", func(b *testing.B) { benchFound(b, s, first) })
	theirs := preloadBucketOf(b, filepath.Join(b.TempDir(), "bucket.db"), coldKeys)
	b.Run("pairs", func(b *testing.B) { comparePairs(b, 64, pairIn(s), theirs) })
}

// benchMissing asks for keys that are not there, and for their p50.
func benchMissing(b *testing.B, s *Store) {
	const asked = 100_000
	took := make([]time.Duration, asked)
	before := majorFaults(b)
	for i := range took {
		key := testKey("crm", "missing"+strconv.Itoa(i))
		begin := time.Now()
		if _, ok, err := s.Get(b.Context(), key); ok || err != nil {
			b.Fatalf("there: %t, %v", ok, err)
		}
		took[i] = time.Since(begin)
	}
	faults := majorFaults(b) - before
	slices.Sort(took)
	b.ReportMetric(float64(took[asked/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[asked*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(float64(faults), "reads-of-the-disk")
	b.ReportMetric(0, "ns/op")
}

// majorFaults counts the pages that this process had to read from a disk.
func majorFaults(tb testing.TB) int64 {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return u.Majflt
}

func benchFound(b *testing.B, s *Store, first time.Time) {
	const asked = 20_000
	took := make([]time.Duration, asked)
	for i := range took {
		n := rand.Uint64N(coldKeys)
		key := coldRecord(n, first).Key
		begin := time.Now()
		if _, ok, err := s.Get(b.Context(), key); !ok || err != nil {
			b.Fatalf("key %d: there: %t, %v", n, ok, err)
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[asked/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(took[asked*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkExpire measures how long a day of 300,000 keys takes to go, and what
// space that gives.
func BenchmarkExpire(b *testing.B) {
	for range b.N {
		dir := filepath.Join(b.TempDir(), "dedup")
		first := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -2)
		buildCold(b, dir, 600_000, first, 2)
		s, err := Open(b.Context(), Config{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.MoveHorizon(b.Context(), dedup.At(first.AddDate(0, 0, 1))); err != nil {
			b.Fatal(err)
		}
		before := onDisk(b, dir)
		begin := time.Now()
		step, err := s.Expire(b.Context())
		if err == nil {
			_, err = s.Unlink(b.Context(), 0)
		}
		took := time.Since(begin)
		if err != nil || step.Expired != 300_000 {
			b.Fatalf("%+v, %v", step, err)
		}
		b.ReportMetric(float64(took.Milliseconds()), "ms")
		b.ReportMetric(float64(before-onDisk(b, dir))/(1<<20), "MiB-freed")
		b.ReportMetric(0, "ns/op")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// onDisk is what the files of a directory take.
func onDisk(tb testing.TB, dir string) (n int64) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, e.Name()), &st); err != nil {
			tb.Fatal(err)
		}
		n += st.Blocks * 512
	}
	return n
}

// BenchmarkOpenLoop offers 5,000 pairs a second for a minute, first alone and then
// beside steps that move and merge 500,000 records that are there before.
func BenchmarkOpenLoop(b *testing.B) {
	for _, tidy := range []bool{false, true} {
		name := "alone"
		if tidy {
			name = "beside steps"
		}
		b.Run(name, func(b *testing.B) {
			for range b.N {
				openLoop(b, tidy)
			}
		})
	}
}

const (
	loopRate = 5000
	loopTime = time.Minute
)

func openLoop(b *testing.B, tidy bool) {
	dir := filepath.Join(b.TempDir(), "dedup")
	s, err := open(b.Context(), Config{Dir: dir}, lazyMachine())
	if err != nil {
		b.Fatal(err)
	}
	fillJournal(b, s, "before")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	if s, err = Open(b.Context(), Config{Dir: dir}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var steps sync.WaitGroup
	var moved, merged uint64
	if tidy {
		steps.Go(func() { moved, merged = tidyUntil(ctx, b, s) })
	}
	took := offer(b, pairIn(s))
	cancel()
	steps.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
	b.ReportMetric(float64(len(took))/loopTime.Seconds(), "pairs/s")
	b.ReportMetric(float64(moved), "moved")
	b.ReportMetric(float64(merged), "merged")
	b.ReportMetric(0, "ns/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// tidyUntil does all steps, over and over, until ctx ends.
func tidyUntil(ctx context.Context, b *testing.B, s *Store) (moved, merged uint64) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_, err := s.Seal(ctx, 15*time.Second)
		if err == nil {
			var m Step
			m, err = s.Move(ctx)
			moved += m.Keys
		}
		if err == nil {
			var m Step
			m, err = s.Merge(ctx, dedup.At(time.Now()))
			merged += m.Keys
		}
		if err == nil {
			_, err = s.Unlink(ctx, 0)
		}
		if err != nil && ctx.Err() == nil {
			b.Error(err)
			return moved, merged
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return moved, merged
}

// offer begins pairs at their moments, whether earlier ones have ended or not, and
// gives how long each took from its moment on.
func offer(b *testing.B, pair func(n uint64) error) []time.Duration {
	took := make([]time.Duration, loopRate*int(loopTime.Seconds()))
	var wg sync.WaitGroup
	begin := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	moment := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second / loopRate) }
	for next := 0; next < len(took); {
		<-tick.C
		due := next
		for due < len(took) && !moment(due).After(time.Now()) {
			due++
		}
		for n := next; n < due; n++ {
			wg.Go(func() {
				if err := pair(rand.Uint64()); err != nil {
					b.Error(err)
				}
				took[n] = time.Since(moment(n))
			})
		}
		next = due
	}
	wg.Wait()
	return took
}

// BenchmarkMonth plays 100,000 events a day for two handlers over 31 days, with all
// steps once an hour, and a retention of 30 days.
func BenchmarkMonth(b *testing.B) {
	for range b.N {
		now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		m := lazyMachine()
		m.workFor = time.Hour
		dir := filepath.Join(b.TempDir(), "dedup")
		s, err := open(b.Context(), Config{Dir: dir, Now: func() time.Time { return now }}, m)
		if err != nil {
			b.Fatal(err)
		}
		begin, files := time.Now(), 0
		for hour := range 31 * 24 {
			now = now.Add(time.Hour)
			month(b, s, hour, now)
			files = max(files, len(s.tables))
		}
		st := s.Stats()
		fmt.Printf("# a month in %v: %+v\n", time.Since(begin).Round(time.Second), st.Parts)
		b.ReportMetric(float64(onDisk(b, dir))/(1<<30), "GiB")
		b.ReportMetric(float64(st.Keys), "keys")
		b.ReportMetric(float64(files), "tables-at-most")
		b.ReportMetric(0, "ns/op")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// month is one hour of it.
func month(b *testing.B, s *Store, hour int, now time.Time) {
	const events = 100_000 / 24
	err := s.inWriter(func(w *writer) error {
		for i := range events {
			for _, handler := range []string{"crm", "mail"} {
				rec := benchRecord(uint64(hour*events + i))
				rec.Key = testKey(handler, "0123456789abcdef"+strconv.Itoa(hour*events+i))
				rec.State, rec.Committed, rec.FirstSeen, rec.Started = dedup.Started, 0, dedup.At(now), dedup.At(now)
				if err := w.stage(entry{rec: &rec, hash: rec.Key.Hash, handler: handler, counted: true}, -1, false); err != nil {
					return err
				}
				done := rec
				done.State, done.Committed, done.Expires = dedup.Done, dedup.At(now), dedup.At(now.AddDate(0, 0, 30))
				if err := w.stage(entry{rec: &done, hash: rec.Key.Hash, handler: handler, counted: true}, len(w.pending)-1, false); err != nil {
					return err
				}
			}
			if len(w.pending) > maxRecords-4 {
				if err := w.writePending(); err != nil {
					return err
				}
			}
		}
		return w.writePending()
	})
	ctx := b.Context()
	if err == nil {
		_, err = s.Seal(ctx, 0)
	}
	for _, do := range []func() (Step, error){
		func() (Step, error) { return s.Move(ctx) },
		func() (Step, error) { return s.Merge(ctx, dedup.At(now.Add(-2*time.Hour))) },
		func() (Step, error) { return Step{}, s.MoveHorizon(ctx, dedup.At(now)) },
		func() (Step, error) { return s.Expire(ctx) },
		func() (Step, error) { return s.Unlink(ctx, time.Hour) },
	} {
		for more := true; more && err == nil; {
			var step Step
			step, err = do()
			more = step.More
		}
	}
	if err != nil {
		b.Fatal(err)
	}
}

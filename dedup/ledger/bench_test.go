package ledger

import (
	"fmt"
	"testing"
	"time"
)

func BenchmarkNote(b *testing.B) {
	l := Open(b.Context(), Config{Dir: b.TempDir()})
	first := time.Now()
	entries := make([]Entry, 1<<16)
	for i := range entries {
		entries[i] = entryAt(first, fmt.Sprint(i), time.Second)
	}
	for i := 0; b.Loop(); i++ {
		l.Note(entries[i%len(entries)])
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFind looks one key up among a million suppressions.
func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	l := Open(b.Context(), Config{Dir: dir, DayBytes: 1 << 30, TotalBytes: 1 << 30})
	first := time.Now()
	for i := range 1_000_000 {
		l.Note(entryAt(first, fmt.Sprint("id", i/4), time.Second))
		if i%10_000 == 0 {
			l.flush(false)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	l = Open(b.Context(), Config{Dir: dir, DayBytes: 1 << 30, TotalBytes: 1 << 30})
	took := time.Since(began)
	for i := 0; b.Loop(); i++ {
		if got, err := l.Find(b.Context(), keyOf(fmt.Sprint("id", i%250_000))); err != nil || len(got) != 4 {
			b.Fatalf("%d, %v, %+v", len(got), err, l.Stats())
		}
	}
	b.ReportMetric(float64(took.Milliseconds()), "ms/open")
	b.ReportMetric(float64(l.Stats().Bytes)/1e6, "B/entry")
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

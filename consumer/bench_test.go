package consumer

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"idemd/dedup"
	"idemd/dedup/boltstore"
	"idemd/queue"
)

// Queue to committed, through an HTTP handler on loopback, one handler of each
// effect in turn.
func BenchmarkPool(b *testing.B) {
	for _, effect := range []dedup.Effect{dedup.Idempotent, dedup.Retryable, dedup.Irrevocable} {
		b.Run(effect.String(), func(b *testing.B) { benchmarkPool(b, effect) })
	}
}

func benchmarkPool(b *testing.B, effect dedup.Effect) {
	dir := b.TempDir()
	q, err := queue.Open(b.Context(), queue.Config{Dir: filepath.Join(dir, "queue"), MaxBytes: 4 << 30})
	if err != nil {
		b.Fatal(err)
	}
	store, err := boltstore.Open(b.Context(), boltstore.Config{Dir: filepath.Join(dir, "dedup")})
	if err != nil {
		b.Fatal(err)
	}
	var seen atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
	h, err := NewHTTP(HTTPConfig{URL: srv.URL})
	if err != nil {
		b.Fatal(err)
	}
	s := spec("crm", h)
	s.Effect = effect
	p, err := NewPool(b.Context(), Config{Spec: s, Queue: q, Store: store})
	if err != nil {
		b.Fatal(err)
	}
	publishAll(b, q, b.N)
	b.ResetTimer()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(b.Context()) }()
	for tick := time.NewTicker(time.Millisecond); p.open.progress() < uint64(b.N); <-tick.C {
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	if n := seen.Load(); n != int64(b.N) {
		b.Errorf("%d requests for %d events", n, b.N)
	}
	srv.Close()
	for _, err := range []error{p.Stop(b.Context()), <-ended, q.Close(context.Background()), store.Close()} {
		if err != nil {
			b.Error(err)
		}
	}
}

func publishAll(b *testing.B, q *queue.Queue, n int) {
	b.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if _, err := q.Publish(b.Context(), newEvent(fmt.Sprintf("e%d", i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

package queue

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"idemd/event"
)

const (
	benchPublishers = 64
	benchBody       = 1 << 10
)

// BenchmarkPublish publishes 1 KiB events from 64 goroutines, and for reference
// appends as many to a plain file with the same grouping and one fdatasync each.
func BenchmarkPublish(b *testing.B) {
	b.Run("queue", func(b *testing.B) {
		var w watch
		q := open(b, Config{MaxBytes: 4 << 30, Logger: slog.New(slog.DiscardHandler), groupSync: wrapped(w.wrap)})
		before := w.syncs.Load()
		bench(b, func(ev *event.Event) error {
			_, err := q.Publish(b.Context(), ev)
			return err
		})
		b.ReportMetric(float64(b.N)/float64(w.syncs.Load()-before), "msg/sync")
	})
	b.Run("append-fdatasync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "log"))
		if err != nil {
			b.Fatal(err)
		}
		requests := make(chan appendRequest, maxGroup)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			appendLoop(f, requests)
		}()
		bench(b, func(ev *event.Event) error {
			r := appendRequest{body: ev.Body, done: make(chan error, 1)}
			requests <- r
			return <-r.done
		})
		close(requests)
		<-ended
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

// bench runs publish b.N times from benchPublishers goroutines.
func bench(b *testing.B, publish func(*event.Event) error) {
	body := make([]byte, benchBody)
	var wg sync.WaitGroup
	left := make(chan struct{}, b.N)
	for range b.N {
		left <- struct{}{}
	}
	close(left)
	b.ResetTimer()
	start := time.Now()
	for i := range benchPublishers {
		wg.Go(func() {
			for range left {
				ev := newEvent(i)
				ev.Body = body
				if err := publish(ev); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "msg/s")
	b.ReportMetric(0, "ns/op")
	runtime.GC()
}

type appendRequest struct {
	body []byte
	done chan error
}

// appendLoop is group commit without anything else.
func appendLoop(f *os.File, requests <-chan appendRequest) {
	for first := range requests {
		group, buf := []appendRequest{first}, append([]byte(nil), first.body...)
	collect:
		for len(group) < maxGroup {
			select {
			case r, open := <-requests:
				if !open {
					break collect
				}
				group, buf = append(group, r), append(buf, r.body...)
			default:
				break collect
			}
		}
		_, err := f.Write(buf)
		if err == nil {
			err = fdatasync(f)
		}
		for _, r := range group {
			r.done <- err
		}
	}
}

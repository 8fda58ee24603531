package app

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"idemd/admin"
	"idemd/event"
	"idemd/queue"
	"idemd/receiver"
)

// The speed figures of docs/performance.md. Absolute numbers belong to a
// machine; the ratios are between runs that alternate in one process.

const (
	benchConns = 64
	benchRuns  = 5
	benchFor   = 2 * time.Second
	benchToken = "benchmark-token"
	benchKey   = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
	benchCorp  = "ww00c0ffee00c0ffee"
)

func benchSource() receiver.SourceConfig {
	return receiver.SourceConfig{
		Name: "wecom", Scheme: "wecom", Token: []string{benchToken}, EncodingAESKey: []string{benchKey},
		ReceiveIDs: []string{benchCorp},
	}
}

// callbacks makes n WeCom requests as bytes on the wire, each with a message of
// 1 KiB and its own id.
func callbacks(b *testing.B, first, n int) [][]byte {
	b.Helper()
	filler := strings.Repeat("一二三四五六七八九十", 22)
	all := make([][]byte, n)
	for i := range all {
		payload := fmt.Appendf(nil, "<xml><ToUserName><![CDATA[%s]]></ToUserName><FromUserName><![CDATA[u_zhao]]></FromUserName>"+
			"<CreateTime>%d</CreateTime><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[%s]]></Content>"+
			"<MsgId>%d</MsgId><AgentID>1000002</AgentID></xml>", benchCorp, time.Now().Unix(), filler, 7000000000+first+i)
		signed, err := receiver.Sign(benchSource(), payload, "", time.Now())
		if err != nil {
			b.Fatal(err)
		}
		all[i] = fmt.Appendf(nil, "POST %s?%s HTTP/1.1\r\nHost: bench\r\nContent-Type: text/xml\r\nContent-Length: %d\r\n\r\n%s",
			signed.Path, signed.RawQuery, len(signed.Body), signed.Body)
	}
	return all
}

// BenchmarkAccept compares durable accepts of the receiver and queue with a bare
// net/http handler that verifies and decrypts the same requests and appends them
// to a file under a group commit of its own.
func BenchmarkAccept(b *testing.B) {
	requests := callbacks(b, 0, 2000)
	ours, bare := acceptServer(b), bareServer(b)
	var rates, references []float64
	for range benchRuns {
		references = append(references, drive(b, bare, requests, benchLoad{lasting: benchFor}).rate())
		rates = append(rates, drive(b, ours, requests, benchLoad{lasting: benchFor}).rate())
	}
	rate, reference := median(rates), median(references) // the highest rates that last
	half := drive(b, ours, requests, benchLoad{lasting: benchFor, rate: rate / 2})
	b.Logf("durable accept, %d connections, 1 KiB WeCom callbacks, median of %d: %.0f/s; bare handler with append+fdatasync: %.0f/s; ratio %.2f (wanted: 0.5)",
		benchConns, benchRuns, rate, reference, rate/reference)
	b.Logf("answers at %.0f/s, half of the highest rate: p50 %v, p99 %v (wanted: under 100 ms)",
		half.rate(), half.percentile(0.50), half.percentile(0.99))
	b.ReportMetric(rate, "accepts/s")
	b.ReportMetric(rate/reference, "of_bare")
	b.ReportMetric(float64(half.percentile(0.99).Microseconds())/1000, "p99_ms_at_half")
	b.ReportMetric(0, "ns/op")
}

func acceptServer(b *testing.B) string {
	q, err := queue.Open(b.Context(), queue.Config{
		Dir: filepath.Join(b.TempDir(), "queue"), MaxBytes: 8 << 30, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := q.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	recv, err := receiver.New(receiver.Config{
		Sources: []receiver.SourceConfig{benchSource()},
		Publish: func(ctx context.Context, ev *event.Event) error {
			_, err := q.Publish(ctx, ev)
			return err
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	recv.SetReady(receiver.StateReady)
	return serveBench(b, recv.NewServer())
}

func serveBench(b *testing.B, srv *http.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	b.Cleanup(func() {
		if err := srv.Close(); err != nil {
			b.Error(err)
		}
		<-done
	})
	return l.Addr().String()
}

// bareServer is the least that a durable WeCom callback needs.
func bareServer(b *testing.B) string {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(benchKey + "=")
	if err != nil {
		b.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		b.Fatal(err)
	}
	type entry struct {
		data []byte
		done chan error
	}
	entries := make(chan entry, 4096)
	b.Cleanup(func() { close(entries) })
	go func() {
		for first := range entries {
			group, buf := []entry{first}, slices.Clone(first.data)
			for len(group) < 500 && len(entries) > 0 {
				e := <-entries
				group, buf = append(group, e), append(buf, e.data...)
			}
			_, err := f.Write(buf)
			if err == nil {
				err = syscall.Fdatasync(int(f.Fd()))
			}
			for _, e := range group {
				e.done <- err
			}
		}
	}()
	return serveBench(b, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		message, ok := bareOpen(block, key[:16], r)
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		e := entry{message, make(chan error, 1)}
		entries <- e
		if err := <-e.done; err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})})
}

func bareOpen(block cipher.Block, iv []byte, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, false
	}
	_, rest, _ := strings.Cut(string(body), "<Encrypt><![CDATA[")
	encrypt, _, _ := strings.Cut(rest, "]]>")
	q := r.URL.Query()
	parts := []string{benchToken, q.Get("timestamp"), q.Get("nonce"), encrypt}
	slices.Sort(parts)
	sum := sha1.Sum([]byte(strings.Join(parts, "")))
	if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(q.Get("msg_signature"))) != 1 {
		return nil, false
	}
	ct, err := base64.StdEncoding.DecodeString(encrypt)
	if err != nil || len(ct) == 0 || len(ct)%32 != 0 {
		return nil, false
	}
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(ct, ct)
	return ct[20 : len(ct)-int(ct[len(ct)-1])], true
}

// BenchmarkEndToEnd measures a whole daemon with one retryable http handler:
// from the first request until the last run is committed.
func BenchmarkEndToEnd(b *testing.B) {
	const events = 20000
	var calls atomic.Int64
	sink := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			calls.Add(1)
		}
	}))
	defer sink.Close()
	a, stop := benchApp(b, sink.URL)
	defer stop()
	var rates []float64
	for n := range benchRuns {
		requests := callbacks(b, (n+1)*events, events)
		began := time.Now()
		drive(b, a.addr, requests, benchLoad{count: events})
		done := uint64((n + 1) * events)
		for a.live().pools[0].Snapshot().Verdicts["granted"] < done || a.store.Stats().Open[a.live().specs[0].ID]["started"] > 0 {
			select {
			case <-b.Context().Done():
				b.Fatal("stopped")
			case <-time.After(time.Millisecond):
			}
		}
		rates = append(rates, events/time.Since(began).Seconds())
	}
	if calls.Load() != benchRuns*events {
		b.Errorf("%d calls for %d events", calls.Load(), benchRuns*events)
	}
	b.Logf("end to end, 1 KiB WeCom callbacks, %d connections, one retryable http handler, median of %d runs of %d events: %.0f events/s (wanted: 3000)",
		benchConns, benchRuns, events, median(rates))
	b.ReportMetric(median(rates), "events/s")
	b.ReportMetric(0, "ns/op")
}

func benchApp(b *testing.B, sink string) (*App, func()) {
	cfg, err := Parse([]byte(benchConfig(filepath.Join(b.TempDir(), "data"), sink)), filepath.Join(b.TempDir(), "idemd.toml"))
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan struct{})
	a, err := New(b.Context(), cfg, Options{Ready: func(string) { close(ready) }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-ready
	return a, func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
}

func benchConfig(dir, sink string) string {
	return fmt.Sprintf(`
data_dir = %q
environment = "test"
[receiver]
listen = "127.0.0.1:0"
[queue]
max_bytes = "8GiB"
[[source]]
name = "wecom"
scheme = "wecom"
token = %q
encoding_aes_key = %q
receive_ids = [%q]
[[handler]]
name = "crm"
sources = ["wecom"]
kind = "http"
url = %q
effect = "retryable"
store_unavailable = "refuse"
concurrency = 32
`, dir, benchToken, benchKey, benchCorp, sink)
}

// BenchmarkMemory runs the real binary: its size, its resident memory when it is
// idle and empty, and after a million events.
func BenchmarkMemory(b *testing.B) {
	const events, chunk = 1_000_000, 20_000
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
	}))
	defer sink.Close()
	d := benchDaemon(b, sink.URL)
	idle := d.rss(b)
	for n := range events / chunk {
		drive(b, d.addr, callbacks(b, n*chunk, chunk), benchLoad{count: chunk})
	}
	d.settled(b)
	full := d.rss(b)
	b.Logf("stripped binary %.1f MiB (wanted: under 30); RSS idle and empty %.1f MiB (wanted: under 40); after %d events %.1f MiB (wanted: under 150)",
		d.size, idle, events, full)
	b.ReportMetric(d.size, "binary_MiB")
	b.ReportMetric(idle, "idle_MiB")
	b.ReportMetric(full, "after_1M_MiB")
	b.ReportMetric(0, "ns/op")
}

func (d *benchProcess) settled(b *testing.B) {
	c := admin.NewClient(admin.SocketPath(d.dir))
	defer c.Close()
	for {
		st, err := c.Status(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if h := st.Handlers[0]; h.Pending == 0 && h.Running == 0 && h.Open["started"] == 0 {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

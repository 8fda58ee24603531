package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"idemd/receiver"
)

// The overload of `make overload`: a daemon on a slow disk gets ten times what it
// can store, for a minute, and hundreds of bodies that never end on top of that.
const (
	overloadFor      = 60 * time.Second
	overloadTimes    = 10
	overloadInFlight = 64
	overloadConns    = 640
	overloadSlow     = 600
	overloadSync     = 100 * time.Millisecond // one sync of the slow disk
	overloadIdle     = 2500                   // connections that were used once and stay open
	overloadHeld     = 512                    // callers of a source that holds what it cannot take; 256 is the bound
	overloadRecovery = 5 * time.Second
)

// What the memory may be, on top of what the process had. Both ends of each
// connection are in this process: for each a goroutine with a stack of 8 KiB that
// doubles as it calls deeper, and buffers of 4 KiB to read and to write.
const (
	overloadPerConn = 2 * (16 + 4 + 4) // KiB
	overloadBodies  = 64               // MiB: body_memory
	overloadAllConn = overloadConns + overloadSlow + overloadIdle + overloadHeld
	overloadMemory  = overloadBodies + overloadAllConn*overloadPerConn/1024.0 // MiB
)

// flooded is what a load has met. Latencies are from sending to the answer.
type flooded struct {
	accepted, refused driven
	broken            int
}

func (f *flooded) sent() int {
	return len(f.accepted.latencies) + len(f.refused.latencies) + f.broken
}

func (f *flooded) add(o *flooded) {
	f.accepted.latencies = append(f.accepted.latencies, o.accepted.latencies...)
	f.refused.latencies = append(f.refused.latencies, o.refused.latencies...)
	f.broken += o.broken
}

// flood sends requests over conns connections at a rate, or for rate 0 as fast as
// answers come. Unlike drive it takes a refusal for an answer.
func flood(b *testing.B, addr string, requests [][]byte, conns int, rate float64, lasting time.Duration) *flooded {
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   flooded
		began = time.Now()
	)
	for range conns {
		wg.Go(func() {
			c := floodConn{b: b, addr: addr}
			defer c.close()
			for {
				i := int(next.Add(1)) - 1
				due := time.Now()
				if rate > 0 {
					due = began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
				}
				if due.Sub(began) >= lasting {
					break
				}
				<-time.After(time.Until(due))
				if time.Since(began) >= lasting {
					break
				}
				c.exchange(requests[i%len(requests)])
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(&c.met)
		})
	}
	wg.Wait()
	all.accepted.took, all.refused.took = time.Since(began), time.Since(began)
	return &all
}

// floodConn is one caller, who connects again when he has to.
type floodConn struct {
	b    *testing.B
	addr string
	conn net.Conn
	r    *bufio.Reader
	met  flooded
}

func (c *floodConn) close() {
	if c.conn != nil {
		if err := c.conn.Close(); err != nil {
			c.b.Error(err)
		}
		c.conn = nil
	}
}

func (c *floodConn) exchange(request []byte) {
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			c.met.broken++
			return
		}
		c.conn, c.r = conn, bufio.NewReader(conn)
	}
	began := time.Now()
	_, err := c.conn.Write(request)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(c.r, nil)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil {
		c.met.broken++
		c.close()
		return
	}
	switch took := time.Since(began); resp.StatusCode {
	case http.StatusOK:
		c.met.accepted.latencies = append(c.met.accepted.latencies, took)
	case http.StatusServiceUnavailable:
		c.met.refused.latencies = append(c.met.refused.latencies, took)
	default:
		c.b.Errorf("status %d", resp.StatusCode)
	}
	if resp.Close {
		c.close()
	}
}

// drip keeps n requests open whose bodies never end, until ctx ends.
func drip(ctx context.Context, b *testing.B, addr string, request []byte, n int) {
	head, _, _ := strings.Cut(string(request), "\r\n\r\n")
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() {
					if err := conn.Close(); err != nil {
						b.Error(err)
					}
				})
				if _, err = conn.Write([]byte(head + "\r\n\r\n{")); err == nil {
					_, _ = io.Copy(io.Discard, conn) // ends when the receiver has had enough
				}
				if stop() {
					if err := conn.Close(); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// idle keeps n connections open that have had an answer, until ctx ends.
func idle(ctx context.Context, b *testing.B, addr string, n int) (opened int, wait func()) {
	var all []net.Conn
	for range n {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			break
		}
		all = append(all, conn)
		_, err = conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: bench\r\n\r\n"))
		if err == nil {
			_, err = conn.Read(make([]byte, 512))
		}
		if err != nil {
			b.Error(err)
			break
		}
	}
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(ended)
		for _, conn := range all {
			if err := conn.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return len(all), func() { <-ended }
}

// insist calls a source that holds what it cannot take, from n callers who call
// again as soon as they are let go, until ctx ends.
func insist(ctx context.Context, b *testing.B, addr string, requests [][]byte, n int) (stored *atomic.Int64, wait func()) {
	stored = &atomic.Int64{}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c := floodConn{b: b, addr: addr}
			defer c.close()
			for j := i; ctx.Err() == nil; j += n {
				c.exchange(requests[j%len(requests)])
			}
			stored.Add(int64(len(c.met.accepted.latencies)))
		})
	}
	return stored, wg.Wait
}

func overloadSource() receiver.SourceConfig {
	return receiver.SourceConfig{Name: "hooks", Scheme: "hmac", Secret: []string{"overload-secret"}, Header: "X-Signature", IDHeader: "X-Event-Id"}
}

func overloadRequests(b *testing.B, n int) [][]byte {
	all := make([][]byte, n)
	for i := range all {
		payload := fmt.Appendf(nil, `{"n":%d,"text":%q}`, i, strings.Repeat("x", 1000))
		signed, err := receiver.Sign(overloadSource(), payload, strconv.Itoa(i), time.Now())
		if err != nil {
			b.Fatal(err)
		}
		all[i] = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\nX-Signature: %s\r\nX-Event-Id: %d\r\n\r\n%s",
			signed.Path, len(payload), signed.Header.Get("X-Signature"), i, payload)
	}
	return all
}

func overloadApp(b *testing.B) *App {
	text := fmt.Sprintf(`
data_dir = %q
environment = "test"
[receiver]
listen = "127.0.0.1:0"
in_flight = %d
[queue]
max_bytes = "8GiB"
[[source]]
name = "hooks"
scheme = "hmac"
secret = "overload-secret"
header = "X-Signature"
id_header = "X-Event-Id"
[[source]]
name = "held"
scheme = "hmac"
secret = "overload-secret"
header = "X-Signature"
id_header = "X-Event-Id"
on_refuse = "hold"
[[handler]]
name = "log"
sources = ["hooks", "held"]
kind = "log"
effect = "idempotent"
`, filepath.Join(b.TempDir(), "data"), overloadInFlight)
	cfg, err := Parse([]byte(text), filepath.Join(b.TempDir(), "idemd.toml"))
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan struct{})
	slowDisk := func(point string) {
		if point == "before-sync" {
			<-time.After(overloadSync)
		}
	}
	a, err := New(b.Context(), cfg, Options{Ready: func(string) { close(ready) }, Fault: slowDisk})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-ready
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
	return a
}

// peaks follows what grows, until stop is called.
func peaks(b *testing.B, a *App) (stop func() (rss float64, bodies, holding int64)) {
	done, ended := make(chan struct{}), make(chan struct{})
	var rss float64
	var bodies, holding int64
	go func() {
		defer close(ended)
		for {
			rss, bodies = max(rss, ownRSS(b)), max(bodies, a.recv.BodyBytes())
			holding = max(holding, a.recv.Stats()[1].Holding)
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() (float64, int64, int64) {
		close(done)
		<-ended
		return rss, bodies, holding
	}
}

func ownRSS(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Error(err)
	}
	return kib / 1024
}

// BenchmarkOverload prints what becomes of ten times the sustainable rate: memory
// is bounded, refusals are quick, no event is lost that was answered 200, and
// seconds later all is as it was.
func BenchmarkOverload(b *testing.B) {
	a, requests := overloadApp(b), overloadRequests(b, 2000)
	total := 0
	load := func(conns int, rate float64, lasting time.Duration) *flooded {
		f := flood(b, a.addr, requests, conns, rate, lasting)
		total += len(f.accepted.latencies)
		return f
	}
	sustained := load(overloadInFlight, 0, 5*time.Second)
	rate := sustained.accepted.rate()
	calm := load(overloadConns, rate/2, 3*time.Second)
	before := ownRSS(b)

	ctx, cancel := context.WithCancel(b.Context())
	opened, closed := idle(ctx, b, a.addr, overloadIdle)
	perIdle := (ownRSS(b) - before) * 1024 / float64(max(opened, 1))
	heldRequests := make([][]byte, len(requests))
	for i := range requests {
		heldRequests[i] = []byte(strings.Replace(string(requests[i]), "POST /in/hooks", "POST /in/held", 1))
	}
	held, let := insist(ctx, b, a.addr, heldRequests, overloadHeld)
	var slow sync.WaitGroup
	slow.Go(func() { drip(ctx, b, a.addr, requests[0], overloadSlow) })
	stop := peaks(b, a)
	over := load(overloadConns, overloadTimes*rate, overloadFor)
	peak, bodies, holding := stop()
	cancel()
	ended := time.Now()
	recovered := ended
	for {
		recovered = time.Now()
		f := load(overloadConns, rate/2, time.Second)
		if len(f.refused.latencies) == 0 && f.broken == 0 && f.accepted.percentile(0.99) <= 2*calm.accepted.percentile(0.99) {
			break
		}
		if time.Since(ended) > time.Minute {
			b.Error("no recovery within a minute")
			break
		}
	}
	slow.Wait()
	let()
	closed()
	total += int(held.Load())
	st, err := a.queue.State(b.Context())
	if err != nil {
		b.Fatal(err)
	}

	reached, refusals := float64(over.sent())/over.accepted.took.Seconds(), over.refused
	back := recovered.Sub(ended)
	b.Logf("sustainable: %.0f/s (a sync takes %v, %d in flight), p99 at half of it %v", rate, overloadSync, overloadInFlight, calm.accepted.percentile(0.99))
	b.Logf("offered: %.0f/s for %v (wanted: %.0f/s), %d connections, and %d bodies that never end", reached, over.accepted.took.Round(time.Second), overloadTimes*rate, overloadConns, overloadSlow)
	b.Logf("accepted: %.0f/s, p99 %v; refused: %d, p50 %v, p99 %v; broken: %d", over.accepted.rate(), over.accepted.percentile(0.99),
		len(refusals.latencies), refusals.percentile(0.50), refusals.percentile(0.99), over.broken)
	b.Logf("beside them: %d idle connections (%.0f KiB each at rest, both ends), and %d callers who are held (at most %d at a time; bound 256), %d of whose calls were stored",
		opened, perIdle, overloadHeld, holding, held.Load())
	b.Logf("memory: RSS %.1f MiB before, at most %.1f MiB (wanted: at most %.0f more, load generator included: %d MiB of bodies and %d KiB for each of %d connections); bodies at most %.1f MiB",
		before, peak, overloadMemory, overloadBodies, overloadPerConn, overloadAllConn, float64(bodies)/(1<<20))
	b.Logf("answered 200: %d, in the queue: %d, lost: %d (wanted: 0)", total, st.Messages, max(0, total-int(st.Messages)))
	b.Logf("the first normal second began %v after it (wanted: %v); in flight %d, reading %d, bytes of bodies %d", back.Round(time.Millisecond), overloadRecovery,
		a.recv.InFlight(), a.recv.Reading(), a.recv.BodyBytes())
	if int(st.Messages) < total || peak-before > overloadMemory || back > overloadRecovery || holding > 256 || refusals.percentile(0.99) > time.Second {
		b.Error("the overload was not survived as wanted")
	}
	b.ReportMetric(float64(refusals.percentile(0.99).Microseconds())/1000, "refusal_p99_ms")
	b.ReportMetric(peak-before, "more_MiB")
	b.ReportMetric(back.Seconds(), "recovery_s")
	b.ReportMetric(0, "ns/op")
}

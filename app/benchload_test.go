package app

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// benchLoad says how requests are sent over benchConns connections: for a time, or
// a number of them; at a rate, or as fast as answers come.
type benchLoad struct {
	lasting time.Duration
	count   int
	rate    float64 // requests/s; 0: as fast as answers come
}

// driven is what a load has measured.
type driven struct {
	took      time.Duration
	latencies []time.Duration // from when a request was due to its answer
}

func (d driven) rate() float64 { return float64(len(d.latencies)) / d.took.Seconds() }

func (d driven) percentile(p float64) time.Duration {
	if len(d.latencies) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d.latencies))
	return s[min(int(p*float64(len(s))), len(s)-1)].Round(10 * time.Microsecond)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// drive sends requests, which are bytes on the wire, over and over.
func drive(b *testing.B, addr string, requests [][]byte, l benchLoad) driven {
	b.Helper()
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		all   driven
		began = time.Now()
	)
	for range benchConns {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			defer func() {
				if err := conn.Close(); err != nil {
					b.Error(err)
				}
			}()
			r := bufio.NewReader(conn)
			var mine []time.Duration
			for {
				i := int(next.Add(1)) - 1
				due := time.Now()
				if l.rate > 0 {
					due = began.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
					<-time.After(time.Until(due))
				}
				if l.count > 0 && i >= l.count || l.lasting > 0 && due.Sub(began) >= l.lasting {
					break
				}
				if err := exchange(conn, r, requests[i%len(requests)]); err != nil {
					b.Error(err)
					break
				}
				mine = append(mine, time.Since(due))
			}
			mu.Lock()
			defer mu.Unlock()
			all.latencies = append(all.latencies, mine...)
		})
	}
	wg.Wait()
	all.took = time.Since(began)
	return all
}

func exchange(conn net.Conn, r *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// benchProcess is the real binary, serving.
type benchProcess struct {
	addr, dir string
	pid       int
	size      float64 // of the binary, MiB
}

func benchDaemon(b *testing.B, sink string) *benchProcess {
	dir, err := os.MkdirTemp("", "idemd")
	if err != nil {
		b.Fatal(err)
	}
	bin, config := filepath.Join(dir, "idemd"), filepath.Join(dir, "idemd.toml")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin, "../cmd/idemd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(bin)
	if err != nil {
		b.Fatal(err)
	}
	d := &benchProcess{dir: filepath.Join(dir, "data"), addr: freeAddr(b), size: float64(info.Size()) / (1 << 20)}
	text := strings.Replace(benchConfig(d.dir, sink), "127.0.0.1:0", d.addr, 1)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bin, "serve", "--config", config, "--log-level", "warn")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	d.pid = cmd.Process.Pid
	b.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	for {
		resp, err := http.Get("http://" + d.addr + "/readyz")
		if err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK {
			return d
		}
		<-time.After(10 * time.Millisecond)
	}
}

func freeAddr(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	}()
	return l.Addr().String()
}

// rss is the process's resident memory in MiB, 30 seconds after the last
// request: by then it has given back what a burst needed.
func (d *benchProcess) rss(b *testing.B) float64 {
	<-time.After(30 * time.Second)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}

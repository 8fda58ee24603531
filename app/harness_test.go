package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"idemd/admin"
)

// The test binary is also the daemon: with envConfig set it serves that file
// until SIGTERM, and kills itself at the hit-th pass of the crash point after it
// got ready; with hit 0 at the first pass after SIGUSR1, with hit -1 at the first
// pass of all.
const (
	envConfig = "IDEMD_TEST_CONFIG"
	envPoint  = "IDEMD_TEST_CRASH_AT"
	envHit    = "IDEMD_TEST_CRASH_HIT"

	envAbandon = "IDEMD_TEST_ABANDON" // as --abandon-claims
)

func TestMain(m *testing.M) {
	if file := os.Getenv(envConfig); file != "" {
		os.Exit(serveChild(file))
	}
	os.Exit(m.Run())
}

func serveChild(file string) int {
	if calls := os.Getenv(envNoSync); calls != "" {
		if err := pretend(calls); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	level := slog.LevelInfo
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	cfg, err := Load(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var armed atomic.Bool
	armed.Store(os.Getenv(envHit) == "-1")
	opts := Options{Logger: log, Version: "test", Ready: func(addr string) {
		armed.Store(os.Getenv(envHit) != "0")
		fmt.Println("ready", addr)
	}}
	if text := os.Getenv(envAbandon); text != "" {
		if opts.Abandon, err = time.ParseDuration(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	opts.Reload = hangup
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	go func() {
		for range usr1 {
			armed.Store(true)
			fmt.Println("armed")
		}
	}()
	if point := os.Getenv(envPoint); point != "" {
		hit, err := strconv.ParseInt(os.Getenv(envHit), 10, 64)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		opts.Fault = crashAt(point, max(hit, 1), &armed)
	}
	var a *App
	if opts.Systemd, err = TakeSystemd(); err == nil {
		a, err = New(ctx, cfg, opts)
	}
	if err == nil {
		err = a.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// crashAt ends the process like a kill -9 from outside: at once, nothing runs
// after it.
func crashAt(point string, hit int64, armed *atomic.Bool) func(string) {
	var passed atomic.Int64
	return func(p string) {
		if p == point && armed.Load() && passed.Add(1) == hit {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			select {}
		}
	}
}

// daemon is a child process that serves a data directory.
type daemon struct {
	t      *testing.T
	config string // file
	dir    string // data directory
	addr   string // receiver's address
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	armed  chan struct{} // closed when it has understood SIGUSR1
	stderr bytes.Buffer  // of all lives; read it only after exited
}

// newDaemon prepares a data directory and a configuration, in which %s stands
// for the sink's address.
func newDaemon(t *testing.T, handlers string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "idemd") // short: a unix socket's path has a bound
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: filepath.Join(dir, "data"), config: filepath.Join(dir, "idemd.toml")}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("daemon's log:\n%s", tail(d.stderr.String(), 6000))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	d.configure("test-token", handlers)
	return d
}

// configure writes the configuration: token and previous token of the source,
// and what follows it.
func (d *daemon) configure(token, rest string) {
	d.t.Helper()
	text := fmt.Sprintf(`
data_dir = %q
environment = "test"
[receiver]
listen = "127.0.0.1:0"
[queue]
max_bytes = "256MiB"
[[source]]
name = "src"
scheme = "token"
token = %q
previous_token = "test-token"
id_header = "X-Event-Id"
default_type = "thing"
%s`, d.dir, token, rest)
	// As an editor does: what is read is one version or the other.
	if err := errors.Join(os.WriteFile(d.config+".new", []byte(text), 0o600), os.Rename(d.config+".new", d.config)); err != nil {
		d.t.Fatal(err)
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}

// start runs the daemon until it is ready. With a point, it will kill itself.
func (d *daemon) start(point string, hit int) {
	d.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	d.run(exec.Command(exe), point, hit)
}

// run is start with a command of the test's own.
func (d *daemon) run(cmd *exec.Cmd, point string, hit int) {
	d.t.Helper()
	d.cmd = cmd
	d.cmd.Env = append(append(os.Environ(), cmd.Env...), envConfig+"="+d.config, envPoint+"="+point, envHit+"="+strconv.Itoa(hit))
	d.cmd.Stderr = &d.stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	ready := lines.Scan()
	first := lines.Text()
	d.exited, d.armed = make(chan struct{}), make(chan struct{})
	go func(cmd *exec.Cmd, exited, armed chan struct{}) {
		defer close(exited)
		for lines.Scan() {
			if lines.Text() == "armed" {
				close(armed)
			}
		}
		_ = cmd.Wait()
	}(d.cmd, d.exited, d.armed)
	if !ready {
		<-d.exited
		d.t.Fatalf("daemon did not get ready: %s", d.stderr.String())
	}
	d.addr = strings.TrimPrefix(first, "ready ")
}

// kill is kill -9; it may be called at any time.
func (d *daemon) kill() {
	if d.cmd != nil && d.cmd.Process != nil && d.exited != nil {
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

// terminate is a clean stop.
func (d *daemon) terminate() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	d.wait("the daemon to stop", d.exited)
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.t.Errorf("daemon's exit code %d", code)
	}
}

// arm lets a daemon that was started with hit 0 crash at the next pass.
func (d *daemon) arm() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		d.t.Fatal(err)
	}
	d.wait("the crash point to be armed", d.armed)
}

// crashed waits for the daemon to kill itself.
func (d *daemon) crashed() {
	d.t.Helper()
	d.wait("the crash", d.exited)
	if ws, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		d.t.Fatalf("the daemon ended with %v, not by its crash point", d.cmd.ProcessState)
	}
}

func (d *daemon) wait(what string, done <-chan struct{}) {
	d.t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		d.t.Fatalf("waited %v for %s", patience, what)
	}
}

// patience bounds every wait of these tests. Nothing passes by waiting it out.
const patience = 30 * time.Second

// errRefused is what send gives for an answer that is not 200.
var errRefused = errors.New("not accepted")

// send delivers an event as its platform would, once.
func (d *daemon) send(id string) error { return d.sendWith(id, nil) }

// sendWith is send with more headers.
func (d *daemon) sendWith(id string, more http.Header) error {
	req, err := http.NewRequest(http.MethodPost, "http://"+d.addr+"/in/src", strings.NewReader(`{"id":"`+id+`"}`))
	if err != nil {
		return err
	}
	for name := range more {
		req.Header.Set(name, more.Get(name))
	}
	req.Header.Set("Authorization", "Bearer test-token")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Event-Id", id)
	resp, err := sender.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		return errRefused
	}
	return err
}

var sender = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}

func (d *daemon) mustSend(id string) {
	d.t.Helper()
	if err := d.send(id); err != nil {
		d.t.Fatalf("send %s: %v", id, err)
	}
}

// call is one request that reached the sink.
type call struct {
	handler, id, key string
	attempt          int
	origin, batch    string
	duplicateOf      string
	ended            bool // the sink answered
}

// sink is the handlers' far side. It notes the begin and the end of each call.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	calls  map[string][]*call      // by handler and event
	answer func(c call, n int) int // status for the n-th call of that handler for that event, from 1
}

func newSink(t *testing.T, answer func(c call, n int) int) *sink {
	s := &sink{answer: answer, calls: make(map[string][]*call)}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	id := strings.TrimSuffix(strings.TrimPrefix(string(body), `{"id":"`), `"}`)
	attempt, err := strconv.Atoi(r.Header.Get("Idemd-Attempt"))
	if err != nil {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	c := &call{
		handler: r.Header.Get("Idemd-Handler"), id: id, key: r.Header.Get("Idempotency-Key"), attempt: attempt,
		origin: r.Header.Get("Idemd-Origin"), batch: r.Header.Get("Idemd-Batch"), duplicateOf: r.Header.Get("Idemd-Duplicate-Of"),
	}
	s.mu.Lock()
	at := c.handler + "/" + id
	s.calls[at] = append(s.calls[at], c)
	n := len(s.calls[at])
	s.mu.Unlock()
	status := s.answer(*c, n)
	s.mu.Lock()
	c.ended = true
	s.mu.Unlock()
	w.WriteHeader(status)
}

// seen gives the calls of one handler for one event, oldest first.
func (s *sink) seen(handler, id string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []call
	for _, c := range s.calls[handler+"/"+id] {
		calls = append(calls, *c)
	}
	return calls
}

// until polls cond until it holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// state asks the daemon how the handler's run of an event stands: "free" where
// there is no record, "" while the daemon does not know the event.
func (d *daemon) state(handler, id string) string {
	c := admin.NewClient(admin.SocketPath(d.dir))
	defer c.Close()
	why, err := c.Why(d.t.Context(), id, "src", time.Hour)
	if err != nil {
		return ""
	}
	for _, h := range why.Handlers {
		if h.Handler == handler {
			return h.Explanation.State
		}
	}
	return ""
}

// settled waits until nothing is pending, running or waiting.
func (d *daemon) settled() {
	d.t.Helper()
	c := admin.NewClient(admin.SocketPath(d.dir))
	defer c.Close()
	until(d.t, "all runs to end", func() bool {
		st, err := c.Status(d.t.Context())
		if err != nil {
			return false
		}
		for _, h := range st.Handlers {
			if h.Pending > 0 || h.Running > 0 || h.Open["started"] > 0 || h.Open["waiting"] > 0 {
				return false
			}
		}
		return true
	})
}

// doubtful lists the platform's ids of a handler's runs in doubt.
func (d *daemon) doubtful(handler string) map[string]bool {
	d.t.Helper()
	c := admin.NewClient(admin.SocketPath(d.dir))
	defer c.Close()
	ids := make(map[string]bool)
	for cursor := ""; ; {
		page, err := c.Runs(d.t.Context(), admin.DoubtList, admin.RunFilter{Handler: handler}, cursor, 100)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, r := range page.Items {
			ids[r.PlatformID] = true
		}
		if cursor = page.Next; cursor == "" {
			return ids
		}
	}
}

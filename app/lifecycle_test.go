package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestTeardown_RunsBackwardsAndJoinsErrors(t *testing.T) {
	var down teardown
	var order []string
	for _, name := range []string{"a", "b", "c"} {
		down.onStop(name, func(context.Context) error {
			order = append(order, name)
			if name == "a" {
				return nil
			}
			return errors.New(name + " is stuck")
		})
	}
	log := slog.New(slog.DiscardHandler)
	err := down.stop(t.Context(), log)
	if got := strings.Join(order, ""); got != "cba" {
		t.Errorf("order %s", got)
	}
	if err == nil || !strings.Contains(err.Error(), "stop b: b is stuck") || !strings.Contains(err.Error(), "stop c: c is stuck") {
		t.Errorf("error %v", err)
	}
	if err := down.stop(t.Context(), log); err != nil || len(order) != 3 {
		t.Errorf("second stop: %v, %v", err, order)
	}
}

// lifecycleConfig has handlers with these names that post to url/NAME.
func lifecycleConfig(dir, listen, url string, handlers ...string) string {
	text := fmt.Sprintf(`
data_dir = %q
environment = "test"
[receiver]
listen = %q
[queue]
max_bytes = "64MiB"
[[source]]
name = "src"
scheme = "token"
token = "test-token"
id_header = "X-Event-Id"
default_type = "thing"
`, dir, listen)
	for _, h := range handlers {
		text += fmt.Sprintf(`
[[handler]]
name = %q
sources = ["src"]
kind = "http"
url = "%s/%s"
effect = "irrevocable"
store_unavailable = "refuse"
timeout = "5s"
concurrency = 1
`, h, url, h)
	}
	return text
}

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	cfg, err := Parse([]byte(text), "/etc/idemd/idemd.toml")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// While one handler lets its last attempt end, the others begin nothing new,
// and nothing that ends within its timeout is cut.
func TestApp_StopEndsAllHandlersAtTheSameTime(t *testing.T) {
	handlers := []string{"a", "b", "c"}
	var calls, cut atomic.Int64
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		begun <- struct{}{}
		select {
		case <-finish:
		case <-r.Context().Done():
			cut.Add(1)
		}
	}))
	defer sink.Close()
	dir := t.TempDir()
	cfg := mustParse(t, lifecycleConfig(filepath.Join(dir, "data"), "127.0.0.1:0", sink.URL, handlers...))
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan string, 1)
	a, err := New(ctx, cfg, Options{Ready: func(addr string) { ready <- addr }})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	d := &daemon{t: t, addr: <-ready}
	for i := range 4 {
		d.mustSend(fmt.Sprint("e", i))
	}
	for range handlers {
		<-begun
	}
	stop()
	// The handlers hear of the stop one after the other, but none waits for
	// another one's attempts: so this is enough for all of them to be asked.
	until(t, "the receiver to close", func() bool {
		conn, err := net.Dial("tcp", a.addr)
		if err == nil {
			err = conn.Close()
		}
		return err != nil
	})
	<-time.After(200 * time.Millisecond)
	close(finish)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if calls.Load() != int64(len(handlers)) || cut.Load() != 0 {
		t.Errorf("%d calls, %d cut; want %d and none", calls.Load(), cut.Load(), len(handlers))
	}
}

// A start that fails half-way leaves nothing behind: the next one works.
func TestApp_HalfAStartLeavesNothingBehind(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	_, err = New(t.Context(), mustParse(t, lifecycleConfig(dir, busy.Addr().String(), "http://127.0.0.1:9", "a")), Options{})
	wantOperatorError(t, err, "cannot listen for callbacks", busy.Addr().String())
	if err := busy.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 { // and a start that is never run can be stopped
		a, err := New(t.Context(), mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", "http://127.0.0.1:9", "a")), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.stop(), a.stop()); err != nil {
			t.Fatal(err)
		}
	}
}

package app

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manager is the socket that a service manager listens on.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "idemd") // short: a unix socket's path has a bound
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, path: filepath.Join(dir, "notify")}
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.conn.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// next gives what is told within d, "" when nothing is.
func (m *manager) next(d time.Duration) string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		m.t.Fatal(err)
	}
	buf := make([]byte, 256)
	n, err := m.conn.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		m.t.Fatal(err)
	}
	return string(buf[:n])
}

func (m *manager) want(state string) {
	m.t.Helper()
	for {
		switch got := m.next(patience); got {
		case state:
			return
		case notifyAlive: // may come at any time
		default:
			m.t.Fatalf("told %q, want %q", got, state)
		}
	}
}

// asService runs the daemon as systemd does: with descriptors, whose variables
// name the process that they are for.
func (d *daemon) asService(env []string, files ...*os.File) {
	d.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ WATCHDOG_PID=$$; export LISTEN_PID WATCHDOG_PID; exec "$0"`, exe)
	cmd.Env, cmd.ExtraFiles = env, files
	d.run(cmd, "", 1)
}

func TestSystemd_AServiceTakesItsSocketAndTellsHowItGoes(t *testing.T) {
	m := newManager(t)
	d := newDaemon(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// What connects before the service runs waits in the socket's queue.
	early, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	if _, err := early.Write([]byte("GET /in/src HTTP/1.0\r\n\r\n")); err != nil { // headers have a deadline
		t.Fatal(err)
	}
	d.asService([]string{"NOTIFY_SOCKET=" + m.path, "WATCHDOG_USEC=300000", "LISTEN_FDS=1"}, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if d.addr != addr {
		t.Errorf("listens on %s, was given %s", d.addr, addr)
	}
	if got := m.next(patience); got != notifyReady {
		t.Errorf("told %q first", got)
	}
	d.mustSend("e1")
	for range 5 {
		m.want(notifyAlive)
	}
	if n, err := early.Read(make([]byte, 16)); err != nil || n == 0 {
		t.Errorf("the early connection: %d bytes, %v", n, err)
	}
	d.terminate()
	m.want(notifyStopping)
}

// A daemon that answers, but whose writer or whose queue hangs in the disk, gets
// no ping; once the disk is back it does.
func TestSystemd_WatchdogFollowsTheWriterAndTheGroupSync(t *testing.T) {
	for _, point := range []string{"before-write", "before-sync"} {
		t.Run(point, func(t *testing.T) {
			m := newManager(t)
			var hang atomic.Bool
			hung, back := make(chan struct{}, 100), make(chan struct{})
			dir := filepath.Join(filepath.Dir(m.path), "data")
			s := newSink(t, func(call, int) int { return 200 })
			ctx, stop := context.WithCancel(context.Background())
			ready := make(chan string, 1)
			a, err := New(ctx, mustParse(t, lifecycleConfig(dir, "127.0.0.1:0", s.URL, "a")), Options{
				Ready:   func(addr string) { ready <- addr },
				Systemd: Systemd{Notify: m.path, Watchdog: 150 * time.Millisecond},
				Fault: func(p string) {
					if p == point && hang.Load() {
						hung <- struct{}{}
						<-back
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			d := &daemon{t: t, addr: <-ready, dir: dir}
			m.want(notifyReady)
			m.want(notifyAlive)
			hang.Store(true)
			sent := make(chan error, 1)
			go func() { sent <- d.send("e1") }()
			<-hung
			hang.Store(false)
			m.drained()
			if got := m.next(600 * time.Millisecond); got != "" { // four times the watchdog
				t.Errorf("told %q while nothing moves", got)
			}
			close(back)
			m.want(notifyAlive)
			if err := <-sent; err != nil {
				t.Error(err)
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			m.want(notifyStopping)
		})
	}
}

// drained reads what was told before now; one ping may be on its way.
func (m *manager) drained() {
	m.t.Helper()
	for m.next(100*time.Millisecond) != "" {
	}
}

func TestSystemd_EnvironmentOfAnotherProcessIsNotOurs(t *testing.T) {
	for name, value := range map[string]string{
		"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1",
	} {
		t.Setenv(name, value)
	}
	got, err := TakeSystemd()
	if err != nil || got.Notify != "/run/n" || got.Watchdog != 0 || got.Listener != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if v, set := os.LookupEnv("NOTIFY_SOCKET"); set {
		t.Errorf("child processes would see NOTIFY_SOCKET=%s", v)
	}
}

func TestSystemd_AForeignSocketIsRefusedInASentence(t *testing.T) {
	for _, c := range []struct{ fds, what string }{{"2", "one was expected"}, {"1", "socket"}} {
		d := newDaemon(t, "")
		file, err := os.Open(d.config) // no socket at all
		if err != nil {
			t.Fatal(err)
		}
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$; export LISTEN_PID; exec "$0"`, exe)
		cmd.Env = append(os.Environ(), envConfig+"="+d.config, "LISTEN_FDS="+c.fds)
		cmd.ExtraFiles = []*os.File{file, file}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cannot use the socket that systemd handed over: LISTEN_FDS="+c.fds) ||
			!strings.Contains(string(out), c.what) {
			t.Errorf("LISTEN_FDS=%s: %v, %s", c.fds, err, out)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSystemd_NobodyListeningIsNoError(t *testing.T) {
	if err := (Systemd{}).tell(notifyReady); err != nil {
		t.Error(err)
	}
	err := Systemd{Notify: filepath.Join(t.TempDir(), "gone")}.tell(notifyReady)
	if err == nil || !strings.HasPrefix(err.Error(), "tell systemd: ") {
		t.Errorf("error %v", err)
	}
}

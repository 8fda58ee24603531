package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Systemd is what a service manager gave this process: whom to tell how things
// stand, how often to say that work goes on, and the receiver's socket. It is
// sd_notify(3) and sd_listen_fds(3), written out here because the two protocols
// are one datagram and three variables.
type Systemd struct {
	Notify   string        // path of its datagram socket, "@name" for an abstract one; empty: nobody listens
	Watchdog time.Duration // it ends the process after so long without a ping; 0: no watchdog
	Listener net.Listener  // the receiver's, already bound; nil: [receiver] listen is bound
}

// firstInherited is the first file descriptor that is handed over.
const firstInherited = 3

// TakeSystemd reads what the environment says, and removes it there: child
// processes are not meant. It returns an *OperatorError when a socket was handed
// over that cannot be used.
func TakeSystemd() (Systemd, error) {
	take := func(name string) string {
		value := os.Getenv(name)
		// Unsetenv can only fail for a name that cannot exist.
		if err := os.Unsetenv(name); err != nil {
			return ""
		}
		return value
	}
	ours := func(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }
	s := Systemd{Notify: take("NOTIFY_SOCKET")}
	usec, pid := take("WATCHDOG_USEC"), take("WATCHDOG_PID")
	if n, err := strconv.ParseInt(usec, 10, 53); err == nil && n > 0 && ours(pid) {
		s.Watchdog = time.Duration(n) * time.Microsecond
	}
	count, pid, _ := take("LISTEN_FDS"), take("LISTEN_PID"), take("LISTEN_FDNAMES")
	if count == "" || pid == "" || !ours(pid) {
		return s, nil
	}
	var err error
	s.Listener, err = inherit(count)
	return s, err
}

func inherit(count string) (net.Listener, error) {
	wrong := func(err error) error {
		return &OperatorError{
			What: "cannot use the socket that systemd handed over", Where: "LISTEN_FDS=" + strings.ToValidUTF8(count, "?"), Err: err,
			Hint: "idemd takes one: a .socket unit with a single ListenStream, and Accept=no",
		}
	}
	if count != "1" {
		return nil, wrong(errors.New("one was expected"))
	}
	syscall.CloseOnExec(firstInherited)
	f := os.NewFile(firstInherited, "receiver")
	l, err := net.FileListener(f) // has a descriptor of its own
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, wrong(err)
	}
	return l, nil
}

// The states that are told.
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
	notifyAlive    = "WATCHDOG=1"
)

// tell sends a state. Nobody listening is no error.
func (s Systemd) tell(state string) error {
	if s.Notify == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.Notify, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("tell systemd: %w", err)
	}
	return nil
}

// tell is for what goes on whether or not it is heard.
func (a *App) tell(state string) {
	if err := a.opts.Systemd.tell(state); err != nil {
		a.log.Warn("service manager not told", "state", state, "error", err)
	}
}

// watch pings the watchdog three times within its patience, each time only after
// something has gone all the way through the claim store's writer and through
// the queue's sync since the ping before. So a process that answers, but stores
// nothing any more because a disk hangs, is ended and started anew. A full disk
// is no reason: see boltstore.Store.Barrier.
func (a *App) watch(ctx context.Context) {
	if a.opts.Systemd.Notify == "" || a.opts.Systemd.Watchdog <= 0 {
		return
	}
	every := max(a.opts.Systemd.Watchdog/3, time.Millisecond)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := a.progress(ctx, every); err == nil {
			a.tell(notifyAlive)
		} else if ctx.Err() == nil {
			a.log.Error("no progress, watchdog not pinged", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// progress returns without an error when both halves have stored what they had
// to store at the call.
func (a *App) progress(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if a.store != nil {
		if err := a.store.Barrier(ctx); err != nil {
			return fmt.Errorf("claim store: %w", err)
		}
	}
	if err := a.queue.Barrier(ctx); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	return nil
}

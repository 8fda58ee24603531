package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// SocketPath is where the daemon of a data directory listens.
func SocketPath(dataDir string) string { return filepath.Join(dataDir, "idemd.sock") }

// MaxSocketPath is the longest path of a unix socket, in bytes, that every
// system takes.
const MaxSocketPath = 103

// ErrSocketPath is returned for a socket path that the system cannot take.
var ErrSocketPath = errors.New("path is too long for a unix socket")

// The errors of Listen.
var (
	// ErrInUse is returned when somebody answers on the socket.
	ErrInUse = errors.New("another process listens on it")
	// ErrNotSocket is returned when something else than a socket has the name.
	ErrNotSocket = errors.New("it is there, and is no socket")
)

// Listen opens the socket for its owner and group. A socket that a dead process
// left there is replaced, so the caller must hold the data directory's lock.
// Anything else that has the name stays as it is: Listen returns ErrNotSocket, or
// ErrInUse where somebody answers.
func Listen(path string) (net.Listener, error) {
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("listen on %s (%d bytes, at most %d): %w", path, len(path), MaxSocketPath, ErrSocketPath)
	}
	if err := removeDead(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("open socket for its group: %w", err), l.Close())
	}
	return l, nil
}

// removeDead removes a socket on which nobody answers. A link to one is not
// followed.
func removeDead(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen on %s: %w", path, ErrNotSocket)
	}
	if err := dial(path); err == nil {
		return fmt.Errorf("listen on %s: %w", path, ErrInUse)
	} else if !notRunning(err) { // neither alive nor dead for certain
		return fmt.Errorf("try old socket: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	return nil
}

// Answers reports whether somebody takes a connection on the socket at path
// within a second.
func Answers(path string) bool { return dial(path) == nil }

func dial(path string) error {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// notRunning reports whether a dial error means that nobody listens.
func notRunning(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

package admin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// SocketPath is where the daemon of a data directory listens.
func SocketPath(dataDir string) string { return filepath.Join(dataDir, "idemd.sock") }

// MaxSocketPath is the longest path of a unix socket, in bytes, that every
// system takes.
const MaxSocketPath = 103

// ErrSocketPath is returned for a socket path that the system cannot take.
var ErrSocketPath = errors.New("path is too long for a unix socket")

// Listen opens the socket for its owner and group. A file that a dead process
// left there is replaced, so the caller must hold the data directory's lock.
func Listen(path string) (net.Listener, error) {
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("listen on %s (%d bytes, at most %d): %w", path, len(path), MaxSocketPath, ErrSocketPath)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
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

// notRunning reports whether a dial error means that nobody listens.
func notRunning(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

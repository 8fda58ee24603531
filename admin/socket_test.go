package admin_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"idemd/admin"
)

// deadSocket leaves a socket as a killed process does.
func deadSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListen_ReplacesADeadSocketOnly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "idemd.sock")
	if admin.Answers(socket) {
		t.Error("nothing answers")
	}
	deadSocket(t, socket)
	if admin.Answers(socket) {
		t.Error("a dead socket answers")
	}
	l, err := admin.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("got mode %v, %v", info.Mode(), err)
	}
	if !admin.Answers(socket) {
		t.Error("a live socket does not answer")
	}
	if _, err := admin.Listen(socket); !errors.Is(err, admin.ErrInUse) {
		t.Errorf("somebody listens: got %v", err)
	}
	if !admin.Answers(socket) {
		t.Error("the live socket was taken away")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestListen_LeavesWhatIsNoSocket(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	deadSocket(t, dead)
	for name, make := range map[string]func(path string) error{
		"file":      func(path string) error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink(dead, path) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Listen(path); !errors.Is(err, admin.ErrNotSocket) {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	if _, err := admin.Listen("/" + strings.Repeat("x", 120)); !errors.Is(err, admin.ErrSocketPath) {
		t.Errorf("got %v", err)
	}
}

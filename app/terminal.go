package app

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether a person may sit at f.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

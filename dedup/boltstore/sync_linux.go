package boltstore

import (
	"errors"
	"os"
	"syscall"
)

// datasync is fdatasync: content and size, without the times.
func datasync(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

//go:build unix && !linux

package app

import (
	"os"

	"golang.org/x/sys/unix"
)

// fileBirth gives a file's inode. Other systems are not asked for a birth time.
func fileBirth(f *os.File) (inode uint64, birth int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, 0, err
	}
	return st.Ino, 0, nil
}

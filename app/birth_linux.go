package app

import (
	"os"

	"golang.org/x/sys/unix"
)

// fileBirth gives a file's inode and its birth time in nanoseconds since 1970,
// 0 where the file system keeps none.
func fileBirth(f *os.File) (inode uint64, birth int64, err error) {
	var st unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st)
	if err != nil {
		return 0, 0, err
	}
	if st.Mask&unix.STATX_BTIME == 0 {
		return st.Ino, 0, nil
	}
	return st.Ino, st.Btime.Sec*1e9 + int64(st.Btime.Nsec), nil
}

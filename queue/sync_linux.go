package queue

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// groupSync returns what makes everything written so far durable on the file
// system of dir, or nil where one call cannot be trusted to do that.
func groupSync(dir *os.File) (func() error, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat file system: %w", err)
	}
	if !slices.Contains(syncable(), int64(st.Type)) {
		return nil, nil
	}
	return func() error { return unix.Syncfs(int(dir.Fd())) }, nil
}

// syncable lists the file systems whose syncfs writes data and metadata and
// reports what went wrong. Network and user-space ones do not promise that.
func syncable() []int64 {
	return []int64{
		unix.EXT4_SUPER_MAGIC, // ext2 and ext3 too
		unix.XFS_SUPER_MAGIC,
		unix.BTRFS_SUPER_MAGIC,
		unix.F2FS_SUPER_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, // nothing there survives anyway
	}
}

// capacity returns the size in bytes of the file system of dir, 0 when unknown.
func capacity(dir *os.File) uint64 {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil || st.Bsize <= 0 {
		return 0
	}
	return st.Blocks * uint64(st.Bsize)
}

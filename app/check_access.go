package app

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// checkAccess looks at all that idemd keeps in the data directory: may the
// present user read and write it, and does it belong to whom the directory
// belongs? What else is there, such as a disk's lost+found, does not matter. It
// returns an *OperatorError about the first thing that is wrong, with the number
// of the others.
func checkAccess(dir string) error {
	var top unix.Stat_t
	if err := unix.Stat(dir, &top); err != nil {
		return wrongAccess(dir, err)
	}
	var first *OperatorError
	more := 0
	look := func(path string, entry fs.DirEntry, err error) error {
		wrong := lookAt(path, top.Uid, err)
		switch {
		case wrong == nil:
			return nil
		case first == nil:
			first = wrong
		default:
			more++
		}
		if entry != nil && entry.IsDir() {
			return fs.SkipDir // its files would say the same
		}
		return nil
	}
	for _, name := range []string{"VERSION", "LOCK", "idemd.sock", "queue", "dedup", "ledger"} {
		path := filepath.Join(dir, name)
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // a walk does not follow the link of an operator who moved it
		}
		if err := filepath.WalkDir(path, look); err != nil {
			return wrongAccess(path, err)
		}
	}
	if first == nil {
		return nil
	}
	if more > 0 {
		first.What = fmt.Sprintf("%s (and %d more)", first.What, more)
	}
	return first
}

// lookAt says what is wrong with one file or directory of the data directory's
// owner; err is why its content could not be listed. A running idemd makes and
// removes files: what is gone is fine.
func lookAt(path string, owner uint32, err error) *OperatorError {
	var st unix.Stat_t
	if err == nil {
		err = unix.Lstat(path, &st)
	}
	if err == nil {
		mode := uint32(unix.R_OK | unix.W_OK)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			mode |= unix.X_OK
		}
		err = unix.Access(path, mode)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return wrongAccess(path, err)
	case st.Uid != owner:
		return &OperatorError{
			What: fmt.Sprintf("%s belongs to the user %d, and the data directory to %d", path, st.Uid, owner),
			Hint: "give all of the directory to the user that runs idemd (chown -R)",
		}
	}
	return nil
}

func wrongAccess(path string, err error) *OperatorError {
	return &OperatorError{
		What: "cannot read and write " + path, Err: reason(err),
		Hint: "give all of the directory to the user that runs idemd (chown -R), and let it read and write there",
	}
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"idemd/janitor"
)

const (
	tempSuffix  = ".tmp"           // of files that get their name when they are whole
	damagedPart = "dedup.damaged-" // of claims that were set aside: they stay as they are
)

// tempAge is how old an abandoned file is at least. One that is being written is
// younger: whoever makes a file writes to it all the time, and no other task of the
// janitor runs beside this one.
const tempAge = time.Hour

// sweepTemp removes files that a crash, or a write that failed, has left half done,
// anywhere below the data directory. A file that cannot be removed does not keep
// the others from going, and is tried again at the next run.
func sweepTemp(ctx context.Context, dir string, now time.Time) (janitor.Done, error) {
	var done janitor.Done
	var failed []error
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist): // gone meanwhile
			return nil
		case err != nil:
			failed = append(failed, err)
			return nil
		case e.IsDir() && strings.HasPrefix(e.Name(), damagedPart):
			return filepath.SkipDir
		case !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), tempSuffix):
			return nil
		}
		done.Examined++
		info, err := e.Info()
		if err == nil && now.Sub(info.ModTime()) > tempAge {
			if err = os.Remove(path); err == nil {
				done.Removed++
				done.Bytes += info.Size()
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			done.Left++
			failed = append(failed, err)
		}
		return nil
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		return done, fmt.Errorf("remove abandoned files: %w", err)
	}
	return done, nil
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"idemd/admin"
	"idemd/queue"
)

// What Doctor calls too little, too slow, too far.
const (
	doctorReserve = 512 << 20 // bytes free, or 5 % of the disk if that is more
	doctorSyncs   = 20
	doctorSlow    = 50 * time.Millisecond // one sync, half of them
	doctorAhead   = 5 * time.Second       // of the clock
)

// Doctor looks at the data directory and the machine under it: the daemon's own
// word, every record of the queue, space, clock, permissions, and how long a sync
// takes. It works whether or not idemd runs, and leaves nothing behind.
func (c *Config) Doctor(ctx context.Context) []Finding {
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return []Finding{fine("data_dir", c.DataDir+" will be made at the first start")}
	}
	return []Finding{c.doctorStore(ctx), c.doctorQueue(ctx), c.doctorDisk(), c.doctorClock(), c.checkDataDir(), c.doctorSync()}
}

func (c *Config) doctorStore(ctx context.Context) Finding {
	const subject = "claims"
	socket, err := c.SocketPath()
	if err != nil {
		return bad(subject, err)
	}
	client := admin.NewClient(socket)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := client.Status(ctx)
	switch {
	case errors.Is(err, admin.ErrNotRunning):
		return fine(subject, "idemd does not run; every start verifies them")
	case err != nil:
		return bad(subject, err)
	case len(st.Warnings) > 0:
		return Finding{Subject: subject, What: strings.Join(st.Warnings, "; "), Hint: "idemd status says more"}
	}
	return fine(subject, fmt.Sprintf("%d keys, %d MiB, in use by process %d", st.Store.Keys, st.Store.DiskBytes>>20, st.PID))
}

func (c *Config) doctorQueue(ctx context.Context) Finding {
	const subject = "queue"
	dir := filepath.Join(c.DataDir, "queue")
	began := time.Now()
	if err := queue.Verify(ctx, dir); err != nil {
		return bad(subject, &OperatorError{
			What: "cannot be trusted", Err: err, Hint: "see docs/damage.md; restore the whole data directory from a backup",
		})
	}
	return fine(subject, "every record is as it was written, read in "+time.Since(began).Round(time.Millisecond).String())
}

func (c *Config) doctorDisk() Finding {
	const subject = "disk"
	var st unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &st); err != nil {
		return bad(subject, err)
	}
	free, all := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	what := fmt.Sprintf("%d MiB of %d MiB are free", free>>20, all>>20)
	switch {
	case free < max(doctorReserve, all/20):
		return Finding{Subject: subject, What: what, Hint: "make room: what is left is less than 512 MiB or 5 %"}
	case st.Files > 0 && st.Ffree < 1000:
		return Finding{Subject: subject, What: fmt.Sprintf("only %d more files can be made", st.Ffree), Hint: "remove files, or use a file system of its own for data_dir"}
	}
	return fine(subject, what)
}

// doctorClock compares the clock with the files that earlier starts left.
func (c *Config) doctorClock() Finding {
	const subject = "clock"
	const hint = "set the clock, and let it be kept (chrony, systemd-timesyncd)"
	now := time.Now()
	if now.Year() < 2026 {
		return Finding{Subject: subject, What: "it is set to " + now.UTC().Format(time.RFC3339), Hint: hint}
	}
	for _, name := range []string{"VERSION", "dedup/MANIFEST", "dedup/CHECKPOINT"} {
		info, err := os.Stat(filepath.Join(c.DataDir, name))
		if err == nil && info.ModTime().After(now.Add(doctorAhead)) {
			return Finding{Subject: subject, Hint: hint,
				What: fmt.Sprintf("%s was written %s from now", name, info.ModTime().Sub(now).Round(time.Second))}
		}
	}
	return fine(subject, now.UTC().Format(time.RFC3339)+", later than what was written before")
}

// doctorSync measures what every answer waits for.
func (c *Config) doctorSync() (found Finding) {
	const subject = "sync"
	f, err := os.CreateTemp(c.DataDir, ".doctor-*.tmp")
	if err != nil {
		return bad(subject, err)
	}
	defer func() {
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			found = bad(subject, err)
		}
	}()
	took := make([]time.Duration, doctorSyncs)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(make([]byte, 4096), int64(i)*4096); err != nil {
			return bad(subject, err)
		}
		if err := f.Sync(); err != nil {
			return bad(subject, err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	half, worst := took[len(took)/2], took[len(took)-1]
	what := fmt.Sprintf("4 KiB are on disk within %s, at worst %s", half.Round(10*time.Microsecond), worst.Round(10*time.Microsecond))
	if half > doctorSlow {
		return Finding{Subject: subject, What: what, Hint: "every answer waits for a sync: use a faster disk, or one of its own"}
	}
	return fine(subject, what)
}

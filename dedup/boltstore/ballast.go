package boltstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"idemd/dedup"
)

const ballastName = "BALLAST"

// seized is how much of the space that BALLAST gave up the journal takes at
// once, before somebody else fills it.
const seized = 4 << 20

var errDiskFull = fmt.Errorf("%w: the disk is full, nothing new begins", dedup.ErrUnavailable)

// ballast is space that is kept for the outcomes of what runs when the disk gets
// full. It belongs to the writer's goroutine.
type ballast struct {
	path  string
	size  int64       // 0: there is none, and a full disk is like any other write error
	gone  atomic.Bool // the disk got full: only outcomes are taken until it is there again
	retry time.Time   // when to try to make it again
}

func (w *writer) openBallast() error {
	b := &w.ballast
	b.path, b.size = filepath.Join(w.s.cfg.Dir, ballastName), w.s.cfg.Ballast
	info, err := os.Stat(b.path)
	switch {
	case b.size <= 0, err == nil && info.Size() >= b.size:
		return nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("read ballast: %w", err)
	}
	free, err := w.s.machine.free(w.s.cfg.Dir)
	if err == nil && free >= 2*b.size {
		err = b.fill(w.s.machine)
	} else if err == nil {
		err = unix.ENOSPC // to take the last of it would keep the rest of idemd from starting
	}
	if errors.Is(err, unix.ENOSPC) {
		w.s.cfg.Logger.Warn("no room for the ballast that outcomes need on a full disk, nothing new begins", "bytes", b.size)
		b.gone.Store(true)
		return nil
	}
	return err
}

// GiveBallast gives up what the store in dir keeps for outcomes on a full disk, for
// a start that has no other room. It reports whether there was any; the store
// makes it again when there is room. The store must not be open.
func GiveBallast(dir string) (bool, error) {
	err := os.Remove(filepath.Join(dir, ballastName))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("give up ballast: %w", err)
	}
	return true, nil
}

// fill makes the file. Its bytes are really written, and such that no file
// system can do without.
func (b *ballast) fill(m *machine) error {
	tmp := b.path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("make ballast: %w", err)
	}
	chunk := make([]byte, 1<<20)
	for at := int64(0); at < b.size && err == nil; at += int64(len(chunk)) {
		if _, err = rand.Read(chunk); err == nil {
			_, err = m.write(f, chunk[:min(int64(len(chunk)), b.size-at)], at)
		}
	}
	if err == nil {
		err = m.sync(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, b.path)
	}
	if err != nil {
		return fmt.Errorf("make ballast: %w", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}

// noteFull gives up the ballast when err says that the disk is full. What broke
// is then mended at once.
func (w *writer) noteFull(err error) {
	b := &w.ballast
	if b.size <= 0 || b.gone.Load() || !errors.Is(err, unix.ENOSPC) {
		return
	}
	b.retry = time.Now().Add(mendEvery)
	b.gone.Store(true)
	if err := os.Remove(b.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.s.cfg.Logger.Error("ballast not given up", "error", err)
	}
	w.mendAfter = time.Time{}
	w.s.cfg.Logger.Error("disk is full: outcomes are recorded in what was kept for them, nothing new begins", "bytes", b.size)
}

// seize takes space for the outcomes into the new journal.
func (w *writer) seize() error {
	if !w.ballast.gone.Load() {
		return nil
	}
	return w.journal.reserve(w.s.machine, int(min(w.ballast.size/2, seized)))
}

// refill makes the ballast again when there is room for twice of it: from then on
// everything is taken.
func (w *writer) refill() {
	b := &w.ballast
	now := time.Now()
	if !b.gone.Load() || now.Before(b.retry) {
		return
	}
	b.retry = now.Add(mendEvery)
	free, err := w.s.machine.free(w.s.cfg.Dir)
	if err == nil && free >= 2*b.size {
		err = b.fill(w.s.machine)
		b.gone.Store(err != nil)
	}
	switch {
	case err != nil:
		w.s.cfg.Logger.Warn("ballast not made again, trying again", "error", err)
	case !b.gone.Load():
		w.s.cfg.Logger.Info("disk has room again, everything is taken")
	}
}

// Full reports whether the disk got full and has no room yet: only outcomes are
// recorded, Acquire and Put are ErrUnavailable. It passes by itself.
func (s *Store) Full() bool { return s.writer.ballast.gone.Load() }

// begins reports whether op begins something: the disk that is full is kept for
// the outcomes of what has begun.
func begins(op dedup.Op) bool {
	switch op.(type) {
	case dedup.Acquire, dedup.Put:
		return true
	}
	return false
}

// freeSpace is how many bytes of the file system of dir this process may use.
func freeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("read free space: %w", err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

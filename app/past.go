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

	"golang.org/x/sys/unix"

	"idemd/admin"
	"idemd/dedup/boltstore"
)

// past is what a start has to go by to tell whether time went back: whether the
// data directory is an older state of itself, so that it does not know what was
// done last. docs/backup.md says it to operators.
type past struct {
	copied   bool // LOCK is not the one that VERSION was written beside
	returned bool // an earlier start found it out, and ended before it was done
	lost     bool // the claims were given up
	opts     Options
	mark     mark // the highest one outside the directory's files
	store    boltstore.Past
}

// moved reports whether the operator's word stands against LOCK's.
func (p *past) moved() bool { return p.opts.Moved && p.copied }

// tolerant reports whether the claim store's files may be of different instants.
func (p *past) tolerant() bool { return p.copied && !p.opts.Moved || p.opts.Restored || p.returned }

// reasons says why time went back; none when it did not. Nothing else starts the
// procedure, and none of them is an error.
func (p *past) reasons() []string {
	var all []string
	for _, r := range []struct {
		holds bool
		text  string
	}{
		{p.opts.Restored, "--restored was given"},
		{p.copied && !p.opts.Moved, "the data directory is a copy"},
		{p.store.Behind, "records are missing that were there once"},
		{p.mark.after(p.store), "the mark outside the directory is higher"},
		{p.lost, "the damaged claims were given up"},
		{p.returned && !p.lost, "an earlier start that found so did not come to its end"},
	} {
		if r.holds {
			all = append(all, r.text)
		}
	}
	return all
}

// mark is how far the claim store had come once. It is kept where a restore of
// the data directory does not reach.
type mark struct {
	incarnation string
	epoch       uint32
	number      uint64 // of a record on stable storage
}

// after reports whether the mark was set in a time that the store does not know.
func (m mark) after(p boltstore.Past) bool { return m.epoch > p.Epoch || m.number > p.Last }

func (m mark) String() string {
	return fmt.Sprintf("idemd mark 1 %s %d %d\n", m.incarnation, m.epoch, m.number)
}

func parseMark(text string) (mark, error) {
	var m mark
	_, err := fmt.Sscanf(text, "idemd mark 1 %s %d %d\n", &m.incarnation, &m.epoch, &m.number)
	if err == nil && m.String() != text {
		err = errors.New("it does not hold what was written to it")
	}
	return m, err
}

const (
	markAttr = "user.idemd.mark" // extended attribute of data_dir
	markFile = "idemd.mark"      // in $RUNTIME_DIRECTORY
	markSize = 256               // bytes, more than any has
	markLag  = 2 * time.Second   // how old a mark may be
)

// markPath is the mark's file outside of data_dir; empty where there is no place.
func markPath() string {
	dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, markFile)
}

// readPast gathers what is known before the claim store is open.
func (a *App) readPast() (past, error) {
	p := past{opts: a.opts, returned: a.dir.version.Returned}
	if a.dir.first() {
		return p, nil
	}
	var err error
	if p.copied, err = a.dir.copied(); err != nil {
		return p, err
	}
	p.mark = mark{a.dir.version.Incarnation, a.dir.version.Epoch, 0} // claims alone may have been put back
	for _, text := range a.markTexts() {
		m, err := parseMark(text)
		if err != nil {
			a.log.Warn("high-water mark not understood", "error", err)
			continue
		}
		if m.incarnation == a.dir.version.Incarnation {
			p.mark = mark{m.incarnation, max(m.epoch, p.mark.epoch), max(m.number, p.mark.number)}
		}
	}
	return p, nil
}

func (a *App) markTexts() []string {
	var all []string
	b := make([]byte, markSize)
	if n, err := unix.Getxattr(a.dir.path, markAttr, b); err == nil {
		all = append(all, string(b[:n]))
	}
	if path := markPath(); path != "" {
		b, err := os.ReadFile(path)
		if err == nil {
			all = append(all, string(b))
		} else if !errors.Is(err, fs.ErrNotExist) {
			a.log.Warn("high-water mark not read", "error", err)
		}
	}
	return all
}

// sealPast writes VERSION, and in it whether time went back.
func (a *App) sealPast(queueLast uint64) error {
	reasons := a.past.reasons()
	if len(reasons) > 0 {
		a.log.Warn("this data directory does not know what was done last: irrevocable runs of that time are held, see idemd doubt list --reason time-went-back",
			"because", strings.Join(reasons, "; "), "events_up_to", queueLast)
	}
	if err := a.dir.seal(a.store.Incarnation(), a.store.Epoch(), queueLast, len(reasons) > 0); err != nil {
		return err
	}
	return a.saveMark()
}

// settlePast ends what sealPast began: what waited is held. Replays wait for
// somebody, too: nobody knows how far they have come meanwhile.
func (a *App) settlePast() error {
	if !a.dir.version.Returned {
		return nil
	}
	for _, rp := range a.replays.List() {
		if rp.State.Over() {
			continue
		}
		if _, err := a.replays.Act(rp.ID, admin.PauseReplay); err != nil {
			return fmt.Errorf("pause replay %s: %w", rp.ID, err)
		}
		a.log.Warn("replay paused, for it may have gone on where this directory was copied from", "replay", rp.ID)
	}
	return a.dir.held()
}

// runMarks saves the mark until the stop, and then once more.
func (a *App) runMarks(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	a.running.Go(func() { a.keepMark(ctx) })
	a.down.onStop("high-water mark", func(context.Context) error { cancel(); return a.saveMark() })
}

// keepMark saves the mark again and again.
func (a *App) keepMark(ctx context.Context) {
	tick := time.NewTicker(markLag)
	defer tick.Stop()
	var saved uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := a.store.Durable(); now != saved {
			if err := a.saveMark(); err != nil {
				a.log.Warn("high-water mark not saved, trying again", "error", err)
				continue
			}
			saved = now
		}
	}
}

// saveMark notes how far the claim store is, outside of its files.
func (a *App) saveMark() error {
	m := mark{a.store.Incarnation(), a.store.Epoch(), a.store.Durable()}
	err := setAttr(a.dir.path, m)
	if path := markPath(); path != "" {
		err = errors.Join(err, replaceFile(path, []byte(m.String())))
	}
	if err != nil {
		return fmt.Errorf("save high-water mark: %w", err)
	}
	return nil
}

// setAttr is no error where the file system has no attributes.
func setAttr(dir string, m mark) error {
	err := unix.Setxattr(dir, markAttr, []byte(m.String()), 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

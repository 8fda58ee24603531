package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"idemd/dedup/boltstore"
	"idemd/receiver"
)

const (
	diskEvery     = 500 * time.Millisecond
	restartEvery  = 2 * time.Second  // between two restarts of the queue's server
	restartWithin = 30 * time.Second // for reading what it holds
)

// diskWatch keeps events out while they could not be stored, and brings the
// queue back when they can be. What happens at a look is decided by decide; the
// functions are what it looks at and what it can do.
type diskWatch struct {
	reserve int64
	log     *slog.Logger
	free    func() (int64, error)
	full    func() bool  // the claim store begins nothing
	health  func() error // of the queue
	restart func(ctx context.Context) error
	set     func(receiver.State)
	refuse  func(why string) // sets StateBlocked; everybody may know why
	opened  func()           // events are taken again
	held    func() string    // who keeps stored events from going, "" when nobody does

	last      diskState
	lastCause string
	restarted time.Time
	why       atomic.Pointer[string] // nil: events are taken
}

// diskState is what a look at the disk found.
type diskState struct {
	short bool // of space
	full  bool // the claim store begins nothing
	sick  bool // the queue cannot store
	again bool // as at the last look: one look alone may meet a stream that is being changed
}

// shortOf reports whether too little space is free. Once it was, an eighth more
// than the reserve must be free.
func shortOf(was bool, free, reserve int64) bool {
	if was {
		return free < reserve+reserve/8
	}
	return free < reserve
}

// decide says what follows from a look: whether events are refused, and whether
// the queue's server is to be started anew. That waits for space, or it would
// fail again; and for the claim store, so that the consumers find it well.
func decide(s diskState) (block, restart bool) {
	sick := s.sick && (s.again || s.short || s.full)
	return s.short || s.full || sick, sick && !s.short && !s.full
}

func newDiskWatch(a *App) (*diskWatch, error) {
	reserve, err := a.cfg.ReserveBytes()
	if err != nil {
		return nil, err
	}
	full := func() bool { return false } // in quarantine nothing begins
	if a.store != nil {
		full = a.store.Full
	}
	return &diskWatch{
		reserve: reserve, log: a.log.With("component", "disk"),
		free: func() (int64, error) { return freeBytes(a.cfg.DataDir) },
		full: full, held: a.history.held, health: a.queue.Health, restart: a.queue.Restart, set: a.recv.SetReady, refuse: a.recv.Block,
		opened: func() {
			for _, pool := range a.live().pools {
				pool.Hurry()
			}
		},
	}, nil
}

// watchDisk opens the receiver, as far as the disk allows it, and watches until
// the intake is stopped.
func (a *App) watchDisk(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	a.disk.look(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.disk.run(ctx)
	}()
	a.down.onStop("disk watch", func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

func (w *diskWatch) run(ctx context.Context) {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// look looks once and does what follows.
func (w *diskWatch) look(ctx context.Context) {
	free, err := w.free()
	if err != nil {
		w.log.Warn("free space not read", "error", err)
		free = w.reserve * 2 // the queue says when it cannot store
	}
	health := w.health()
	s := diskState{short: shortOf(w.last.short, free, w.reserve), full: w.full(), sick: health != nil}
	s.again = w.last.sick
	block, restart := decide(s)
	w.last = s
	switch {
	case !block:
		w.open()
	case s.short:
		why := fmt.Sprintf("%d MiB of the disk are free, less than the reserve of %d MiB", free>>20, w.reserve>>20)
		if held := w.held(); held != "" {
			why += "; " + held
		}
		w.block("space", why)
	case s.full:
		w.block("store", "the disk got full, and what was kept of it for outcomes is in use")
	default:
		w.block("queue", "the queue cannot store: "+health.Error())
	}
	if restart && time.Since(w.restarted) >= restartEvery {
		w.restartQueue(ctx)
	}
}

func (w *diskWatch) restartQueue(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, restartWithin)
	defer cancel()
	err := w.restart(within)
	w.restarted = time.Now()
	switch {
	case ctx.Err() != nil: // the process stops
	case err != nil:
		w.log.Error("queue not started anew, trying again", "error", err)
	default:
		w.log.Info("queue started anew")
		w.look(ctx)
	}
}

func (w *diskWatch) open() {
	w.set(receiver.StateReady)
	if w.why.Swap(nil) != nil {
		w.log.Info("events are taken again")
		w.opened()
	}
	w.lastCause = ""
}

// public gives a cause in words for /readyz, which anybody can ask: no names, no
// figures.
func public(cause string) string {
	switch cause {
	case "space":
		return "too little space is free on the disk"
	case "store":
		return "the disk got full, and only outcomes of what runs are recorded"
	default:
		return "the queue cannot store"
	}
}

// block refuses events, and says so once for every cause.
func (w *diskWatch) block(cause, why string) {
	w.refuse(public(cause))
	w.why.Store(&why)
	if cause != w.lastCause {
		w.lastCause = cause
		w.log.Error("events are refused", "reason", why)
	}
}

// blocked says why events are refused, "" while they are taken.
func (w *diskWatch) blocked() string {
	if why := w.why.Load(); why != nil {
		return *why
	}
	return ""
}

// startRoom is what a start may write before anything is taken: the next journal,
// the queue's state, checkpoints.
const (
	startRoom  = 16 << 20
	startFiles = 64 // that it may make beside each other
)

// makeRoom gives a start on a full disk the space that is kept for outcomes. It
// takes no events and begins nothing then, until there is room again.
func (a *App) makeRoom() error {
	free, err := freeBytes(a.dir.path)
	if err != nil || free >= startRoom || a.dir.first() {
		return err
	}
	given, err := boltstore.GiveBallast(a.dir.dedupPath())
	if err != nil {
		return err
	}
	if given {
		a.log.Error("the disk is full: idemd starts in the space that it keeps for outcomes", "free", free)
	}
	return nil
}

// noRoom says of a start that has failed on a full disk what to do.
func (a *App) noRoom(err error) error {
	if a.dir == nil {
		return err
	}
	full := errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error())
	var st unix.Statfs_t
	if !full || unix.Statfs(a.dir.path, &st) != nil {
		return err
	}
	hint := toFree(int64(st.Bavail)*int64(st.Bsize), int64(st.Files), int64(st.Ffree))
	if hint == "" {
		return err
	}
	return &OperatorError{What: "the disk is full, idemd cannot even start on it", Where: a.dir.path, Err: err, Hint: hint}
}

// toFree says what a start needs of a disk that has so many bytes and files (of so
// many in all; 0: it does not count them) left. It is empty when both are enough.
func toFree(free, files, filesLeft int64) string {
	switch {
	case free < startRoom:
		return fmt.Sprintf("free %d MiB more there; nothing that was answered is lost", (startRoom-free+1<<20-1)>>20)
	case files > 0 && filesLeft < startFiles:
		return fmt.Sprintf("it can hold %d more files (df -i), remove some until it can hold %d; nothing that was answered is lost", filesLeft, startFiles)
	}
	return ""
}

// freeBytes is how much of the disk of dir this process may use.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("read free space: %w", err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

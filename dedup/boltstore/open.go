package boltstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// A store that came up three times within ten minutes without having been closed
// may be killed by what it runs: then grants are counted before anything runs.
const (
	uncleanStarts = 3
	uncleanWithin = dedup.Time(10 * time.Minute)
	startsKept    = 16
)

// Open opens the store in cfg.Dir, which it makes at the first start. It verifies
// every journal, cuts a torn tail, begins a new epoch and a new journal, and
// gives external claims one full lease. What is wrong with the directory comes as
// a *DataError, and so does a clock that is decades ahead.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	return open(ctx, cfg, &machine{})
}

func open(ctx context.Context, cfg Config, m *machine) (*Store, error) {
	s := newStore(cfg, m)
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	go s.writer.run()
	go s.keepCheckpoint()
	return s, nil
}

func newStore(cfg Config, m *machine) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m.fill()
	s := &Store{
		cfg: cfg, machine: m,
		requests: make(chan *request, 4*maxRecords), closing: make(chan struct{}),
		stopped: make(chan struct{}), idle: make(chan struct{}), failed: make(chan error, 1),
		index: newIndex(), journals: map[uint32]*journal{}, dirty: make(chan struct{}, 1),
		readers: &readers{}, tableNames: map[string]bool{},
	}
	s.writer = &writer{s: s, latest: map[event.Hash]int{}}
	return s
}

// prepare makes the directory at the first start: whole and by rename, so that
// half a store is never taken for one.
func (s *Store) prepare() error {
	dir := filepath.Clean(s.cfg.Dir)
	s.cfg.Dir = dir
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read claim directory: %w", err)
	}
	if len(names) > 0 {
		return nil
	}
	if s.cfg.MustExist {
		return &DataError{Path: dir, Err: ErrAbsent}
	}
	if _, err := nextEpoch(0, dedup.At(s.cfg.Now())); err != nil {
		return &DataError{Path: dir, Err: ErrClock, Detail: err.Error()}
	}
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove an unfinished claim directory: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return fmt.Errorf("make claim directory: %w", err)
	}
	born, err := s.name()
	if err != nil {
		return err
	}
	if err := s.machine.writeText(tmp, manifestName, manifest{Incarnation: born}); err != nil {
		return err
	}
	if err := s.machine.writeText(tmp, checkpointName, checkpoint{Incarnation: born, Clean: true}); err != nil {
		return err
	}
	// An empty directory in the place is no store, and in the way.
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("make claim directory: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("publish claim directory: %w", err)
	}
	return s.machine.syncDir(filepath.Dir(dir))
}

// name gives the incarnation of a store that is made.
func (s *Store) name() (born incarnation, err error) {
	if s.cfg.Name != "" {
		err = born.UnmarshalText([]byte(s.cfg.Name))
	} else {
		_, err = rand.Read(born[:])
	}
	if err != nil {
		return born, fmt.Errorf("name the incarnation: %w", err)
	}
	return born, nil
}

// start reads what is there and begins a new life.
func (s *Store) start(ctx context.Context) error {
	var names manifest
	var mark checkpoint
	if err := readText(s.cfg.Dir, manifestName, &names); err != nil {
		return err
	}
	if err := readText(s.cfg.Dir, checkpointName, &mark); err != nil {
		return err
	}
	if mark.Incarnation != names.Incarnation {
		return &DataError{Path: filepath.Join(s.cfg.Dir, checkpointName), Err: ErrForeign, Detail: "it is not MANIFEST's"}
	}
	if s.cfg.Stopped && !mark.Clean {
		return &DataError{Path: filepath.Join(s.cfg.Dir, checkpointName), Err: ErrUnclean}
	}
	var err error
	if s.epoch, err = nextEpoch(max(names.Epoch, s.cfg.Outlived), dedup.At(s.cfg.Now())); err != nil {
		return &DataError{Path: filepath.Join(s.cfg.Dir, manifestName), Err: ErrClock, Detail: err.Error()}
	}
	s.born, s.pledged = names.Incarnation, mark.Horizon
	s.horizon.Store(int64(mark.Horizon))
	if err := s.loadTables(ctx, &names); err != nil {
		return err
	}
	last, err := s.load(ctx, &names, &mark)
	if err != nil {
		return err
	}
	s.past.Epoch, s.past.Last, s.past.Clean = names.Epoch, last, mark.Clean
	s.progress.restore(&mark, last)
	number, err := s.setAside(&names)
	if err != nil {
		return err
	}
	empty, err := s.sealAll(&names)
	if err != nil {
		return err
	}
	if err := s.index.count(); err != nil {
		return &DataError{Path: s.cfg.Dir, Err: ErrDamaged, Detail: err.Error()}
	}
	s.durable.Store(last)
	if err := s.begin(names, mark.Clean, head{number: number, incarnation: s.born, first: last + 1}); err != nil {
		return err
	}
	for _, j := range empty {
		if err := errors.Join(j.file.Close(), os.Remove(j.path)); err != nil {
			return fmt.Errorf("remove an empty journal: %w", err)
		}
	}
	if err := s.writer.openBallast(); err != nil {
		return err
	}
	return s.extendLeases(s.writer.journal.created)
}

// sealAll makes names say that no journal is written any more. Those without a
// record it leaves out and gives back, to be removed once MANIFEST says so.
//
// The others are on stable storage when it returns: what a process had written
// and not synced when it was killed is read like the rest, and a power cut after
// this start must not take away what was decided from it.
func (s *Store) sealAll(names *manifest) (empty []*journal, err error) {
	var kept []fileEntry
	for _, f := range names.Files {
		n, _ := journalNumber(f.Name)
		j := s.journals[n]
		if j.records == 0 {
			delete(s.journals, n)
			s.disk.Add(-j.size)
			empty = append(empty, j)
			continue
		}
		if !f.Sealed {
			if err := s.machine.syncFile(j.file); err != nil {
				return nil, err
			}
		}
		kept = append(kept, sealedEntry(j))
	}
	names.Files = kept
	return empty, nil
}

// begin makes the new epoch and the new journal durable before anything is
// granted.
func (s *Store) begin(names manifest, clean bool, h head) error {
	now := dedup.At(s.cfg.Now())
	h.epoch, h.created = s.epoch, now
	j, err := createJournal(s.cfg.Dir, s.machine, h)
	if err != nil {
		return err
	}
	s.journals[j.number] = j
	s.disk.Add(headSize)
	names.Starts = append(names.Starts, start{At: now, Unclean: !clean})
	names.Starts = names.Starts[max(0, len(names.Starts)-startsKept):]
	s.cautious = tooManyUnclean(names.Starts, now)
	if s.cautious {
		s.cfg.Logger.Warn("three unclean starts within ten minutes: every grant waits for the disk")
	}
	names.Epoch, names.Making = s.epoch, nil
	names.Files = append(names.Files, fileEntry{Name: journalName(j.number), First: j.first})
	if err := s.machine.writeText(s.cfg.Dir, manifestName, names); err != nil {
		return err
	}
	s.fault("after-manifest")
	if err := s.saveCheckpoint(false); err != nil {
		return err
	}
	s.writer.names, s.writer.journal = names, j
	return nil
}

// extendLeases gives each external claim one full lease from now: its owner may
// be well, and could not renew while the store was closed.
func (s *Store) extendLeases(now dedup.Time) error {
	var held []ref
	for i, slot := range s.index.slots {
		if slot.state == dedup.Started && slot.owner == dedup.External {
			held = append(held, slotBit|ref(i))
		}
	}
	slices.SortFunc(held, func(a, b ref) int {
		return cmp.Compare(s.index.slots[a.slot()].change, s.index.slots[b.slot()].change)
	})
	w := s.writer
	for _, r := range held {
		slot := s.index.slots[r.slot()]
		rec := *slot.rec
		rec.Lease = now.Add(rec.LeaseFor)
		parts, err := event.DecodeKey(rec.Key.Tuple)
		if err != nil {
			return err
		}
		e := entry{rec: &rec, hash: slot.hash, handler: parts.Handler, counted: true, old: r}
		if err := w.stage(e, -1, false); err != nil {
			return err
		}
		if !w.hasRoom() {
			if err := w.writePending(); err != nil {
				return err
			}
		}
	}
	if len(w.pending) > 0 {
		return w.writePending()
	}
	return nil
}

func (w *writer) writePending() error {
	if err := w.write(); err != nil {
		return err
	}
	w.publish()
	w.reset()
	return nil
}

// nextEpoch is greater than the one before it, and than any that a copy of this
// directory made before now. It is an error when no fence could tell it.
func nextEpoch(before uint32, now dedup.Time) (uint32, error) {
	since := now.Std().Sub(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	epoch := max(int64(before)+1, int64(since/time.Minute))
	if epoch > dedup.MaxEpoch {
		return 0, fmt.Errorf("it is %s, the life before was number %d, and no number up to %d is left",
			now.Std().Format(time.RFC3339), before, dedup.MaxEpoch)
	}
	return uint32(epoch), nil
}

func tooManyUnclean(starts []start, now dedup.Time) bool {
	n := 0
	for _, s := range starts {
		if s.Unclean && s.At > now-uncleanWithin {
			n++
		}
	}
	return n >= uncleanStarts
}

// setAside renames what MANIFEST does not name, removes what was never finished,
// and gives the number of the next journal, which no file has had.
func (s *Store) setAside(named *manifest) (uint32, error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return 0, fmt.Errorf("read claim directory: %w", err)
	}
	var last uint32
	for _, e := range entries {
		name := e.Name()
		if n, ok := journalNumber(name); ok {
			last = max(last, n)
		}
		known := name == manifestName || name == checkpointName || name == ballastName || strings.HasSuffix(name, asideSuffix) ||
			named.knows(name)
		s.tableNames[strings.TrimSuffix(name, asideSuffix)] = true
		path := filepath.Join(s.cfg.Dir, name)
		switch {
		case known:
		case strings.HasSuffix(name, ".tmp"), slices.Contains(named.Making, name), bareJournal(e):
			if err := os.Remove(path); err != nil {
				return 0, fmt.Errorf("remove an unfinished file: %w", err)
			}
		default:
			s.cfg.Logger.Warn("file that MANIFEST does not name set aside", "file", name)
			if err := os.Rename(path, path+asideSuffix); err != nil {
				return 0, fmt.Errorf("set a file aside: %w", err)
			}
		}
	}
	return last + 1, nil
}

const asideSuffix = ".aside"

// bareJournal reports whether a file is a journal without a frame: its maker died
// before MANIFEST named it.
func bareJournal(e os.DirEntry) bool {
	info, err := e.Info()
	_, journal := journalNumber(e.Name())
	return journal && err == nil && info.Size() <= headSize
}

// journalNumber reads the number out of a journal's name, also of one that was
// set aside.
func journalNumber(name string) (uint32, bool) {
	var n uint32
	if _, err := fmt.Sscanf(name, "journal-%d.log", &n); err != nil {
		return 0, false
	}
	return n, strings.TrimSuffix(name, asideSuffix) == journalName(n)
}

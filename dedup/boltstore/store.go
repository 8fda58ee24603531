// Package boltstore keeps the claim records on disk: append-only journals with
// group commit, found through an exact index in memory; and what is DONE in hot
// files, later in cold files by the day on which it expires, found through a
// filter for each file.
//
// A directory holds MANIFEST (which files there are), CHECKPOINT (how far things
// had come a second ago), the journals and the hot and cold files. One process life
// writes one journal, or more when the first is full; the next life seals it. One
// goroutine, the writer, decides and writes; everybody else asks it, or reads.
// Sealed journals become hot files, and those cold ones, by steps that somebody
// else calls: see Step.
//
// What is torn at the end of the newest journal was never answered for, and is
// cut. Everything else that is not as it was written is an error of Open: an
// empty store in the place of a damaged one would run every event again.
package boltstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Config says where a store is and what it lives in.
type Config struct {
	Dir       string             // of this store alone; made at the first start
	Copy      bool               // the directory may be a copy that was made while the store was open
	Stopped   bool               // it must have been closed; ErrUnclean if it was not
	Outlived  uint32             // an epoch that the world has seen: the new one is greater
	MustExist bool               // the queue holds events: a missing store is an error
	Name      string             // the incarnation of a store that is made; a random one when empty
	Ballast   int64              // bytes that are kept for outcomes on a full disk; 0 for none
	Host      string             // for Record.Host
	Now       func() time.Time   // wall clock; nil means time.Now
	Logger    *slog.Logger       // nil means none
	Fault     func(point string) // crash points of tests; nil in production
	// Verify is asked about a hot or cold file that may be damaged, and answers as
	// VerifyFile does. Such a file may end the process that reads it, so it should
	// be another one. Nil means VerifyFile.
	Verify func(ctx context.Context, path string) error
}

// Store is a dedup.Store on disk. The directory must not be open twice; keeping
// a second process out is the caller's part.
type Store struct {
	cfg      Config
	machine  *machine
	born     incarnation
	epoch    uint32
	past     Past
	cautious bool // too many unclean starts: every grant waits for the disk

	requests chan *request
	closing  chan struct{} // Close was called
	stopped  chan struct{} // the writer has ended
	idle     chan struct{} // so has the checkpointer
	once     sync.Once
	closed   error
	failed   chan error
	down     atomic.Bool // after a sync error
	pool     sync.Pool   // of *request

	mu       sync.RWMutex // guards the next six; the writer alone changes them
	index    *index
	journals map[uint32]*journal
	tables   []*openTable
	tablesAt uint64   // counts changes of tables
	moving   int      // keys that are in a table and still in the index
	readers  *readers // those who came since files were taken away last

	steps      sync.Mutex      // held by a step, and by Check
	tableNames map[string]bool // names that tables have, had or were refused
	verifying  verifying

	durable atomic.Uint64 // number of the last record on stable storage
	disk    atomic.Int64  // bytes of all files

	horizon  atomic.Int64 // a dedup.Time
	marks    sync.Mutex   // held while CHECKPOINT is written
	pledged  dedup.Time   // the horizon that CHECKPOINT gets
	progress progress
	dirty    chan struct{} // CHECKPOINT is not up to date

	writer *writer
}

var _ dedup.Store = (*Store)(nil)

// request is one call of Do on its way through the writer. The writer does not
// touch it any more once done has its value.
type request struct {
	key     event.Key
	hash    event.Hash
	handler string
	op      dedup.Op
	task    func() error // instead of op: run between two groups
	result  dedup.Result
	err     error
	done    chan struct{}

	// What the tables said of key when their state was tablesAt, if they were asked.
	foreseen bool
	tablesAt uint64
	old      *dedup.Record
	oldErr   error
}

// Do implements dedup.Store. The error is ErrTooLarge or event.ErrTuple where key
// or op cannot be stored at all.
func (s *Store) Do(ctx context.Context, key event.Key, op dedup.Op) (dedup.Result, error) {
	parts, err := event.DecodeKey(key.Tuple)
	if err != nil {
		return dedup.Result{}, fmt.Errorf("decode key: %w", err)
	}
	r, ok := s.pool.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.key, r.hash, r.handler, r.op = key, s.machine.hash(key), parts.Handler, op
	s.foresee(r)
	if err := s.ask(ctx, r); err != nil {
		return dedup.Result{}, err
	}
	result, err := r.result, r.err
	r.op, r.result, r.err, r.old, r.oldErr = nil, dedup.Result{}, nil, nil, nil
	s.pool.Put(r)
	return result, err
}

// ask hands r to the writer and waits for its answer. After an error r may still
// be in the writer's hands.
func (s *Store) ask(ctx context.Context, r *request) error {
	select {
	case <-s.closing:
		return dedup.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", dedup.ErrUnavailable, ctx.Err())
	case s.requests <- r:
	}
	select {
	case <-r.done:
		return nil
	case <-s.stopped:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", dedup.ErrUnavailable, ctx.Err())
	}
	select {
	case <-r.done: // the writer's last group
		return nil
	default:
		return dedup.ErrClosed
	}
}

// Epoch implements dedup.Store.
func (s *Store) Epoch() uint32 { return s.epoch }

// Incarnation is the random name that the store got when it was made; copies of
// the directory have the same.
func (s *Store) Incarnation() string { return hex.EncodeToString(s.born[:]) }

// Failed implements dedup.Store.
func (s *Store) Failed() <-chan error { return s.failed }

// fail ends the store for good: nobody knows what a failed sync has left behind.
func (s *Store) fail(err error) {
	if s.down.Swap(true) {
		return
	}
	s.cfg.Logger.Error("claim store failed", "error", err)
	s.failed <- err
}

// failOn ends the store if err is about a sync, and gives err back.
func (s *Store) failOn(err error) error {
	var sync *syncError
	if errors.As(err, &sync) {
		s.fail(err)
	}
	return err
}

func (s *Store) fault(point string) {
	if s.cfg.Fault != nil {
		s.cfg.Fault(point)
	}
}

// Close implements dedup.Store.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.closing)
		<-s.stopped
		<-s.idle
		s.steps.Lock() // the last step has seen closing, and ends
		defer s.steps.Unlock()
		s.closed = s.end()
	})
	return s.closed
}

func (s *Store) end() error {
	var errs []error
	switch {
	case s.down.Load():
		errs = append(errs, fmt.Errorf("close claim store: %w", dedup.ErrUnavailable))
	case len(s.writer.pending) > 0:
		errs = append(errs, fmt.Errorf("close claim store: write the last records: %w", dedup.ErrUnavailable))
	default:
		err := s.failOn(s.writer.journal.trim(s.machine))
		if err == nil {
			err = s.saveCheckpoint(true)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.closeFiles())...)
}

func (s *Store) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, j := range s.journals {
		if err := j.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, fmt.Errorf("close journal: %w", err))
		}
	}
	for _, t := range s.tables {
		errs = append(errs, t.close())
	}
	s.tables = nil
	return errors.Join(errs...)
}

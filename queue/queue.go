// Package queue is the durable queue: an embedded NATS server with JetStream,
// whose acknowledgements are made good by one sync of the file system for a
// whole group of events (see committer). It is the only package that knows NATS.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"idemd/event"
)

// MaxMessage is the largest stored event in bytes, its headers included. With
// the headers of a parked copy it still fits into NATS' payload of 4 MiB.
const MaxMessage = 4<<20 - headroom

// DefaultPublishTimeout is how long Publish waits for the server's
// acknowledgement before it gives up on a group.
const DefaultPublishTimeout = 2 * time.Second

// flushTimeout is how long Close waits for the last acks.
const flushTimeout = 2 * time.Second

// Config says where the queue lives and how much it may hold.
type Config struct {
	Dir            string             // directory of its own; made if it is not there
	MaxBytes       int64              // disk budget of the events; parked copies have a quarter of it, at least 32 MiB, besides
	Incarnation    string             // the data directory that the queue belongs to; not checked when empty
	First          bool               // the directory's first start: the queue is made; otherwise it must be there
	Last           uint64             // an event of this sequence was durable once: a queue that ends before it is damaged; 0: not known
	Copy           bool               // the directory was copied, perhaps while it ran and across a stop: what that stop noted is not compared, and the server's own index is not used
	PublishTimeout time.Duration      // DefaultPublishTimeout when zero
	Logger         *slog.Logger       // slog.Default when nil
	Fault          func(point string) // crash points: "before-sync", "after-sync", "after-park", "purge-said", "purged"; nil in production

	groupSync func(dir *os.File) (func() error, error) // for tests that watch the syncs or let them fail; nil: groupSync
}

// Queue is an open queue. Its methods may be called from many goroutines.
type Queue struct {
	cfg    Config
	log    *slog.Logger
	dir    *os.File
	sync   func() error
	always bool // every message is synced alone
	commit *committer

	present  atomic.Pointer[life] // never nil once Open has returned
	down     atomic.Bool          // between two lives
	changing sync.Mutex           // held by Restart, Purge and Close
	purged   purged               // what PURGED says; under changing

	foreign   atomic.Uint64
	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error

	mu        sync.Mutex
	consumers map[string]*Consumer // open ones by handler
}

// State is a picture of the queue.
type State struct {
	FirstSeq uint64 // of the oldest event that is kept; LastSeq + 1 when none is
	LastSeq  uint64 // of the newest event
	Durable  uint64 // every event up to here survives a power cut
	Messages uint64 // events kept
	Bytes    uint64 // what they take of MaxBytes
	Parked   uint64 // parked copies

	ParkedBytes uint64 // what the parked copies take
	ParkedMax   uint64 // what they may take; a copy that does not fit is refused with ErrFull

	Foreign uint64 // stored messages met by this process that are no events
}

// Open starts the server on cfg.Dir and returns when everything that the
// directory holds is on stable storage. Nothing else may use the directory
// meanwhile: the server does not lock it. Reading a large store takes seconds
// per million events. It returns ErrDamaged when the queue's files are not what
// was written to them, and leaves them so, ErrAbsent when there is no queue
// though this is not the first start, and ErrForeign when there is one of
// another data directory.
func Open(ctx context.Context, cfg Config) (*Queue, error) {
	q := &Queue{cfg: cfg, closing: make(chan struct{}), consumers: make(map[string]*Consumer)}
	if err := q.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open queue %s: %w", cfg.Dir, err), q.shutdown())
	}
	return q, nil
}

func (q *Queue) open(ctx context.Context) error {
	if err := q.defaults(); err != nil {
		return err
	}
	if err := q.openDir(); err != nil {
		return err
	}
	seen, err := verify(ctx, q.cfg)
	if err != nil {
		return err
	}
	if err := q.settlePurged(seen); err != nil {
		return err
	}
	if q.cfg.Copy {
		if err := dropIndex(q.cfg.Dir); err != nil {
			return err
		}
	}
	l, last, err := q.begin(ctx)
	if err != nil {
		return err
	}
	if err := removeClosed(q.dir); err != nil { // only now: a queue that is refused is left as it was
		l.end()
		return err
	}
	q.present.Store(l)
	q.cfg.First = false // Restart makes no stream in place of one that is gone
	q.commit, err = newCommitter(l.pub, q.cfg, q.sync, last)
	return err
}

func (q *Queue) defaults() error {
	if q.cfg.MaxBytes <= 0 || q.cfg.MaxBytes > maxBudget {
		return fmt.Errorf("max_bytes %d is not between 1 and %d", q.cfg.MaxBytes, int64(maxBudget))
	}
	if q.cfg.PublishTimeout <= 0 {
		q.cfg.PublishTimeout = DefaultPublishTimeout
	}
	if q.cfg.Logger == nil {
		q.cfg.Logger = slog.Default()
	}
	if q.cfg.Fault == nil {
		q.cfg.Fault = func(string) {}
	}
	if q.cfg.groupSync == nil {
		q.cfg.groupSync = groupSync
	}
	q.log = q.cfg.Logger
	return nil
}

// openDir finds out how the directory's file system is synced.
func (q *Queue) openDir() (err error) {
	if err := os.MkdirAll(q.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if q.dir, err = os.Open(q.cfg.Dir); err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	if size := capacity(q.dir); size > 0 && uint64(q.cfg.MaxBytes) > size {
		return fmt.Errorf("max_bytes %d is more than the whole file system holds (%d)", q.cfg.MaxBytes, size)
	}
	if q.sync, err = q.cfg.groupSync(q.dir); err != nil {
		return err
	}
	if q.sync == nil {
		q.log.Warn("file system cannot be synced as a whole, every event is synced alone and slowly", "dir", q.cfg.Dir)
		q.sync, q.always = func() error { return nil }, true
	}
	return nil
}

// Failed yields the error of a sync that went wrong. It is not retried, since
// the disk's state is unknown: every later Publish and Park fails, no further
// event becomes durable, and the process has to end.
func (q *Queue) Failed() <-chan error { return q.commit.failed }

// Health returns an error when the server says that it cannot store, after the
// disk was full for instance. That lasts until Restart.
func (q *Queue) Health() error {
	if err := q.commit.failure(); err != nil {
		return err
	}
	if q.down.Load() {
		return fmt.Errorf("%w: its server is being started anew", ErrUnavailable)
	}
	if st := q.now().srv.Healthz(nil); st.Error != "" {
		return fmt.Errorf("%w: %s", ErrUnavailable, st.Error)
	}
	return nil
}

// Barrier returns nil after a sync that began after the call: the queue's disk
// takes what it is given. The error is that of the sync, ErrClosed after Close,
// or ctx's when ctx ends first.
func (q *Queue) Barrier(ctx context.Context) error { return q.commit.barrier(ctx) }

// State returns a picture of the queue.
func (q *Queue) State(ctx context.Context) (State, error) {
	ev, err := q.now().events.Info(ctx)
	if err != nil {
		return State{}, fmt.Errorf("read state of events: %w", q.closedError(err))
	}
	parked, err := q.now().parked.Info(ctx)
	if err != nil {
		return State{}, fmt.Errorf("read state of parked: %w", q.closedError(err))
	}
	st := State{
		FirstSeq: ev.State.FirstSeq, LastSeq: ev.State.LastSeq, Durable: q.commit.durable.load(),
		Messages: ev.State.Msgs, Bytes: ev.State.Bytes,
		Parked: parked.State.Msgs, ParkedBytes: parked.State.Bytes, ParkedMax: uint64(parkedBytes(q.cfg)),
		Foreign: q.foreign.Load(),
	}
	if st.Messages == 0 {
		st.FirstSeq = st.LastSeq + 1
	}
	return st, nil
}

// Close ends the intake, answers what was published, stops the server and syncs
// once more. When ctx ends before every Publish is answered, the rest of them
// fail. It returns the same error however often it is called.
func (q *Queue) Close(ctx context.Context) error {
	q.closeOnce.Do(func() {
		q.changing.Lock()
		defer q.changing.Unlock()
		err := q.commit.close(ctx)
		close(q.closing)
		for _, c := range q.openConsumers() {
			c.Stop()
		}
		q.flushAcks(ctx)
		q.closeErr = errors.Join(err, q.shutdown())
	})
	return q.closeErr
}

// flushAcks sends the last acks. Those that stay behind only make their messages
// come again.
func (q *Queue) flushAcks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := q.now().read.FlushWithContext(ctx); err != nil && ctx.Err() == nil && !q.down.Load() {
		q.log.Warn("last acks not flushed", "error", err)
	}
}

// shutdown takes down whatever open has put up.
func (q *Queue) shutdown() error {
	if l := q.now(); l != nil {
		l.end()
	}
	if q.commit != nil && q.commit.failure() == nil {
		// Without it the next start is one after a crash, and does the same.
		if err := writeClosed(q.cfg.Dir); err != nil {
			q.log.Warn("clean stop not noted", "error", err)
		}
	}
	var err error
	if q.sync != nil && (q.commit == nil || q.commit.failure() == nil) {
		if err = q.sync(); err != nil {
			err = fmt.Errorf("sync after shutdown: %w", err)
		}
	}
	if q.dir != nil {
		err = errors.Join(err, q.dir.Close())
	}
	return err
}

// closedError says what it means that NATS calls a connection closed: ErrClosed
// after Close, else that the server is being started anew.
func (q *Queue) closedError(err error) error {
	if !errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	select {
	case <-q.closing:
		return ErrClosed
	default:
		return fmt.Errorf("%w: its server is being started anew", ErrUnavailable)
	}
}

// Publish stores ev and returns its stream sequence. When it returns without an
// error, the event survives a power cut. It returns ErrFull when the budget is
// used up, ErrTooLarge for an event over MaxMessage, ErrUnavailable when the
// server did not answer in time or a sync went wrong, ErrClosed after Close and
// ctx's error when ctx ends first; after ErrUnavailable and ctx's error the
// event may be stored all the same. The body is not copied: it must not change.
func (q *Queue) Publish(ctx context.Context, ev *event.Event) (uint64, error) {
	msg, err := encode(ev)
	if err != nil {
		return 0, fmt.Errorf("publish event: %w", err)
	}
	msg.Subject = eventSubject(ev)
	seq, err := q.commit.do(ctx, msg)
	if err != nil {
		return 0, fmt.Errorf("publish event: %w", err)
	}
	return seq, nil
}

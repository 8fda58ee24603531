package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// The crash points of a pool, for Config.Fault.
const (
	pointAcquire = "after-acquire" // granted, not begun
	pointRun     = "during-run"    // the handler has answered, nobody looked at it
	pointCommit  = "before-commit"
	pointPark    = "after-park" // the copy is there, its record is not

	pointDuplicate = "after-duplicate" // the duplicate's own record is there, its delivery is open
)

// settledPoint is the crash point between a settled record and the Ack.
func settledPoint(a action) string {
	return [...]string{commit: "after-commit", postpone: "after-defer", bury: "after-bury", doubt: "after-doubt"}[a]
}

const (
	minAckPending = 16               // a handler with one worker still gets its next events while commits wait
	nakDelay      = 30 * time.Second // after which a delivery comes again that met a broken store
	pollEvery     = time.Second      // for what nobody signals
)

// The pauses of saving the progress.
const (
	firstSave = 100 * time.Millisecond // an ack counts a moment after it was sent
	lastSave  = 2 * time.Second        // how long Run waits at its end for the last acks
	saveStep  = 10 * time.Millisecond  // between two looks in that time
)

// Config is what a pool needs.
type Config struct {
	Spec    Spec
	Queue   *queue.Queue
	Store   dedup.Store
	Side    *SideLog           // for StoreUnavailable Allow; nil where no handler has it
	Logger  *slog.Logger       // carries the handler's name; slog.Default when nil
	Now     func() time.Time   // time.Now when nil
	AckWait time.Duration      // queue.DefaultAckWait when 0; open deliveries are marked three times in it
	Observe *Observe           // counts; own ones when nil
	DoubtTo uint64             // up to here events may have run in time that the directory does not know of, see pastEvent
	Fault   func(point string) // crash points; nil in production

	// Suppressed is told of each delivery that is not run because its event has
	// a record. It must not wait. nil when nobody wants to know.
	Suppressed func(Suppression)

	lost func(seq uint64) bool // for tests: the delivery never arrives; nil in production
}

// Pool runs one handler. A process has at most one pool per handler id at a
// time.
type Pool struct {
	spec        Spec // changes between two shifts only
	queue       *queue.Queue
	store       dedup.Store
	side        *SideLog
	log         *slog.Logger
	now         func() time.Time
	ackWait     time.Duration
	obs         *Observe
	fault       func(string)
	suppression func(Suppression)
	reaper      *reaper
	doubtTo     uint64
	lost        func(seq uint64) bool
	consumer    *queue.Consumer // changes between two shifts only
	progress    *progress
	face        atomic.Pointer[face]

	open   *openDeliveries
	claims *claims
	gate   gate
	hold   *hold
	pace   *pace
	lanes  *lanes // changes between two shifts only

	deliveries chan *queue.Delivery // to the next free worker
	due        chan dedup.Record    // to the next free worker
	slots      chan struct{}        // bounds the runs that wait for their record
	changes    chan *change         // to the shift
	kept       kept                 // from one shift to the next

	reaped bool      // nothing is left of dead processes; wakeUps only
	reapAt time.Time // when to look again; wakeUps only

	lanesAt time.Time // when to look at the lanes again; wakeUps only

	mu       sync.Mutex
	began    bool
	stop     chan struct{} // closed: take nothing new
	kill     chan struct{} // closed: end at once
	done     chan struct{} // closed when Run has returned
	stopOnce sync.Once
	killOnce sync.Once
}

// NewPool makes a pool and the handler's consumer, at the place where its
// progress stands; a handler that is new begins with the next event. Nothing
// runs before Run. It returns an error when the Spec is not valid, or the queue
// or the store does not answer.
func NewPool(ctx context.Context, cfg Config) (*Pool, error) {
	if problems := cfg.Spec.Validate(); len(problems) > 0 {
		return nil, fmt.Errorf("check handler %q: %s %s", cfg.Spec.ID, problems[0].Field, problems[0].Text)
	}
	spec := cfg.Spec.WithDefaults()
	if spec.StoreUnavailable == Allow && cfg.Side == nil {
		return nil, fmt.Errorf("check handler %q: store_unavailable is allow, and there is no side log", spec.ID)
	}
	r := newReaper(Recovery{
		Store: cfg.Store, Queue: cfg.Queue, Specs: []Spec{spec}, Logger: cfg.Logger, Now: cfg.Now, Fault: cfg.Fault,
	})
	p := &Pool{
		spec: spec, queue: cfg.Queue, store: cfg.Store, side: cfg.Side, reaper: r, now: r.now, fault: r.fault, obs: cfg.Observe,
		log: r.log, lost: cfg.lost, doubtTo: cfg.DoubtTo, suppression: cfg.Suppressed,
		ackWait: orDefault(cfg.AckWait, queue.DefaultAckWait),
		open:    newOpenDeliveries(), claims: newClaims(), gate: gate{now: r.now}, hold: newHold(r.now), pace: newPace(r.now, spec.MaxRate),
		deliveries: make(chan *queue.Delivery), due: make(chan dedup.Record),
		slots: make(chan struct{}, 4*spec.Concurrency), changes: make(chan *change),
		stop: make(chan struct{}), kill: make(chan struct{}), done: make(chan struct{}),
	}
	if p.obs == nil {
		p.obs = &Observe{}
	}
	if err := p.consume(ctx); err != nil {
		return nil, fmt.Errorf("make consumer: %w", err)
	}
	if err := p.fillLanes(ctx); err != nil {
		p.consumer.Stop()
		return nil, err
	}
	p.show(p.log)
	return p, nil
}

func (p *Pool) consume(ctx context.Context) error {
	state, err := p.queue.State(ctx)
	if err != nil {
		return err
	}
	progress, err := p.store.Begin(ctx, p.spec.ID, state.LastSeq+1)
	if err != nil {
		return err
	}
	start := StartSeq(progress, state.LastSeq)
	p.open.begin(start)
	p.progress = newProgress(progress.FirstSeq, start-1)
	p.consumer, err = p.queue.Consume(ctx, p.consumerConfig(start))
	return err
}

func (p *Pool) consumerConfig(start uint64) queue.ConsumerConfig {
	return queue.ConsumerConfig{
		Handler: p.spec.ID, Sources: p.spec.Sources, Start: start, AckWait: p.ackWait,
		MaxAckPending: max(4*p.spec.Concurrency, minAckPending),
		Resume:        func() uint64 { return p.progress.saved.Load() + 1 },
	}
}

// Run works until ctx ends or Stop is called; then it takes nothing new, lets
// running attempts end within their timeout and settles them. It returns an
// error when the queue or the store ended before. It runs once.
func (p *Pool) Run(ctx context.Context) error {
	if !p.begin() {
		return nil
	}
	defer close(p.done)
	for {
		c, err := p.shift(ctx)
		if c != nil && err == nil {
			err = p.change(ctx, c)
		}
		switch {
		case errors.Is(err, ErrStopped):
			return p.release()
		case c == nil || err != nil:
			return errors.Join(err, p.release())
		}
	}
}

// shift works under one Spec, until that is to change or until Run ends; then
// everything that it has begun is settled. The change is nil at the end of Run.
func (p *Pool) shift(ctx context.Context) (*change, error) {
	taking, stopTaking := context.WithCancel(ctx)
	defer stopTaking()
	running, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()

	var watch, loops, work sync.WaitGroup
	var next *change
	watch.Go(func() { next = p.watch(taking, running, stopTaking, abort) })
	watch.Go(func() { p.mark(running) })
	watch.Go(func() { p.saveProgress(running) })
	var fetchErr, dueErr error
	loops.Go(func() { defer stopTaking(); fetchErr = p.fetch(taking) })
	loops.Go(func() { defer stopTaking(); dueErr = p.wakeUps(taking, running) })
	for range p.spec.Concurrency {
		work.Go(func() { p.work(taking, running) })
	}
	loops.Wait()
	work.Wait()
	p.drain()
	p.saveLast(running)
	abort()
	watch.Wait()
	return next, errors.Join(fetchErr, dueErr)
}

// release gives up what the pool holds outside.
func (p *Pool) release() error {
	p.consumer.Stop()
	if c, ok := p.spec.Handler.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began {
		return false
	}
	p.began = true
	select {
	case <-p.stop:
		close(p.done)
		return false
	default:
		return true
	}
}

// Stop ends Run and waits for it. When ctx ends first, running attempts are cut
// and claims left as they are: the next start treats them like those of a crash.
// It may be called at any time and more than once.
func (p *Pool) Stop(ctx context.Context) error {
	p.stopOnce.Do(func() { close(p.stop) })
	p.mu.Lock()
	began := p.began
	p.mu.Unlock()
	if !began {
		return p.release()
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.killOnce.Do(func() { close(p.kill) })
	<-p.done
	return fmt.Errorf("stop handler %s: %w", p.face.Load().name, ctx.Err())
}

// watch turns Stop and Change into the end of the two contexts, and gives the
// change.
func (p *Pool) watch(taking, running context.Context, stopTaking, abort func()) (next *change) {
	select {
	case <-p.stop:
	case next = <-p.changes:
	case <-taking.Done():
	}
	stopTaking()
	select {
	case <-p.kill:
	case <-running.Done():
	}
	abort()
	return next
}

// drain waits until every run is settled, by taking all the slots.
func (p *Pool) drain() {
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
}

// mark keeps open deliveries from being delivered again.
func (p *Pool) mark(ctx context.Context) {
	for sleep(ctx, p.ackWait/3) == nil {
		for _, d := range p.open.all() {
			if err := d.InProgress(); err != nil {
				p.obs.queueErrors.Add(1)
				p.log.Warn("open delivery not marked", "error", err)
				break
			}
		}
	}
}

// Hurry tells the pool that what kept the claim store from answering is over: it
// does not wait for the end of its pause, which grows to half a minute.
func (p *Pool) Hurry() { p.gate.hurry() }

// Snapshot gives a picture of the pool.
func (p *Pool) Snapshot() Snapshot {
	s := p.obs.snapshot()
	s.Handler = p.face.Load().id
	s.Oldest = p.open.oldest()
	s.StoreDown = p.gate.broken()
	s.Held, s.Paused = p.hold.since()
	s.Blocked = p.face.Load().lanes.waiting()
	s.SettledTo = p.open.progress()
	return s
}

// run is one event on its way through the handler, under one key.
type run struct {
	ev        *event.Event
	key       event.Key
	seq       uint64
	delivered bool         // a delivery stands behind it and is open
	claimed   bool         // rec is the claim's record
	rec       dedup.Record // zero before
	trial     bool         // the handler is held, this event tries whether it works again
	reached   bool         // the handler was called
	turn      turnOf
	again     bool          // it comes again: by its delivery, or by its record
	against   *dedup.Record // of another payload under the same identity; nil when there is none
}

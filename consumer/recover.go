package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// StartSeq is the sequence at which a handler's consumer begins, when lastSeq is
// the stream's last one. A copy's queue may be older than the progress.
func StartSeq(p dedup.Progress, lastSeq uint64) uint64 {
	return max(min(p.FirstSeq, lastSeq+1), min(p.SettledTo, lastSeq)+1)
}

// Recovery is what the recovery pass needs.
type Recovery struct {
	Store  dedup.Store
	Queue  *queue.Queue
	Past   bool               // time went back, see Recover
	Specs  []Spec             // a record of any other handler is treated by its own effect and the default retries
	Logger *slog.Logger       // slog.Default when nil
	Now    func() time.Time   // time.Now when nil
	Fault  func(point string) // crash points; nil in production
}

const recoverPage = 256

// Recover settles every run that a dead process held: an irrevocable one becomes
// IN_DOUBT, any other one WAITING after its backoff, or DEAD when that was its
// last attempt. It runs before any consumer starts. A run whose event cannot be
// read or copied keeps its record: its pool looks at it again. The error is that
// of a claim store that does not answer.
//
// With Past the directory does not know what was done last. Of an irrevocable run
// that waits, the attempt that it waits for may have been made: it becomes
// IN_DOUBT, too.
func Recover(ctx context.Context, cfg Recovery) error {
	r := newReaper(cfg)
	if cfg.Past {
		if err := r.doubtWaiting(ctx); err != nil {
			return fmt.Errorf("hold runs that wait: %w", err)
		}
	}
	gone, err := deadRuns(ctx, cfg.Store, "")
	if err != nil {
		return fmt.Errorf("list runs of dead processes: %w", err)
	}
	for i := range gone {
		err := r.reap(ctx, &gone[i])
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, dedup.ErrUnavailable), errors.Is(err, dedup.ErrClosed):
			return fmt.Errorf("recover %s: %w", gone[i].Key.RunID(), err)
		default:
			r.log.Warn("run whose owner is gone left as it is", "run_id", gone[i].Key.RunID(), "error", err)
		}
	}
	return nil
}

// reapDead settles what Recover has left, again and again until nothing is.
func (p *Pool) reapDead(ctx context.Context) {
	if p.reaped || p.now().Before(p.reapAt) {
		return
	}
	p.reapAt = p.now().Add(dedup.RearmAfter)
	gone, err := deadRuns(ctx, p.store, p.spec.ID)
	if err != nil {
		p.obs.storeErrors.Add(1)
		return
	}
	left := int64(0)
	for i := range gone {
		if err := p.reaper.reap(ctx, &gone[i]); err != nil {
			left++
			p.log.Warn("run whose owner is gone not settled, trying again", "run_id", gone[i].Key.RunID(), "error", err)
		}
	}
	p.obs.unreaped.Store(left)
	p.reaped = left == 0
}

// deadRuns lists the runs of dead processes, of all handlers when handler is
// empty. It lists all pages first: what is settled leaves the list.
func deadRuns(ctx context.Context, store dedup.Store, handler string) ([]dedup.Record, error) {
	filter := dedup.Filter{States: []dedup.State{dedup.Started}, Handler: handler, Owner: dedup.InProc, DeadOnly: true}
	var gone []dedup.Record
	for cursor := ""; ; {
		page, next, err := store.List(ctx, filter, cursor, recoverPage)
		if err != nil {
			return nil, err
		}
		gone = append(gone, page...)
		if cursor = next; cursor == "" {
			return gone, nil
		}
	}
}

// reaper settles runs whose owner is gone.
type reaper struct {
	store dedup.Store
	queue *queue.Queue
	specs map[string]Spec
	log   *slog.Logger
	now   func() time.Time
	fault func(string)
}

func newReaper(cfg Recovery) *reaper {
	r := &reaper{
		store: cfg.Store, queue: cfg.Queue, specs: make(map[string]Spec),
		log: cfg.Logger, now: cfg.Now, fault: cfg.Fault,
	}
	for _, s := range cfg.Specs {
		r.specs[s.ID] = s.WithDefaults()
	}
	if r.log == nil {
		r.log = slog.Default()
	}
	if r.now == nil {
		r.now = time.Now
	}
	if r.fault == nil {
		r.fault = func(string) {}
	}
	return r
}

// reap settles one run. If somebody else has settled it meanwhile, that is
// theirs.
func (r *reaper) reap(ctx context.Context, rec *dedup.Record) error {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return fmt.Errorf("read key: %w", err)
	}
	spec, ok := r.specs[parts.Handler]
	if !ok {
		spec = Spec{ID: parts.Handler}.WithDefaults()
	}
	op := expiry(&spec, rec, r.now(), rand.Float64())
	if op.park {
		if op.Parked, err = r.park(ctx, &spec, rec); err != nil {
			return err
		}
	}
	res, err := r.store.Do(ctx, rec.Key, op.Expire)
	if errors.Is(err, dedup.ErrFenced) {
		if op.Parked && unknownCopy(&res.Record) {
			return r.queue.Unpark(ctx, spec.ID, rec.Key)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("expire claim: %w", err)
	}
	r.log.Info("run whose owner is gone settled", "handler", spec.Name, "run_id", rec.Key.RunID(),
		"event_id", parts.EventID(), "state", res.Record.State.String(), "attempts", res.Record.Attempts)
	return nil
}

// expiring is an Expire, and whether the event needs a copy first.
type expiring struct {
	dedup.Expire
	park bool
}

// expiry decides how a run whose owner is gone goes on.
func expiry(spec *Spec, rec *dedup.Record, now time.Time, random float64) expiring {
	attempts := int(rec.Attempts) + 1
	delay := jitter(backoff(spec.Retry, attempts), spec.Jitter, random)
	needed := rec.Effect == dedup.Irrevocable || attempts >= spec.MaxAttempts() || delay > parkAfter
	return expiring{
		Expire: dedup.Expire{
			Fence: rec.Fence, Due: dedup.At(now.Add(delay)), MaxAttempts: uint32(spec.MaxAttempts()),
		},
		park: needed && rec.Seq != 0 && !rec.Parked,
	}
}

// park sees to it that there is a copy of the run's event. It is false when
// there is none: because the event is gone, or because there is no room while
// the stream still holds it. Then the record goes on without.
func (r *reaper) park(ctx context.Context, spec *Spec, rec *dedup.Record) (bool, error) {
	ev, err := inStream(ctx, r.queue, spec.ID, rec)
	if errors.Is(err, queue.ErrMissing) { // a copy may be there that the record does not know of
		_, err = fetch(ctx, r.queue, spec.ID, rec)
		if errors.Is(err, queue.ErrMissing) {
			return false, nil
		}
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	err = r.queue.Park(ctx, spec.ID, rec.Key, ev)
	if errors.Is(err, queue.ErrFull) {
		r.log.Warn("no room for a copy of the event, it keeps its place in the queue", "handler", spec.Name, "run_id", rec.Key.RunID())
		return false, nil
	}
	if err != nil {
		return false, err
	}
	r.fault(pointPark)
	return true, nil
}

// fetch reads the event that a record stands for: from its sequence if that
// still holds it, else from its parked copy. It returns queue.ErrMissing when
// neither does.
func fetch(ctx context.Context, q *queue.Queue, handler string, rec *dedup.Record) (*event.Event, error) {
	ev, err := inStream(ctx, q, handler, rec)
	if !errors.Is(err, queue.ErrMissing) {
		return ev, err
	}
	m, err := q.Parked(ctx, handler, rec.Key)
	switch {
	case err == nil && adopt(&m.Event, handler, rec):
		return &m.Event, nil
	case err != nil && !errors.Is(err, queue.ErrFormat):
		return nil, err
	}
	return nil, queue.ErrMissing
}

// inStream reads the event at the record's sequence. It returns queue.ErrMissing
// when that does not hold it any more.
func inStream(ctx context.Context, q *queue.Queue, handler string, rec *dedup.Record) (*event.Event, error) {
	if rec.Seq == 0 {
		return nil, queue.ErrMissing
	}
	m, err := q.Get(ctx, rec.Seq)
	switch {
	case err == nil && adopt(&m.Event, handler, rec):
		return &m.Event, nil
	case err != nil && !errors.Is(err, queue.ErrMissing) && !errors.Is(err, queue.ErrFormat):
		return nil, err
	}
	return nil, queue.ErrMissing
}

// adopt makes ev the record's run, in its batch and with its origin, and reports
// whether it is that at all: a sequence may hold another event.
func adopt(ev *event.Event, handler string, rec *dedup.Record) bool {
	parts, err := event.DecodeKey(rec.Key.Tuple)
	if err != nil {
		return false
	}
	ev.Batch = parts.Batch
	if rec.Origin.Valid() {
		ev.Origin = rec.Origin
	}
	return rec.Key.IsRunOf(ev, handler)
}

package boltstore

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// rideFor is how long an answered grant waits for company before it is written
// by itself.
const rideFor = 100 * time.Millisecond

// maxRides is with how many answered grants the frame is written at the latest.
const maxRides = 512

// writer is the group commit. It takes all that waits, decides it in order,
// writes it as one frame, syncs once and answers. Everything here belongs to its
// goroutine.
type writer struct {
	s       *Store
	names   manifest
	journal *journal
	counter uint64 // of fences in this epoch

	// What is decided but not on stable storage, in the order of decision.
	pending []pending
	latest  map[event.Hash]int // the last pending record with this hash
	buf     []byte             // the frame in which pending goes
	waiting []*request         // are answered when it is written
	answer  []*request         // are answered at once

	carrying  bool  // the frame holds what older journals held
	broken    error // of the last write; the journal's end is not known
	mendAfter time.Time
	ballast   ballast
}

// pending is a record that waits for its frame.
type pending struct {
	entry
	ride bool // its request has its answer already
	off  int  // in writer.buf
	near int  // the pending record before it with the same hash; -1 for none
	same int  // the pending record before it of the same key; -1 for none
	at   ref  // where the index has it
}

func (w *writer) run() {
	defer close(w.s.stopped)
	flush := time.NewTimer(rideFor)
	flush.Stop()
	armed := false
	var refill <-chan time.Time
	batch := make([]*request, 0, maxRecords)
	for {
		if w.ballast.gone.Load() && refill == nil { // also when nobody ever asks
			refill = time.After(mendEvery)
		}
		select {
		case r := <-w.s.requests:
			w.gather()
			batch = w.take(append(batch[:0], r))
			w.group(batch)
		case <-flush.C:
			armed = false
			if w.usable() == nil {
				w.flush()
			}
		case <-refill:
			refill = nil
			if w.usable() == nil {
				w.flush()
			}
		case <-w.s.closing:
			for batch = w.take(batch[:0]); len(batch) > 0; batch = w.take(batch[:0]) {
				w.group(batch)
			}
			if w.usable() == nil {
				w.flush()
			}
			return
		}
		clear(batch)
		switch {
		case len(w.pending) == 0 && armed:
			flush.Stop()
			armed = false
		case len(w.pending) > 0 && !armed:
			flush.Reset(rideFor)
			armed = true
		}
	}
}

// gather lets those who are ready to ask do so before the group closes: they were
// answered a moment ago and have their next request at hand. It waits for nobody.
func (w *writer) gather() {
	for n := -1; n < len(w.s.requests) && n < maxRecords; {
		n = len(w.s.requests)
		runtime.Gosched()
	}
}

// take adds to batch what waits in the channel.
func (w *writer) take(batch []*request) []*request {
	for len(batch) < maxRecords {
		select {
		case r := <-w.s.requests:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// group decides a batch in order, in as many frames as it takes, and then runs
// the tasks in it.
func (w *writer) group(batch []*request) {
	now := dedup.At(w.s.cfg.Now())
	for rest := batch; len(rest) > 0; {
		if err := w.usable(); err != nil {
			for _, r := range rest {
				if r.task == nil {
					r.err = err
					r.done <- struct{}{}
				}
			}
			break
		}
		rest = rest[w.fillFrame(rest, now):]
	}
	for _, r := range batch {
		if r.task != nil {
			w.flush()
			if r.err = w.usable(); r.err == nil {
				r.err = r.task()
			}
			r.done <- struct{}{}
		}
	}
}

// fillFrame decides what of batch has room in the frame, answers what needs no
// disk, and flushes if anybody waits for it. It gives how many it took: when that
// is not all, the frame is written, or the store is not usable any more.
func (w *writer) fillFrame(batch []*request, now dedup.Time) (taken int) {
	rides := len(w.pending)
	for taken < len(batch) && w.hasRoom() {
		if r := batch[taken]; r.task == nil {
			w.decide(r, now)
		}
		taken++
	}
	w.publishRides(rides)
	for i, r := range w.answer {
		w.answer[i] = nil
		r.done <- struct{}{}
	}
	w.answer = w.answer[:0]
	if taken < len(batch) || len(w.waiting) > 0 || len(w.pending) >= maxRides {
		w.flush()
	}
	return taken
}

// hasRoom reports whether any record fits into the frame beside what is pending.
func (w *writer) hasRoom() bool {
	return len(w.pending) < maxRecords && len(w.buf)+frameHead+recordHead+maxBody <= maxFrame
}

// usable repairs the store if it needs it, writes what was answered before, and
// gives the error to answer with if that is not possible.
func (w *writer) usable() error {
	if w.s.down.Load() {
		return dedup.ErrUnavailable
	}
	if w.broken == nil {
		w.refill()
		return nil
	}
	if now := time.Now(); now.After(w.mendAfter) {
		w.mendAfter = now.Add(mendEvery)
		if w.broken = w.s.failOn(w.mend()); w.broken == nil {
			w.flush()
		}
		w.noteFull(w.broken)
	}
	if w.broken != nil {
		return fmt.Errorf("%w: %w", dedup.ErrUnavailable, w.broken)
	}
	return nil
}

// decide applies r's operation to the present record. Afterwards r is in answer
// or in waiting.
func (w *writer) decide(r *request, now dedup.Time) {
	hash := r.hash
	cur, old, same, err := w.current(r)
	if err != nil {
		w.s.cfg.Logger.Error("record not decided upon", "error", err)
		r.err = err
		w.answer = append(w.answer, r)
		return
	}
	env := dedup.Env{
		Now: now, Horizon: w.s.Horizon(), Next: dedup.NewFence(w.s.epoch, w.counter+1), Host: w.s.cfg.Host,
	}
	r.result = dedup.Decide(cur, r.key, r.op, env)
	if r.result.Fenced {
		r.err = dedup.ErrFenced
	}
	if w.ballast.gone.Load() && r.result.Write && begins(r.op) {
		r.result, r.err = dedup.Result{}, errDiskFull
		w.answer = append(w.answer, r)
		return
	}
	ride := r.result.Ride && !w.s.cautious && same < 0
	if r.result.Write {
		rec := r.result.Record
		if err := w.stage(entry{rec: &rec, hash: hash, handler: r.handler, counted: true, old: old}, same, ride); err != nil {
			r.result, r.err = dedup.Result{}, err
			w.answer = append(w.answer, r)
			return
		}
		if rec.Fence == env.Next {
			w.counter++
		}
	}
	// What was decided from a record that is not on stable storage must not be
	// known before that record is.
	if ride || !r.result.Write && same < 0 {
		w.answer = append(w.answer, r)
	} else {
		w.waiting = append(w.waiting, r)
	}
}

// current gives the latest record of r's key, or nil; and where it is: the pending
// one, or else the place in the index, or else in a table, which is no place.
func (w *writer) current(r *request) (cur *dedup.Record, old ref, same int, err error) {
	if i, ok := w.latest[r.hash]; ok {
		for ; i >= 0; i = w.pending[i].near {
			if p := &w.pending[i]; p.rec.Key.Tuple == r.key.Tuple {
				return p.rec, noRef, i, nil
			}
		}
	}
	if cur, old, err = w.s.find(r.hash, r.key.Tuple); cur == nil && err == nil {
		cur, err = w.recall(r)
	}
	return cur, old, -1, err
}

// stage adds a record to the next frame.
func (w *writer) stage(e entry, same int, ride bool) error {
	if len(w.buf) == 0 {
		w.buf = append(w.buf, make([]byte, frameHead)...)
	}
	p := pending{entry: e, ride: ride, off: len(w.buf), near: -1, same: same}
	buf, err := appendEntry(w.buf, e.rec, e.change)
	if err != nil {
		return err
	}
	w.buf = buf
	if i, ok := w.latest[e.hash]; ok {
		p.near = i
	}
	w.latest[e.hash] = len(w.pending)
	w.pending = append(w.pending, p)
	return nil
}

// publishRides shows the grants from the first one on to readers: their owners
// are about to be told.
func (w *writer) publishRides(first int) {
	if !slices.ContainsFunc(w.pending[first:], func(p pending) bool { return p.ride }) {
		return
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for i := first; i < len(w.pending); i++ {
		if p := &w.pending[i]; p.ride {
			p.number = w.journal.next() + uint64(i)
			p.at = w.s.index.put(&p.entry)
			p.old = p.at
		}
	}
}

// flush writes what is pending as one frame and answers those who wait. Without
// success the fate of the frame is unknown, and they are told so.
func (w *writer) flush() {
	if len(w.pending) == 0 {
		return
	}
	err := w.write()
	if err != nil {
		w.broken = w.s.failOn(err)
		w.noteFull(err)
		w.s.cfg.Logger.Error("claim records not written", "records", len(w.pending), "error", err)
		w.keepRides()
		if w.s.down.Load() {
			w.reset()
		}
		err = fmt.Errorf("%w: %w", dedup.ErrUnavailable, err)
	} else {
		w.publish()
		w.reset()
	}
	for i, r := range w.waiting {
		if err != nil {
			r.result, r.err = dedup.Result{}, err
		}
		w.waiting[i] = nil
		r.done <- struct{}{}
	}
	w.waiting = w.waiting[:0]
}

// write brings the frame to stable storage.
func (w *writer) write() error {
	if w.broken != nil {
		return w.broken
	}
	if w.s.down.Load() {
		return errors.New("an earlier sync failed")
	}
	if len(w.pending) > maxRecords || len(w.buf) > maxFrame {
		// No start would read it.
		return fmt.Errorf("write journal: a frame of %d records, %d bytes", len(w.pending), len(w.buf))
	}
	own := w.journal.size - w.journal.carried
	if w.journal.records > 0 && !w.carrying && own+int64(len(w.buf)) > w.s.machine.journalMax {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	finishFrame(w.buf, w.journal.seed, w.journal.next(), len(w.pending))
	if err := w.journal.reserve(w.s.machine, len(w.buf)); err != nil {
		return err
	}
	w.s.fault("before-write")
	if _, err := w.s.machine.write(w.journal.file, w.buf, w.journal.size); err != nil {
		return fmt.Errorf("write journal: %w", err)
	}
	w.s.fault("after-write")
	if err := w.s.machine.syncFile(w.journal.file); err != nil {
		return err
	}
	w.s.fault("after-sync")
	return nil
}

// publish takes the frame that was just written into the index.
func (w *writer) publish() {
	j := w.journal
	first, base := j.next(), j.size
	w.s.mu.Lock()
	for i := range w.pending {
		p := &w.pending[i]
		p.number, p.place = first+uint64(i), placeAt(j.number, base+int64(p.off))
		if p.same >= 0 {
			p.old = w.pending[p.same].at
		}
		p.at = w.s.index.put(&p.entry)
	}
	w.s.mu.Unlock()
	j.grow(w.buf, len(w.pending))
	if w.carrying {
		j.carried += int64(len(w.buf))
	}
	w.s.durable.Store(j.next() - 1)
	w.s.disk.Add(int64(len(w.buf)))
	w.s.touch()
}

func (w *writer) reset() {
	clear(w.pending)
	clear(w.latest)
	w.pending, w.buf = w.pending[:0], w.buf[:0]
}

package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Seal ends the present journal and begins the next one, if it holds records of
// its own and was begun at least age ago. It reports whether it did. A journal is
// also sealed when it is full, and at every start.
func (s *Store) Seal(ctx context.Context, age time.Duration) (bool, error) {
	if err := s.beginStep(ctx, true); err != nil {
		return false, err
	}
	defer s.steps.Unlock()
	sealed := false
	err := s.inWriter(func(w *writer) error {
		j := w.journal
		if j.size-headSize <= j.carried || j.created > dedup.At(s.cfg.Now()).Add(-age) {
			return nil
		}
		sealed = true
		return s.failOn(w.rotate())
	})
	if err != nil {
		return false, fmt.Errorf("seal journal: %w", err)
	}
	return sealed, nil
}

// spot is where a record stands in a journal.
type spot struct {
	hash               event.Hash
	place              ref
	state              dedup.State
	committed, expires dedup.Time
}

// survey is what is still needed of the journals that a step takes.
type survey struct {
	batch   []spot
	done    []spot // to the table
	open    []spot // into the present journal
	expired []spot // nowhere
}

// surveyBatch is for how many records the index is asked at a time.
const surveyBatch = 256

// Move makes a hot file of the oldest sealed journals, as many as fit into one of
// the usual size: of each key that has its latest record there, if that is DONE
// and has not expired. Open records go into the present journal. When it returns
// the index does not know the moved keys any more, and the journals wait to be
// unlinked.
func (s *Store) Move(ctx context.Context) (Step, error) {
	if err := s.beginStep(ctx, true); err != nil {
		return Step{}, err
	}
	defer s.steps.Unlock()
	c := &change{step: "move"}
	var step Step
	err := s.inWriter(func(w *writer) error {
		c.journals, step.More = w.oldest()
		return nil
	})
	if err != nil || len(c.journals) == 0 {
		return Step{}, err
	}
	pace, found := s.pacer(ctx), &survey{}
	for _, j := range c.journals {
		step.Took, step.Bytes = append(step.Took, journalName(j.number)), step.Bytes+j.size
		if err := s.survey(j, found, pace); err != nil {
			return Step{}, fmt.Errorf("move journals: %w", err)
		}
	}
	if err := s.carry(found.open, pace); err != nil {
		return Step{}, fmt.Errorf("move journals: %w", err)
	}
	s.fault("move-carried")
	p := &products{s: s, step: c.step, from: step.Took}
	if err = s.makeHot(p, c.journals, found.done, pace); err == nil {
		c.made, c.moving = p.opened, len(found.done)
		err = s.inWriter(func(w *writer) error { return w.apply(c) })
	}
	if err != nil {
		return Step{}, fmt.Errorf("move journals: %w", p.discard(err))
	}
	s.fault("move-published")
	step.Made, step.Keys = p.names(), uint64(len(found.done))
	step.Carried, step.Expired = uint64(len(found.open)), uint64(len(found.expired))
	return step, s.dropMoved(c, append(found.done, found.expired...))
}

// oldest gives the sealed journals to move next, and whether there are more.
func (w *writer) oldest() (take []*journal, more bool) {
	var size int64
	sealed := w.names.Files[:len(w.names.Files)-1]
	for _, f := range sealed {
		if size += f.Size; size > w.s.machine.journalMax && len(take) > 0 {
			return take, true
		}
		n, _ := journalNumber(f.Name)
		take = append(take, w.s.journals[n])
	}
	return take, false
}

// survey finds the records of a sealed journal that are their keys' latest. One
// that is not now will not be later.
func (s *Store) survey(live *journal, found *survey, pace *pacer) error {
	f, err := os.Open(live.path)
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	j := newJournal(live.head, live.path, f, live.encode())
	shared := interned{}
	err = j.scan(pace.ctx, live.size, func(_ uint64, off int64, body []byte) error {
		rec, _, err := decodeBody(body, shared)
		if err != nil {
			return &DataError{Path: j.path, Offset: off, Err: ErrDamaged}
		}
		found.batch = append(found.batch, spot{
			hash: s.machine.hash(rec.Key), place: placeAt(j.number, off), state: rec.State, committed: rec.Committed, expires: rec.Expires,
		})
		if len(found.batch) < surveyBatch {
			return nil
		}
		s.sift(found)
		return pace.rest()
	})
	s.sift(found)
	var bad *badFrame
	if errors.As(err, &bad) {
		err = &DataError{Path: j.path, Offset: bad.offset, Err: ErrDamaged, Detail: bad.detail}
	}
	return errors.Join(err, f.Close())
}

// sift asks the index which records of the batch are their keys' latest.
func (s *Store) sift(found *survey) {
	horizon := s.Horizon()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, sp := range found.batch {
		switch r := s.index.at(sp.hash, sp.place); {
		case r == noRef:
		case r.isSlot():
			found.open = append(found.open, sp)
		case dedup.Expired(&dedup.Record{State: sp.state, Expires: sp.expires}, horizon):
			found.expired = append(found.expired, sp)
		default:
			found.done = append(found.done, sp)
		}
	}
	found.batch = found.batch[:0]
}

// carry writes open records again, into the present journal, where they have not
// changed meanwhile.
func (s *Store) carry(open []spot, pace *pacer) error {
	for chunk := range slices.Chunk(open, surveyBatch) {
		if err := s.inWriter(func(w *writer) error { return w.carry(chunk) }); err != nil {
			return err
		}
		if err := pace.rest(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) carry(open []spot) error {
	for _, sp := range open {
		r := w.s.index.at(sp.hash, sp.place)
		if !r.isSlot() {
			continue
		}
		rec, err := w.s.locate(r).load()
		if err != nil {
			return err
		}
		parts, err := event.DecodeKey(rec.Key.Tuple)
		if err != nil {
			return err
		}
		change := w.s.index.slots[r.slot()].change
		if err := w.stage(entry{rec: rec, hash: sp.hash, handler: parts.Handler, counted: true, change: change, old: r}, -1, false); err != nil {
			return err
		}
		if !w.hasRoom() {
			if err := w.flushCarried(); err != nil {
				return err
			}
		}
	}
	return w.flushCarried()
}

// flushCarried writes a frame that does not count for sealing.
func (w *writer) flushCarried() error {
	w.carrying = true
	w.flush()
	w.carrying = false
	if w.broken != nil {
		return fmt.Errorf("%w: %w", dedup.ErrUnavailable, w.broken)
	}
	return nil
}

// makeHot makes a hot file of the records at done, if there is one.
func (s *Store) makeHot(p *products, journals []*journal, done []spot, pace *pacer) error {
	if len(done) == 0 {
		return nil
	}
	slices.SortFunc(done, func(a, b spot) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	from := map[uint32]*journal{}
	for _, j := range journals {
		from[j.number] = j
	}
	last := journals[len(journals)-1].number
	w, err := p.create(func(n int) string { return fmt.Sprintf("%s%06d.db", hotPrefix, n) }, int(last))
	if err != nil {
		return err
	}
	buf := make([]byte, 512)
	for i := 0; i < len(done); {
		var entries []byte
		hash := done[i].hash
		for ; i < len(done) && done[i].hash == hash; i++ {
			e, _, err := from[done[i].place.journal()].readEntry(buf[:512], done[i].place.offset())
			if err != nil {
				return err
			}
			entries = append(entries, e...)
			w.note(done[i].committed, done[i].expires)
		}
		if err := w.add(hash, entries); err != nil {
			return err
		}
		if i%surveyBatch == 0 {
			if err := pace.rest(); err != nil {
				return err
			}
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	return p.publish(pace)
}

// dropSlice is how many keys leave the index at a time.
const dropSlice = 5000

// dropMoved takes what is in a table now, or has expired, out of the index, where
// no newer record has come; then the journals are closed.
func (s *Store) dropMoved(c *change, spots []spot) error {
	moved := c.moving
	for chunk := range slices.Chunk(spots, dropSlice) {
		err := s.inWriter(func(w *writer) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, sp := range chunk {
				s.index.drop(sp.hash, sp.place)
			}
			moved = max(moved-len(chunk), 0)
			s.moving = moved
			return nil
		})
		if err != nil {
			return fmt.Errorf("forget moved keys: %w", err)
		}
		s.fault("move-dropped")
	}
	var left *readers
	err := s.inWriter(func(*writer) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, j := range c.journals {
			delete(s.journals, j.number)
		}
		left, s.readers = s.readers, &readers{}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget moved journals: %w", err)
	}
	c.left.Wait() // those of before the table was there
	left.Wait()
	var errs []error
	for _, j := range c.journals {
		errs = append(errs, j.file.Close())
	}
	return errors.Join(errs...)
}

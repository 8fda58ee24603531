package boltstore

import (
	"cmp"
	"math"
	"slices"

	"idemd/dedup"
	"idemd/event"
)

// ref says where the latest record of a key is: a place on disk, or, with the
// highest bit set, the slot of an open record. 0 is nowhere.
type ref uint64

const (
	slotBit    ref = 1 << 63
	offsetBits     = 40
	offsetMask ref = 1<<offsetBits - 1
	noRef      ref = 0
)

// placeAt gives the ref of the record at off in a journal.
func placeAt(journal uint32, off int64) ref { return ref(journal)<<offsetBits | ref(off) }

func (r ref) isSlot() bool    { return r&slotBit != 0 }
func (r ref) journal() uint32 { return uint32(r &^ slotBit >> offsetBits) }
func (r ref) offset() int64   { return int64(r & offsetMask) }
func (r ref) slot() int       { return int(r &^ slotBit) }

// slot is what memory holds of an open record.
type slot struct {
	hash   event.Hash
	place  ref           // on disk; noRef until it is there
	rec    *dedup.Record // never changed; nil when it must be read at place
	number uint64        // of the record; of the one to come while it has no place
	change uint64        // number that it had before it was carried; what was changed first is listed first
	fence  dedup.Fence
	state  dedup.State
	owner  dedup.Owner
	reason string
	wake   dedup.Time // the record's WakeAt
	alarm  dedup.Time // when Due gives it out next; 0 for never
	heap   int        // its place in agenda.alarms while alarm is set
	of     *agenda
}

// entry is a record on its way into the index.
type entry struct {
	rec     *dedup.Record
	hash    event.Hash
	handler string // set when counted is
	counted bool   // it counts for its handler and rings its alarm
	number  uint64
	change  uint64 // number that a carried record had at first; 0 for any other
	place   ref    // noRef while the record is only in memory
	old     ref    // where the record before it was found
}

// index finds the latest record of every key. The key is the hash; a hit is
// another key's when the tuple differs, and such keys stand in more.
type index struct {
	shards  [shards]map[event.Hash]ref
	byFirst [4096]uint8 // first 12 bits of a hash -> its shard
	more    map[event.Hash][]ref
	keys    uint64
	slots   []*slot
	free    []int
	agendas map[string]*agenda
}

func newIndex() *index {
	x := &index{more: map[event.Hash][]ref{}, agendas: map[string]*agenda{}}
	for i := range x.shards {
		x.shards[i] = map[event.Hash]ref{}
	}
	for b := range x.byFirst {
		x.byFirst[b] = uint8(shards * math.Log2(1+float64(b)/float64(len(x.byFirst))))
	}
	return x
}

// shards is into how many maps the index is cut. A map doubles when it is full;
// equal ones would all do so at the same number of keys and then be half empty
// together. So shard i gets the hashes from about 2^(i/16)-1 to 2^((i+1)/16)-1 of
// the range: the largest has twice the keys of the smallest, and at any number
// of keys some are full and some are not (about 40 bytes a key, not 29 to 58).
const shards = 16

func (x *index) shard(h event.Hash) map[event.Hash]ref {
	return x.shards[x.byFirst[int(h[0])<<4|int(h[1])>>4]]
}

// refs appends to dst where records of keys with this hash are.
func (x *index) refs(dst []ref, h event.Hash) []ref {
	if r, ok := x.shard(h)[h]; ok {
		dst = append(append(dst, r), x.more[h]...)
	}
	return dst
}

// set changes the ref of one key from old to r; noRef stands for no key.
func (x *index) set(h event.Hash, old, r ref) {
	if old == r {
		return
	}
	shard := x.shard(h)
	first, known := shard[h]
	switch {
	case old == noRef && !known:
		shard[h] = r
		x.keys++
	case old == noRef:
		x.more[h] = append(x.more[h], r)
		x.keys++
	case r == noRef:
		x.remove(h, old)
		x.keys--
	case first == old:
		shard[h] = r
	default:
		x.more[h][slices.Index(x.more[h], old)] = r
	}
}

// drop forgets the key whose latest record is at place, if there still is one.
func (x *index) drop(h event.Hash, place ref) {
	if first, ok := x.shard(h)[h]; ok && (first == place || slices.Contains(x.more[h], place)) {
		x.set(h, place, noRef)
	}
}

// at gives where the index has the record at place: the place itself, or the slot
// of an open record; noRef when it is not the latest of its key.
func (x *index) at(h event.Hash, place ref) ref {
	var buf [4]ref
	for _, r := range x.refs(buf[:0], h) {
		if r == place || r.isSlot() && x.slots[r.slot()].place == place {
			return r
		}
	}
	return noRef
}

func (x *index) remove(h event.Hash, old ref) {
	more := x.more[h]
	switch {
	case x.shard(h)[h] != old:
		more = slices.DeleteFunc(more, func(r ref) bool { return r == old })
	case len(more) > 0:
		x.shard(h)[h], more = more[0], more[1:]
	default:
		delete(x.shard(h), h)
	}
	if len(more) == 0 {
		delete(x.more, h)
		return
	}
	x.more[h] = more
}

// put makes e the latest record of its key and gives where it is to be found
// from now on. What is put without being counted is counted by count, once all
// records are known.
func (x *index) put(e *entry) ref {
	if !e.rec.State.Open() {
		if e.old.isSlot() {
			x.release(e.old.slot())
		}
		r := e.place
		if e.rec.State == dedup.Free {
			r = noRef
		}
		x.set(e.hash, e.old, r)
		return r
	}
	r := e.old
	if !r.isSlot() {
		r = x.take()
		x.set(e.hash, e.old, r)
	}
	x.fill(x.slots[r.slot()], e)
	return r
}

func (x *index) take() ref {
	if n := len(x.free); n > 0 {
		i := x.free[n-1]
		x.free = x.free[:n-1]
		return slotBit | ref(i)
	}
	x.slots = append(x.slots, &slot{})
	return slotBit | ref(len(x.slots)-1)
}

func (x *index) release(i int) {
	s := x.slots[i]
	if s.of != nil {
		s.of.open[s.state]--
		s.of.alarms.set(s, 0)
	}
	*s = slot{}
	x.free = append(x.free, i)
}

func (x *index) fill(s *slot, e *entry) {
	if s.of != nil {
		s.of.open[s.state]--
	}
	rearmed := s.alarm
	if e.rec.Fence != s.fence || e.rec.WakeAt() != s.wake {
		rearmed = e.rec.WakeAt()
	}
	s.hash, s.place, s.number, s.change = e.hash, e.place, e.number, cmp.Or(e.change, e.number)
	s.fence, s.state, s.owner = e.rec.Fence, e.rec.State, e.rec.Owner
	s.reason, s.wake = e.rec.Reason.Code, e.rec.WakeAt()
	s.rec = e.rec
	if !e.counted {
		return
	}
	s.forget()
	if s.of == nil {
		s.of = x.agenda(e.handler)
	}
	s.of.open[s.state]++
	s.of.ring(s, rearmed)
}

// forget drops the record of a slot that can be read from disk. Runs keep
// theirs: they are few, and their end is near.
func (s *slot) forget() {
	if s.place != noRef && s.state != dedup.Started {
		s.rec = nil
	}
}

// agenda gives the agenda of a handler, a new one if needed.
func (x *index) agenda(handler string) *agenda {
	a := x.agendas[handler]
	if a == nil {
		a = &agenda{wake: make(chan struct{}, 1)}
		x.agendas[handler] = a
	}
	return a
}

// count takes the open records that were put without a handler into account.
func (x *index) count() error {
	for _, s := range x.slots {
		if !s.inUse() {
			continue
		}
		parts, err := event.DecodeKey(s.rec.Key.Tuple)
		if err != nil {
			return err
		}
		s.of = x.agenda(parts.Handler)
		s.of.open[s.state]++
		s.of.ring(s, s.wake)
		s.forget()
	}
	return nil
}

// inUse reports whether the slot holds a record.
func (s *slot) inUse() bool { return s.state != dedup.Free }

package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// Payload says how a suppressed delivery's payload compares to that of the
// record it met.
type Payload uint8

// The comparisons.
const (
	NotCompared Payload = iota // no fingerprint, other rules, or another origin
	Same
	Different
)

// String gives the comparison as CLI and API write it.
func (p Payload) String() string {
	return [...]string{"not-compared", "same", "different"}[min(p, Different)]
}

// Entry is one suppression, or a number of them that are told together. Times
// are kept to the millisecond.
type Entry struct {
	Key     event.Hash // of the run whose record decided
	Event   uint64     // names the event within the ledger, whichever handler
	Handler string     // id
	Source  string     // id
	Type    string     // at most maxWord bytes
	Origin  event.Origin

	Verdict    dedup.Verdict // why it was not run
	Payload    Payload
	Redelivery bool // the queue gave the same delivery again; nobody sent it again
	Arrival    bool // the platform sent the event again: it counts in the distribution

	At       dedup.Time // when it was suppressed
	Received dedup.Time // when the delivery arrived
	Seq      uint64     // its sequence in the stream

	State     dedup.State // of the record
	Fence     dedup.Fence
	RecordSeq uint64     // sequence of the event that the record runs
	FirstSeen dedup.Time // of the record
	Since     dedup.Time // DONE: committed; others: started; 0 when it never did

	// Count is how many suppressions the entry stands for. The other fields are
	// those of the last one; Received and FirstSeen those of the longest delay.
	Count uint64
	First dedup.Time // when the first of them was suppressed
}

// Delay is how long after the record was made the delivery arrived, at least 0.
// Where the first copy had waited in the queue the record is younger than its
// arrival, and the delay that much shorter than that between the arrivals.
func (e *Entry) Delay() time.Duration {
	if e.FirstSeen == 0 || e.Received == 0 {
		return 0
	}
	return max(0, time.Duration(e.Received-e.FirstSeen))
}

// NewEntry describes a delivery of ev, at seq, that handler (its id) did not run
// because of rec, whose key is key.
func NewEntry(at time.Time, key event.Key, handler string, ev *event.Event, seq uint64, v dedup.Verdict, rec *dedup.Record) Entry {
	e := Entry{
		Key: key.Hash, Event: eventHash(ev), Handler: handler, Source: ev.Source, Type: ev.Type, Origin: ev.Origin,
		Verdict: v, Payload: compare(ev, rec), At: whole(dedup.At(at)), Received: whole(dedup.At(ev.Received)), Seq: seq,
		State: rec.State, Fence: rec.Fence, RecordSeq: rec.Seq, FirstSeen: whole(rec.FirstSeen), Since: whole(rec.Started),
		Count: 1, First: whole(dedup.At(at)),
	}
	if rec.State == dedup.Done {
		e.Since = whole(rec.Committed)
	}
	e.Redelivery = rec.Seq == seq && e.Received <= e.FirstSeen
	e.Arrival = !e.Redelivery && v != dedup.Mismatch && ev.Identity.Kind != event.KindUnkeyed &&
		ev.Origin == event.OriginCallback && rec.Origin == event.OriginCallback
	return e
}

func eventHash(ev *event.Event) uint64 {
	id := &ev.Identity
	sum := sha256.Sum256(event.AppendTuple(nil, ev.Source, id.Tenant, string(id.Kind), id.Type, id.ID))
	return binary.LittleEndian.Uint64(sum[:8])
}

func compare(ev *event.Event, rec *dedup.Record) Payload {
	a, b := ev.Fingerprint, rec.Fingerprint
	switch {
	case a.IsZero() || b.IsZero() || a.Rules != b.Rules || ev.Origin != rec.Origin:
		return NotCompared
	case a.Differs(b):
		return Different
	}
	return Same
}

// The kinds of a frame's payload. A word is named by its place among the words
// of its segment, and stands before the first entry that names it.
const (
	kindWord  = 1
	kindEntry = 2
)

// keyAt is where an entry's key stands in its payload.
const keyAt = 1

// maxWord is the longest word in bytes; longer ones are cut.
const maxWord = 128

var errEntry = errors.New("not an entry")

// appendEntry writes e; word gives the number of a word.
func appendEntry(b []byte, e *Entry, word func(string) uint64) []byte {
	b = append(b, kindEntry)
	b = append(b, e.Key[:]...)
	b = binary.LittleEndian.AppendUint64(b, e.Event)
	b = append(b, byte(e.Verdict), byte(e.State), byte(e.Payload)|flag(e.Redelivery, 4)|flag(e.Arrival, 8))
	for _, w := range [...]string{e.Handler, e.Source, e.Type, string(e.Origin)} {
		b = binary.AppendUvarint(b, word(w))
	}
	at := millis(e.At)
	b = binary.AppendUvarint(b, uint64(at))
	for _, t := range [...]dedup.Time{e.First, e.Received, e.FirstSeen, e.Since} {
		b = appendTime(b, at, t)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Fence))
	for _, n := range [...]uint64{e.Seq, e.RecordSeq, e.Count} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// decodeEntry reads what appendEntry writes.
func decodeEntry(b []byte, words []string) (Entry, error) {
	const fixed = 1 + 16 + 8 + 3
	if len(b) < fixed || b[0] != kindEntry {
		return Entry{}, errEntry
	}
	e := Entry{
		Key: event.Hash(b[keyAt : keyAt+16]), Event: binary.LittleEndian.Uint64(b[17:]),
		Verdict: dedup.Verdict(b[25]), State: dedup.State(b[26]),
		Payload: Payload(b[27] & 3), Redelivery: b[27]&4 != 0, Arrival: b[27]&8 != 0,
	}
	r := reader{b: b[fixed:]}
	e.Handler, e.Source, e.Type = r.word(words), r.word(words), r.word(words)
	e.Origin = event.Origin(r.word(words))
	at := int64(r.uvarint())
	e.At = r.moment(at)
	e.First, e.Received, e.FirstSeen, e.Since = r.time(at), r.time(at), r.time(at), r.time(at)
	e.Fence = dedup.Fence(r.fixed())
	e.Seq, e.RecordSeq, e.Count = r.uvarint(), r.uvarint(), r.uvarint()
	if r.bad || len(r.b) > 0 {
		return Entry{}, errEntry
	}
	return e, nil
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

func millis(t dedup.Time) int64 { return int64(t) / int64(time.Millisecond) }

// whole cuts t to what is kept of it.
func whole(t dedup.Time) dedup.Time { return fromMillis(millis(t)) }

func fromMillis(ms int64) dedup.Time { return dedup.Time(ms * int64(time.Millisecond)) }

// appendTime writes t by its distance from at: 0 for never.
func appendTime(b []byte, at int64, t dedup.Time) []byte {
	if t == 0 {
		return append(b, 0)
	}
	d := millis(t) - at
	return binary.AppendUvarint(b, uint64(d<<1^d>>63)+1)
}

// reader takes an entry apart; bad once something was missing.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) fixed() uint64 {
	if len(r.b) < 8 {
		r.bad = true
		return 0
	}
	n := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return n
}

func (r *reader) time(at int64) dedup.Time {
	n := r.uvarint()
	if n == 0 {
		return 0
	}
	n--
	return r.moment(at + (int64(n>>1) ^ -int64(n&1)))
}

// moment is a time that fits into one.
func (r *reader) moment(ms int64) dedup.Time {
	const most = math.MaxInt64 / int64(time.Millisecond)
	if ms > most || ms < -most {
		r.bad = true
		return 0
	}
	return fromMillis(ms)
}

func (r *reader) word(words []string) string {
	n := r.uvarint()
	if n >= uint64(len(words)) {
		r.bad = true
		return ""
	}
	return words[n]
}

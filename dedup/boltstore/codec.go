package boltstore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"

	"idemd/dedup"
	"idemd/event"
)

// A journal is a header and frames; a frame is what one group commit wrote:
//
//	mark 4 | crc32c 4 | length 4 | first record's number 8 | count 4 | records
//
// with the CRC over everything after it, begun with the CRC of the journal's
// header: a frame of another journal, or one that somebody hid in an event id,
// never passes. A record is
//
//	length 4 | crc32c of the body 4 | body
//
// so that one that is read by its place is verified by itself. The body of an
// open record that was carried out of an older journal begins with
//
//	carriedVersion 1 | number under which it was written first, uvarint
//
// and goes on as it was. Fixed numbers are little-endian.
const (
	recordVersion  = 1
	carriedVersion = 2
	recordHead     = 8
	maxRecord      = 64 << 10                              // of one body
	maxBody        = maxRecord + 1 + binary.MaxVarintLen64 // of one that was carried
	frameMark      = "\xf1idm"
	frameHead      = 24
	maxRecords     = 1024    // in a frame
	maxFrame       = 4 << 20 // of one, with its head; what would pass it goes into the next
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errRecord = errors.New("not a record")
	errFrame  = errors.New("not a frame")
)

// appendRecord appends r's body to dst.
func appendRecord(dst []byte, r *dedup.Record) []byte {
	var parked byte
	if r.Parked {
		parked = 1
	}
	dst = append(dst, recordVersion, byte(r.State), byte(r.Owner), byte(r.Effect), byte(r.Outcome), parked)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.Fence))
	dst = binary.AppendUvarint(dst, uint64(r.Attempts))
	for _, t := range [...]int64{
		int64(r.FirstSeen), int64(r.Started), int64(r.Lease), int64(r.LeaseFor),
		int64(r.Due), int64(r.Committed), int64(r.Expires),
	} {
		dst = binary.AppendVarint(dst, t)
	}
	dst = binary.AppendUvarint(dst, r.Seq)
	if r.Fingerprint.IsZero() {
		dst = append(dst, 0)
	} else {
		dst = append(append(append(dst, 1), r.Fingerprint.Sum[:]...), r.Fingerprint.Rules[:]...)
	}
	return event.AppendTuple(dst, r.Host, r.Reason.Code, r.Reason.Detail, string(r.Origin), r.Key.Tuple)
}

// interned holds one copy of each short string that many records share. A nil one
// copies.
type interned map[string]string

const maxNames = 4096

func (n interned) get(b []byte) string {
	if s, ok := n[string(b)]; ok {
		return s
	}
	s := string(b)
	if n != nil && len(n) < maxNames {
		n[s] = s
	}
	return s
}

// decodeRecord is the inverse of appendRecord. It returns errRecord for anything
// that appendRecord does not write, and ErrVersion for another version.
func decodeRecord(b []byte, shared interned) (*dedup.Record, error) {
	if len(b) > 0 && b[0] != recordVersion {
		return nil, ErrVersion
	}
	p := parser{b: b}
	fixed := p.take(6)
	if p.bad || fixed[1] > byte(dedup.Done) || fixed[2] > byte(dedup.External) ||
		fixed[3] > byte(dedup.Irrevocable) || fixed[4] > byte(dedup.OutcomeDropped) || fixed[5] > 1 {
		return nil, errRecord
	}
	r := &dedup.Record{
		State: dedup.State(fixed[1]), Owner: dedup.Owner(fixed[2]), Effect: dedup.Effect(fixed[3]),
		Outcome: dedup.Outcome(fixed[4]), Parked: fixed[5] == 1,
	}
	if f := p.take(8); !p.bad {
		r.Fence = dedup.Fence(binary.LittleEndian.Uint64(f))
	}
	attempts := p.uvarint()
	r.Attempts = uint32(attempts)
	p.bad = p.bad || uint64(r.Attempts) != attempts
	for _, t := range [...]*int64{
		(*int64)(&r.FirstSeen), (*int64)(&r.Started), (*int64)(&r.Lease), (*int64)(&r.LeaseFor),
		(*int64)(&r.Due), (*int64)(&r.Committed), (*int64)(&r.Expires),
	} {
		*t = p.varint()
	}
	r.Seq = p.uvarint()
	p.fingerprint(&r.Fingerprint)
	r.Host = shared.get(p.part())
	r.Reason.Code = shared.get(p.part())
	r.Reason.Detail = string(p.part())
	r.Origin = event.Origin(shared.get(p.part()))
	tuple := p.part()
	if p.bad || len(p.b) > 0 {
		return nil, errRecord
	}
	sum := sha256.Sum256(tuple)
	r.Key = event.Key{Hash: event.Hash(sum[:16]), Tuple: string(tuple)}
	return r, nil
}

// decodeBody reads a record's body, carried or not. The number is the one under
// which a carried record was written first, 0 for any other.
func decodeBody(b []byte, shared interned) (r *dedup.Record, changed uint64, err error) {
	if len(b) > 0 && b[0] == carriedVersion {
		p := parser{b: b[1:]}
		if changed = p.uvarint(); p.bad || changed == 0 {
			return nil, 0, errRecord
		}
		b = p.b
	}
	r, err = decodeRecord(b, shared)
	return r, changed, err
}

// parser takes fields off b; bad is set, and stays set, once one is not there or
// not written in its only form.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) take(n uint64) []byte {
	if p.bad || n > uint64(len(p.b)) {
		p.bad = true
		return nil
	}
	f := p.b[:n]
	p.b = p.b[n:]
	return f
}

func (p *parser) uvarint() uint64 {
	n, size := binary.Uvarint(p.b)
	if size <= 0 || size > 1 && p.b[size-1] == 0 {
		p.bad = true
		return 0
	}
	p.take(uint64(size))
	return n
}

func (p *parser) varint() int64 {
	u := p.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (p *parser) part() []byte { return p.take(p.uvarint()) }

func (p *parser) fingerprint(f *event.Fingerprint) {
	flag := p.take(1)
	if p.bad || flag[0] == 0 {
		return
	}
	sum, rules := p.take(uint64(len(f.Sum))), p.take(uint64(len(f.Rules)))
	copy(f.Sum[:], sum)
	copy(f.Rules[:], rules)
	p.bad = p.bad || flag[0] != 1 || f.IsZero()
}

// appendEntry appends r to the records of a frame; changed is as in decodeBody. It
// returns ErrTooLarge, and dst as it was, when r has no place in one.
func appendEntry(dst []byte, r *dedup.Record, changed uint64) ([]byte, error) {
	start := len(dst)
	dst = append(dst, make([]byte, recordHead)...)
	head := len(dst)
	if changed > 0 {
		dst = binary.AppendUvarint(append(dst, carriedVersion), changed)
		head = len(dst) // it had its place before it was carried
	}
	dst = appendRecord(dst, r)
	if len(dst)-head > maxRecord {
		return dst[:start], ErrTooLarge
	}
	body := dst[start+recordHead:]
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(body)))
	binary.LittleEndian.PutUint32(dst[start+4:], crc32.Checksum(body, castagnoli))
	return dst, nil
}

// takeEntry gives the body of the first record in b, verified, and the rest.
func takeEntry(b []byte) (body, rest []byte, err error) {
	p := parser{b: b}
	head := p.take(recordHead)
	if p.bad {
		return nil, nil, errRecord
	}
	body = p.take(uint64(binary.LittleEndian.Uint32(head)))
	if p.bad || crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, nil, errRecord
	}
	return body, p.b, nil
}

// finishFrame writes the head of a frame: b is frameHead free bytes and the
// records.
func finishFrame(b []byte, seed uint32, first uint64, count int) {
	copy(b, frameMark)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-frameHead))
	binary.LittleEndian.PutUint64(b[12:], first)
	binary.LittleEndian.PutUint32(b[20:], uint32(count))
	binary.LittleEndian.PutUint32(b[4:], crc32.Update(seed, castagnoli, b[8:]))
}

// frame is a frame's head.
type frame struct {
	sum    uint32
	length int // of the records
	first  uint64
	count  int
}

func parseFrame(b []byte) (frame, error) {
	if len(b) < frameHead || string(b[:4]) != frameMark {
		return frame{}, errFrame
	}
	f := frame{
		sum:    binary.LittleEndian.Uint32(b[4:]),
		length: int(binary.LittleEndian.Uint32(b[8:])),
		first:  binary.LittleEndian.Uint64(b[12:]),
		count:  int(binary.LittleEndian.Uint32(b[20:])),
	}
	if f.length > maxFrame-frameHead || f.count < 1 || f.count > maxRecords {
		return frame{}, errFrame
	}
	return f, nil
}

// verify reports whether b, head and records, is the whole frame.
func (f frame) verify(b []byte, seed uint32) bool {
	return len(b) == frameHead+f.length && crc32.Update(seed, castagnoli, b[8:]) == f.sum
}

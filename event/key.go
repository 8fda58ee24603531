package event

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"
)

// keyVersion is the first part of every tuple. It changes when the meaning of
// the other parts does.
const keyVersion = "1"

// What follows the parts that every key has.
const (
	partMismatch  = "mismatch"
	partDuplicate = "duplicate"
)

// Hash is the first 16 bytes of the SHA-256 of a key's tuple. It indexes; the
// tuple decides.
type Hash [16]byte

// Key names one run of one event: (version, source, tenant, handler, kind,
// type, event id, batch), and for a payload that differs from the first one
// under that identity also ("mismatch", fingerprint), for a duplicate that is
// dealt with on its own also ("duplicate", handler that had the event, number).
type Key struct {
	Hash  Hash
	Tuple string // AppendTuple of the parts
}

// KeyFor gives the key under which handler (its id) runs e.
func KeyFor(e *Event, handler string) Key {
	return newKey(e.keyParts(handler))
}

// MismatchKey gives the key of a payload that came under a known identity with
// another fingerprint: its own, so that its repeats are duplicates of it.
func MismatchKey(e *Event, handler string) Key {
	return newKey(append(e.keyParts(handler), partMismatch, string(e.Fingerprint.Sum[:])))
}

// DuplicateKey gives the key under which handler deals with a duplicate of the
// run that the handler of has had of e. The number tells the duplicates of one
// event apart.
func DuplicateKey(e *Event, handler, of string, number uint64) Key {
	return newKey(append(e.keyParts(handler), partDuplicate, of, strconv.FormatUint(number, 10)))
}

func (e *Event) keyParts(handler string) []string {
	id := &e.Identity
	return []string{keyVersion, e.Source, id.Tenant, handler, string(id.Kind), id.Type, id.ID, e.Batch}
}

func newKey(parts []string) Key {
	return keyOf(AppendTuple(nil, parts...))
}

func keyOf(tuple []byte) Key {
	sum := sha256.Sum256(tuple)
	return Key{Hash: Hash(sum[:16]), Tuple: string(tuple)}
}

// ParseKey makes a Key from the bytes of its tuple. It returns ErrTuple when
// they are not those of a key.
func ParseKey(tuple string) (Key, error) {
	if _, err := DecodeKey(tuple); err != nil {
		return Key{}, err
	}
	return keyOf([]byte(tuple)), nil
}

// KeyParts are the parts of a Key's tuple, for people.
type KeyParts struct {
	Source   string
	Handler  string
	Identity Identity
	Batch    string
	Mismatch bool
	// DuplicateOf is the id of the handler that has had the event, in the key of
	// a duplicate, and Number tells such duplicates apart.
	DuplicateOf string
	Number      uint64
}

// DecodeKey takes a key's tuple apart. It returns ErrTuple when tuple is not
// one of this version.
func DecodeKey(tuple string) (KeyParts, error) {
	p, err := DecodeTuple([]byte(tuple))
	if err != nil {
		return KeyParts{}, err
	}
	if len(p) < 8 || p[0] != keyVersion {
		return KeyParts{}, ErrTuple
	}
	k := KeyParts{
		Source: p[1], Handler: p[3],
		Identity: Identity{Tenant: p[2], Kind: Kind(p[4]), Type: p[5], ID: p[6]},
		Batch:    p[7],
	}
	switch rest := p[8:]; {
	case len(rest) == 0:
	case len(rest) == 2 && rest[0] == partMismatch:
		k.Mismatch = true
	case len(rest) == 3 && rest[0] == partDuplicate:
		n, err := strconv.ParseUint(rest[2], 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != rest[2] {
			return KeyParts{}, ErrTuple
		}
		k.DuplicateOf, k.Number = rest[1], n
	default:
		return KeyParts{}, ErrTuple
	}
	return k, nil
}

// IsRunOf reports whether k is a key of e at handler in e's batch: its own, that
// of another payload under its identity, or that of a duplicate.
func (k Key) IsRunOf(e *Event, handler string) bool {
	if KeyFor(e, handler) == k || MismatchKey(e, handler) == k {
		return true
	}
	p, err := DecodeKey(k.Tuple)
	return err == nil && p.DuplicateOf != "" && DuplicateKey(e, handler, p.DuplicateOf, p.Number) == k
}

// RunID is the public name of a run, the Idempotency-Key that handlers get:
// "run_" and 26 characters.
func (k Key) RunID() string { return "run_" + publicID(k.Hash) }

// ID is the public name of the event: "evt_" and 26 characters. Handlers and
// batches do not change it.
func (e *Event) ID() string {
	id := &e.Identity
	return eventID(e.Source, id)
}

// EventID is the public name of the event that a key is about.
func (p *KeyParts) EventID() string { return eventID(p.Source, &p.Identity) }

func eventID(source string, id *Identity) string {
	sum := sha256.Sum256(AppendTuple(nil, keyVersion, source, id.Tenant, string(id.Kind), id.Type, id.ID))
	return "evt_" + publicID(Hash(sum[:16]))
}

var publicEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

func publicID(h Hash) string { return strings.ToLower(publicEncoding.EncodeToString(h[:])) }

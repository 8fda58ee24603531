package event

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind tells from what an event id was made. It is part of the key, so that a
// natural key can never equal a platform's id.
type Kind string

// The kinds of identity.
const (
	KindPlatform Kind = "platform" // the platform's own event id
	KindNatural  Kind = "natural"  // built from stable fields, declared per source and type
	KindUnkeyed  Kind = "unkeyed"  // no identity: a random id, no dedupe
	KindOversize Kind = "oversize" // an id over MaxID bytes: its SHA-256 stands for it; handlers park it
)

// MaxID is the longest event id in bytes that is kept as it is.
const MaxID = 1024

// Identity says which event this is within a source. Two requests with equal
// identities are the same event.
type Identity struct {
	Tenant string // who the event belongs to within the source (corp, account); may be empty
	Kind   Kind
	Type   string // the event's type where ids are unique per type only; else empty
	ID     string // opaque bytes: never parsed, folded or cut
}

// NewIdentity makes an identity of the given kind. An id that counts as missing
// gives an unkeyed one; one over MaxID bytes is replaced by its SHA-256 and
// marked KindOversize.
func NewIdentity(tenant string, kind Kind, typ, id string) Identity {
	switch {
	case Missing(id):
		return Unkeyed(tenant, typ)
	case len(id) > MaxID:
		sum := sha256.Sum256([]byte(id))
		return Identity{Tenant: tenant, Kind: KindOversize, Type: typ, ID: hex.EncodeToString(sum[:])}
	}
	return Identity{Tenant: tenant, Kind: kind, Type: typ, ID: id}
}

// Unkeyed makes an identity that equals no other one.
func Unkeyed(tenant, typ string) Identity {
	return Identity{Tenant: tenant, Kind: KindUnkeyed, Type: typ, ID: rand.Text()}
}

// Missing reports whether an id says nothing: empty, blanks only, "0" or
// "null". Such ids come from code that had no id, and would unite all of its
// events into one.
func Missing(id string) bool {
	switch strings.TrimSpace(id) {
	case "", "0", "null":
		return true
	}
	return false
}

// Is reports whether word names the event within its source: the id itself, or
// one part of an id that is made of several.
func (id *Identity) Is(word string) bool {
	return id.ID == word || id.Text() == word || slices.Contains(id.parts(), word)
}

// Text gives the id for people. An id that is made of several parts, such as
// agent, sender and message id, has them joined by "/"; digests and other bytes
// that cannot be printed are in hexadecimal. It is not unique: keys are made of
// the id itself.
func (id *Identity) Text() string {
	parts := slices.Clone(id.parts())
	for i, p := range parts {
		if !printable(p) {
			parts[i] = hex.EncodeToString([]byte(p))
		}
	}
	return strings.Join(parts, "/")
}

// parts takes an id apart that a scheme has put together with AppendTuple. The
// lengths in one cannot be printed, the ids of platforms can.
func (id *Identity) parts() []string {
	if printable(id.ID) {
		return []string{id.ID}
	}
	parts, err := DecodeTuple([]byte(id.ID))
	if err != nil {
		return []string{id.ID}
	}
	return parts
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

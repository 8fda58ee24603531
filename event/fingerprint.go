package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
)

// Fingerprint tells whether two payloads under one identity are the same. The
// zero value means that none was taken.
type Fingerprint struct {
	Sum   [32]byte // SHA-256 of the canonical payload
	Rules [8]byte  // names the rules that made Sum; only equal rules compare
}

// IsZero reports whether no fingerprint was taken.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Differs reports whether f and g were made by the same rules and say that the
// payloads differ. Fingerprints of different rules never differ.
func (f Fingerprint) Differs(g Fingerprint) bool {
	return !f.IsZero() && !g.IsZero() && f.Rules == g.Rules && f.Sum != g.Sum
}

// fingerprintVersion changes when canonical payloads are written differently.
const fingerprintVersion = "1"

// FingerprintRules says how a source's payloads are compared.
type FingerprintRules struct {
	volatile map[string]bool
	rules    [8]byte
}

// NewFingerprintRules makes rules that leave out the JSON values at the given
// paths: member names joined by dots, array positions left out
// ("ApprovalInfo.SpRecord.Speech"). A name alone is a path of the top level.
func NewFingerprintRules(volatile []string) FingerprintRules {
	paths := slices.Sorted(slices.Values(volatile))
	sum := sha256.Sum256(AppendTuple(nil, append([]string{fingerprintVersion}, paths...)...))
	set := make(map[string]bool, len(paths))
	for _, p := range paths {
		set[p] = true
	}
	return FingerprintRules{volatile: set, rules: [8]byte(sum[:8])}
}

// Of takes the fingerprint of body. JSON is compared by value: white space and
// the order of members do not count, numbers count as written, and of members
// with one name the last one counts. Anything else, and JSON that escapes half a
// character, is compared byte for byte.
func (r FingerprintRules) Of(body []byte) Fingerprint {
	canonical := body
	if v, err := decodeJSON(body); err == nil && !HasLoneSurrogate(body) {
		canonical = r.append(make([]byte, 0, len(body)), v, "")
	}
	return Fingerprint{Sum: sha256.Sum256(canonical), Rules: r.rules}
}

func decodeJSON(body []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

// append writes v in canonical form: one letter for the type, lengths before
// contents, members sorted by name.
func (r FingerprintRules) append(dst []byte, v any, path string) []byte {
	switch v := v.(type) {
	case map[string]any:
		dst = append(dst, 'o')
		for _, name := range slices.Sorted(maps.Keys(v)) {
			sub := strings.TrimPrefix(path+"."+name, ".")
			if r.volatile[sub] {
				continue
			}
			dst = AppendTuple(append(dst, 'm'), name)
			dst = r.append(dst, v[name], sub)
		}
		return append(dst, 'e')
	case []any:
		dst = append(dst, 'a')
		for _, item := range v {
			dst = r.append(dst, item, path)
		}
		return append(dst, 'e')
	case string:
		return AppendTuple(append(dst, 's'), v)
	case json.Number:
		return AppendTuple(append(dst, 'n'), v.String())
	case bool:
		if v {
			return append(dst, 't')
		}
		return append(dst, 'f')
	}
	return append(dst, 'z') // null
}

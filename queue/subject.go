package queue

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"strings"

	"idemd/event"
)

// Subjects are ev.<source>.<type> and parked.<handler>.<key hash>. The names
// come from outside and may hold anything, so each becomes one token:
//
//	a plain name ([A-Za-z0-9_-]{1,64})    the name itself
//	up to maxEncoded bytes otherwise      "=" + base32hex, lower case
//	anything longer                       "==" + base32hex of its SHA-256
//
// "=" is in neither alphabet, so tokens of different forms never meet, and
// different names never share one. Tokens only route; the names themselves
// travel in the headers.
const (
	eventPrefix  = "ev."
	parkedPrefix = "parked."
	maxPlain     = 64
	maxEncoded   = 100
)

// token gives the subject token, or consumer name, that stands for name.
func token(name string) string {
	if isPlain(name) {
		return name
	}
	if len(name) <= maxEncoded {
		return "=" + base32hex([]byte(name))
	}
	sum := sha256.Sum256([]byte(name))
	return "==" + base32hex(sum[:])
}

func base32hex(b []byte) string {
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(b))
}

func isPlain(name string) bool {
	if name == "" || len(name) > maxPlain {
		return false
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

func eventSubject(ev *event.Event) string {
	return eventPrefix + token(ev.Source) + "." + token(ev.Type)
}

// sourceFilter matches every event of a source.
func sourceFilter(source string) string { return eventPrefix + token(source) + ".>" }

func parkedSubject(handler string, key event.Key) string {
	return parkedPrefix + token(handler) + "." + hex.EncodeToString(key.Hash[:])
}

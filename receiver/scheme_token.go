package receiver

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/textproto"
	"strings"
	"time"
)

// token is the scheme of senders that share a secret with us and send it with
// every request. The body is the event, as it comes.
type token struct {
	places
	path    string
	tokens  []string
	digests [][sha256.Size]byte // of tokens
	header  string              // canonical; "": Authorization: Bearer
}

var _ Scheme = (*token)(nil)

func validateToken(c SourceConfig) []Problem {
	ps := append(countSecrets("token", c.Token), unused(c, "token", placeFields("token", "header")...)...)
	return append(ps, validatePlaces(c)...)
}

func newToken(c SourceConfig) (Scheme, []Problem) {
	t := &token{
		places: newPlaces(c),
		path:   c.EffectivePath(),
		tokens: c.Token,
		header: textproto.CanonicalMIMEHeaderKey(c.Header),
	}
	if t.header == "Authorization" {
		t.header = ""
	}
	for _, secret := range c.Token {
		t.digests = append(t.digests, sha256.Sum256([]byte(secret)))
	}
	return t, validateTokens(c.Token)
}

// Open compares the token and identifies the event.
func (t *token) Open(req *Request, _ time.Time) (Opened, error) {
	index, err := t.authenticate(req.Header)
	if err != nil {
		return Opened{}, err
	}
	id := t.Identify(Payload{Body: req.Body, ContentType: req.Header.Get("Content-Type"), Header: req.Header})
	return Opened{Identified: id, SecretIndex: index}, nil
}

// CheckHeader checks the token: a body adds nothing to that.
func (t *token) CheckHeader(h http.Header, _ time.Time) error {
	_, err := t.authenticate(h)
	return err
}

// authenticate gives the index of the token that a request shows. Digests are
// compared, so that time tells neither contents nor length.
func (t *token) authenticate(h http.Header) (int, error) {
	values := h[cmp.Or(t.header, "Authorization")]
	if len(values) != 1 {
		return 0, unauthentic("check token: not exactly one header")
	}
	secret := values[0]
	if t.header == "" {
		scheme, rest, _ := strings.Cut(secret, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return 0, unauthentic("check token: no bearer token")
		}
		secret = strings.TrimSpace(rest)
	}
	got, index := sha256.Sum256([]byte(secret)), -1
	for i := range t.digests {
		if subtle.ConstantTimeCompare(got[:], t.digests[i][:]) == 1 {
			index = i
		}
	}
	if index < 0 {
		return 0, unauthentic("check token")
	}
	return index, nil
}

// Sign adds the token, and the id if the source takes it from a header.
func (t *token) Sign(payload []byte, id string, _ time.Time) (Signed, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	if t.header == "" {
		h.Set("Authorization", "Bearer "+t.tokens[0])
	} else {
		h.Set(t.header, t.tokens[0])
	}
	t.fill(h, id)
	return Signed{Path: t.path, Header: h, Body: payload}, nil
}

package receiver

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Values of SourceConfig.Algorithm.
const (
	AlgorithmSHA1   = "sha1"
	AlgorithmSHA256 = "sha256"
	AlgorithmSHA512 = "sha512"
)

// Values of SourceConfig.Encoding.
const (
	EncodingHex       = "hex"
	EncodingBase64    = "base64"
	EncodingBase64URL = "base64url"
)

// maxSignatures bounds the entries of one header: nobody is authenticated yet.
const maxSignatures = 16

// hmacScheme is the scheme of senders that sign each request with a secret that
// they share with us. How exactly, the source says. The body is the event, as
// it comes; id and type are authentic only where they are part of what is signed.
type hmacScheme struct {
	places
	path      string
	secrets   []string
	hash      func() hash.Hash
	size      int // of a signature, bytes
	encoding  signatureEncoding
	header    string // canonical, as all headers here
	prefix    string
	separator string // "": the header is one signature
	timestamp string // header
	signed    template
	tolerance time.Duration
}

var _ Scheme = (*hmacScheme)(nil)

func hashOf(algorithm string) func() hash.Hash {
	switch algorithm {
	case AlgorithmSHA1:
		return sha1.New
	case "", AlgorithmSHA256:
		return sha256.New
	case AlgorithmSHA512:
		return sha512.New
	}
	return nil
}

// signatureEncoding writes and reads signatures in one alphabet. Each signature
// has one spelling, except for the case of hex digits and the padding of base64.
type signatureEncoding struct{ base64 *base64.Encoding } // nil: hex

func encodingOf(name string) (enc signatureEncoding, ok bool) {
	switch name {
	case "", EncodingHex:
		return signatureEncoding{}, true
	case EncodingBase64:
		return signatureEncoding{base64.RawStdEncoding.Strict()}, true
	case EncodingBase64URL:
		return signatureEncoding{base64.RawURLEncoding.Strict()}, true
	}
	return signatureEncoding{}, false
}

func (e signatureEncoding) encode(mac []byte) string {
	if e.base64 == nil {
		return hex.EncodeToString(mac)
	}
	text := e.base64.EncodeToString(mac)
	return text + strings.Repeat("=", -len(text)&3)
}

// decode gives a signature of size bytes, or nil.
func (e signatureEncoding) decode(text string, size int) []byte {
	var mac []byte
	var err error
	switch {
	case len(text) > 2*size: // longer than hex
		return nil
	case e.base64 == nil:
		mac, err = hex.DecodeString(text)
	case strings.ContainsAny(text, "\r\n"): // which the decoder would skip
		return nil
	default:
		if len(text)%4 == 0 {
			text = strings.TrimRight(text, "=")
		}
		mac, err = e.base64.DecodeString(text)
	}
	if err != nil || len(mac) != size {
		return nil
	}
	return mac
}

func validateHMAC(c SourceConfig) []Problem {
	ps := append(countSecrets("secret", c.Secret), unused(c, "hmac", placeFields(
		"secret", "algorithm", "encoding", "header", "prefix", "separator", "timestamp_header", "signed", "tolerance")...)...)
	ps = append(ps, validatePlaces(c)...)
	add := func(field, what, hint string) { ps = append(ps, Problem{Field: field, What: what, Hint: hint}) }
	if c.Header == "" {
		add("header", "is missing", `write the name of the header that holds the signature, such as "X-Hub-Signature-256"`)
	}
	if hashOf(c.Algorithm) == nil {
		add("algorithm", fmt.Sprintf("%q is not an algorithm", c.Algorithm), `write "sha1", "sha256" or "sha512"`)
	}
	if _, ok := encodingOf(c.Encoding); !ok {
		add("encoding", fmt.Sprintf("%q is not an encoding", c.Encoding), `write "hex", "base64" or "base64url"`)
	}
	if c.TimestampHeader != "" && !validHeader(c.TimestampHeader) {
		add("timestamp_header", fmt.Sprintf("%q is not the name of a header", c.TimestampHeader), "use letters, digits and -")
	}
	switch {
	case c.Tolerance < 0 && c.Tolerance != AgeOff:
		add("tolerance", "is negative", `write "5m", or "off"`)
	case c.Tolerance != 0 && c.TimestampHeader == "":
		add("tolerance", "means nothing without a timestamp", "name the timestamp_header, or remove it")
	}
	signed, what := parseTemplate(cmp.Or(c.Signed, "{body}"))
	const hint = `write what the sender signs, such as "{body}" or "{timestamp}.{body}"`
	switch {
	case what != "":
		add("signed", what, hint)
	case signed.has(partTimestamp) && c.TimestampHeader == "":
		add("signed", "needs a timestamp", "name the timestamp_header")
	case signed.has(partID) && c.IDHeader == "":
		add("signed", "needs an id that stands in a header", "name the id_header")
	case c.TimestampHeader != "" && !signed.has(partTimestamp):
		add("signed", "has no {timestamp}: anybody could make an old request new", hint+"; or remove timestamp_header")
	}
	return ps
}

func newHMAC(c SourceConfig) (Scheme, []Problem) {
	s := &hmacScheme{
		places:    newPlaces(c),
		path:      c.EffectivePath(),
		secrets:   c.Secret,
		hash:      hashOf(c.Algorithm),
		header:    textproto.CanonicalMIMEHeaderKey(c.Header),
		prefix:    c.Prefix,
		separator: c.Separator,
		timestamp: textproto.CanonicalMIMEHeaderKey(c.TimestampHeader),
		tolerance: cmp.Or(c.Tolerance, DefaultTolerance),
	}
	if s.hash != nil { // else validateHMAC has said so
		s.size = s.hash().Size()
	}
	s.encoding, _ = encodingOf(c.Encoding)
	s.signed, _ = parseTemplate(cmp.Or(c.Signed, "{body}"))
	var ps []Problem
	for _, secret := range c.Secret {
		switch {
		case secret == "":
			ps = append(ps, Problem{Field: "secret", What: "is empty", Hint: "check where the secret comes from"})
		case secret != strings.TrimSpace(secret) || strings.ContainsFunc(secret, unicode.IsControl):
			ps = append(ps, Problem{Field: "secret", What: "has blanks around it or control characters", Hint: "copy it again, without a line end"})
		}
	}
	return s, ps
}

// claim is what the headers of a request say, before it is known to be true.
type claim struct {
	signatures [][]byte
	timestamp  string
	id         string
}

// read takes from the headers what the signature is about. It refuses what no
// body could make right.
func (s *hmacScheme) read(h http.Header, now time.Time) (claim, error) {
	values := h[s.header]
	if len(values) != 1 {
		return claim{}, unauthentic("check signature: not exactly one header")
	}
	var c claim
	entries := values
	if s.separator != "" {
		entries = strings.SplitN(values[0], s.separator, maxSignatures+1)
	}
	if len(entries) > maxSignatures {
		return claim{}, unauthentic("check signature: too many in one header")
	}
	for _, entry := range entries {
		if text, ok := strings.CutPrefix(strings.TrimSpace(entry), s.prefix); ok {
			if mac := s.encoding.decode(text, s.size); mac != nil {
				c.signatures = append(c.signatures, mac)
			}
		}
	}
	if len(c.signatures) == 0 {
		return claim{}, unauthentic("check signature: the header holds none")
	}
	if s.timestamp != "" {
		if values := h[s.timestamp]; len(values) == 1 {
			c.timestamp = values[0]
		}
		if err := s.checkTime(c.timestamp, now); err != nil {
			return claim{}, err
		}
	}
	if s.signed.has(partID) {
		if values := h[s.idHeader]; len(values) == 1 {
			c.id = values[0]
		}
		if c.id == "" || strings.ContainsAny(c.id, s.signed.notInID) {
			return claim{}, unauthentic("check signature: no id, or one that holds what separates it from the rest")
		}
	}
	return c, nil
}

// checkTime takes Unix seconds, of up to 11 digits, and milliseconds of 13.
func (s *hmacScheme) checkTime(text string, now time.Time) error {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || len(text) > 11 && len(text) != 13 {
		return unauthentic("check timestamp: none, or not Unix time")
	}
	at := time.Unix(int64(n), 0)
	if len(text) == 13 {
		at = time.UnixMilli(int64(n))
	}
	if s.tolerance != AgeOff && now.Sub(at).Abs() > s.tolerance {
		return unauthentic("check timestamp: too far from now; if all requests are, look at the clock")
	}
	return nil
}

// CheckHeader checks the form of the signature, and the timestamp.
func (s *hmacScheme) CheckHeader(h http.Header, now time.Time) error {
	_, err := s.read(h, now)
	return err
}

// mac gives the signature of a request.
func (s *hmacScheme) mac(secret string, c *claim, body []byte) []byte {
	m := hmac.New(s.hash, []byte(secret))
	for _, p := range s.signed.parts {
		switch p.kind {
		case partBody:
			m.Write(body)
		case partTimestamp:
			m.Write([]byte(c.timestamp))
		case partID:
			m.Write([]byte(c.id))
		default:
			m.Write([]byte(p.text))
		}
	}
	return m.Sum(nil)
}

// Open checks the signature and identifies the event.
func (s *hmacScheme) Open(req *Request, now time.Time) (Opened, error) {
	c, err := s.read(req.Header, now)
	if err != nil {
		return Opened{}, err
	}
	index := -1
	for i, secret := range s.secrets {
		want := s.mac(secret, &c, req.Body)
		for _, got := range c.signatures {
			if hmac.Equal(got, want) && index < 0 {
				index = i
			}
		}
	}
	if index < 0 {
		return Opened{}, unauthentic("check signature")
	}
	id := s.Identify(Payload{Body: req.Body, ContentType: req.Header.Get("Content-Type"), Header: req.Header})
	return Opened{Identified: id, SecretIndex: index}, nil
}

// Sign signs as the source says, and adds the id if it is taken from a header.
func (s *hmacScheme) Sign(payload []byte, id string, now time.Time) (Signed, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	s.fill(h, id)
	c := claim{id: id}
	if s.timestamp != "" {
		c.timestamp = strconv.FormatInt(now.Unix(), 10)
		h.Set(s.timestamp, c.timestamp)
	}
	if s.signed.has(partID) && (id == "" || strings.ContainsAny(id, s.signed.notInID)) {
		return Signed{}, fmt.Errorf("sign request: id %q is empty or holds one of %q, which separate it from the rest", id, s.signed.notInID)
	}
	h.Set(s.header, s.prefix+s.encoding.encode(s.mac(s.secrets[0], &c, payload)))
	return Signed{Path: s.path, Header: h, Body: payload}, nil
}

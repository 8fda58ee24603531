package receiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"idemd/event"
)

// The classes of refused requests. Open's errors wrap one of them.
var (
	// ErrAuth is returned when a request is not shown to come from the platform:
	// signature, token, receive id or age are wrong. It becomes 401.
	ErrAuth = errors.New("not authenticated")

	// ErrMalformed is returned when a request is not what the scheme's protocol
	// prescribes. It becomes 400.
	ErrMalformed = errors.New("malformed")

	// ErrTooLarge is returned when a body is over the source's limit. It becomes 413.
	ErrTooLarge = errors.New("too large")

	// ErrSlow is returned when a body did not arrive in time. It becomes 400.
	ErrSlow = errors.New("too slow")
)

func malformed(what string) error { return fmt.Errorf("%s: %w", what, ErrMalformed) }

func unauthentic(what string) error { return fmt.Errorf("%s: %w", what, ErrAuth) }

// Scheme is how one platform calls: how a request is authenticated, and what
// makes two requests the same event. Its methods are safe for concurrent use
// and do no I/O.
type Scheme interface {
	// Open authenticates a request, decrypts it and identifies the event in it.
	// now is the wall clock for limits of age. Its errors wrap ErrAuth or
	// ErrMalformed and hold neither secrets, nor what a signature should have
	// been, nor parts of the payload. A payload that is authentic but cannot be
	// understood is no error: its type is event.TypeUnparsed.
	Open(req *Request, now time.Time) (Opened, error)

	// Identify gives the event of a payload that is known to be authentic, be it
	// that Open has decrypted it or that somebody fetched it from the platform.
	// It is the only place where this scheme's identities are made.
	Identify(p Payload) Identified

	// Sign makes the request that the platform would send for a payload, with
	// the first of the source's secrets. id goes where the scheme carries an
	// event id outside the payload, if it does.
	Sign(payload []byte, id string, now time.Time) (Signed, error)

	// Sample makes a payload to try a source with. id becomes its event id; the
	// same id gives the same payload, so that sending it again is a duplicate.
	Sample(id string) []byte
}

// Challenger is a Scheme whose platform verifies a callback URL with a GET
// before it uses it.
type Challenger interface {
	// Challenge gives the answer to a verification. Its errors are as Open's.
	Challenge(req *Request, now time.Time) (Reply, error)
}

// HeaderChecker is a Scheme that knows many a bad request by its headers.
type HeaderChecker interface {
	// CheckHeader refuses requests that no body could make good, before one is
	// read. Its errors are as Open's, which checks the headers again.
	CheckHeader(h http.Header, now time.Time) error
}

var (
	_ HeaderChecker = (*hmacScheme)(nil)
	_ HeaderChecker = (*token)(nil)
)

// Request is what a Scheme sees of an HTTP request.
type Request struct {
	Method   string
	RawQuery string
	Header   http.Header
	Body     []byte
}

// Payload is authentic data in which there is an event.
type Payload struct {
	Body        []byte
	ContentType string      // of Body, as its sender says; may be empty
	Tenant      string      // whom authentication showed to be its owner; empty: what the payload says
	Header      http.Header // for schemes that carry ids in headers; may be nil
}

// Identified is the event of a payload. Of Event, the fields Type, Identity,
// Time, ContentType and Body are set, and Fingerprint where the scheme gets it
// cheaper than from Body.
type Identified struct {
	Event   event.Event
	Repeats []string // paths that repeat in XML without being declared to
}

// Opened is an authenticated request.
type Opened struct {
	Identified
	Reply       Reply
	SecretIndex int // which of the source's secrets matched, the highest if several were needed
}

// Reply is what the platform wants to hear once the event is stored, with
// status 200.
type Reply struct {
	ContentType string
	Body        []byte
}

// Signed is a request as a platform would send it.
type Signed struct {
	Path     string // of the source
	RawQuery string
	Header   http.Header
	Body     []byte
}

// Request makes the HTTP request, to a receiver at base ("http://host:port").
func (s Signed) Request(ctx context.Context, base string) (*http.Request, error) {
	url := strings.TrimSuffix(base, "/") + s.Path
	if s.RawQuery != "" {
		url += "?" + s.RawQuery
	}
	var body io.Reader = http.NoBody
	if len(s.Body) > 0 {
		// A reader that cannot be read again: one request is one on the wire.
		body = io.NopCloser(bytes.NewReader(s.Body))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.ContentLength = int64(len(s.Body))
	req.Header = s.Header.Clone()
	return req, nil
}

// schemeEntry is one line of the table.
type schemeEntry struct {
	// validate reports what is wrong with a source apart from its secrets.
	validate func(SourceConfig) []Problem
	// build makes the scheme; it reports what is wrong with the secrets.
	build func(SourceConfig) (Scheme, []Problem)

	onRefuse string   // default of SourceConfig.OnRefuse
	volatile []string // default of SourceConfig.Volatile
}

// make builds the scheme with the table's defaults filled in.
func (e schemeEntry) make(c SourceConfig) (Scheme, []Problem) {
	if c.Volatile == nil {
		c.Volatile = e.volatile
	}
	return e.build(c)
}

// schemes is the table of all schemes. A new one is a line here, a file
// scheme_NAME.go and vectors in testdata/NAME.json.
var schemes = map[string]schemeEntry{
	"hmac":  {validateHMAC, newHMAC, OnRefuseStatus, nil},
	"token": {validateToken, newToken, OnRefuseStatus, nil},
	"wecom": {validateWecom, newWecom, OnRefuseHold, wecomVolatile()},
}

// maxType is the longest type in bytes: types become header values, subjects
// and metric labels.
const maxType = 256

// validType reports whether a platform's word can be an event's type.
func validType(typ string) bool {
	return typ != "" && len(typ) <= maxType && utf8.ValidString(typ) &&
		!strings.ContainsFunc(typ, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) })
}

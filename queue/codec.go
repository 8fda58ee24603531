package queue

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"idemd/event"
)

// The headers of a stored event. The body is the event's body, byte for byte.
// A header is left out when its value is empty or zero, and never present then.
const (
	headerPrefix      = "Idemd-"
	headerVersion     = "Idemd-Version"      // formatVersion
	headerIdentity    = "Idemd-Identity"     // base64url of the tuple (source, tenant, kind, identity type, id)
	headerType        = "Idemd-Type"         // escaped
	headerBatch       = "Idemd-Batch"        // escaped
	headerOrigin      = "Idemd-Origin"       // one of event's origins
	headerReceived    = "Idemd-Received"     // seconds.nanoseconds since 1970
	headerTime        = "Idemd-Time"         // the same
	headerFingerprint = "Idemd-Fingerprint"  // base64url of sum and rules
	headerContentType = "Idemd-Content-Type" // escaped
	headerKey         = "Idemd-Key"          // parked copies only: base64url of the key's tuple
)

// formatVersion changes when a reader of the old format would misread the new.
const formatVersion = "1"

// headroom is what a parked copy's headers may have over its event's.
const headroom = 64 << 10

// natsLine is what NATS adds: "NATS/1.0\r\n" and the last "\r\n".
const natsLine = 12

// encode writes ev as a message without a subject. It returns ErrTooLarge for
// an event over MaxMessage, and an error for one that decode would refuse.
func encode(ev *event.Event) (*nats.Msg, error) {
	if ev.Source == "" {
		return nil, errors.New("event has no source")
	}
	if !ev.Origin.Valid() {
		return nil, fmt.Errorf("event has unknown origin %q", string(ev.Origin))
	}
	h := make(nats.Header, 9)
	id := &ev.Identity
	put(h, headerVersion, formatVersion)
	put(h, headerIdentity, encodeBytes(event.AppendTuple(nil, ev.Source, id.Tenant, string(id.Kind), id.Type, id.ID)))
	put(h, headerType, url.PathEscape(ev.Type))
	put(h, headerBatch, url.PathEscape(ev.Batch))
	put(h, headerOrigin, string(ev.Origin))
	put(h, headerReceived, encodeTime(ev.Received))
	put(h, headerTime, encodeTime(ev.Time))
	put(h, headerContentType, url.PathEscape(ev.ContentType))
	if !ev.Fingerprint.IsZero() {
		put(h, headerFingerprint, encodeBytes(append(ev.Fingerprint.Sum[:], ev.Fingerprint.Rules[:]...)))
	}
	if messageSize(h, ev.Body) > MaxMessage {
		return nil, ErrTooLarge
	}
	return &nats.Msg{Header: h, Data: ev.Body}, nil
}

func put(h nats.Header, name, value string) {
	if value != "" {
		h[name] = []string{value}
	}
}

func messageSize(h nats.Header, body []byte) int {
	n := natsLine + len(body)
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}

// decode is the inverse of encode. It returns ErrFormat for anything that
// encode does not write; headers of other prefixes are none of its business.
func decode(h nats.Header, body []byte) (event.Event, error) {
	d := decoder{headers: h}
	ev := event.Event{
		Type:        d.text(headerType),
		Batch:       d.text(headerBatch),
		Origin:      event.Origin(d.value(headerOrigin)),
		Received:    d.time(headerReceived),
		Time:        d.time(headerTime),
		ContentType: d.text(headerContentType),
		Fingerprint: d.fingerprint(),
	}
	if v := d.value(headerVersion); v != formatVersion {
		d.fail("version %q", v)
	}
	if !ev.Origin.Valid() {
		d.fail("origin %q", string(ev.Origin))
	}
	d.identity(&ev)
	d.strangers()
	if d.err != nil {
		return event.Event{}, d.err
	}
	if len(body) > 0 {
		ev.Body = body
	}
	return ev, nil
}

// decoder reads headers and keeps the first thing that is wrong with them.
type decoder struct {
	headers nats.Header
	err     error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
	}
}

// value returns the header's only value, "" when it is left out.
func (d *decoder) value(name string) string {
	values, present := d.headers[name]
	if !present {
		return ""
	}
	if len(values) != 1 || values[0] == "" {
		d.fail("header %s has no single value", name)
		return ""
	}
	return values[0]
}

func (d *decoder) text(name string) string {
	v := d.value(name)
	text, err := url.PathUnescape(v)
	if err != nil || url.PathEscape(text) != v {
		d.fail("header %s is not escaped as written", name)
		return ""
	}
	return text
}

func (d *decoder) bytes(name string) []byte {
	v := d.value(name)
	b, err := base64.RawURLEncoding.Strict().DecodeString(v)
	if err != nil || encodeBytes(b) != v {
		d.fail("header %s is not base64url", name)
		return nil
	}
	return b
}

func (d *decoder) time(name string) time.Time {
	v := d.value(name)
	if v == "" {
		return time.Time{}
	}
	sec, nsec, _ := strings.Cut(v, ".")
	s, err := strconv.ParseInt(sec, 10, 64)
	ns, nerr := strconv.ParseInt(nsec, 10, 64)
	if err != nil || nerr != nil || ns < 0 || ns >= int64(time.Second) {
		d.fail("header %s is not a time", name)
		return time.Time{}
	}
	t := time.Unix(s, ns).UTC()
	if encodeTime(t) != v {
		d.fail("header %s is not a time as written", name)
	}
	return t
}

func (d *decoder) fingerprint() event.Fingerprint {
	var f event.Fingerprint
	b := d.bytes(headerFingerprint)
	if len(b) == 0 {
		return f
	}
	if len(b) != len(f.Sum)+len(f.Rules) {
		d.fail("header %s has %d bytes", headerFingerprint, len(b))
		return f
	}
	copy(f.Rules[:], b[copy(f.Sum[:], b):])
	if f.IsZero() {
		d.fail("header %s is zero", headerFingerprint)
	}
	return f
}

func (d *decoder) identity(ev *event.Event) {
	parts, err := event.DecodeTuple(d.bytes(headerIdentity))
	if err != nil || len(parts) != 5 || parts[0] == "" {
		d.fail("header %s is not an identity", headerIdentity)
		return
	}
	ev.Source = parts[0]
	ev.Identity = event.Identity{Tenant: parts[1], Kind: event.Kind(parts[2]), Type: parts[3], ID: parts[4]}
}

// strangers refuses headers in our name that this version does not know: to
// leave one out would change the event in silence.
func (d *decoder) strangers() {
	for name := range d.headers {
		switch name {
		case headerVersion, headerIdentity, headerType, headerBatch, headerOrigin, headerReceived,
			headerTime, headerFingerprint, headerContentType, headerKey:
			continue
		}
		if strings.HasPrefix(name, headerPrefix) {
			d.fail("header %q is unknown", name)
		}
	}
}

// encodeTime keeps every time.Time exactly; the zero time is "".
func encodeTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond())
}

func encodeBytes(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

package queue

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"idemd/event"
)

// strangeEvents is a list of events that are hard on an encoding.
func strangeEvents() map[string]*event.Event {
	const dirt = " \r\nIdemd-Version: 2\r\n\r\n\x00\xff%41:é "
	rules := event.NewFingerprintRules(nil)
	return map[string]*event.Event{
		"plain": newEvent(1),
		"least": {Source: "s", Origin: event.OriginReplay},
		"dirty": {
			Source: dirt, Type: dirt, Batch: dirt, ContentType: dirt, Origin: event.OriginReconcile,
			Identity: event.Identity{Tenant: dirt, Kind: event.Kind(dirt), Type: dirt, ID: dirt},
			Body:     []byte(dirt), Fingerprint: rules.Of([]byte(dirt)),
		},
		"before 1970": {Source: "s", Origin: event.OriginCallback, Time: time.Unix(-5, 7).UTC(), Received: time.Unix(0, 0).UTC()},
		"far future":  {Source: "s", Origin: event.OriginCallback, Time: time.Unix(1<<55, 999_999_999).UTC()},
		"year one":    {Source: "s", Origin: event.OriginCallback, Time: time.Time{}.Add(1)},
		"long": {
			Source: strings.Repeat("s", 500), Type: strings.Repeat("t.", 500), Origin: event.OriginCallback,
			Identity: event.Identity{Kind: event.KindPlatform, ID: strings.Repeat("i", event.MaxID)},
		},
	}
}

func TestCodec_EventsComeBackExactlyThroughTheServer(t *testing.T) {
	q := open(t, Config{})
	c := consume(t, q, ConsumerConfig{})
	for name, ev := range strangeEvents() {
		seq := publish(t, q, ev)
		m, err := q.Get(t.Context(), seq)
		if diff := cmp.Diff(*ev, m.Event); err != nil || diff != "" {
			t.Errorf("%s: get: %v %s", name, err, diff)
		}
		d := next(t, c)
		if diff := cmp.Diff(*ev, d.Event); d.Seq != seq || diff != "" {
			t.Errorf("%s: next: %s", name, diff)
		}
		ack(t, d)
	}
}

func TestDecode_RefusesWhatEncodeDoesNotWrite(t *testing.T) {
	good := strangeEvents()["dirty"]
	for name, spoil := range map[string]func(h nats.Header){
		"no version":    func(h nats.Header) { delete(h, headerVersion) },
		"other version": func(h nats.Header) { h[headerVersion] = []string{"2"} },
		"two versions":  func(h nats.Header) { h[headerVersion] = []string{"1", "1"} },
		"no value":      func(h nats.Header) { h[headerType] = nil },
		"empty value":   func(h nats.Header) { h[headerBatch] = []string{""} },
		"no identity":   func(h nats.Header) { delete(h, headerIdentity) },
		"short identity": func(h nats.Header) {
			h[headerIdentity] = []string{encodeBytes(event.AppendTuple(nil, "s", "t", "k", "id"))}
		},
		"no source": func(h nats.Header) {
			h[headerIdentity] = []string{encodeBytes(event.AppendTuple(nil, "", "", "", "", ""))}
		},
		"torn identity":      func(h nats.Header) { h[headerIdentity] = []string{h[headerIdentity][0][:10]} },
		"padded identity":    func(h nats.Header) { h[headerIdentity] = []string{h[headerIdentity][0] + "="} },
		"no origin":          func(h nats.Header) { delete(h, headerOrigin) },
		"unknown origin":     func(h nats.Header) { h[headerOrigin] = []string{"x"} },
		"needless escape":    func(h nats.Header) { h[headerType] = []string{"%41"} },
		"broken escape":      func(h nats.Header) { h[headerContentType] = []string{"%"} },
		"raw space":          func(h nats.Header) { h[headerBatch] = []string{"a b"} },
		"time in words":      func(h nats.Header) { h[headerTime] = []string{"now"} },
		"time without nanos": func(h nats.Header) { h[headerTime] = []string{"5"} },
		"short nanos":        func(h nats.Header) { h[headerTime] = []string{"5.1"} },
		"long nanos":         func(h nats.Header) { h[headerTime] = []string{"5.1000000000"} },
		"negative nanos":     func(h nats.Header) { h[headerTime] = []string{"5.-00000001"} },
		"signed time":        func(h nats.Header) { h[headerReceived] = []string{"+5.000000000"} },
		"zero time":          func(h nats.Header) { h[headerReceived] = []string{"-62135596800.000000000"} },
		"short fingerprint":  func(h nats.Header) { h[headerFingerprint] = []string{"AAAA"} },
		"zero fingerprint":   func(h nats.Header) { h[headerFingerprint] = []string{encodeBytes(make([]byte, 40))} },
		"unknown header":     func(h nats.Header) { h[headerPrefix+"New"] = []string{"x"} },
	} {
		h := maps.Clone(encoded(t, good).Header)
		spoil(h)
		ev, err := decode(h, nil)
		if !errors.Is(err, ErrFormat) || ev.Source != "" {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "é") {
			t.Errorf("%s: error tells the payload: %v", name, err)
		}
	}
}

func TestDecode_LeavesOtherHeadersAlone(t *testing.T) {
	msg := encoded(t, newEvent(0))
	msg.Header["Nats-Sequence"] = []string{"1"}
	if _, err := decode(msg.Header, msg.Data); err != nil {
		t.Error(err)
	}
}

// FuzzDecode: whatever decode accepts, encode writes again, to the letter.
func FuzzDecode(f *testing.F) {
	for _, ev := range strangeEvents() {
		msg, err := encode(ev)
		if err != nil {
			f.Fatal(err)
		}
		v := func(name string) string { return msg.Header.Get(name) }
		f.Add(v(headerVersion), v(headerIdentity), v(headerType), v(headerBatch), v(headerOrigin),
			v(headerReceived), v(headerTime), v(headerFingerprint), v(headerContentType), msg.Data)
	}
	f.Add("1", "AXMAAAAA", "", "", "callback", "5.1", "-0.000000001", "AA", "%zz", []byte(nil))
	f.Fuzz(func(t *testing.T, version, identity, typ, batch, origin, received, at, fingerprint, contentType string, body []byte) {
		h := make(nats.Header)
		put(h, headerVersion, version)
		put(h, headerIdentity, identity)
		put(h, headerType, typ)
		put(h, headerBatch, batch)
		put(h, headerOrigin, origin)
		put(h, headerReceived, received)
		put(h, headerTime, at)
		put(h, headerFingerprint, fingerprint)
		put(h, headerContentType, contentType)
		ev, err := decode(h, body)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		msg, err := encode(&ev)
		if errors.Is(err, ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		if diff := cmp.Diff(h, msg.Header); diff != "" || string(msg.Data) != string(body) {
			t.Error(diff)
		}
	})
}

// FuzzEncode: every event comes back as it was.
func FuzzEncode(f *testing.F) {
	f.Add("wecom", "change_contact", "corp", "platform", "", "id", "b", "text/xml", int64(1), int64(2), []byte("x"))
	f.Add("\x00", "a\r\nb", "\xff", " ", "%", "=", ".", ":", int64(-1), int64(1<<60), []byte("\r\n"))
	f.Fuzz(func(t *testing.T, source, typ, tenant, kind, idType, id, batch, contentType string, sec, nsec int64, body []byte) {
		ev := event.Event{
			Source: source, Type: typ, Batch: batch, ContentType: contentType, Origin: event.OriginCallback,
			Identity: event.Identity{Tenant: tenant, Kind: event.Kind(kind), Type: idType, ID: id},
			Received: time.Unix(sec, nsec).UTC(), Time: time.Unix(nsec, sec).UTC(),
		}
		if len(body) > 0 {
			ev.Body = body
			ev.Fingerprint = event.NewFingerprintRules(nil).Of(body)
		}
		msg, err := encode(&ev)
		if err != nil {
			if source != "" && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			return
		}
		got, err := decode(msg.Header, msg.Data)
		if diff := cmp.Diff(ev, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}

package receiver

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/event"
)

func hmacSource() SourceConfig {
	return SourceConfig{
		Name: "hooks", Scheme: "hmac", Secret: []string{"shared-secret-1"}, Header: "X-Signature", Prefix: "v1=",
		TimestampHeader: "X-Timestamp", IDHeader: "X-Event-Id", Signed: "{id}.{timestamp}.{body}",
	}
}

type hmacVector struct {
	ID     string
	Source SourceConfig
	Header http.Header
	Body   string
	Expect struct {
		Outcome, Type, Kind, Scope string
		EventID                    string `json:"event_id"`
		ContentType                string `json:"content_type"`
		Secret                     int
	}
}

func hmacVectors(t testing.TB) []hmacVector {
	t.Helper()
	var file struct {
		TestClock int64 `json:"test_clock"`
		Vectors   []hmacVector
	}
	readJSON(t, "testdata/hmac.json", &file)
	if len(file.Vectors) != 38 || file.TestClock != testClock {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	for i := range file.Vectors {
		file.Vectors[i].Source.Name, file.Vectors[i].Source.Scheme = "hooks", "hmac"
	}
	return file.Vectors
}

func TestHMAC_VectorsHaveTheirOutcome(t *testing.T) {
	for _, v := range hmacVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			rc, sink := readyReceiver(t, testClock, v.Source)
			req := post("/in/hooks", []byte(v.Body))
			req.Header = v.Header
			w, _ := serve(rc, req)
			if v.Expect.Outcome == "reject_401" {
				if w.Code != 401 || w.Body.String() != refusal || len(sink.stored()) != 0 {
					t.Errorf("answer %d %q, %d stored", w.Code, w.Body, len(sink.stored()))
				}
				return
			}
			if w.Code != 200 || w.Body.Len() != 0 || len(sink.stored()) != 1 {
				t.Fatalf("answer %d %q, %d stored", w.Code, w.Body, len(sink.stored()))
			}
			ev, want := sink.stored()[0], v.Expect
			if ev.Type != want.Type || string(ev.Identity.Kind) != want.Kind || ev.Identity.Type != want.Scope || ev.ContentType != want.ContentType {
				t.Errorf("event %s of %s, identity %+v", ev.Type, ev.ContentType, ev.Identity)
			}
			if want.Kind != "unkeyed" && ev.Identity.ID != want.EventID {
				t.Errorf("id %q, want %q", ev.Identity.ID, want.EventID)
			}
			if !bytes.Equal(ev.Body, []byte(v.Body)) || ev.Batch != "" {
				t.Errorf("event %+v", ev)
			}
			if rc.Stats()[0].Secrets[want.Secret] != 1 {
				t.Errorf("secrets %v", rc.Stats()[0].Secrets)
			}
		})
	}
}

// Every change of what is signed or of the signature, a stale clock and a wrong
// secret must each be refused, with errors that tell nothing.
func TestHMAC_MutatedVectorsAreRefused(t *testing.T) {
	mutated := 0
	for _, v := range hmacVectors(t) {
		if v.Expect.Outcome != "accept_200" || strings.Contains(v.Header.Get(v.Source.Header), v.Source.Separator) && v.Source.Separator != "" {
			continue // one of several signatures may be wrong
		}
		now := time.Unix(testClock, 0)
		open := func(c SourceConfig, h http.Header, body string, now time.Time) error {
			t.Helper()
			s, err := buildScheme(c)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Open(&Request{Method: http.MethodPost, Header: h, Body: []byte(body)}, now)
			return err
		}
		refused := func(what string, err error) {
			t.Helper()
			mutated++
			if !errors.Is(err, ErrAuth) {
				t.Errorf("%s: %s: %v", v.ID, what, err)
				return
			}
			for _, secret := range append(v.Source.Secret, v.Body, v.Header.Get(v.Source.Header)) {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%s: %s: error %q tells %q", v.ID, what, err, secret)
				}
			}
		}
		if err := open(v.Source, v.Header, v.Body, now); err != nil {
			t.Fatal(err)
		}
		for i := range v.Body {
			refused(fmt.Sprintf("body byte %d", i), open(v.Source, v.Header, flip(v.Body, i), now))
		}
		refused("longer body", open(v.Source, v.Header, v.Body+"\n", now))
		for name, h := range mutatedHeaders(&v) {
			refused(name, open(v.Source, h, v.Body, now))
		}
		wrong := v.Source
		wrong.Secret = []string{v.Source.Secret[0] + "x"}
		refused("wrong secret", open(wrong, v.Header, v.Body, now))
		if v.Source.TimestampHeader != "" && v.Source.Tolerance != AgeOff {
			refused("stale", open(v.Source, v.Header, v.Body, now.Add(601*time.Second)))
			refused("from the future", open(v.Source, v.Header, v.Body, now.Add(-601*time.Second)))
		}
	}
	if mutated < 1000 {
		t.Errorf("only %d mutations", mutated)
	}
}

func flip(s string, i int) string {
	b := []byte(s)
	b[i] ^= 1
	return string(b)
}

// mutatedHeaders are headers with one byte of what counts changed, or without
// it, or with it twice.
func mutatedHeaders(v *hmacVector) map[string]http.Header {
	all := map[string]http.Header{}
	names := []string{v.Source.Header}
	if v.Source.TimestampHeader != "" {
		names = append(names, v.Source.TimestampHeader)
	}
	if strings.Contains(v.Source.Signed, "{id}") {
		names = append(names, v.Source.IDHeader)
	}
	for _, name := range names {
		value := v.Header.Get(name)
		for i := range value {
			h := v.Header.Clone()
			h.Set(name, flip(value, i))
			all[fmt.Sprintf("%s byte %d", name, i)] = h
		}
		h := v.Header.Clone()
		h.Del(name)
		all["without "+name] = h
		h = v.Header.Clone()
		h.Add(name, value)
		all["twice "+name] = h
	}
	return all
}

func TestHMAC_SignsInEveryWayThatItOpens(t *testing.T) {
	for _, algorithm := range []string{"", AlgorithmSHA1, AlgorithmSHA256, AlgorithmSHA512} {
		for _, encoding := range []string{"", EncodingHex, EncodingBase64, EncodingBase64URL} {
			for _, signed := range []string{"{id}.{timestamp}.{body}", "v0:{timestamp}:{body}", "{body}|{id}|{timestamp}"} {
				c := hmacSource()
				c.Algorithm, c.Encoding, c.Signed = algorithm, encoding, signed
				rc, sink := readyReceiver(t, testClock, c)
				if w, _ := serve(rc, signedRequest(t, c, "{}", testClock)); w.Code != 200 || len(sink.stored()) != 1 {
					t.Errorf("%s, %s, %s: %d", algorithm, encoding, signed, w.Code)
				}
			}
		}
	}
	if _, err := Sign(hmacSource(), nil, "a.b", time.Now()); err == nil {
		t.Error("an id that its platform could not have was signed")
	}
}

// One signature has one spelling, so that no two requests differ in it only.
func TestHMAC_SignatureHasOneSpelling(t *testing.T) {
	mac := bytes.Repeat([]byte{0xfb, 0xff}, 16)
	for name, c := range map[string]struct{ good, bad []string }{
		EncodingHex:       {[]string{strings.Repeat("fbff", 16), strings.Repeat("FBFF", 16)}, []string{strings.Repeat("fbff", 15), "0x" + strings.Repeat("fbff", 16)}},
		EncodingBase64:    {[]string{"+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/+/8=", "+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/+/8"}, []string{"+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/+/9=", "+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/+/8==", "-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-_8", "+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/\n+/8="}},
		EncodingBase64URL: {[]string{"-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-_8=", "-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-_8"}, []string{"-__7__v_-__7__v_-__7__v_-__7__v_-__7__v_-_9", "+//7//v/+//7//v/+//7//v/+//7//v/+//7//v/+/8="}},
	} {
		enc, ok := encodingOf(name)
		if !ok || enc.encode(mac) != c.good[0] {
			t.Errorf("%s: encoded as %s", name, enc.encode(mac))
		}
		for _, text := range c.good {
			if !bytes.Equal(enc.decode(text, len(mac)), mac) {
				t.Errorf("%s: %q is not read", name, text)
			}
		}
		for _, text := range c.bad {
			if enc.decode(text, len(mac)) != nil {
				t.Errorf("%s: %q is read", name, text)
			}
		}
	}
}

func TestHMAC_ProblemsAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*SourceConfig)
		field  string
	}{
		"no secret":            {func(c *SourceConfig) { c.Secret = nil }, "secret"},
		"three secrets":        {func(c *SourceConfig) { c.Secret = []string{"a", "b", "c"} }, "secret"},
		"token":                {func(c *SourceConfig) { c.Token = []string{"a"} }, "token"},
		"age":                  {func(c *SourceConfig) { c.MaxAge = time.Hour }, "max_age"},
		"no header":            {func(c *SourceConfig) { c.Header = "" }, "header"},
		"header name":          {func(c *SourceConfig) { c.Header = "X Sig" }, "header"},
		"timestamp name":       {func(c *SourceConfig) { c.TimestampHeader = "X Time" }, "timestamp_header"},
		"algorithm":            {func(c *SourceConfig) { c.Algorithm = "md5" }, "algorithm"},
		"encoding":             {func(c *SourceConfig) { c.Encoding = "base32" }, "encoding"},
		"negative tolerance":   {func(c *SourceConfig) { c.Tolerance = -time.Hour }, "tolerance"},
		"tolerance of nothing": {func(c *SourceConfig) { c.TimestampHeader, c.Signed, c.Tolerance = "", "", 1 }, "tolerance"},
		"unsigned timestamp":   {func(c *SourceConfig) { c.Signed = "" }, "signed"},
		"no timestamp":         {func(c *SourceConfig) { c.TimestampHeader = "" }, "signed"},
		"id of the body":       {func(c *SourceConfig) { c.IDHeader, c.IDPath = "", "id" }, "signed"},
		"no body":              {func(c *SourceConfig) { c.Signed = "{timestamp}" }, "signed"},
		"body twice":           {func(c *SourceConfig) { c.Signed = "{timestamp}.{body}.{body}" }, "signed"},
		"unknown part":         {func(c *SourceConfig) { c.Signed = "{timestamp}.{url}.{body}" }, "signed"},
		"open part":            {func(c *SourceConfig) { c.Signed = "{timestamp}.{body" }, "signed"},
		"side by side":         {func(c *SourceConfig) { c.Signed = "{timestamp}{body}" }, "signed"},
		"digit between":        {func(c *SourceConfig) { c.Signed = "{timestamp}.0{body}" }, "signed"},
		"secret of token":      {func(c *SourceConfig) { *c = tokenSource(); c.Secret = []string{"a"} }, "secret"},
		"signed of wecom":      {func(c *SourceConfig) { *c = wecomSource(); c.Signed = "{body}" }, "signed"},
	} {
		source := hmacSource()
		c.change(&source)
		problems := Validate([]SourceConfig{source})
		if len(problems) != 1 || problems[0].Field != c.field || problems[0].What == "" || problems[0].Hint == "" {
			t.Errorf("%s: %v", name, problems)
		}
	}
	for _, secret := range []string{"", " hidden-word", "hidden-word\n", "hidden\x00word"} {
		c := hmacSource()
		c.Secret = []string{secret}
		problems := ValidateSecrets([]SourceConfig{c})
		if len(problems) != 1 || problems[0].Field != "secret" || strings.Contains(problems[0].Error(), "hidden") {
			t.Errorf("%q: %v", secret, problems)
		}
	}
}

// FuzzHMAC: nothing is accepted that Sign would not have made of the same
// parts, and what is signed falls apart in one way only.
func FuzzHMAC(f *testing.F) {
	for _, v := range hmacVectors(f) {
		f.Add(v.Source.Signed, v.Source.Separator, v.Header.Get(v.Source.Header), "1760000000", "msg_1", []byte(v.Body))
	}
	now := time.Unix(testClock, 0)
	f.Fuzz(func(t *testing.T, signed, separator, signature, timestamp, id string, body []byte) {
		c := hmacSource()
		c.Signed, c.Separator, c.Prefix = signed, separator, ""
		s, err := buildScheme(c)
		if err != nil {
			return
		}
		h := http.Header{"X-Signature": {signature}, "X-Timestamp": {timestamp}, "X-Event-Id": {id}}
		if _, err := s.Open(&Request{Header: h, Body: body}, now); err == nil || !errors.Is(err, ErrAuth) {
			t.Fatalf("a made-up signature: %v", err)
		}
		request, err := s.Sign(body, id, now)
		if err != nil {
			return
		}
		right := request.Header.Get("X-Signature")
		if separator == "" {
			opened, err := s.Open(&Request{Header: request.Header, Body: body}, now)
			if err != nil || opened.Event.Identity.Kind == event.KindPlatform && opened.Event.Identity.ID != id {
				t.Fatalf("signed: %+v, %v", opened, err)
			}
		}
		if !strings.Contains(signed, "{id}") {
			return
		}
		// The same bytes under the same signature, with the id cut elsewhere.
		whole := slices.Concat([]byte(id), body)
		for i := range min(len(whole), 64) {
			if string(whole[:i]) == id {
				continue
			}
			h := http.Header{"X-Signature": {right}, "X-Timestamp": request.Header["X-Timestamp"], "X-Event-Id": {string(whole[:i])}}
			if _, err := s.Open(&Request{Header: h, Body: whole[i:]}, now); err == nil {
				t.Fatalf("%q: id %q and body %q taken for %q and %q", signed, id, body, whole[:i], whole[i:])
			}
		}
	})
}

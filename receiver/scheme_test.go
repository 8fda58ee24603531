package receiver

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"idemd/event"
)

// A scheme is a line of the table, a file and vectors: never one without the others.
func TestSchemes_TableFilesAndVectorsBelongTogether(t *testing.T) {
	files, err := filepath.Glob("scheme_*.go")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, f := range files {
		if name := strings.TrimSuffix(strings.TrimPrefix(f, "scheme_"), ".go"); !strings.HasSuffix(name, "test") {
			named = append(named, name)
		}
	}
	slices.Sort(named)
	if !slices.Equal(named, Schemes()) {
		t.Errorf("files are of %q, the table has %q", named, Schemes())
	}
	for name, entry := range schemes {
		if _, err := os.Stat("testdata/" + name + ".json"); err != nil {
			t.Errorf("scheme %s has no vectors: %v", name, err)
		}
		if entry.validate == nil || entry.build == nil || entry.onRefuse == "" {
			t.Errorf("scheme %s: line is not complete", name)
		}
	}
}

// What a scheme signs it opens, and refuses once the secret is another.
func TestSchemes_OpenWhatTheySign(t *testing.T) {
	now := time.Unix(testClock, 0)
	sources := map[string]SourceConfig{"hmac": hmacSource(), "token": tokenSource(), "wecom": wecomSource()}
	if !slices.Equal(slices.Sorted(maps.Keys(sources)), Schemes()) {
		t.Fatal("a scheme is missing here")
	}
	for name, c := range sources {
		payload, err := Sample(c, "id-1")
		if err != nil {
			t.Fatal(err)
		}
		signed, err := Sign(c, payload, "id-1", now)
		if err != nil {
			t.Fatal(err)
		}
		open := func(c SourceConfig) (Opened, error) {
			s, err := buildScheme(c)
			if err != nil {
				t.Fatal(err)
			}
			return s.Open(&Request{Method: http.MethodPost, RawQuery: signed.RawQuery, Header: signed.Header, Body: signed.Body}, now)
		}
		opened, err := open(c)
		if err != nil || opened.Event.Identity.Kind != event.KindPlatform || !strings.HasSuffix(opened.Event.Identity.ID, "id-1") || opened.SecretIndex != 0 {
			t.Errorf("%s: %+v, %v", name, opened, err)
		}
		rotated := c
		setSecrets(&rotated, "another-secret-1", slices.Concat(c.Token, c.Secret)[0])
		if opened, err := open(rotated); err != nil || opened.SecretIndex != 1 {
			t.Errorf("%s while the secret is replaced: index %d, %v", name, opened.SecretIndex, err)
		}
		replaced := c
		setSecrets(&replaced, "another-secret-1", "another-secret-2")
		if _, err := open(replaced); err == nil || strings.Contains(err.Error(), "secret-1") {
			t.Errorf("%s with another secret: %v", name, err)
		}
	}
}

func setSecrets(c *SourceConfig, secrets ...string) {
	if c.Scheme == "hmac" {
		c.Secret = secrets
		return
	}
	c.Token = secrets
}

func TestWecom_KeyIsReplacedWithoutAGap(t *testing.T) {
	now := time.Unix(testClock, 0)
	signed, err := Sign(wecomSource(), []byte(sysEvent("x")), "", now)
	if err != nil {
		t.Fatal(err)
	}
	c := wecomSource()
	c.EncodingAESKey = []string{strings.Repeat("A", 43), c.EncodingAESKey[0]}
	c.Token = append(c.Token, c.Token[0]) // only the key is new
	opened, err := wecomScheme(t, c).Open(&Request{RawQuery: signed.RawQuery, Body: signed.Body}, now)
	if err != nil || opened.SecretIndex != 1 || opened.Event.Type != "x" {
		t.Errorf("%+v, %v", opened, err)
	}
}

func TestToken_VectorsHaveTheirOutcome(t *testing.T) {
	var file struct {
		Vectors []struct {
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
	}
	readJSON(t, "testdata/token.json", &file)
	if len(file.Vectors) != 23 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	for _, v := range file.Vectors {
		t.Run(v.ID, func(t *testing.T) {
			v.Source.Name, v.Source.Scheme = "orders", "token"
			rc, sink := readyReceiver(t, testClock, v.Source)
			req := post("/in/orders", []byte(v.Body))
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
			if ev.Fingerprint.IsZero() != (want.Kind == "unkeyed") || ev.Batch != "" || ev.Identity.Tenant != "" {
				t.Errorf("event %+v", ev)
			}
			if !bytes.Equal(ev.Body, []byte(v.Body)) {
				t.Errorf("body %q", ev.Body)
			}
			if rc.Stats()[0].Secrets[want.Secret] != 1 {
				t.Errorf("secrets %v", rc.Stats()[0].Secrets)
			}
		})
	}
}

// The body is not signed; the token is, so to speak. Every byte of it counts.
func TestToken_MutatedTokensAreRefused(t *testing.T) {
	rc, sink := readyReceiver(t, testClock, tokenSource())
	good := "Bearer shared-secret-1"
	for i := range good {
		b := []byte(good)
		b[i] ^= 2
		req := post("/in/orders", []byte("{}"))
		req.Header.Set("Authorization", string(b))
		if w, _ := serve(rc, req); w.Code != 401 {
			t.Errorf("byte %d changed: %d", i, w.Code)
		}
	}
	if len(sink.stored()) != 0 {
		t.Error("something was stored")
	}
}

// Volatile members do not make a payload another one; the rest does.
func TestToken_FingerprintLeavesVolatileMembersOut(t *testing.T) {
	c := tokenSource()
	c.Volatile = []string{"meta.sent_at"}
	rc, sink := readyReceiver(t, testClock, c)
	for _, body := range []string{`{"a":1,"meta":{"sent_at":1}}`, `{"meta":{"sent_at":2},"a":1}`, `{"a":2,"meta":{"sent_at":1}}`} {
		serve(rc, signedRequest(t, c, body, testClock))
	}
	e := sink.stored()
	if len(e) != 3 || e[0].Fingerprint.Differs(e[1].Fingerprint) || !e[0].Fingerprint.Differs(e[2].Fingerprint) {
		t.Errorf("fingerprints %x", e)
	}
	if e[0].Identity != e[1].Identity || e[0].Identity != e[2].Identity {
		t.Error("identities differ")
	}
}

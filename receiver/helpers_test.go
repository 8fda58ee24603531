package receiver

import (
	"bytes"
	"context"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"idemd/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testClock is the clock of the vectors that were made for these tests.
const testClock = 1760000000

// sink is a queue that remembers what it was given.
type sink struct {
	mu     sync.Mutex
	events []event.Event
	err    error
	calls  int
}

func (s *sink) publish(_ context.Context, ev *event.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.err != nil {
		return s.err
	}
	s.events = append(s.events, *ev)
	return nil
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *sink) stored() []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]event.Event(nil), s.events...)
}

// readyReceiver makes a receiver of sources that stores into the sink.
func readyReceiver(t *testing.T, now int64, sources ...SourceConfig) (*Receiver, *sink) {
	t.Helper()
	s := &sink{}
	rc, err := New(Config{Sources: sources, Publish: s.publish, Now: func() time.Time { return time.Unix(now, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	rc.SetReady(StateReady)
	return rc, s
}

// serve runs one request and says whether its connection was closed without an answer.
func serve(rc *Receiver, r *http.Request) (w *httptest.ResponseRecorder, closed bool) {
	w = httptest.NewRecorder()
	defer func() {
		if v := recover(); v != nil {
			if v != http.ErrAbortHandler {
				panic(v)
			}
			closed = true
		}
	}()
	rc.ServeHTTP(w, r)
	return w, false
}

func post(target string, body []byte) *http.Request {
	return httptest.NewRequest(http.MethodPost, target, bytes.NewReader(body))
}

// wecomSource is the source of the vectors and events.
func wecomSource() SourceConfig {
	return SourceConfig{
		Name: "wecom", Scheme: "wecom", Token: []string{"idemdTestToken01"},
		EncodingAESKey: []string{"abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456"},
		ReceiveIDs:     []string{"ww00c0ffee00c0ffee"},
	}
}

func tokenSource() SourceConfig {
	return SourceConfig{Name: "orders", Scheme: "token", Token: []string{"shared-secret-1"}, IDHeader: "X-Event-Id"}
}

func wecomScheme(t testing.TB, c SourceConfig) *wecom {
	t.Helper()
	s, err := buildScheme(c)
	if err != nil {
		t.Fatal(err)
	}
	return s.(*wecom)
}

// signedRequest signs payload as the source's platform would.
func signedRequest(t testing.TB, c SourceConfig, payload string, now int64) *http.Request {
	t.Helper()
	signed, err := Sign(c, []byte(payload), "id-1", time.Unix(now, 0))
	if err != nil {
		t.Fatal(err)
	}
	r, err := signed.Request(t.Context(), "http://receiver")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readJSON(t testing.TB, name string, into any) {
	t.Helper()
	if err := json.Unmarshal(readFile(t, name), into); err != nil {
		t.Fatal(err)
	}
}

// identify gives the event of a WeCom message for the test corp.
func identify(t testing.TB, payload string) Identified {
	t.Helper()
	return wecomScheme(t, wecomSource()).Identify(Payload{Body: []byte(payload), Tenant: "ww00c0ffee00c0ffee"})
}

// keyOf gives the key under which a handler would run the event of payload.
func keyOf(id Identified) string {
	ev := id.Event
	ev.Source = "wecom"
	return event.KeyFor(&ev, "crm").Tuple
}

func mustContain(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%q does not contain %q", text, part)
	}
}

// sealRaw encrypts a frame as it is.
func sealRaw(key wecomKey, frame []byte) string {
	out := bytes.Clone(frame)
	cipher.NewCBCEncrypter(key.block, key.iv).CryptBlocks(out, out)
	return base64.StdEncoding.EncodeToString(out)
}

package consumer

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

const payload = `{"secret":"payload-secret"}`

func newHTTP(t *testing.T, cfg HTTPConfig) *HTTP {
	t.Helper()
	h, err := NewHTTP(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func attemptOf(ev *event.Event) *Attempt {
	return &Attempt{Event: ev, Key: event.KeyFor(ev, "crm"), Handler: "crm", Number: 3, Fence: 42}
}

func payloadEvent() *event.Event {
	ev := newEvent("e1")
	ev.Body = []byte(payload)
	return ev
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv
}

func TestHTTP_SendsTheEventWithItsHeaders(t *testing.T) {
	var got *http.Request
	var body []byte
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	key := []byte("0123456789abcdef")
	now := time.Unix(1_700_000_000, 0)
	h := newHTTP(t, HTTPConfig{
		URL:     strings.Replace(srv.URL, "http://", "http://user:pass@", 1) + "/crm?x=1#f",
		Headers: map[string]string{"X-Own": "mine"}, Secret: "whsec_" + base64.StdEncoding.EncodeToString(key),
		Now: func() time.Time { return now },
	})
	ev := payloadEvent()
	ev.Source, ev.Type, ev.Batch = "we com", "naïve \"x\"%\r\n", "b 1"
	ev.Time = time.Date(2026, 3, 1, 13, 0, 0, 5e6, time.FixedZone("", 3600))
	a := attemptOf(ev)
	if answer := h.Handle(t.Context(), a); answer != (Answer{Class: Done}) {
		t.Fatalf("answer %+v", answer)
	}
	run := a.Key.RunID()
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(run + ".1700000000." + payload))
	want := http.Header{
		"Content-Type": {"application/json"}, "Content-Length": {"27"}, "User-Agent": {"idemd"}, "X-Own": {"mine"},
		"Authorization":  {"Basic " + base64.StdEncoding.EncodeToString([]byte("user:pass"))},
		"Ce-Specversion": {"1.0"}, "Ce-Id": {ev.ID()}, "Ce-Source": {"/in/we%2520com"}, "Ce-Type": {"na%C3%AFve%20%22x%22%25%0D%0A"},
		"Ce-Time": {"2026-03-01T12:00:00.005Z"}, "Idempotency-Key": {run}, "Idemd-Attempt": {"3"}, "Idemd-Fence": {"42"},
		"Idemd-Handler": {"crm"}, "Idemd-Origin": {"callback"}, "Idemd-Batch": {"b%201"},
		"Webhook-Id": {run}, "Webhook-Timestamp": {"1700000000"},
		"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Error(diff)
	}
	if got.Method != http.MethodPost || got.URL.String() != "/crm?x=1" || string(body) != payload {
		t.Errorf("request was %s %s %q", got.Method, got.URL, body)
	}
}

// The example of the Standard Webhooks specification's own test vectors.
func TestSigner_AgreesWithTheSpecification(t *testing.T) {
	s, err := newSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	s.sign(h, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if got, want := h.Get("Webhook-Signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature is %s, want %s", got, want)
	}
}

func TestHTTP_EventWithoutTimeBatchOrMediaType(t *testing.T) {
	var got http.Header
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	h := newHTTP(t, HTTPConfig{URL: srv.URL})
	ev := payloadEvent()
	ev.ContentType = "text/\r\nX: y"
	h.Handle(t.Context(), attemptOf(ev))
	if got.Get("Ce-Time") != ev.Received.UTC().Format(time.RFC3339Nano) || got.Get("Content-Type") != "application/octet-stream" ||
		got.Values("Idemd-Batch") != nil || got.Values("Webhook-Id") != nil || got.Get("X") != "" {
		t.Errorf("headers are %v", got)
	}
}

// closer answers the first request of each connection, and has the effect of
// each further one but closes the connection instead of answering.
func closer(t *testing.T, effects *atomic.Int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { serveClosing(c, effects) })
		}
	})
	return "http://" + l.Addr().String()
}

func serveClosing(c net.Conn, effects *atomic.Int64) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for i := 0; ; i++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		effects.Add(1)
		if i > 0 {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

// One attempt is one request on the wire, also when a reused connection breaks
// after the request was sent, with and without a body. Case 23: that outcome is
// unknown.
func TestHTTP_OneEffectPerAttempt(t *testing.T) {
	for _, body := range []string{payload, ""} {
		var effects atomic.Int64
		h := newHTTP(t, HTTPConfig{URL: closer(t, &effects)})
		ev := payloadEvent()
		ev.Body = []byte(body)
		for i := range 20 {
			before := effects.Load()
			answer := h.Handle(t.Context(), attemptOf(ev))
			if n := effects.Load() - before; n != 1 {
				t.Fatalf("body %q: one attempt had %d effects", body, n)
			}
			want := Done
			if i%2 == 1 {
				want = Unknown
			}
			if answer.Class != want || answer.Endless {
				t.Fatalf("attempt %d is %+v, want %v", i, answer, want)
			}
		}
	}
}

// A server that closes idle connections: whatever is not known to have had no
// effect is not called so.
func TestHTTP_ClosedIdleConnectionIsNeverANoEffectThatHappened(t *testing.T) {
	var effects atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { effects.Add(1) }))
	srv.Config.IdleTimeout = time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	h := newHTTP(t, HTTPConfig{URL: srv.URL})
	ev := payloadEvent()
	for i := range 300 {
		before := effects.Load()
		answer := h.Handle(t.Context(), attemptOf(ev))
		switch n := effects.Load() - before; {
		case answer.Class == Done && n != 1, answer.Class == NoEffect && n != 0, n > 1:
			t.Fatalf("%d effects for %+v", n, answer)
		}
		<-time.After(time.Millisecond - time.Duration(i%10)*20*time.Microsecond) // around the server's timeout
	}
}

// deafAddress is one that nobody listens on, and that nobody else gets meanwhile.
func deafAddress(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Close(fd); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	addr, ok := name.(*syscall.SockaddrInet4)
	if err != nil || !ok {
		t.Fatal(name, err)
	}
	return fmt.Sprintf("127.0.0.1:%d", addr.Port)
}

func TestHTTP_ErrorsBeforeSendingHaveNoEffect(t *testing.T) {
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = discardLog()
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	plain := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") })
	for _, c := range []struct{ name, url, reason string }{
		{"refused", "http://" + deafAddress(t), "refused"},
		{"untrusted certificate", untrusted.URL, "tls"},
		{"no TLS there", strings.Replace(plain.URL, "http:", "https:", 1), "tls"},
		{"no such host", "http://no-such-host.invalid/", "dns"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHTTP(t, HTTPConfig{URL: c.url})
			answer := h.Handle(t.Context(), attemptOf(payloadEvent()))
			slowNames := c.reason == "dns" && answer.Reason.Code == "timeout" // a resolver that does not answer
			if answer.Class != NoEffect || !answer.Endless || answer.Reason.Code != c.reason && !slowNames {
				t.Errorf("answer is %+v, want no-effect %s", answer, c.reason)
			}
			wantContains(t, answer.Reason.Detail, "before anything was sent")
		})
	}
}

func TestHTTP_ErrorsAfterSendingAreUnknown(t *testing.T) {
	release := make(chan struct{})
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	hijacked := func(say string) string {
		return serve(t, func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := io.WriteString(c, say); err != nil {
				t.Error(err)
			}
			if tcp, ok := c.(*net.TCPConn); ok && say == "" {
				if err := tcp.SetLinger(0); err != nil { // a reset, not an end
					t.Error(err)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}).URL
	}
	for _, c := range []struct{ name, url, reason string }{
		{"timeout", hang.URL, "timeout"},
		{"reset", hijacked(""), "reset"},
		{"half an answer", hijacked("HTTP/1.1 200"), "eof"},
		{"not HTTP", hijacked("payload-secret\r\n\r\n"), "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHTTP(t, HTTPConfig{URL: c.url})
			patience := 10 * time.Second
			if c.reason == "timeout" {
				patience = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer := h.Handle(ctx, attemptOf(payloadEvent()))
			if answer.Class != Unknown || answer.Endless || answer.Reason.Code != c.reason {
				t.Errorf("answer is %+v, want unknown %s", answer, c.reason)
			}
		})
	}
}

func TestHTTP_FollowsNoRedirect(t *testing.T) {
	var followed atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/307":
			w.Header().Set("Location", "/target")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case "/302":
			w.Header().Set("Location", "/target")
			w.WriteHeader(http.StatusFound)
		case "/bad":
			w.Header().Set("Location", "http://%zz/")
			w.WriteHeader(http.StatusFound)
		default:
			followed.Add(1)
		}
	})
	for _, path := range []string{"/307", "/302", "/bad"} {
		h := newHTTP(t, HTTPConfig{URL: srv.URL + path})
		if answer := h.Handle(t.Context(), attemptOf(payloadEvent())); answer.Class != Permanent {
			t.Errorf("%s is %+v", path, answer)
		}
	}
	if followed.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// Connections are used again, also after answers with a body; an endless body
// costs its connection and nothing else.
func TestHTTP_ReusesConnections(t *testing.T) {
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := maxAnswer / 2
		if r.URL.Path == "/long" {
			size = 64 * maxAnswer
		}
		w.WriteHeader(http.StatusInternalServerError)
		if _, err := w.Write(make([]byte, size)); err != nil && r.URL.Path != "/long" {
			t.Error(err)
		}
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	h := newHTTP(t, HTTPConfig{URL: srv.URL, Concurrency: 4})
	for range 10 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if a := h.Handle(t.Context(), attemptOf(payloadEvent())); a.Class != Unknown || a.Reason.Code != "http-500" {
					t.Errorf("answer is %+v", a)
				}
			})
		}
		wg.Wait()
	}
	if n := conns.Load(); n > 8 {
		t.Errorf("%d connections for 40 requests, 4 at a time", n)
	}
	long := newHTTP(t, HTTPConfig{URL: srv.URL + "/long"})
	if a := long.Handle(t.Context(), attemptOf(payloadEvent())); a.Reason.Code != "http-500" {
		t.Errorf("answer is %+v", a)
	}
}

func TestHTTP_TrustsItsTLSConfigAndReuses(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			t.Errorf("protocol %s: HTTP/2 repeats requests", r.Proto)
		}
	}))
	t.Cleanup(srv.Close)
	cfg := &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}
	h := newHTTP(t, HTTPConfig{URL: srv.URL, TLS: cfg})
	for range 3 {
		if a := h.Handle(t.Context(), attemptOf(payloadEvent())); a.Class != Done {
			t.Errorf("answer is %+v", a)
		}
	}
}

func TestHTTP_UsesAProxyOnlyIfConfigured(t *testing.T) {
	var seen atomic.Int64
	proxy := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Host == "far.invalid" {
			seen.Add(1)
		}
	})
	t.Setenv("HTTP_PROXY", proxy.URL)
	if h := newHTTP(t, HTTPConfig{URL: "http://far.invalid/x"}); h.transport.Proxy != nil {
		t.Error("the environment's proxy would be used")
	}
	h := newHTTP(t, HTTPConfig{URL: "http://far.invalid/x", Proxy: proxy.URL})
	if a := h.Handle(t.Context(), attemptOf(payloadEvent())); a.Class != Done || seen.Load() != 1 {
		t.Errorf("answer is %+v, the proxy saw %d requests", a, seen.Load())
	}
}

// No answer and no error of the configuration tells what it must not.
func TestHTTP_ReasonsAndErrorsHoldNoSecret(t *testing.T) {
	secrets := []string{"payload-secret", "url-password", "query-token", "header-token", "signing-key"}
	check := func(text string) {
		t.Helper()
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("%q tells %s", text, s)
			}
		}
	}
	for _, base := range []string{"http://user:url-password@127.0.0.1:1/?t=query-token", "https://user:url-password@no-such-host.invalid/?t=query-token"} {
		h := newHTTP(t, HTTPConfig{URL: base, Headers: map[string]string{"X-Token": "header-token"}, Secret: "signing-key"})
		a := h.Handle(t.Context(), attemptOf(payloadEvent()))
		check(a.Reason.Code + a.Reason.Detail)
	}
	for _, cfg := range []HTTPConfig{
		{URL: "http://user:url-password@[bad/?t=query-token"},
		{URL: "ftp://user:url-password@host/?t=query-token"},
		{URL: "http://h/", Headers: map[string]string{"X-Token": "header-token\n", "Bad Name": "header-token", "Idempotency-Key": "header-token", "Host": "x"}},
		{URL: "http://h/", Secret: "whsec_signing-key!"},
		{URL: "http://h/", Proxy: "user:url-password@proxy"},
		{URL: "http://h/", Answers: map[string]string{"x": "y"}},
	} {
		_, err := NewHTTP(cfg)
		if err == nil {
			t.Errorf("%+v is accepted", cfg)
			continue
		}
		check(err.Error())
	}
	_, err := NewHTTP(HTTPConfig{URL: "http://h/", Headers: map[string]string{"X-Token": "a\nb", "Bad Name": "x", "idemd-fence": "x", "host": "x"}})
	wantContains(t, err.Error(), "X-Token", `"Bad Name"`, "Idemd-Fence", "Host")
}

// Show 4, end to end: a handler that closes the connection after reading has one
// effect per attempt; one that hangs is cut at its timeout.
func TestPool_WithARealHandler(t *testing.T) {
	r := newRig(t)
	var effects atomic.Int64
	url := closer(t, &effects)
	warm := newHTTP(t, HTTPConfig{URL: url})
	s := spec("crm", warm)
	s.Retry, s.Concurrency = []time.Duration{time.Millisecond, time.Millisecond}, 1
	warm.Handle(t.Context(), attemptOf(payloadEvent())) // so that the first attempt meets a used connection
	effects.Store(0)
	r.start(s)
	ev := newEvent("closes")
	r.publish(ev)
	until(t, "the first event to end", func() bool { rec, _ := r.record("crm", ev); return rec.State == dedup.Done })
	if rec, _ := r.record("crm", ev); int64(rec.Attempts) != effects.Load() || rec.Attempts != 2 {
		t.Errorf("%d effects, record %+v", effects.Load(), rec)
	}

	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
	s = spec("hangs", newHTTP(t, HTTPConfig{URL: hang.URL}))
	s.Effect, s.Timeout = dedup.Irrevocable, 500*time.Millisecond
	r.start(s)
	ev = newEvent("hangs")
	r.publish(ev)
	until(t, "the second event to be in doubt", func() bool { rec, _ := r.record("hangs", ev); return rec.State == dedup.InDoubt })
	if rec, _ := r.record("hangs", ev); rec.Reason.Code != "timeout" || rec.Attempts != 1 {
		t.Errorf("record %+v", rec)
	}
}

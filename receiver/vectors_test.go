package receiver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"idemd/event"
)

type vectorFile struct {
	TestClock int64    `json:"test_clock"`
	Positive  []vector `json:"positive"`
	Negative  []vector `json:"negative"`
}

type vector struct {
	ID             string          `json:"id"`
	Published      bool            `json:"published"`
	Kind           string          `json:"kind"`
	Token          string          `json:"token"`
	EncodingAESKey string          `json:"encoding_aes_key"`
	ReceiveID      string          `json:"receive_id"`
	Timestamp      string          `json:"timestamp"`
	Nonce          string          `json:"nonce"`
	Signature      string          `json:"msg_signature"`
	Random16       string          `json:"random16"`
	Encrypt        string          `json:"encrypt"`
	Plaintext      string          `json:"plaintext"`
	Request        *vectorRequest  `json:"request"`
	Requests       []vectorRequest `json:"requests"`
	Repeat         int             `json:"repeat"`
	Outcome        string          `json:"outcome"`
	ExpectBody     string          `json:"expect_body"`
	ExpectEnqueued int             `json:"expect_enqueued"`
}

type vectorRequest struct {
	Method         string `json:"method"`
	Query          string `json:"query"`
	Body           string `json:"body"`
	ExpectStatus   int    `json:"expect_status"`
	ExpectBody     string `json:"expect_body"`
	BytesPerSecond int    `json:"bytes_per_second"`
	BodyRepeat     *struct {
		Prefix string `json:"prefix"`
		Unit   string `json:"unit"`
		Count  int    `json:"count"`
		Suffix string `json:"suffix"`
	} `json:"body_repeat"`
}

func (v *vector) source() SourceConfig {
	return SourceConfig{
		Name: "wecom", Scheme: "wecom", Token: []string{v.Token},
		EncodingAESKey: []string{v.EncodingAESKey}, ReceiveIDs: []string{v.ReceiveID},
	}
}

func (v *vector) clock(t *testing.T) int64 {
	t.Helper()
	if !v.Published {
		return testClock
	}
	clock, err := strconv.ParseInt(v.Timestamp, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clock
}

func (v *vector) all() []vectorRequest {
	if v.Request == nil {
		return v.Requests
	}
	n := max(v.Repeat, 1)
	var rs []vectorRequest
	for range n {
		rs = append(rs, *v.Request)
	}
	return rs
}

func (r *vectorRequest) http() *http.Request {
	body := r.Body
	if b := r.BodyRepeat; b != nil {
		body = b.Prefix + strings.Repeat(b.Unit, b.Count) + b.Suffix
	}
	return httptest.NewRequest(r.Method, "/in/wecom?"+r.Query, strings.NewReader(body))
}

func loadVectors(t testing.TB) vectorFile {
	t.Helper()
	var f vectorFile
	readJSON(t, "testdata/wecom.json", &f)
	if f.TestClock != testClock || len(f.Positive) != 26 || len(f.Negative) != 56 {
		t.Fatalf("testdata/wecom.json: %d positive, %d negative vectors", len(f.Positive), len(f.Negative))
	}
	return f
}

func TestWecom_PositiveVectorsAreStoredAndAnswered(t *testing.T) {
	for _, v := range loadVectors(t).Positive {
		t.Run(v.ID, func(t *testing.T) {
			if v.Request == nil {
				checkEncrypt(t, &v)
				return
			}
			rc, sink := readyReceiver(t, v.clock(t), v.source())
			w, closed := serve(rc, v.Request.http())
			if closed || w.Code != v.Request.ExpectStatus || w.Body.String() != v.Request.ExpectBody {
				t.Fatalf("answer %d %q, closed %t; want %d %q", w.Code, w.Body, closed, v.Request.ExpectStatus, v.Request.ExpectBody)
			}
			if v.Kind == "url_verify" {
				return
			}
			events := sink.stored()
			if len(events) != 1 {
				t.Fatalf("%d events stored", len(events))
			}
			checkStored(t, &v, events[0])
		})
	}
}

// checkEncrypt makes a published frame again.
func checkEncrypt(t *testing.T, v *vector) {
	t.Helper()
	w := wecomScheme(t, v.source())
	if got := w.keys[0].encrypt([]byte(v.Random16), []byte(v.Plaintext), v.ReceiveID); got != v.Encrypt {
		t.Errorf("encrypt = %s, want %s", got, v.Encrypt)
	}
	if got := wecomSignature(v.Token, v.Timestamp, v.Nonce, []byte(v.Encrypt)); string(got[:]) != v.Signature {
		t.Errorf("signature = %s, want %s", got, v.Signature)
	}
	message, receiveID, err := w.keys[0].decrypt([]byte(v.Encrypt))
	if err != nil || string(message) != v.Plaintext || string(receiveID) != v.ReceiveID {
		t.Errorf("decrypt = %q for %q, %v", message, receiveID, err)
	}
}

// checkStored compares a stored event with what Identify makes of the plaintext.
func checkStored(t *testing.T, v *vector, ev event.Event) {
	t.Helper()
	want := wecomScheme(t, v.source()).Identify(Payload{Body: []byte(v.Plaintext), Tenant: v.ReceiveID}).Event
	if ev.Type != want.Type || ev.Identity != want.Identity || !bytes.Equal(ev.Body, want.Body) {
		t.Errorf("stored %s %+v %s\nwant   %s %+v %s", ev.Type, ev.Identity, ev.Body, want.Type, want.Identity, want.Body)
	}
	if ev.Source != "wecom" || ev.Origin != event.OriginCallback || ev.Received.IsZero() || ev.Fingerprint.IsZero() {
		t.Errorf("event is not complete: %+v", ev)
	}
	// The plaintext of two published samples is no JSON.
	if wantRaw := strings.Contains(v.Plaintext, ": :"); wantRaw != (ev.Type == event.TypeUnparsed) {
		t.Errorf("type = %s for %s", ev.Type, v.Plaintext)
	}
}

func TestWecom_NegativeVectorsHaveTheirOutcome(t *testing.T) {
	for _, v := range loadVectors(t).Negative {
		t.Run(v.ID, func(t *testing.T) {
			if v.Outcome == "config_refused" {
				checkRefusedConfig(t, &v)
				return
			}
			rc, sink := readyReceiver(t, testClock, v.source())
			for _, r := range v.all() {
				if r.BytesPerSecond > 0 {
					checkSlowBody(t, rc, &r)
					continue
				}
				w, closed := serve(rc, r.http())
				if closed {
					t.Fatal("connection closed without an answer")
				}
				checkAnswer(t, &v, w)
			}
			checkEvents(t, &v, sink.stored())
		})
	}
}

func checkAnswer(t *testing.T, v *vector, w *httptest.ResponseRecorder) {
	t.Helper()
	want := map[string]int{
		"reject_400": 400, "reject_401": 401, "reject_413": 413, "quarantine_200": 200, "accept_200": 200,
	}[v.Outcome]
	switch {
	case v.Outcome == "accept_or_reject" && (w.Code == 200 || w.Code == 400 || w.Code == 401):
	case want == 0, w.Code != want:
		t.Errorf("status %d, outcome %s", w.Code, v.Outcome)
	}
	if w.Code == 200 && w.Body.String() != v.ExpectBody || w.Code != 200 && w.Body.String() != refusal {
		t.Errorf("body %q", w.Body)
	}
	if w.Code != 200 || v.ExpectBody != "" {
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("X-Content-Type-Options %q", got)
		}
		if got := w.Header().Get("Content-Type"); got != "text/plain; charset=utf-8" {
			t.Errorf("Content-Type %q", got)
		}
	}
}

func checkEvents(t *testing.T, v *vector, events []event.Event) {
	t.Helper()
	keys := map[string]bool{}
	for i := range events {
		keys[event.KeyFor(&events[i], "crm").Tuple] = true
	}
	switch {
	case strings.HasPrefix(v.Outcome, "reject") && len(events) != 0:
		t.Errorf("%d events stored for a rejected request", len(events))
	case v.Outcome == "quarantine_200" && (len(events) != 1 || events[0].Type != event.TypeUnparsed):
		t.Errorf("stored %+v, want one unparsed event", events)
	case v.ExpectEnqueued > 0 && (len(keys) != v.ExpectEnqueued || len(events) != len(v.all())):
		t.Errorf("%d events under %d keys, want %d key", len(events), len(keys), v.ExpectEnqueued)
	}
}

func checkRefusedConfig(t *testing.T, v *vector) {
	t.Helper()
	_, err := New(Config{Sources: []SourceConfig{v.source()}, Publish: (&sink{}).publish})
	if err == nil {
		t.Fatal("configuration accepted")
	}
	mustContain(t, err.Error(), "source[0].encoding_aes_key: ")
	if v.EncodingAESKey != "" && strings.Contains(err.Error(), v.EncodingAESKey) {
		t.Error("error tells the key")
	}
}

// checkSlowBody sends the head and one byte of a request over TCP and waits for
// the answer that ends it.
func checkSlowBody(t *testing.T, rc *Receiver, r *vectorRequest) {
	t.Helper()
	rc.cfg.ReadTimeout = 50 * time.Millisecond
	srv := httptest.NewServer(rc)
	defer srv.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /in/wecom?%s HTTP/1.1\r\nHost: receiver\r\nContent-Length: %d\r\n\r\n%c", r.Query, len(r.Body), r.Body[0])
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusBadRequest || string(body) != refusal {
		t.Errorf("answer %d %q, %v", resp.StatusCode, body, err)
	}
	if got := rc.Stats()[0].Refused[ReasonSlow]; got != 1 {
		t.Errorf("slow requests counted: %d", got)
	}
}

// Every change of what is signed or encrypted, a stale clock and a wrong secret
// must each be refused, with errors that tell nothing.
func TestWecom_MutatedVectorsAreRefused(t *testing.T) {
	for _, v := range loadVectors(t).Positive {
		if v.Request == nil {
			continue // about making frames
		}
		t.Run(v.ID, func(t *testing.T) {
			now := time.Unix(v.clock(t), 0)
			req := Request{Method: v.Request.Method, RawQuery: v.Request.Query, Body: []byte(v.Request.Body)}
			refused := func(what string, c SourceConfig, r Request, now time.Time) {
				t.Helper()
				err := openOrChallenge(t, c, &r, now)
				if err == nil {
					t.Errorf("%s: accepted", what)
					return
				}
				checkTellsNothing(t, &v, c, err)
			}
			if err := openOrChallenge(t, v.source(), &req, now); err != nil {
				t.Fatal(err)
			}
			for what, r := range mutations(&v) {
				refused(what, v.source(), r, now)
			}
			refused("31 days old", v.source(), req, now.Add(31*24*time.Hour))
			refused("from the future", v.source(), req, now.Add(-61*time.Minute))

			wrong := v.source()
			wrong.Token = []string{v.Token + "x"}
			refused("wrong token", wrong, req, now)
			wrong = v.source()
			wrong.EncodingAESKey = []string{"A" + v.EncodingAESKey[2:] + "A"}
			refused("wrong key", wrong, req, now)
			wrong = v.source()
			wrong.ReceiveIDs = []string{v.ReceiveID + "x", ""}
			refused("wrong receive id", wrong, req, now)
		})
	}
}

func openOrChallenge(t *testing.T, c SourceConfig, r *Request, now time.Time) error {
	t.Helper()
	w := wecomScheme(t, c)
	if r.Method == http.MethodGet {
		_, err := w.Challenge(r, now)
		return err
	}
	_, err := w.Open(r, now)
	return err
}

// mutations are requests with one byte of signature, timestamp, nonce or
// ciphertext changed.
func mutations(v *vector) map[string]Request {
	all := map[string]Request{}
	flip := func(s string, i int) string {
		b := []byte(s)
		b[i] ^= 1
		return string(b)
	}
	add := func(what, query, body string) {
		all[what] = Request{Method: v.Request.Method, RawQuery: query, Body: []byte(body)}
	}
	for pair := range strings.SplitSeq(v.Request.Query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "msg_signature", "timestamp", "nonce":
			for i := range value {
				changed := strings.Replace(v.Request.Query, pair, name+"="+flip(value, i), 1)
				add(fmt.Sprintf("%s byte %d", name, i), changed, v.Request.Body)
			}
			add("twice "+name, v.Request.Query+"&"+pair, v.Request.Body)
			add("without "+name, strings.Replace(v.Request.Query, pair, "x=1", 1), v.Request.Body)
		case "echostr":
			changed := strings.Replace(v.Request.Query, pair, name+"="+flip(value, 3), 1)
			add("echostr", changed, "")
		}
	}
	if at := strings.Index(v.Request.Body, v.Encrypt); at >= 0 {
		for i := range v.Encrypt {
			add(fmt.Sprintf("ciphertext byte %d", i), v.Request.Query, flip(v.Request.Body, at+i))
		}
	}
	return all
}

func checkTellsNothing(t *testing.T, v *vector, c SourceConfig, err error) {
	t.Helper()
	for _, secret := range []string{c.Token[0], c.EncodingAESKey[0], v.Plaintext, v.Encrypt[:16], v.ReceiveID} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("error %q tells %q", err, secret)
		}
	}
	for pair := range strings.SplitSeq(v.Request.Query, "&") {
		if signature, ok := strings.CutPrefix(pair, "msg_signature="); ok && strings.Contains(err.Error(), signature) {
			t.Errorf("error %q tells the signature", err)
		}
	}
}

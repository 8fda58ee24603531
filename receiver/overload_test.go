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
	"strings"
	"sync"
	"testing"
	"time"
)

// overServer serves a receiver over real connections, as idemd does.
func overServer(t *testing.T, c Config) (*Receiver, *sink, string) {
	t.Helper()
	s := &sink{}
	c.Publish, c.Now = s.publish, func() time.Time { return time.Unix(testClock, 0) }
	rc, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	rc.SetReady(StateReady)
	srv := httptest.NewUnstartedServer(rc)
	srv.Config = rc.NewServer()
	srv.Start()
	t.Cleanup(srv.Close)
	return rc, s, srv.Listener.Addr().String()
}

// begin sends the head of a request and as much of its body as given.
func begin(t *testing.T, addr string, r *http.Request, promised int, body string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) // a second Close fails, which is fine
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: receiver\r\nContent-Length: %d\r\n", r.URL.RequestURI(), promised)
	if err := r.Header.Write(&head); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(head.String() + "\r\n" + body)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answer reads the status of a connection; 0 says that it ended without one.
func answer(t *testing.T, conn net.Conn) int {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
		<-time.After(time.Millisecond)
	}
}

func (rc *Receiver) idle() bool {
	return rc.InFlight() == 0 && rc.Reading() == 0 && rc.BodyBytes() == 0 && rc.Stats()[0].Holding == 0
}

// More slow bodies than there are places in flight keep nobody out, whichever
// way the source refuses; and nothing is left of them.
func TestOverload_SlowBodiesTakeNoPlaceInFlight(t *testing.T) {
	const slow = 600
	for _, c := range []SourceConfig{hmacSource(), wecomSource()} {
		rc, sink, addr := overServer(t, Config{Sources: []SourceConfig{c}, ReadTimeout: MaxReadTimeout})
		payload := sysEvent("x")
		var conns []net.Conn
		for range slow {
			r := signedRequest(t, c, payload, testClock)
			conns = append(conns, begin(t, addr, r, 1<<20, "<"))
		}
		eventually(t, "the slow bodies are not being read", func() bool {
			return rc.Reading() == slow && rc.BodyBytes() == slow*firstRead
		})
		if rc.InFlight() != 0 || rc.Stats()[0].Holding != 0 {
			t.Errorf("%s: %d in flight, %d bytes, %+v", c.Scheme, rc.InFlight(), rc.BodyBytes(), rc.Stats()[0])
		}
		var all sync.WaitGroup
		for range 100 {
			r := signedRequest(t, c, payload, testClock)
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				conn := begin(t, addr, r, len(text), string(text))
				if got := answer(t, conn); got != 200 {
					t.Errorf("%s: a good request got %d", c.Scheme, got)
				}
			})
		}
		all.Wait()
		if got := len(sink.stored()); got != 100 {
			t.Errorf("%s: %d stored", c.Scheme, got)
		}
		gone := slow / 2
		if c.Scheme == "wecom" {
			gone = slow
		}
		for _, conn := range conns[:gone] {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns[gone:] {
			if got := answer(t, conn); got != 400 {
				t.Errorf("%s: a body that did not come in time got %d", c.Scheme, got)
			}
		}
		eventually(t, "the counters do not come back to zero", rc.idle)
		if got := rc.Stats()[0].Refused; got[ReasonSlow] != uint64(slow-gone) || got[ReasonMalformed] != uint64(gone) {
			t.Errorf("%s: %v", c.Scheme, got)
		}
	}
}

// Past the bound of readers a request is refused in its source's way, at once,
// also while its body is still on its way.
func TestOverload_TooManyReadersAreRefusedAtOnce(t *testing.T) {
	for _, c := range []SourceConfig{hmacSource(), wecomSource()} {
		rc, _, addr := overServer(t, Config{Sources: []SourceConfig{c}, Readers: 3, ReadTimeout: MaxReadTimeout})
		for range 3 {
			begin(t, addr, signedRequest(t, c, sysEvent("x"), testClock), 1000, "<")
		}
		eventually(t, "the slow bodies are not being read", func() bool { return rc.Reading() == 3 })
		began := time.Now()
		want := map[string]int{"hmac": 503, "wecom": 0}[c.Scheme]
		if got := answer(t, begin(t, addr, signedRequest(t, c, sysEvent("x"), testClock), 1000, "<")); got != want {
			t.Errorf("%s: %d", c.Scheme, got)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s: refused after %s", c.Scheme, took)
		}
		if got := rc.Stats()[0].Refused[ReasonReading]; got != 1 || rc.Reading() != 3 {
			t.Errorf("%s: %d counted, %d reading", c.Scheme, got, rc.Reading())
		}
	}
}

// Large bodies that come and do not end find the memory bounded, and small ones
// go on.
func TestOverload_MemoryOfBodiesIsBounded(t *testing.T) {
	c := hmacSource()
	rc, sink, addr := overServer(t, Config{Sources: []SourceConfig{c}, BodyMemory: MinBodyMemory, ReadTimeout: 2 * time.Second})
	const large = 40
	half := strings.Repeat("x", 300<<10)
	answers := make(chan int, large)
	for range large {
		r := signedRequest(t, c, "{}", testClock)
		go func() { answers <- answer(t, begin(t, addr, r, 1<<20, half)) }()
	}
	eventually(t, "no large body is refused", func() bool { return rc.Stats()[0].Refused[ReasonReading] > 0 })
	if got := rc.BodyBytes(); got > MinBodyMemory/4*3+large*firstRead { // first reads may take from the last quarter
		t.Errorf("large bodies take %d bytes", got)
	}
	for range 50 {
		r := signedRequest(t, c, "{}", testClock)
		if got := answer(t, begin(t, addr, r, 2, "{}")); got != 200 {
			t.Errorf("a small request got %d", got)
		}
	}
	if got := len(sink.stored()); got != 50 {
		t.Errorf("%d stored", got)
	}
	counts := map[int]int{}
	for range large {
		counts[<-answers]++
	}
	if counts[503] == 0 || counts[200] != 0 {
		t.Errorf("answers %v", counts)
	}
	eventually(t, "the counters do not come back to zero", rc.idle)
}

// What the headers alone show to be bad is answered without waiting for a body.
func TestOverload_BodyOfABadRequestIsNotWaitedFor(t *testing.T) {
	token, stale := tokenSource(), hmacSource()
	rc, _, addr := overServer(t, Config{Sources: []SourceConfig{token, stale}, ReadTimeout: MaxReadTimeout})
	forged := token
	forged.Token = []string{"another"}
	for name, c := range map[string]struct {
		r    *http.Request
		want int
	}{
		"wrong token":     {signedRequest(t, forged, "{}", testClock), 401},
		"stale timestamp": {signedRequest(t, stale, "{}", testClock-1000), 401},
		"unknown path":    {httptest.NewRequest(http.MethodPost, "/in/nobody", nil), 404},
		"other spelling":  {httptest.NewRequest(http.MethodPost, "/in//orders", nil), 404},
	} {
		c.r.ContentLength = 0
		if got := answer(t, begin(t, addr, c.r, 1000, "{")); got != c.want {
			t.Errorf("%s: %d", name, got)
		}
		if rc.Reading() != 0 || rc.BodyBytes() != 0 {
			t.Errorf("%s: the body is read", name)
		}
	}
}

// A refusal of a source that holds comes when the request is known to be good;
// slow bodies take none of its places.
func TestOverload_SlowBodiesTakeNoPlaceToBeHeld(t *testing.T) {
	c := wecomSource()
	rc, _, addr := overServer(t, Config{Sources: []SourceConfig{c}, ReadTimeout: MaxReadTimeout})
	rc.SetReady(StateStarting)
	for range maxHeld + 10 {
		begin(t, addr, signedRequest(t, c, sysEvent("x"), testClock), 1000, "<")
	}
	eventually(t, "the slow bodies are not being read", func() bool { return rc.Reading() == maxHeld+10 })
	r := signedRequest(t, c, sysEvent("x"), testClock)
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	conn := begin(t, addr, r, len(text), string(text))
	eventually(t, "the good request is not held", func() bool { return rc.Stats()[0].Holding == 1 })
	if got := rc.BodyBytes(); got != (maxHeld+10)*1001 {
		t.Errorf("%d bytes with one held", got)
	}
	rc.SetReady(StateReady)
	if got := answer(t, conn); got != 200 {
		t.Errorf("held request: %d", got)
	}
}

func TestBody_GrowsWithWhatComes(t *testing.T) {
	c := tokenSource()
	rc, sink := readyReceiver(t, testClock, c)
	for _, n := range []int{0, 1, firstRead - 1, firstRead, firstRead + 1, 3 * firstRead, DefaultMaxBody - 1, DefaultMaxBody} {
		for _, announced := range []int64{int64(n), -1} {
			payload := strings.Repeat("x", n)
			req := signedRequest(t, c, payload, testClock)
			req.ContentLength = announced
			if w, _ := serve(rc, req); w.Code != 200 {
				t.Errorf("%d bytes, announced as %d: %d", n, announced, w.Code)
				continue
			}
			events := sink.stored()
			if got := events[len(events)-1].Body; string(got) != payload || cap(got) > 2*max(n, firstRead) {
				t.Errorf("%d bytes, announced as %d: %d bytes in room for %d", n, announced, len(got), cap(got))
			}
		}
	}
	if !rc.idle() {
		t.Errorf("%d bytes left", rc.BodyBytes())
	}
}

func FuzzReadBody(f *testing.F) {
	f.Add([]byte("{}"), uint16(2), uint16(1), false)
	f.Add(bytes.Repeat([]byte("x"), 9000), uint16(9000), uint16(7), true)
	c := tokenSource()
	c.MaxBody = 10_000
	stored := &sink{}
	rc, err := New(Config{Sources: []SourceConfig{c}, Publish: stored.publish, BodyMemory: MinBodyMemory})
	if err != nil {
		f.Fatal(err)
	}
	rc.SetReady(StateReady)
	f.Fuzz(func(t *testing.T, payload []byte, announced, chunk uint16, chunked bool) {
		*stored = sink{}
		req := httptest.NewRequest(http.MethodPost, "/in/orders", &chunks{payload, int(chunk) + 1})
		req.Header.Set("Authorization", "Bearer shared-secret-1")
		req.ContentLength = -1
		if !chunked { // net/http lets no more through than was announced
			payload = payload[:min(len(payload), int(announced))]
			req.Body = io.NopCloser(&chunks{payload, int(chunk) + 1})
			req.ContentLength = int64(announced)
		}
		w, closed := serve(rc, req)
		tooLarge := len(payload) > 10_000 || req.ContentLength > 10_000
		if closed || (w.Code == 413) != tooLarge || w.Code != 413 && w.Code != 200 {
			t.Fatalf("%d bytes, announced %d: %d, closed %t", len(payload), req.ContentLength, w.Code, closed)
		}
		if events := stored.stored(); w.Code == 200 && (len(events) != 1 || !bytes.Equal(events[0].Body, payload)) {
			t.Fatalf("%d bytes: %+v", len(payload), events)
		}
		if !rc.idle() {
			t.Fatalf("%d reading, %d bytes", rc.Reading(), rc.BodyBytes())
		}
	})
}

// chunks reads a few bytes at a time.
type chunks struct {
	rest []byte
	n    int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(c.n, len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}

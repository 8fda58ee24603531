package receiver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"idemd/event"
)

var errStore = errors.New("disk is gone")

func TestReceiver_RefusesByStatusWhereTheSourceSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		state  State
		full   bool
		err    error
		reason Reason
	}{
		"starting":  {state: StateStarting, reason: ReasonStarting},
		"blocked":   {state: StateBlocked, reason: ReasonBlocked},
		"draining":  {state: StateDraining, reason: ReasonDraining},
		"in-flight": {state: StateReady, full: true, reason: ReasonInFlight},
		"publish":   {state: StateReady, err: errStore, reason: ReasonPublish},
	} {
		rc, sink := readyReceiver(t, testClock, tokenSource())
		rc.SetReady(c.state)
		sink.fail(c.err)
		if c.full {
			rc.inFlight.Store(DefaultInFlight)
		}
		w, closed := serve(rc, signedRequest(t, tokenSource(), "{}", testClock))
		if closed || w.Code != 503 || w.Header().Get("Retry-After") == "" || w.Body.String() != refusal {
			t.Errorf("%s: %d %q, closed %t", name, w.Code, w.Body, closed)
		}
		stats := rc.Stats()[0]
		if stats.Refused[c.reason] != 1 || stats.Accepted != 0 || len(sink.stored()) != 0 {
			t.Errorf("%s: %+v", name, stats)
		}
		if c.full {
			rc.inFlight.Add(-DefaultInFlight)
		}
		if rc.InFlight() != 0 || stats.Holding != 0 {
			t.Errorf("%s: %d in flight, %d held", name, rc.InFlight(), stats.Holding)
		}
	}
}

// A held request is answered as soon as its event is stored.
func TestReceiver_HoldsUntilTheEventIsStored(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(*Receiver, *sink)
	}{
		"starting":  {func(rc *Receiver, _ *sink) { rc.SetReady(StateStarting) }, func(rc *Receiver, _ *sink) { rc.SetReady(StateReady) }},
		"blocked":   {func(rc *Receiver, _ *sink) { rc.SetReady(StateBlocked) }, func(rc *Receiver, _ *sink) { rc.SetReady(StateReady) }},
		"in-flight": {func(rc *Receiver, _ *sink) { rc.inFlight.Store(DefaultInFlight) }, func(*Receiver, *sink) {}},
		"publish":   {func(_ *Receiver, s *sink) { s.fail(errStore) }, func(_ *Receiver, s *sink) { s.fail(nil) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			rc, sink := readyReceiver(t, testClock, wecomSource())
			c.before(rc, sink)
			began := time.Now()
			answer := make(chan *httptest.ResponseRecorder)
			go func() {
				w, _ := serve(rc, signedRequest(t, wecomSource(), sysEvent("x"), testClock))
				answer <- w
			}()
			synctest.Wait()
			if got := rc.Stats()[0].Holding; got != 1 {
				t.Errorf("%s: %d held", name, got)
			}
			time.Sleep(2 * time.Second)
			c.after(rc, sink)
			w := <-answer
			if took := time.Since(began); w.Code != 200 || len(sink.stored()) != 1 || took > 2*time.Second+holdRetry {
				t.Errorf("%s: %d after %s, %d stored", name, w.Code, took, len(sink.stored()))
			}
			if rc.Stats()[0].Holding != 0 {
				t.Errorf("%s: still held", name)
			}
		})
	}
}

func TestReceiver_ClosesAHeldRequestBeforeThePlatformGivesUp(t *testing.T) {
	for name, before := range map[string]func(*Receiver, *sink){
		"starting": func(rc *Receiver, _ *sink) { rc.SetReady(StateStarting) },
		"draining": func(rc *Receiver, _ *sink) { rc.SetReady(StateDraining) },
		"publish":  func(_ *Receiver, s *sink) { s.fail(errStore) },
	} {
		synctest.Test(t, func(t *testing.T) {
			rc, sink := readyReceiver(t, testClock, wecomSource())
			before(rc, sink)
			began := time.Now()
			w, closed := serve(rc, signedRequest(t, wecomSource(), sysEvent("x"), testClock))
			if took := time.Since(began); !closed || w.Body.Len() != 0 || took != answerWithin {
				t.Errorf("%s: closed %t after %s, %q", name, closed, took, w.Body)
			}
			stats := rc.Stats()[0]
			if stats.Refused[Reason(name)] != 1 || stats.Holding != 0 || stats.Accepted != 0 || rc.InFlight() != 0 {
				t.Errorf("%s: %+v", name, stats)
			}
			if name != "publish" && sink.calls != 0 {
				t.Errorf("%s: %d attempts to store while not ready", name, sink.calls)
			}
		})
	}
}

func TestReceiver_HoldsOnlyWhatIsAuthentic(t *testing.T) {
	rc, _ := readyReceiver(t, testClock, wecomSource())
	rc.SetReady(StateStarting)
	forged := wecomSource()
	forged.Token = []string{"another"}
	w, closed := serve(rc, signedRequest(t, forged, sysEvent("x"), testClock))
	if closed || w.Code != 401 {
		t.Errorf("forged request: %d, closed %t", w.Code, closed)
	}
}

func TestReceiver_ClosesPastTheBoundOfHeldRequests(t *testing.T) {
	for name, before := range map[string]func(*Receiver, *sink){
		"starting": func(rc *Receiver, _ *sink) { rc.SetReady(StateStarting) },
		"publish":  func(_ *Receiver, s *sink) { s.fail(errStore) },
	} {
		synctest.Test(t, func(t *testing.T) {
			rc, sink := readyReceiver(t, testClock, wecomSource())
			before(rc, sink)
			var all sync.WaitGroup
			for range maxHeld {
				req := signedRequest(t, wecomSource(), sysEvent("x"), testClock)
				all.Go(func() { serve(rc, req) })
			}
			synctest.Wait()
			began := time.Now()
			_, closed := serve(rc, signedRequest(t, wecomSource(), sysEvent("x"), testClock))
			if !closed || time.Since(began) != 0 || rc.Stats()[0].Holding != maxHeld {
				t.Errorf("%s: closed %t after %s with %d held", name, closed, time.Since(began), rc.Stats()[0].Holding)
			}
			all.Wait()
		})
	}
}

func TestReceiver_CallerThatHangsUpIsHeldNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc, _ := readyReceiver(t, testClock, wecomSource())
		rc.SetReady(StateStarting)
		ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
		defer hangUp()
		began := time.Now()
		_, closed := serve(rc, signedRequest(t, wecomSource(), sysEvent("x"), testClock).WithContext(ctx))
		if !closed || time.Since(began) != time.Second {
			t.Errorf("closed %t after %s", closed, time.Since(began))
		}
	})
}

// The answer waits for Publish, and Publish does not depend on the caller.
func TestReceiver_AnswersOnlyWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stored := false
		rc, err := New(Config{
			Sources: []SourceConfig{tokenSource()},
			Publish: func(ctx context.Context, _ *event.Event) error {
				deadline, ok := ctx.Deadline()
				if !ok || time.Until(deadline) != answerWithin {
					t.Errorf("deadline in %s", time.Until(deadline))
				}
				time.Sleep(3 * time.Second)
				stored = true
				return ctx.Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		rc.SetReady(StateReady)
		ctx, hangUp := context.WithTimeout(t.Context(), time.Second)
		defer hangUp()
		w, _ := serve(rc, signedRequest(t, tokenSource(), "{}", testClock).WithContext(ctx))
		if w.Code != 200 || !stored {
			t.Errorf("%d, stored %t", w.Code, stored)
		}
	})
}

func TestReceiver_InFlightBoundHoldsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		rc, err := New(Config{
			Sources: []SourceConfig{tokenSource()}, InFlight: 3,
			Publish: func(context.Context, *event.Event) error { <-gate; return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		rc.SetReady(StateReady)
		var all sync.WaitGroup
		for range 3 {
			req := signedRequest(t, tokenSource(), "{}", testClock)
			all.Go(func() {
				if w, _ := serve(rc, req); w.Code != 200 {
					t.Errorf("within the bound: %d", w.Code)
				}
			})
		}
		synctest.Wait()
		if w, _ := serve(rc, signedRequest(t, tokenSource(), "{}", testClock)); w.Code != 503 {
			t.Errorf("past the bound: %d", w.Code)
		}
		close(gate)
		all.Wait()
		if w, _ := serve(rc, signedRequest(t, tokenSource(), "{}", testClock)); w.Code != 200 || rc.InFlight() != 0 {
			t.Errorf("afterwards: %d, %d in flight", w.Code, rc.InFlight())
		}
	})
}

func TestReceiver_VerifiesURLsInEveryState(t *testing.T) {
	v := loadVectors(t).Positive[0]
	rc, _ := readyReceiver(t, v.clock(t), v.source())
	rc.inFlight.Store(DefaultInFlight)
	for _, state := range []State{StateStarting, StateReady, StateBlocked, StateDraining} {
		rc.SetReady(state)
		if w, closed := serve(rc, v.Request.http()); closed || w.Code != 200 || w.Body.String() != v.Plaintext {
			t.Errorf("state %d: %d %q", state, w.Code, w.Body)
		}
	}
	if got := rc.Stats()[0].Challenges; got != 4 {
		t.Errorf("%d challenges counted", got)
	}
}

func TestReceiver_HealthAndReadiness(t *testing.T) {
	rc, _ := readyReceiver(t, testClock, tokenSource())
	get := func(path string) int {
		w, _ := serve(rc, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	for state, want := range map[State]int{StateStarting: 503, StateReady: 200, StateBlocked: 503, StateDraining: 503} {
		rc.SetReady(state)
		if healthy, ready := get("/healthz"), get("/readyz"); healthy != 200 || ready != want || rc.State() != state {
			t.Errorf("state %d: health %d, readiness %d", state, healthy, ready)
		}
	}
	for why, set := range map[string]func(){
		"starting": func() { rc.SetReady(StateStarting) },
		"stopping": func() { rc.SetReady(StateDraining) },
		"no room":  func() { rc.Block("no room") },
	} {
		set()
		if w, _ := serve(rc, httptest.NewRequest(http.MethodGet, "/readyz", nil)); w.Body.String() != "not ready: "+why+"\n" {
			t.Errorf("%s: %q", why, w.Body)
		}
	}
}

func TestReceiver_Routes(t *testing.T) {
	own := wecomSource()
	own.Path = "/cgi/callback/"
	rc, _ := readyReceiver(t, testClock, own, tokenSource())
	for target, want := range map[string]int{
		"POST /in/orders":         401,
		"GET /in/orders":          405,
		"PUT /in/orders":          405,
		"POST /in/orders/x":       404,
		"POST /in/wecom":          404,
		"POST /cgi/callback/":     400,
		"POST /cgi/callback/more": 404,
		"GET /cgi/callback/":      400,
		"POST /in/nobody":         404,
		"GET /":                   404,
	} {
		method, path, _ := strings.Cut(target, " ")
		if w, _ := serve(rc, httptest.NewRequest(method, path, nil)); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
	if w, _ := serve(rc, signedRequest(t, own, sysEvent("x"), testClock)); w.Code != 200 {
		t.Errorf("own path: %d", w.Code)
	}
}

func TestReceiver_BodyLimitHoldsAlsoForChunkedBodies(t *testing.T) {
	c := tokenSource()
	c.MaxBody = 1000
	rc, sink := readyReceiver(t, testClock, c)
	for size, want := range map[int]int{1000: 200, 1001: 413} {
		for _, chunked := range []bool{false, true} {
			req := signedRequest(t, c, strings.Repeat("x", size), testClock)
			if chunked {
				req.ContentLength = -1
			}
			if w, _ := serve(rc, req); w.Code != want {
				t.Errorf("%d bytes, chunked %t: %d", size, chunked, w.Code)
			}
		}
	}
	if stats := rc.Stats()[0]; stats.Refused[ReasonTooLarge] != 2 || len(sink.stored()) != 2 {
		t.Errorf("%+v", stats)
	}
}

// What a header announces as too large is refused before any of it is read.
func TestReceiver_DoesNotReadABodyThatIsTooLarge(t *testing.T) {
	rc, _ := readyReceiver(t, testClock, tokenSource())
	req := httptest.NewRequest(http.MethodPost, "/in/orders", unreadable{t})
	req.Header.Set("Authorization", "Bearer shared-secret-1")
	req.ContentLength = DefaultMaxBody + 1
	if w, _ := serve(rc, req); w.Code != 413 || w.Header().Get("Connection") != "close" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// Over a real connection: a held request, even one without a body, outlives the
// deadline for bodies, and past the bound it ends as a broken connection.
func TestReceiver_HeldConnectionIsClosedWithoutAnAnswer(t *testing.T) {
	c := tokenSource()
	c.OnRefuse = OnRefuseHold
	sink := &sink{err: errStore}
	rc, err := New(Config{Sources: []SourceConfig{c}, Publish: sink.publish, ReadTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	rc.SetReady(StateReady)
	srv := httptest.NewUnstartedServer(rc)
	srv.Config = rc.NewServer()
	srv.Start()
	defer srv.Close()
	send := func(payload string) (int, error) {
		signed, err := Sign(c, []byte(payload), "id-1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		req, err := signed.Request(t.Context(), srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}

	for _, payload := range []string{"", "{}"} {
		sink.fail(errStore)
		recovered := time.AfterFunc(300*time.Millisecond, func() { sink.fail(nil) })
		if status, err := send(payload); err != nil || status != 200 {
			t.Errorf("held with body %q: %d, %v", payload, status, err)
		}
		recovered.Stop()
	}

	for range maxHeld { // nothing more can be held
		take(&rc.table.Load().sources[0].holding, 1, maxHeld)
	}
	sink.fail(errStore)
	if status, err := send("{}"); err == nil {
		t.Errorf("answer %d instead of a broken connection", status)
	}
}

func TestReceiver_LogsRarelyAndTellsNothing(t *testing.T) {
	var log bytes.Buffer
	c := wecomSource()
	sink := &sink{}
	rc, err := New(Config{
		Sources: []SourceConfig{c}, Publish: sink.publish, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Now: func() time.Time { return time.Unix(testClock, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	rc.SetReady(StateReady)
	forged := c
	forged.Token = []string{"another"}
	for range 100 {
		serve(rc, signedRequest(t, forged, sysEvent("x", "Secret", "payload-word"), testClock))
	}
	repeating := sysEvent("x", "Tag", "1", "Tag", "2", "Word", "payload-word")
	for range 3 {
		serve(rc, signedRequest(t, c, repeating, testClock))
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("%d lines:\n%s", got, log.String())
	}
	mustContain(t, log.String(), `msg="request rejected" source=wecom skipped=0 status=401`)
	mustContain(t, log.String(), "path=Tag")
	for _, secret := range []string{c.Token[0], c.EncodingAESKey[0], "payload-word", c.ReceiveIDs[0]} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("log tells %q", secret)
		}
	}
	stats := rc.Stats()[0]
	if stats.Repeats != 3 || len(stats.RepeatPaths) != 1 || stats.RepeatPaths[0] != "Tag" || stats.Refused[ReasonAuth] != 100 {
		t.Errorf("%+v", stats)
	}
}

func TestNew_RefusesWhatCannotWork(t *testing.T) {
	publish := (&sink{}).publish
	for name, c := range map[string]Config{
		"no publish":       {},
		"negative bound":   {Publish: publish, InFlight: -1},
		"timeout too long": {Publish: publish, ReadTimeout: 6 * time.Second},
		"bad secret":       {Publish: publish, Sources: []SourceConfig{{Name: "a", Scheme: "token", Token: []string{" "}}}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLogLimit_CountsWhatItLeavesOut(t *testing.T) {
	var l logLimit
	now := time.Unix(0, 0)
	for i, c := range []struct {
		after   time.Duration
		ok      bool
		skipped int
	}{{0, true, 0}, {1, false, 0}, {logEvery - 1, false, 0}, {logEvery, true, 2}, {logEvery + 1, false, 0}} {
		if ok, skipped := l.allow(now.Add(c.after)); ok != c.ok || skipped != c.skipped {
			t.Errorf("%d: %t, %d", i, ok, skipped)
		}
	}
}

// A redirect could be taken for success; only the paths as configured are
// answered.
func TestReceiver_OtherSpellingsOfAPathAreNotRedirected(t *testing.T) {
	rc, sink := readyReceiver(t, testClock, tokenSource())
	good := signedRequest(t, tokenSource(), "{}", testClock)
	at := good.URL.Path
	for _, p := range []string{"/" + at, at + "/", "/x/.." + at, "/." + at, at + "//", "/", ""} {
		req := signedRequest(t, tokenSource(), "{}", testClock)
		req.URL.Path = p
		if w, _ := serve(rc, req); w.Code != http.StatusNotFound {
			t.Errorf("%q: status %d", p, w.Code)
		}
	}
	if w, _ := serve(rc, good); w.Code != http.StatusOK || len(sink.stored()) != 1 {
		t.Errorf("the path itself: status %d", w.Code)
	}
}

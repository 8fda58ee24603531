package receiver

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A request goes on with the source that it began with, and what a source has
// counted stays when its secret is another.
func TestReceiver_SetSources(t *testing.T) {
	rc, sink := readyReceiver(t, testClock, tokenSource(), wecomSource())
	w, _ := serve(rc, signedRequest(t, tokenSource(), "{}", testClock))
	if w.Code != 200 {
		t.Fatalf("before: %d", w.Code)
	}
	body, send := io.Pipe()
	old := signedRequest(t, tokenSource(), "{}", testClock)
	old.Body = body
	answered := make(chan int)
	go func() {
		w, _ := serve(rc, old)
		answered <- w.Code
	}()
	if _, err := io.WriteString(send, "{"); err != nil { // it is being read
		t.Fatal(err)
	}

	rotated := tokenSource()
	rotated.Token = []string{"shared-secret-2"}
	added := SourceConfig{Name: "added", Scheme: "token", Token: []string{"shared-secret-3"}, IDHeader: "X-Event-Id"}
	if err := rc.SetSources([]SourceConfig{rotated, added}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(send, "}"); err != nil {
		t.Fatal(err)
	}
	if err := send.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-answered; code != 200 {
		t.Errorf("a request that had begun: %d", code)
	}
	for name, c := range map[string]struct {
		source SourceConfig
		status int
	}{
		"new secret":   {rotated, 200},
		"old secret":   {tokenSource(), 401},
		"new source":   {added, 200},
		"source is no": {wecomSource(), 404},
	} {
		payload := "{}"
		if c.source.Scheme == "wecom" {
			payload = sysEvent("x")
		}
		if w, _ := serve(rc, signedRequest(t, c.source, payload, testClock)); w.Code != c.status {
			t.Errorf("%s: %d, want %d", name, w.Code, c.status)
		}
	}
	stats := rc.Stats()
	if len(stats) != 2 || stats[0].Source != "orders" || stats[0].Accepted != 3 || stats[0].Refused[ReasonAuth] != 1 ||
		stats[1].Source != "added" || stats[1].Accepted != 1 || len(sink.stored()) != 4 {
		t.Errorf("%d stored, got %+v", len(sink.stored()), stats)
	}
}

// What is wrong changes nothing.
func TestReceiver_SetSourcesRefuses(t *testing.T) {
	rc, _ := readyReceiver(t, testClock, tokenSource())
	empty, unknown := tokenSource(), tokenSource()
	empty.Token, unknown.Name, unknown.Scheme = []string{"with blank"}, "other", "nothing"
	for _, sources := range [][]SourceConfig{{empty}, {tokenSource(), unknown}} {
		if err := rc.SetSources(sources, time.Hour); err == nil || strings.Contains(err.Error(), "with blank") {
			t.Errorf("got %v", err)
		}
	}
	if w, _ := serve(rc, signedRequest(t, tokenSource(), "{}", testClock)); w.Code != 200 {
		t.Errorf("after: %d", w.Code)
	}
}

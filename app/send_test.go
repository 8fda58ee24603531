package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"idemd/event"
	"idemd/receiver"
)

// sources of every scheme, with literal secrets.
const testSources = `
environment = "test"
[[source]]
name = "shop"
scheme = "token"
token = "shop-token"
id_header = "X-Id"
type_header = "X-Type"

[[source]]
name = "wecom"
scheme = "wecom"
token = "wecomtoken"
encoding_aes_key = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
receive_ids = ["ww1"]

[[source]]
name = "hooks"
scheme = "hmac"
secret = "hooks-secret"
header = "X-Signature"
timestamp_header = "X-Timestamp"
signed = "{timestamp}.{body}"
id_path = "event.id"
type_header = "X-Type"

[[source]]
name = "anonymous"
scheme = "token"
token = "anonymous-token"
`

func TestSample_IsTheEventThatItsSourceReceives(t *testing.T) {
	c := parse(t, testSources)
	sources, err := c.ReceiverSources()
	if err != nil {
		t.Fatal(err)
	}
	var got []*event.Event
	recv, err := receiver.New(receiver.Config{
		Sources: sources, Logger: slog.New(slog.DiscardHandler),
		Publish: func(_ context.Context, ev *event.Event) error { got = append(got, ev); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	recv.SetReady(receiver.StateReady)
	srv := httptest.NewServer(recv.NewServer().Handler)
	defer srv.Close()

	for _, e := range []SampleEvent{
		{Source: "shop"},
		{Source: "shop", ID: "o-1", Type: "order.paid", Payload: []byte(`{"n":1}`)},
		{Source: "wecom"},
		{Source: "hooks"},
		{}, // the first source
	} {
		got = nil
		s, err := c.NewSample(e)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if sent, err := s.Send(t.Context(), srv.Client(), srv.URL); err != nil || sent.Status != 200 {
				t.Fatalf("%+v: got %+v, %v", e, sent, err)
			}
		}
		if len(got) != 2 || got[0].ID() != s.EventID || got[1].ID() != s.EventID || got[0].Type != s.Type {
			t.Errorf("%+v: sample %+v, received %+v", e, s, got)
		}
		if e.ID != "" && (got[0].Identity.ID != e.ID || s.Type != e.Type || string(got[0].Body) != string(e.Payload)) {
			t.Errorf("%+v: received %+v", e, got[0])
		}
	}
	s, err := c.NewSample(SampleEvent{Source: "anonymous"})
	if err != nil || s.EventID != "" {
		t.Errorf("an event without identity has no id to tell: got %+v, %v", s, err)
	}
}

func TestSample_SaysWhatCannotBeSent(t *testing.T) {
	c := parse(t, testSources)
	for words, e := range map[string]SampleEvent{
		`there is no source "shp"`:           {Source: "shp"},
		"stands in its payload":              {Source: "wecom", Type: "x"},
		"would refuse this event with statu": {Source: "shop", Payload: []byte(strings.Repeat("x", 2<<20))},
	} {
		_, err := c.NewSample(e)
		var operator *OperatorError
		if !errors.As(err, &operator) || !strings.Contains(err.Error(), words) || operator.Hint == "" {
			t.Errorf("%s: got %v", words, err)
		}
	}
}

func TestCheck_FindsWhatIsMissingAroundTheConfiguration(t *testing.T) {
	c := parse(t, strings.ReplaceAll(testSources, `"shop-token"`, `"env:UNSET_IN_TESTS"`))
	c.DataDir = filepath.Join(t.TempDir(), "data")
	c.Receiver.Listen = "127.0.0.1:0"
	failed := map[string]string{}
	for _, f := range c.Check(t.Context()) {
		if !f.OK {
			failed[f.Subject] = f.What
		}
	}
	if len(failed) != 1 || !strings.Contains(failed[`secret source[0] "shop".token`], "UNSET_IN_TESTS is not set") {
		t.Errorf("got %v", failed)
	}

	t.Setenv("UNSET_IN_TESTS", "fine")
	taken := httptest.NewServer(nil)
	defer taken.Close()
	c.Receiver.Listen = strings.TrimPrefix(taken.URL, "http://")
	c.DataDir = "/dev/null/data"
	failed = map[string]string{}
	for _, f := range c.Check(t.Context()) {
		if !f.OK {
			failed[f.Subject] = f.What
		}
	}
	if failed["receiver.listen"] == "" || failed["data_dir"] == "" {
		t.Errorf("got %v", failed)
	}
}

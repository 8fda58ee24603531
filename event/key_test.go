package event_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"idemd/event"
)

func sample() event.Event {
	return event.Event{
		Source: "wecom", Type: "message.text",
		Identity: event.Identity{Tenant: "ww0", Kind: event.KindPlatform, Type: "message.text", ID: "7412345678901234567"},
	}
}

// Cases 5, 71, 89, 91: every dimension of the identity makes another key.
func TestKey_EveryDimensionCounts(t *testing.T) {
	base := sample()
	keys := map[string]string{event.KeyFor(&base, "crm").Tuple: "base"}
	for name, change := range map[string]func(*event.Event){
		"source": func(e *event.Event) { e.Source = "wecom2" },
		"tenant": func(e *event.Event) { e.Identity.Tenant = "ww1" },
		"kind":   func(e *event.Event) { e.Identity.Kind = event.KindNatural },
		"type":   func(e *event.Event) { e.Identity.Type = "" },
		"id":     func(e *event.Event) { e.Identity.ID += "8" },
		"batch":  func(e *event.Event) { e.Batch = "b2" },
	} {
		e := sample()
		change(&e)
		k := event.KeyFor(&e, "crm")
		if other, ok := keys[k.Tuple]; ok {
			t.Errorf("%s: same key as %s", name, other)
		}
		keys[k.Tuple] = name
	}
	if event.KeyFor(&base, "mail").Hash == event.KeyFor(&base, "crm").Hash {
		t.Error("two handlers share a key")
	}
}

// Cases 81, 83, 92: what does not identify does not count.
func TestKey_IgnoresWhatIsNotIdentity(t *testing.T) {
	a, b := sample(), sample()
	b.Body, b.Origin, b.Type = []byte("other"), event.OriginReconcile, "renamed"
	b.Fingerprint.Sum[0] = 1
	if event.KeyFor(&a, "crm") != event.KeyFor(&b, "crm") || a.ID() != b.ID() {
		t.Error("payload, origin or display type changed the key")
	}
	if event.MismatchKey(&a, "crm") == event.MismatchKey(&b, "crm") {
		t.Error("two fingerprints share a mismatch key")
	}
	if event.MismatchKey(&a, "crm") == event.KeyFor(&a, "crm") {
		t.Error("mismatch key equals the ordinary one")
	}
}

// Cases 94, 96: ids are bytes.
func TestKey_IDsAreBytes(t *testing.T) {
	ids := []string{"A", "a", "é", "e\u0301", "1", "01", "1.0", "a\x00", "a\n", "\xff", " a", "a "}
	seen := map[event.Hash]string{}
	for _, id := range ids {
		e := sample()
		e.Identity.ID = id
		k := event.KeyFor(&e, "h")
		if other, ok := seen[k.Hash]; ok {
			t.Errorf("%q and %q share a key", id, other)
		}
		seen[k.Hash] = id
	}
}

func TestKey_RoundTrip(t *testing.T) {
	e := sample()
	e.Batch = "b1"
	for _, k := range []event.Key{event.KeyFor(&e, "crm"), event.MismatchKey(&e, "crm")} {
		got, err := event.ParseKey(k.Tuple)
		if err != nil || got != k {
			t.Fatalf("ParseKey: %v, %v", got, err)
		}
		p, err := event.DecodeKey(k.Tuple)
		if err != nil {
			t.Fatal(err)
		}
		want := event.KeyParts{Source: "wecom", Handler: "crm", Identity: e.Identity, Batch: "b1", Mismatch: k != event.KeyFor(&e, "crm")}
		if d := cmp.Diff(want, p); d != "" {
			t.Error(d)
		}
		if p.EventID() != e.ID() {
			t.Errorf("event id from key %s, from event %s", p.EventID(), e.ID())
		}
	}
	for _, bad := range []string{"", "\x01a", "\x80", string(event.AppendTuple(nil, "2", "", "", "", "", "", "", ""))} {
		if _, err := event.ParseKey(bad); !errors.Is(err, event.ErrTuple) {
			t.Errorf("ParseKey(%q): %v", bad, err)
		}
	}
}

// The public ids are promised to stay: handlers and operators keep them.
func TestKey_PublicIDsAreStable(t *testing.T) {
	e := sample()
	if got, want := e.ID(), "evt_75hwlapmeiopqdsbvvge3b5nla"; got != want {
		t.Errorf("event id %s, want %s", got, want)
	}
	if got, want := event.KeyFor(&e, "crm").RunID(), "run_2ca2bw74sqexnyaf5drhldbhmm"; got != want {
		t.Errorf("run id %s, want %s", got, want)
	}
}

// Cases 87, 88: ids that say nothing count as missing and never unite events.
func TestIdentity_MissingIDsAreUnkeyed(t *testing.T) {
	for _, id := range []string{"", " ", "\t\n", "0", " 0 ", "null", "null "} {
		a := event.NewIdentity("t", event.KindPlatform, "x", id)
		b := event.NewIdentity("t", event.KindPlatform, "x", id)
		if a.Kind != event.KindUnkeyed || a.ID == b.ID {
			t.Errorf("%q: %+v, %+v", id, a, b)
		}
	}
	for _, id := range []string{"00", "nil", "Null", "0.0", "-"} {
		if a := event.NewIdentity("t", event.KindPlatform, "x", id); a.ID != id {
			t.Errorf("%q became %+v", id, a)
		}
	}
}

// Cases 85, 95: an id is never cut; one that is too long is marked.
func TestIdentity_OversizeIDIsHashedAndMarked(t *testing.T) {
	ok := event.NewIdentity("", event.KindPlatform, "", strings.Repeat("x", event.MaxID))
	if ok.Kind != event.KindPlatform || len(ok.ID) != event.MaxID {
		t.Errorf("at the bound: %s, %d bytes", ok.Kind, len(ok.ID))
	}
	a := event.NewIdentity("", event.KindPlatform, "", strings.Repeat("x", 1<<20)+"a")
	b := event.NewIdentity("", event.KindPlatform, "", strings.Repeat("x", 1<<20)+"b")
	if a.Kind != event.KindOversize || len(a.ID) != 64 || a.ID == b.ID {
		t.Errorf("over the bound: %+v, %+v", a, b)
	}
}

func TestIdentity_TextIsForPeople(t *testing.T) {
	made := string(event.AppendTuple(nil, "1000002", "u_zhao", "7412", "\xff\x01"))
	for id, want := range map[string]string{
		"order-17": "order-17", "企业": "企业", "a\nb": "610a62", made: "1000002/u_zhao/7412/ff01",
	} {
		i := event.Identity{ID: id}
		if got := i.Text(); got != want {
			t.Errorf("%q: text %q, want %q", id, got, want)
		}
		if !i.Is(id) || !i.Is(want) || i.Is("") || i.Is("nothing") {
			t.Errorf("%q: is not known by its own names", id)
		}
	}
	i := event.Identity{ID: made}
	if !i.Is("7412") || i.Is("741") {
		t.Error("an event is known by its message id, and by no part of that")
	}
}

// R43: a duplicate that is dealt with on its own has a key of its own, by who had
// the event, by who deals with it and by its number.
func TestKey_OfADuplicate(t *testing.T) {
	e := sample()
	keys := map[event.Key]bool{event.KeyFor(&e, "crm"): true, event.MismatchKey(&e, "crm"): true}
	for _, c := range []struct {
		handler, of string
		number      uint64
	}{{"crm", "crm", 1}, {"crm", "crm", 2}, {"undo", "crm", 1}, {"undo", "erp", 1}} {
		k := event.DuplicateKey(&e, c.handler, c.of, c.number)
		if keys[k] {
			t.Errorf("%+v shares its key", c)
		}
		keys[k] = true
		p, err := event.DecodeKey(k.Tuple)
		if err != nil || p.Handler != c.handler || p.DuplicateOf != c.of || p.Number != c.number || p.Mismatch || p.EventID() != e.ID() {
			t.Errorf("%+v decodes to %+v, %v", c, p, err)
		}
		if !k.IsRunOf(&e, c.handler) || k.IsRunOf(&e, "other") {
			t.Errorf("%+v: not told from the runs of others", c)
		}
	}
	other := sample()
	other.Batch = "b2"
	if event.DuplicateKey(&e, "crm", "crm", 1).IsRunOf(&other, "crm") {
		t.Error("the run of another batch")
	}
}

func TestKey_UnknownPartsAreNoKey(t *testing.T) {
	base := []string{"1", "s", "", "h", "platform", "", "id", ""}
	for _, more := range [][]string{{"x"}, {"other", "x"}, {"duplicate", "crm"}, {"duplicate", "crm", "01"}, {"duplicate", "crm", "-1"}, {"mismatch", "a", "b"}} {
		if _, err := event.DecodeKey(string(event.AppendTuple(nil, append(base, more...)...))); !errors.Is(err, event.ErrTuple) {
			t.Errorf("%q: %v", more, err)
		}
	}
}

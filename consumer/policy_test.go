package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"idemd/dedup"
	"idemd/event"
)

// Case 28: DESIGN's table, status by status.
func TestClassify_EveryStatus(t *testing.T) {
	want := func(code int) (Class, bool) {
		switch code {
		case 401, 403, 404, 405:
			return NoEffect, true
		case 408, 409, 423, 425:
			return Unknown, false
		case 429:
			return Wait, false
		}
		switch code / 100 {
		case 2:
			return Done, false
		case 1, 3, 4:
			return Permanent, false
		}
		return Unknown, false
	}
	for code := 100; code < 700; code++ {
		a := status(code)
		if class, endless := want(code); a.Class != class || a.Endless != endless {
			t.Errorf("%d is %v (endless %v), want %v (%v)", code, a.Class, a.Endless, class, endless)
		}
		if reason := fmt.Sprintf("http-%d", code); a.Class == Done && a.Reason.Code != "" || a.Class != Done && a.Reason.Code != reason {
			t.Errorf("%d has the reason %+v", code, a.Reason)
		}
	}
}

// Case 29: a handler's own rules go before the table.
func TestClassify_OwnRulesGoFirst(t *testing.T) {
	own, err := ParseAnswers(map[string]string{"409": "done", "200": "permanent", "404": "no-effect", "500": "unknown"})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[int]Class{409: Done, 200: Permanent, 404: NoEffect, 500: Unknown, 201: Done, 400: Permanent} {
		if a := Classify(Reply{Status: status}, own); a.Class != want || a.Endless {
			t.Errorf("%d is %+v, want %v", status, a, want)
		}
	}
	if a := Classify(Reply{Status: 409}, own); a.Reason.Code != "" {
		t.Errorf("a done answer has the reason %+v", a.Reason)
	}
	_, err = ParseAnswers(map[string]string{"4xx": "done", "99": "done", "600": "done", "409": "maybe", "410": "done"})
	if err == nil {
		t.Fatal("no error")
	}
	wantContains(t, err.Error(), `"4xx"`, `"99"`, `"600"`, `"409" = "maybe"`)
}

func TestSpec_Decide(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	why := dedup.Reason{Code: "c", Detail: "d"}
	unknown, noEffect := Answer{Class: Unknown, Reason: why}, Answer{Class: NoEffect, Reason: why}
	endless := Answer{Class: NoEffect, Endless: true, Reason: why}
	again := func(counts bool, d time.Duration) settlement {
		return settlement{action: postpone, counts: counts, due: dedup.At(now.Add(d)), reason: why}
	}
	after := func(n int) settlement {
		return settlement{action: bury, counts: true, park: true, reason: dedup.Reason{Code: "c", Detail: fmt.Sprintf("d, after %d attempts", n)}}
	}
	doubted := settlement{action: doubt, counts: true, park: true, reason: why}
	const limit = 14 * 24 * time.Hour
	late := func(counts bool) settlement {
		return settlement{action: bury, counts: counts, park: true, reason: dedup.Reason{
			Code: "c", Detail: "d, first seen longer ago than the replay limit of 336h0m0s",
		}}
	}
	for _, c := range []struct {
		name     string
		answer   Answer
		effect   dedup.Effect
		attempts int
		age      time.Duration
		random   float64
		want     settlement
	}{
		{"done", Answer{Class: Done}, dedup.Irrevocable, 0, 0, 0, settlement{action: commit, counts: true}},
		{"permanent", Answer{Class: Permanent, Reason: why}, dedup.Idempotent, 0, 0, 0, settlement{action: bury, counts: true, park: true, reason: why}},
		{"unknown, irrevocable", unknown, dedup.Irrevocable, 0, 0, 0, doubted},
		{"unknown, irrevocable, last", unknown, dedup.Irrevocable, 4, 0, 0, doubted},
		{"no class is unknown", Answer{Reason: why}, dedup.Irrevocable, 0, 0, 0, doubted},
		{"unknown, retryable", unknown, dedup.Retryable, 0, 0, 0, again(true, 10*time.Second)},
		{"unknown, idempotent", unknown, dedup.Idempotent, 1, 0, 0, again(true, 30*time.Second)},
		{"third", unknown, dedup.Retryable, 2, 0, 0, again(true, 2*time.Minute)},
		{"fourth", unknown, dedup.Retryable, 3, 0, 0, again(true, 10*time.Minute)},
		{"jitter", unknown, dedup.Retryable, 0, 0, 0.5, again(true, 10500*time.Millisecond)},
		{"exhausted", unknown, dedup.Retryable, 4, 0, 0, after(5)},
		{"far beyond", unknown, dedup.Retryable, 40, 0, 0, after(41)},
		{"no effect, irrevocable", noEffect, dedup.Irrevocable, 0, 0, 0, again(true, 10*time.Second)},
		{"no effect, exhausted", noEffect, dedup.Irrevocable, 4, 0, 0, after(5)},
		{"endless", endless, dedup.Irrevocable, 0, 0, 0, again(false, 10*time.Second)},
		{"endless, for a while", endless, dedup.Retryable, 0, time.Minute, 0, again(false, time.Minute)},
		{"endless, for long", endless, dedup.Retryable, 0, time.Hour, 0, again(false, 10*time.Minute)},
		{"endless, last attempt", endless, dedup.Retryable, 4, 0, 0, again(false, 10*time.Second)},
		{"endless, clock went back", endless, dedup.Retryable, 0, -time.Hour, 0, again(false, 10*time.Second)},
		{"endless, at the limit", endless, dedup.Retryable, 0, limit - 10*time.Minute, 0, again(false, 10*time.Minute)},
		{"endless, over the limit", endless, dedup.Retryable, 0, limit - 10*time.Minute + 1, 0, late(false)},
		{"jitter goes over the limit", unknown, dedup.Retryable, 0, limit - 10*time.Second, 0.1, late(true)},
		{"wait", Answer{Class: Wait, Reason: why, After: time.Minute}, dedup.Irrevocable, 9, 0, 0, again(false, time.Minute)},
		{"wait, unsaid", Answer{Class: Wait, Reason: why}, dedup.Retryable, 0, 0, 0, again(false, 30*time.Second)},
		{"wait, capped", Answer{Class: Wait, Reason: why, After: 9 * time.Hour}, dedup.Retryable, 0, 0, 0, again(false, time.Hour)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spec("crm", &script{}).WithDefaults()
			f := facts{effect: c.effect, attempts: c.attempts, firstSeen: now.Add(-c.age), now: now, random: c.random}
			if diff := cmp.Diff(c.want, s.decide(c.answer, f), cmp.AllowUnexported(settlement{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSpec_DecideWithOtherRetries(t *testing.T) {
	now := time.Now()
	s := spec("crm", &script{})
	s.Retry = []time.Duration{}
	s = s.WithDefaults()
	f := facts{effect: dedup.Retryable, firstSeen: now, now: now}
	if got := s.decide(status(500), f); got.action != bury || got.reason.Detail != "answered 500 Internal Server Error, after 1 attempt" {
		t.Errorf("without retries: %+v", got)
	}
	if got := s.decide(status(404), f); got.action != postpone || got.due != dedup.At(now.Add(10*time.Second)) {
		t.Errorf("without retries, endless: %+v", got)
	}
	for retry, park := range map[time.Duration]bool{time.Hour: false, time.Hour + 1: true} {
		s.Retry = []time.Duration{retry}
		if got := s.decide(status(500), f); got.park != park {
			t.Errorf("a wait of %v parks: %v", retry, got.park)
		}
	}
}

// A delay is never early and at most 10 % late.
func TestJitter_IsNeverEarly(t *testing.T) {
	for _, r := range []float64{0, 0.1, 0.5, 0.999999} {
		if got := jitter(10*time.Second, DefaultJitter, r); got < 10*time.Second || got > 11*time.Second {
			t.Errorf("jitter with %v gives %v", r, got)
		}
	}
}

func TestSpec_Matches(t *testing.T) {
	for _, c := range []struct {
		types   []string
		sources []string
		typ     string
		want    bool
		parked  bool
	}{
		{typ: "message.text", want: true},
		{types: []string{"message.text"}, typ: "message.text", want: true},
		{types: []string{"message.text"}, typ: "message.texts"},
		{types: []string{"message.text"}, typ: "Message.text"},
		{types: []string{"message.*"}, typ: "message.text", want: true},
		{types: []string{"message.*"}, typ: "message.", want: true},
		{types: []string{"message.*"}, typ: "message"},
		{types: []string{"a", "*"}, typ: "anything", want: true},
		{sources: []string{"wecom"}, typ: "x", want: true},
		{sources: []string{"other"}, typ: "x"},
		{types: []string{"message.*"}, typ: event.TypeUnparsed, want: true, parked: true},
		{types: []string{"*"}, typ: event.TypeUnparsed, want: true, parked: true},
		{types: []string{event.TypeUnparsed}, typ: event.TypeUnparsed, want: true},
	} {
		s := Spec{Types: c.types, Sources: c.sources}
		ev := newEvent("e1")
		ev.Type = c.typ
		if got := s.Matches("wecom", c.typ); got != c.want {
			t.Errorf("types %q, sources %q match %q: %v", c.types, c.sources, c.typ, got)
		}
		if got := s.Unrunnable(ev) != ""; got != c.parked {
			t.Errorf("types %q park %q: %v", c.types, c.typ, got)
		}
	}
}

func TestSpec_ValidateNamesEveryProblem(t *testing.T) {
	good := spec("crm", &script{})
	if p := good.Validate(); p != nil {
		t.Errorf("a good spec has problems: %+v", p)
	}
	var fields []string
	bad := Spec{
		StoreUnavailable: "perhaps", OnMismatch: "run", Timeout: -1, Concurrency: -1, Jitter: 2, Retain: -1, ReplayLimit: -1,
		Retry: []time.Duration{time.Second, 0}, Types: []string{"a.*", "*.b", ""},
	}
	for _, p := range bad.Validate() {
		fields = append(fields, p.Field)
	}
	want := []string{
		"id", "effect", "store_unavailable", "on_mismatch", "timeout", "concurrency", "jitter", "cold", "replay_limit",
		"kind", "retry[1]", "types[1]", "types[2]",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		effect dedup.Effect
		store  StoreUnavailable
		ok     bool
	}{
		{dedup.Idempotent, "", true},
		{dedup.Idempotent, Allow, true},
		{dedup.Retryable, "", false},
		{dedup.Retryable, Allow, true},
		{dedup.Retryable, Refuse, true},
		{dedup.Irrevocable, Refuse, true},
		{dedup.Irrevocable, Allow, false},
		{dedup.Irrevocable, "", false},
	} {
		s := spec("crm", &script{})
		s.Effect, s.StoreUnavailable = c.effect, c.store
		if p := s.Validate(); (p == nil) != c.ok {
			t.Errorf("%v with %q: %+v", c.effect, c.store, p)
		}
	}
}

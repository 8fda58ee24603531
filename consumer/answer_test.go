package consumer

import (
	"net/http"
	"testing"
	"time"

	"idemd/dedup"
)

func testNow() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func TestClassify_Headers(t *testing.T) {
	for name, c := range map[string]struct {
		reply Reply
		want  Answer
	}{
		"429 says wait by itself":              {Reply{Status: 429}, Answer{Class: Wait, Hearsay: true}},
		"429 with seconds":                     {Reply{Status: 429, RetryAfter: "7"}, Answer{Class: Wait, After: 7 * time.Second, Hearsay: true}},
		"429 with no effect":                   {Reply{Status: 429, Outcome: "no-effect"}, Answer{Class: Wait}},
		"429 that did it":                      {Reply{Status: 429, Outcome: "done"}, Answer{Class: Done}},
		"503 with seconds":                     {Reply{Status: 503, RetryAfter: "60"}, Answer{Class: Wait, After: time.Minute, Hearsay: true}},
		"503 with seconds and no effect":       {Reply{Status: 503, RetryAfter: "60", Outcome: "no-effect"}, Answer{Class: Wait, After: time.Minute}},
		"503 with seconds, trusted":            {Reply{Status: 503, RetryAfter: "60", TrustWait: true}, Answer{Class: Wait, After: time.Minute}},
		"503 with seconds, permanent":          {Reply{Status: 503, RetryAfter: "60", Outcome: "permanent"}, Answer{Class: Permanent}},
		"503 alone":                            {Reply{Status: 503, TrustWait: true}, Answer{Class: Unknown}},
		"503 with nonsense":                    {Reply{Status: 503, RetryAfter: "soon"}, Answer{Class: Unknown}},
		"500 with seconds":                     {Reply{Status: 500, RetryAfter: "60"}, Answer{Class: Unknown}},
		"500 with no effect":                   {Reply{Status: 500, Outcome: "no-effect"}, Answer{Class: NoEffect}},
		"502 that did it":                      {Reply{Status: 502, Outcome: "done"}, Answer{Class: Done}},
		"599 that never will":                  {Reply{Status: 599, Outcome: "permanent"}, Answer{Class: Permanent}},
		"500 that says what nobody knows":      {Reply{Status: 500, Outcome: "maybe"}, Answer{Class: Unknown}},
		"a timeout's status with an outcome":   {Reply{Status: 408, Outcome: "no-effect"}, Answer{Class: Unknown}},
		"success is success whatever it says":  {Reply{Status: 200, Outcome: "no-effect"}, Answer{Class: Done}},
		"a bad request with an outcome, ditto": {Reply{Status: 400, Outcome: "done"}, Answer{Class: Permanent}},
	} {
		got := Classify(c.reply, nil)
		got.Reason = dedup.Reason{}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	own := map[int]Class{503: Unknown}
	if a := Classify(Reply{Status: 503, RetryAfter: "5", Outcome: "done"}, own); a.Class != Unknown {
		t.Errorf("the configuration does not go first: %+v", a)
	}
}

func TestParseRetryAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-5": 0, "1.5": 0, "5s": 0, "2026-03-01T12:00:00Z": 0,
		"0": time.Second, "1": time.Second, " 30 ": 30 * time.Second, "3600": time.Hour, "3601": time.Hour,
		"99999999999999999999999":                               time.Hour,
		testNow().Add(90 * time.Second).Format(http.TimeFormat): 90 * time.Second,
		testNow().Add(-time.Hour).Format(http.TimeFormat):       time.Second,
		testNow().AddDate(1, 0, 0).Format(http.TimeFormat):      time.Hour,
		"Sunday, 01-Mar-26 12:01:00 GMT":                        time.Minute,
	} {
		got, ok := ParseRetryAfter(value, testNow())
		if got != want || ok != (want != 0) {
			t.Errorf("%q is %v, %v; want %v", value, got, ok, want)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "0", "120", "99999999999999999999", "-1", "Sun, 01 Mar 2026 12:00:00 GMT", "Sunday, 01-Mar-26 12:00:00 GMT", "Sun Mar  1 12:00:00 2026"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		d, ok := ParseRetryAfter(value, testNow())
		if ok != (d >= minWait && d <= MaxWait) || !ok && d != 0 {
			t.Errorf("%q is %v, %v", value, d, ok)
		}
	})
}

// A wait is no attempt, and it ends at the replay limit as a dead letter.
func TestPool_WaitAnswersAreNoAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		wait := Classify(Reply{Status: 503, RetryAfter: "3600"}, nil)
		h := &script{answers: repeat(wait, 100)}
		s := spec("crm", h)
		s.ReplayLimit = 6 * time.Hour
		r.start(s)
		ev := newEvent("e1")
		r.publish(ev)
		settleDown()
		rec := r.wantState("crm", ev, dedup.Waiting, "http-503")
		if d := time.Until(rec.Due.Std()); rec.Attempts != 0 || d < 59*time.Minute || d > 67*time.Minute {
			t.Errorf("due in %v, record %+v", d, rec)
		}
		advance(7 * time.Hour)
		rec = r.wantState("crm", ev, dedup.Dead, "http-503")
		if n := len(h.seen()); rec.Attempts != 0 || n < 5 || n > 7 {
			t.Errorf("%d requests, record %+v", n, rec)
		}
	})
}

func TestPool_IrrevocableWaitsOnlyIfTheHandlerItselfSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		h := &script{answers: []Answer{
			Classify(Reply{Status: 429}, nil),
			Classify(Reply{Status: 429, Outcome: "no-effect"}, nil),
		}}
		s := spec("crm", h)
		s.Effect = dedup.Irrevocable
		r.start(s)
		first, second := newEvent("e1"), newEvent("e2")
		r.publish(first)
		settleDown()
		r.wantState("crm", first, dedup.InDoubt, "http-429")
		r.publish(second)
		settleDown()
		if rec := r.wantState("crm", second, dedup.Waiting, "http-429"); rec.Attempts != 0 {
			t.Errorf("it counts: %+v", rec)
		}
		advance(34 * time.Second)
		r.wantState("crm", second, dedup.Done, "")
	})
}

func TestHTTP_ReadsRetryAfterAndOutcome(t *testing.T) {
	var outcome string
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "5")
		w.Header().Set("Idemd-Outcome", outcome)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	a := attemptOf(payloadEvent())
	h := newHTTP(t, HTTPConfig{URL: srv.URL})
	if got := h.Handle(t.Context(), a); got.Class != Wait || got.After != 5*time.Second || !got.Hearsay {
		t.Errorf("answer %+v", got)
	}
	if got := newHTTP(t, HTTPConfig{URL: srv.URL, TrustWait: true}).Handle(t.Context(), a); got.Class != Wait || got.Hearsay {
		t.Errorf("trusted answer %+v", got)
	}
	outcome = "done"
	if got := h.Handle(t.Context(), a); got.Class != Done {
		t.Errorf("answer with an outcome %+v", got)
	}
}

package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"idemd/dedup"
	"idemd/event"
	"idemd/queue"
)

// Suppression is a delivery that was not run because its event has a record at
// the handler, or a number of them that are told together.
type Suppression struct {
	Handler    string       `json:"handler"` // its name; its id when it is no longer configured
	At         time.Time    `json:"at"`
	Count      uint64       `json:"count"`      // deliveries; the other fields are those of the last one
	First      time.Time    `json:"first"`      // when the first of them was suppressed
	Verdict    string       `json:"verdict"`    // why: done, busy, waiting, in_doubt, dead or mismatch
	Payload    string       `json:"payload"`    // against the record's: same, different or not-compared
	Redelivery bool         `json:"redelivery"` // by the queue after a restart: nobody sent it again
	Source     string       `json:"source"`     // its id
	Type       string       `json:"type"`
	Origin     event.Origin `json:"origin"`
	Seq        uint64       `json:"seq"`
	Received   time.Time    `json:"received"`
	Delay      Seconds      `json:"delay_seconds"` // from the record's first seen to received

	State     dedup.State `json:"record_state"` // of the record that decided
	Fence     dedup.Fence `json:"record_fence"`
	RecordSeq uint64      `json:"record_seq"`
	FirstSeen time.Time   `json:"record_first_seen"`
	Since     dedup.Time  `json:"record_since"` // done: committed; else: started; null when it never did
}

// Seconds is a length of time that is a number of seconds in JSON.
type Seconds time.Duration

// MarshalJSON writes seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var n float64
	if _, err := fmt.Sscan(string(b), &n); err != nil {
		return fmt.Errorf("parse seconds: %w", err)
	}
	*s = Seconds(n * float64(time.Second))
	return nil
}

// Windows judges the windows, and how long handlers run.
type Windows struct {
	Sources []SourceWindows `json:"sources"`
	Runs    []RunTimes      `json:"runs"` // of the handlers
	Ledger  LedgerStatus    `json:"ledger"`
}

// SourceWindows is one source: how late its duplicates come, and whether its
// windows are long enough for that.
type SourceWindows struct {
	Source   string     `json:"source"` // its name
	ID       string     `json:"id"`
	Arrivals Arrivals   `json:"arrivals"` // of all types
	Types    []Arrivals `json:"types"`    // 64 of them; the rest under "other"

	Platform    string  `json:"platform"`       // empty when it is not known
	Span        Seconds `json:"span_seconds"`   // for how long the platform retries by itself
	ByHand      Seconds `json:"byhand_seconds"` // for how long somebody can have it sent again; 0 when not known
	SpanOrigin  string  `json:"span_origin"`    // configured, documented or unknown
	SpanURL     string  `json:"span_url"`       // where it is documented
	SpanChecked bool    `json:"span_checked"`   // that page itself was read
	SpanNote    string  `json:"span_note"`

	Hot           Seconds  `json:"hot_seconds"`            // as configured
	Cold          Seconds  `json:"cold_seconds"`           // as configured; the shortest of its handlers; 0 when none keeps records
	RecommendHot  Seconds  `json:"recommend_hot_seconds"`  // three times P99, at least the span; 0 when nothing is known
	RecommendFrom Seconds  `json:"recommend_from_seconds"` // twice P99, at least the span
	RecommendCold Seconds  `json:"recommend_cold_seconds"` // the sum that idemd check prints, at least the longest span
	Verdict       string   `json:"verdict"`                // ok, too short, too few samples
	Warnings      []string `json:"warnings"`
}

// Arrivals says how long after its first arrival an event came for the last
// time, of those that came more than once. Percentiles are right within 5 %.
type Arrivals struct {
	Type    string   `json:"type,omitempty"`
	Count   uint64   `json:"count"`
	P50     Seconds  `json:"p50_seconds"`
	P95     Seconds  `json:"p95_seconds"`
	P99     Seconds  `json:"p99_seconds"`
	Max     Seconds  `json:"max_seconds"`
	Buckets []Bucket `json:"buckets"` // those that are not empty
}

// Bucket counts the events up to a time, above that of the bucket before.
type Bucket struct {
	UpTo  Seconds `json:"up_to_seconds"`
	Count uint64  `json:"count"`
}

// RunTimes is how long a handler's attempts take, since the process started.
type RunTimes struct {
	Handler  string   `json:"handler"`
	Count    uint64   `json:"count"`
	P50      Seconds  `json:"p50_seconds"`
	P95      Seconds  `json:"p95_seconds"`
	P99      Seconds  `json:"p99_seconds"`
	Timeout  Seconds  `json:"timeout_seconds"`
	Warnings []string `json:"warnings"`
}

// LedgerStatus is how what was suppressed is written down.
type LedgerStatus struct {
	Noted   uint64   `json:"noted"`  // suppressions since the process started
	Unkept  uint64   `json:"unkept"` // of them, only counted
	Bytes   int64    `json:"bytes"`
	Damaged []string `json:"damaged"` // files that cannot be read, and why
}

// suppressions gives what was not run of m's event, by the handlers' names.
func (s *Server) suppressions(ctx context.Context, m queue.Message) (map[string][]Suppression, error) {
	if s.b.Suppressions == nil {
		return nil, nil
	}
	var keys []event.Key
	for _, h := range s.b.Handlers() {
		keys = append(keys, event.KeyFor(&m.Event, h.ID), event.MismatchKey(&m.Event, h.ID))
	}
	all, err := s.b.Suppressions(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("look up suppressions: %w", err)
	}
	byHandler := map[string][]Suppression{}
	for _, one := range all {
		byHandler[one.Handler] = append(byHandler[one.Handler], one)
	}
	return byHandler, nil
}

func (s *Server) windows(r *http.Request) (any, error) {
	source, err := s.sourceID(r.URL.Query().Get("source"))
	if err != nil {
		return nil, err
	}
	if s.b.Windows == nil {
		return Windows{Sources: []SourceWindows{}, Runs: []RunTimes{}}, nil
	}
	w := s.b.Windows()
	if source != "" {
		w.Sources = slices.DeleteFunc(w.Sources, func(sw SourceWindows) bool { return sw.ID != source })
	}
	return w, nil
}

package consumer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"idemd/dedup"
	"idemd/event"
)

// The defaults of a Spec.
const (
	DefaultConcurrency = 8
	DefaultTimeout     = 30 * time.Second
	DefaultJitter      = 0.10
	DefaultRetain      = 30 * 24 * time.Hour
	DefaultReplayLimit = 14 * 24 * time.Hour
)

// The bounds of Spec.MaxRate.
const (
	minMaxRate = 0.001
	maxMaxRate = 1e6
)

// DefaultRetry gives the default delays between attempts: with four of them
// there are five attempts.
func DefaultRetry() []time.Duration {
	return []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}
}

// StoreUnavailable says what a handler does while the claim store does not
// answer.
type StoreUnavailable string

// The choices. With Allow an event runs without a claim: success is written to the
// SideLog, which is merged when the store answers again, and acked; failure comes
// again in 30 s.
const (
	Refuse StoreUnavailable = "refuse" // run nothing
	Allow  StoreUnavailable = "allow"  // run without a claim
)

// OnMismatch says what becomes of another payload under a known identity.
type OnMismatch string

// The choices.
const (
	MismatchPark OnMismatch = "park" // a dead letter, for an operator
	MismatchDrop OnMismatch = "drop" // done, outcome dropped
)

// OnDuplicate says what becomes of a duplicate of an event that the handler has
// had: OnDuplicateDrop, OnDuplicateDead, or OnDuplicateHandler before the id of
// another handler.
type OnDuplicate string

// The choices. A duplicate is another delivery, by the platform's call, of an event
// whose run is done. One that comes while the run is not over is suppressed, as
// with OnDuplicateDrop: there is nothing yet to make good.
const (
	OnDuplicateDrop    OnDuplicate = "drop"        // suppressed and counted
	OnDuplicateDead    OnDuplicate = "dead-letter" // a dead letter of its own; the first MaxDuplicates of an event
	OnDuplicateHandler OnDuplicate = "handler:"    // one run of that handler for each
)

// MaxDuplicates is of how many duplicates of one event OnDuplicateDead keeps dead
// letters; those after them are suppressed and counted.
const MaxDuplicates = 10

// Handler gives the id after OnDuplicateHandler; "" for the other choices.
func (o OnDuplicate) Handler() string {
	id, ok := strings.CutPrefix(string(o), string(OnDuplicateHandler))
	if !ok {
		return ""
	}
	return id
}

func (o OnDuplicate) valid() bool {
	return o == OnDuplicateDrop || o == OnDuplicateDead || o.Handler() != ""
}

// Spec is one handler as configured. Zero fields that have a default take it;
// Effect, and StoreUnavailable unless the effect is idempotent, must be set.
type Spec struct {
	ID               string   // what keys, records and the queue know it by
	Name             string   // for people; ID when empty
	Sources          []string // source ids; all when empty
	Types            []string // exact, or with a trailing * that matches any rest; all when empty
	Effect           dedup.Effect
	StoreUnavailable StoreUnavailable
	Timeout          time.Duration   // of one attempt
	Concurrency      int             // attempts at one time
	MaxRate          float64         // events a second that are taken; 0 for no bound
	SerializeBy      string          // path in the body: one run at a time for each value there; "*": one at all; "": no bound
	HoldOrder        bool            // with SerializeBy: also one after the other, in the order of the events
	Retry            []time.Duration // delays between attempts; nil takes the default, empty allows one attempt
	Jitter           float64         // a delay d becomes d to d*(1+Jitter): never early
	OnMismatch       OnMismatch
	OnDuplicate      OnDuplicate
	DuplicatesOnly   bool          // it gets no events but the duplicates that another handler's OnDuplicate gives it
	Retain           time.Duration // how long a settled run is remembered (the cold window)
	ReplayLimit      time.Duration // a run that would go on longer than this after it was first seen ends DEAD
	Handler          Handler
}

// Problem is one thing that is wrong with a Spec.
type Problem struct {
	Field string // as in the configuration: "timeout"
	Text  string // what is wrong, and what to write
}

// WithDefaults gives s with its zero fields filled in.
func (s Spec) WithDefaults() Spec {
	if s.Name == "" {
		s.Name = s.ID
	}
	if s.Retry == nil {
		s.Retry = DefaultRetry()
	}
	if s.OnMismatch == "" {
		s.OnMismatch = MismatchPark
	}
	s.OnDuplicate = orDefault(s.OnDuplicate, OnDuplicateDrop)
	s.Timeout = orDefault(s.Timeout, DefaultTimeout)
	s.Concurrency = orDefault(s.Concurrency, DefaultConcurrency)
	s.Jitter = orDefault(s.Jitter, DefaultJitter)
	s.Retain = orDefault(s.Retain, DefaultRetain)
	s.ReplayLimit = orDefault(s.ReplayLimit, DefaultReplayLimit)
	return s
}

func orDefault[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}

// Validate gives everything that is wrong with s, defaults filled in.
func (s Spec) Validate() []Problem {
	s = s.WithDefaults()
	checks := []struct {
		bad         bool
		field, text string
	}{
		{s.ID == "", "id", "is missing"},
		{s.Effect < dedup.Idempotent || s.Effect > dedup.Irrevocable, "effect",
			"is required: write idempotent, retryable or irrevocable"},
		{s.Effect != dedup.Idempotent && s.StoreUnavailable == "", "store_unavailable",
			"is required: write refuse (run nothing while the claim store is down) or allow (run without a claim)"},
		{s.StoreUnavailable != "" && s.StoreUnavailable != Refuse && s.StoreUnavailable != Allow, "store_unavailable",
			"write refuse or allow"},
		{s.Effect == dedup.Irrevocable && s.StoreUnavailable == Allow, "store_unavailable",
			`"allow" could run an irrevocable effect twice: write refuse`},
		{s.OnMismatch != MismatchPark && s.OnMismatch != MismatchDrop, "on_mismatch", "write park or drop"},
		{!s.OnDuplicate.valid(), "on_duplicate", "write drop, dead-letter or handler:NAME"},
		{s.OnDuplicate.Handler() != "" && s.OnDuplicate.Handler() == s.ID, "on_duplicate", "must be another handler"},
		{s.Effect == dedup.Idempotent && s.OnDuplicate.valid() && s.OnDuplicate != OnDuplicateDrop, "on_duplicate",
			"means nothing for an idempotent handler: no record tells duplicates"},
		{s.SerializeBy != "" && s.Effect == dedup.Idempotent, "serialize_by",
			"needs a record of what waits, which an idempotent handler does not have: remove it, or write another effect"},
		{s.SerializeBy != "" && !validPath(s.SerializeBy), "serialize_by", `write names joined by dots, such as "data.customer", or "*"`},
		{s.HoldOrder && s.SerializeBy == "", "hold_order", `means nothing without serialize_by: write that, too, or remove this`},
		{s.Timeout < 0, "timeout", "must be more than 0"},
		{s.Concurrency < 0 || s.Concurrency > 4096, "concurrency", "must be 1 to 4096"},
		{!(s.MaxRate >= 0 && s.MaxRate <= maxMaxRate) || s.MaxRate > 0 && s.MaxRate < minMaxRate, "max_rate",
			"must be between 0.001 and 1000000 events a second"},
		{s.Jitter < 0 || s.Jitter > 1, "jitter", "must be between 0 and 1"},
		{s.Retain < 0, "cold", "must be more than 0"},
		{s.ReplayLimit < 0, "replay_limit", "must be more than 0"},
		{s.Handler == nil, "kind", "is missing"},
	}
	var problems []Problem
	for _, c := range checks {
		if c.bad {
			problems = append(problems, Problem{Field: c.field, Text: c.text})
		}
	}
	for i, d := range s.Retry {
		if d <= 0 {
			problems = append(problems, Problem{Field: fmt.Sprintf("retry[%d]", i), Text: "must be more than 0"})
		}
	}
	for i, glob := range s.Types {
		if glob == "" || strings.Contains(strings.TrimSuffix(glob, "*"), "*") {
			problems = append(problems, Problem{Field: fmt.Sprintf("types[%d]", i), Text: "write a type, or its beginning and one * at the end"})
		}
	}
	return problems
}

func validPath(path string) bool {
	return !slices.Contains(strings.Split(path, "."), "")
}

// MaxAttempts is how many attempts that count a run has.
func (s *Spec) MaxAttempts() int { return len(s.Retry) + 1 }

// Matches reports whether the handler wants events of this source and type. It
// is also true of an event that could not be parsed: the handler parks it
// unless it lists that type by name.
func (s *Spec) Matches(source, typ string) bool {
	if s.DuplicatesOnly {
		return false
	}
	if len(s.Sources) > 0 && !slices.Contains(s.Sources, source) {
		return false
	}
	return typ == event.TypeUnparsed || len(s.Types) == 0 ||
		slices.ContainsFunc(s.Types, func(glob string) bool { return matchGlob(glob, typ) })
}

func matchGlob(glob, typ string) bool {
	if prefix, ok := strings.CutSuffix(glob, "*"); ok {
		return strings.HasPrefix(typ, prefix)
	}
	return glob == typ
}

// Unrunnable says why an event that the handler gets is parked unseen; "" when
// it is to be run.
func (s *Spec) Unrunnable(ev *event.Event) string {
	switch {
	case ev.Identity.Kind == event.KindOversize:
		return dedup.ReasonOversize
	case ev.Type == event.TypeUnparsed && !slices.Contains(s.Types, event.TypeUnparsed):
		return dedup.ReasonUnparsed
	case ev.Identity.Kind == event.KindUnkeyed && s.Effect == dedup.Irrevocable:
		return dedup.ReasonUnkeyed
	}
	return ""
}

func joined(texts []string) string { return strings.Join(texts, "; ") }

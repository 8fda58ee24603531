package ledger

import "time"

// MinSamples is how many events must have come more than once for their
// distribution to say something about windows.
const MinSamples = 100

// Verdict says whether the windows are long enough.
type Verdict string

// The verdicts.
const (
	OK       Verdict = "ok"
	TooShort Verdict = "too short"
	TooFew   Verdict = "too few samples" // and nothing else says that a window is too short
)

// Windows is what there is to judge for one source. A zero duration is not
// known, or none.
type Windows struct {
	Hot, Cold time.Duration // as configured; the shortest of the source's handlers
	Span      time.Duration // for how long the platform retries by itself
	Needed    time.Duration // by the sum rule for cold
	Arrivals  Distribution
}

// Advice is what the windows should be.
type Advice struct {
	HotFrom time.Duration // 2 x P99, at least Span; 0: nothing is known
	Hot     time.Duration // 3 x P99, at least Span
	Cold    time.Duration // Needed, at least the longest span and 3 x P99
	Verdict Verdict

	ColdShort bool // duplicates that come later than cold would run again
	HotShort  bool // duplicates that come later than hot are told all the same, but more slowly
}

// Advise judges. Percentiles count from MinSamples events on, the longest span
// always.
func Advise(w Windows) Advice {
	a := Advice{HotFrom: w.Span, Hot: w.Span, Cold: max(w.Needed, w.Arrivals.Max), Verdict: OK}
	enough := w.Arrivals.Count >= MinSamples
	if enough {
		a.HotFrom = max(a.HotFrom, 2*w.Arrivals.P99)
		a.Hot = max(a.Hot, 3*w.Arrivals.P99)
		a.Cold = max(a.Cold, 3*w.Arrivals.P99)
	}
	a.ColdShort, a.HotShort = w.Cold < a.Cold, w.Hot < a.HotFrom
	switch {
	case a.ColdShort || a.HotShort:
		a.Verdict = TooShort
	case !enough:
		a.Verdict = TooFew
	}
	return a
}

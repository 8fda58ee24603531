package app

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"idemd/admin"
	"idemd/consumer"
	"idemd/dedup/ledger"
	"idemd/event"
)

// openLedger opens what suppressions are written into. It cannot fail: without
// it, events are handled all the same.
func (a *App) openLedger(ctx context.Context) {
	a.ledger = ledger.Open(ctx, ledger.Config{
		Dir: filepath.Join(a.cfg.DataDir, "ledger"), Retain: a.live().retain(), Logger: a.log.With("component", "ledger"),
		Room: func() bool { return a.disk.blocked() == "" }, // asked once events are handled
	})
	a.down.onStop("ledger", func(context.Context) error { return a.ledger.Close() })
}

// suppressed writes down a delivery that was not run.
func (a *App) suppressed(s consumer.Suppression) {
	a.ledger.Note(ledger.NewEntry(s.At, s.Key, s.Handler, s.Event, s.Seq, s.Verdict, s.Record))
}

// suppressions looks up what was not run because of the records of runs.
func (a *App) suppressions(ctx context.Context, runs []event.Key) ([]admin.Suppression, error) {
	entries, err := a.ledger.Find(ctx, runs...)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, spec := range a.live().specs {
		names[spec.ID] = spec.Name
	}
	var all []admin.Suppression
	for i := range entries {
		e := &entries[i]
		s := admin.Suppression{
			Handler: names[e.Handler], At: e.At.Std(), Count: e.Count, First: e.First.Std(),
			Verdict: e.Verdict.String(), Payload: e.Payload.String(), Redelivery: e.Redelivery,
			Source: e.Source, Type: e.Type, Origin: e.Origin, Seq: e.Seq, Received: e.Received.Std(), Delay: admin.Seconds(e.Delay()),
			State: e.State, Fence: e.Fence, RecordSeq: e.RecordSeq, FirstSeen: e.FirstSeen.Std(), Since: e.Since,
		}
		setIfZero(&s.Handler, e.Handler)
		all = append(all, s)
	}
	return all, nil
}

// windows judges the windows of every source.
func (a *App) windows() admin.Windows {
	st := a.ledger.Stats()
	w := admin.Windows{Sources: []admin.SourceWindows{}, Runs: []admin.RunTimes{}, Ledger: admin.LedgerStatus{
		Noted: st.Noted, Unkept: st.Unkept, Bytes: st.Bytes, Damaged: st.Damaged,
	}}
	arrivals := a.ledger.Arrivals()
	now := a.live()
	for i := range now.cfg.Sources {
		w.Sources = append(w.Sources, now.cfg.sourceWindows(&now.cfg.Sources[i], arrivals))
	}
	for i, pool := range now.pools {
		w.Runs = append(w.Runs, runTimes(&now.specs[i], pool.Snapshot().Times))
	}
	return w
}

func runTimes(spec *consumer.Spec, t consumer.RunTimes) admin.RunTimes {
	r := admin.RunTimes{
		Handler: spec.Name, Count: t.Count, P50: admin.Seconds(t.P50), P95: admin.Seconds(t.P95), P99: admin.Seconds(t.P99),
		Timeout: admin.Seconds(spec.Timeout), Warnings: []string{},
	}
	if t.NearTimeout(spec.Timeout) {
		r.Warnings = append(r.Warnings, fmt.Sprintf("handler %s: one attempt in twenty takes %s or longer, and they are cut after %s, "+
			"with an unknown outcome: give it a longer timeout, or make it faster", spec.Name, t.P95.Round(time.Millisecond), Duration(spec.Timeout)))
	}
	return r
}

// sourceWindows judges one source. What arrives is given for all of them.
func (c *Config) sourceWindows(s *SourceConfig, arrivals []ledger.Arrivals) admin.SourceWindows {
	span := s.retrySpan()
	in := ledger.Windows{Hot: c.Windows.Hot.Std(), Span: span.Retry}
	for _, sum := range c.WindowSums() {
		if sum.Source == s.Name {
			in.Needed = max(in.Needed, sum.Needed.Std())
			if in.Cold == 0 || sum.Cold.Std() < in.Cold {
				in.Cold = sum.Cold.Std()
			}
		}
	}
	w := admin.SourceWindows{
		Source: s.Name, ID: s.ID, Types: []admin.Arrivals{}, Warnings: []string{},
		Platform: span.name, Span: admin.Seconds(span.Retry), ByHand: admin.Seconds(span.byHand), SpanOrigin: span.Origin,
		SpanURL: span.url, SpanChecked: span.checked, SpanNote: span.note,
		Hot: admin.Seconds(in.Hot), Cold: admin.Seconds(in.Cold),
	}
	w.Arrivals.Buckets = []admin.Bucket{}
	for i := range arrivals {
		switch d := &arrivals[i]; {
		case d.Source != s.ID:
		case d.Type == "":
			in.Arrivals, w.Arrivals = d.Distribution, spread(d)
		default:
			w.Types = append(w.Types, spread(d))
		}
	}
	if in.Cold == 0 { // no handler keeps records: there is nothing to be too short
		w.Verdict = string(ledger.TooFew)
		return w
	}
	advice := ledger.Advise(in)
	w.RecommendHot, w.RecommendFrom = admin.Seconds(advice.Hot), admin.Seconds(advice.HotFrom)
	w.RecommendCold, w.Verdict = admin.Seconds(advice.Cold), string(advice.Verdict)
	if advice.ColdShort {
		w.Warnings = append(w.Warnings, fmt.Sprintf("source %s: cold, %s, is shorter than %s: duplicates that come later would run again",
			s.Name, Duration(in.Cold), rounded(advice.Cold)))
	}
	if advice.HotShort {
		w.Warnings = append(w.Warnings, fmt.Sprintf("source %s: [windows] hot, %s, is shorter than %s: duplicates that come later are told, but more slowly",
			s.Name, Duration(in.Hot), rounded(advice.HotFrom)))
	}
	return w
}

func spread(d *ledger.Arrivals) admin.Arrivals {
	a := admin.Arrivals{
		Type: d.Type, Count: d.Count, P50: admin.Seconds(d.P50), P95: admin.Seconds(d.P95), P99: admin.Seconds(d.P99), Max: admin.Seconds(d.Max),
	}
	for _, b := range d.Buckets {
		a.Buckets = append(a.Buckets, admin.Bucket{UpTo: admin.Seconds(b.UpTo), Count: b.Count})
	}
	return a
}

// rounded is d as people would write it.
func rounded(d time.Duration) Duration {
	if d > 10*time.Second {
		return Duration(d.Round(time.Second))
	}
	return Duration(d.Round(time.Millisecond))
}

// windowWarnings is what status says about windows, run times and the ledger.
func (a *App) windowWarnings() []string {
	var all []string
	w := a.windows()
	for i := range w.Sources {
		all = append(all, w.Sources[i].Warnings...)
	}
	for i := range w.Runs {
		all = append(all, w.Runs[i].Warnings...)
	}
	for _, file := range w.Ledger.Damaged {
		all = append(all, "a ledger file is damaged: some suppressions cannot be explained any more; "+file)
	}
	if w.Ledger.Unkept > 0 {
		all = append(all, fmt.Sprintf("%d suppressions were counted and not written down: the day's share of the ledger is used up, or the disk does not take them",
			w.Ledger.Unkept))
	}
	return all
}

// checkRunTimes asks the running idemd whether attempts are cut by their timeouts.
func checkRunTimes(ctx context.Context, client *admin.Client) []Finding {
	w, err := client.Windows(ctx, "")
	if err != nil {
		return []Finding{bad("run times", err)}
	}
	var all []Finding
	for i := range w.Runs {
		for _, text := range w.Runs[i].Warnings {
			all = append(all, Finding{Subject: "run times", What: text, Hint: "idemd windows shows how long attempts take"})
		}
	}
	return all
}

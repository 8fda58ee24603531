package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
)

func (c *cli) windowsCommand() *cobra.Command {
	var source string
	cmd := c.prints(&cobra.Command{
		Use:   "windows",
		Short: "show how late duplicates come, and whether the windows are long enough",
		Long: `Show for each source how long after its first arrival an event came for the last
time, of those that came more than once; what the platform's documentation says;
the windows, what they should be, and why. hot should be two to three times P99
and never shorter than the time for which the platform retries; cold at least the
sum that idemd check prints. Also how long handlers run, against their timeout.

The verdict is "ok", "too short", or "too few samples" while fewer than 100 events
have come more than once. It does not change the exit code.`,
		Example: `  idemd windows
  idemd windows --source shop --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			return c.ask(func(client *admin.Client) error {
				w, err := client.Windows(ctx, source)
				if err != nil {
					return err
				}
				return c.show(w, func(p *printer) { printWindows(p, &w) })
			})
		}),
	})
	cmd.Flags().StringVar(&source, "source", "", "only of the source `NAME`")
	return cmd
}

func printWindows(p *printer, w *admin.Windows) {
	for i := range w.Sources {
		if i > 0 {
			p.line("")
		}
		printSourceWindows(p, &w.Sources[i])
	}
	rows := [][]string{{"HANDLER", "ATTEMPTS", "P50", "P95", "P99", "TIMEOUT"}}
	for _, r := range w.Runs {
		rows = append(rows, []string{r.Handler, fmt.Sprint(r.Count), length(r.P50), length(r.P95), length(r.P99), length(r.Timeout)})
	}
	p.line("")
	p.table(rows...)
	for i := range w.Runs {
		printWarnings(p, w.Runs[i].Warnings)
	}
}

func printWarnings(p *printer, warnings []string) {
	for _, text := range warnings {
		p.line("warning: %s", plain(text))
	}
}

func printSourceWindows(p *printer, s *admin.SourceWindows) {
	p.line("%s: %s", plain(s.Source), s.Verdict)
	rows := [][]string{{"  hot", length(s.Hot), recommended(s.RecommendFrom, s.RecommendHot)}}
	if s.Cold == 0 {
		rows = append(rows, []string{"  cold", "-", "no handler of it keeps records"})
	} else {
		rows = append(rows, []string{"  cold", length(s.Cold), "recommended " + length(s.RecommendCold) + " or longer"})
	}
	rows = append(rows, []string{"  platform", length(s.Span), spanText(s)})
	p.table(rows...)
	a := &s.Arrivals
	if a.Count == 0 {
		p.line("  no event came more than once")
	} else {
		rows = [][]string{{"  TYPE", "EVENTS", "P50", "P95", "P99", "MAX"}, arrivalsRow("(all)", a)}
		for i := range s.Types {
			rows = append(rows, arrivalsRow(s.Types[i].Type, &s.Types[i]))
		}
		p.table(rows...)
		printHistogram(p, a)
	}
	printWarnings(p, s.Warnings)
}

func recommended(from, to admin.Seconds) string {
	switch {
	case to == 0:
		return "no recommendation: nothing is known"
	case from == to:
		return "recommended " + length(to)
	}
	return fmt.Sprintf("recommended %s to %s", length(from), length(to))
}

func spanText(s *admin.SourceWindows) string {
	switch s.SpanOrigin {
	case "configured":
		return "by retry_span"
	case "unknown":
		return "unknown: write the source's retry_span"
	}
	text := fmt.Sprintf("%s: %s (%s", s.Platform, s.SpanNote, s.SpanURL)
	if !s.SpanChecked {
		text += ", as others quote it"
	}
	return text + ")"
}

func arrivalsRow(name string, a *admin.Arrivals) []string {
	return []string{"  " + name, fmt.Sprint(a.Count), length(a.P50), length(a.P95), length(a.P99), length(a.Max)}
}

// printHistogram draws how many events came for the last time within what time.
func printHistogram(p *printer, a *admin.Arrivals) {
	bounds := []time.Duration{
		time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour,
		24 * time.Hour, 3 * 24 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour,
	}
	counts := make([]uint64, len(bounds)+1)
	var most uint64
	for _, b := range a.Buckets {
		i := 0
		for i < len(bounds) && time.Duration(b.UpTo) > bounds[i]*21/20 { // a bucket ends up to a tenth late
			i++
		}
		counts[i] += b.Count
		most = max(most, counts[i])
	}
	const width = 40
	var rows [][]string
	for i, n := range counts {
		if n == 0 {
			continue
		}
		name := "  later"
		if i < len(bounds) {
			name = "  up to " + app.Duration(bounds[i]).String()
		}
		rows = append(rows, []string{name, strings.Repeat("#", max(1, int(n*width/most))), fmt.Sprint(n)})
	}
	p.table(rows...)
}

// length writes a time in the configuration's units, as exactly as it matters.
func length(s admin.Seconds) string {
	d := time.Duration(s)
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	default:
		d = d.Round(time.Millisecond)
	}
	return app.Duration(d).String()
}

// printSuppressions tells the deliveries that a handler did not run.
func printSuppressions(p *printer, all []admin.Suppression) {
	for i := range all {
		s := &all[i]
		text := fmt.Sprintf("suppressed %s: sequence %d, %s", local(s.At), s.Seq, s.Verdict)
		if s.Count > 1 {
			text = fmt.Sprintf("suppressed %d times from %s to %s: the last one sequence %d, %s", s.Count, local(s.First), local(s.At), s.Seq, s.Verdict)
		}
		text += fmt.Sprintf(", payload %s, by %s", strings.ReplaceAll(s.Payload, "-", " "), s.Origin)
		if s.Redelivery {
			text += ", delivered again by the queue"
		} else {
			text += fmt.Sprintf(", %s after it was first seen", length(s.Delay))
		}
		text += fmt.Sprintf("; the run of sequence %d was %s, fence %d", s.RecordSeq, s.State, s.Fence)
		if since := s.Since.Std(); !since.IsZero() {
			text += " since " + local(since)
		}
		p.line("  %s", plain(text))
	}
}

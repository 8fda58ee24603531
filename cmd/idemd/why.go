package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
)

func (c *cli) whyCommand() *cobra.Command {
	var (
		back   since
		source string
	)
	cmd := c.prints(&cobra.Command{
		Use:   "why EVENT",
		Short: "explain what each handler did with an event, and why",
		Long: `Explain for each handler what happened to an event: done, suppressed as a
duplicate, running, waiting for another attempt, dead, in doubt, or not wanted.

EVENT is an event's id (evt_... or its first 8 characters), its sequence in the
queue, or the platform's own id; with --source, a number is that source's id.`,
		Example: `  idemd why evt_75hwlapm
  idemd why 1042
  idemd why order-17 --source shop --since 7d`,
		Args: cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				why, err := client.Why(ctx, args[0], source, time.Duration(back))
				if err != nil {
					return err
				}
				return c.show(why, func(p *printer) { printWhy(p, &why) })
			})
		}),
	})
	findFlags(cmd, &source, &back)
	return cmd
}

func printWhy(p *printer, why *admin.Why) {
	ev := &why.Event
	rows := [][]string{
		{"event", ev.ID},
		{"type", ev.Type},
		{"source", ev.Source},
		{"platform id", platformID(&ev.Event)},
		{"received", fmt.Sprintf("%s, sequence %d", local(ev.Received), ev.Seq)},
	}
	if ev.Count > 1 {
		rows = append(rows, []string{"deliveries", deliveries(ev)})
	}
	p.table(rows...)
	if len(ev.Handlers) == 0 {
		p.line("No handler wants it.")
	}
	for i := range why.Handlers {
		h := &why.Handlers[i]
		p.line("")
		p.line("%s (%s)", plain(h.Handler), h.Effect)
		p.line("  %s", plain(h.Explanation.Text))
		if h.Run != nil {
			p.line("  %s, %s", h.Run.ID, runFacts(h.Run))
			if h.Run.State.String() == "done" && h.Run.Seq != ev.Seq { // a duplicate of it
				p.line("  to run it all the same: idemd events show %d --deliver-anyway --handler %s --reason TEXT", ev.Seq, plain(h.Handler))
			}
		}
		for j := range h.InBatches {
			r := &h.InBatches[j]
			p.line("  in batch %s: %s, %s", plain(r.Batch), r.ID, runFacts(r))
		}
		printSuppressions(p, h.Suppressions)
	}
}

// runFacts are the fields of a record that matter in its state.
func runFacts(r *admin.Run) string {
	text := fmt.Sprintf("%s, attempts %d, fence %d, first seen %s", r.State, r.Attempts, r.Fence, local(r.FirstSeen.Std()))
	switch r.State.String() {
	case "done":
		text += fmt.Sprintf(", %s %s, duplicates told until %s", r.Outcome, local(r.Committed.Std()), local(r.Expires.Std()))
	case "waiting":
		text += ", due " + local(r.Due.Std())
	case "started":
		text += ", started " + local(r.Started.Std()) + " on " + plain(r.Host)
	}
	if r.Reason.Code != "" {
		text += ", reason " + plain(r.Reason.Code)
	}
	return text
}

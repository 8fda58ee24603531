package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"idemd/admin"
)

// The lists of dead letters and of runs in doubt have most of their commands in
// common.

func runFilterFlags(cmd *cobra.Command, f *admin.RunFilter) {
	cmd.Flags().StringVar(&f.Handler, "handler", "", "only of the handler `NAME`")
	cmd.Flags().StringVar(&f.Reason, "reason", "", "only with the reason `CODE`")
}

func (c *cli) runsListCommand(list admin.List, what string) *cobra.Command {
	var (
		f      admin.RunFilter
		cursor string
		limit  int
	)
	cmd := c.prints(&cobra.Command{
		Use:     "list",
		Short:   "list " + what,
		Long:    "List " + what + ", the oldest change first.",
		Example: fmt.Sprintf("  idemd %s list --handler crm\n  idemd %s list --output json", list, list),
		Args:    cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			if limit < 1 {
				return usage("--limit is 1 or more")
			}
			return c.ask(func(client *admin.Client) error {
				page, err := collect(cursor, limit, func(cursor string, n int) (admin.Page[admin.Run], error) {
					return client.Runs(ctx, list, f, cursor, n)
				})
				if err != nil {
					return err
				}
				return c.show(page, func(p *printer) { printRuns(p, page, what) })
			})
		}),
	})
	runFilterFlags(cmd, &f)
	pageFlags(cmd, &cursor, &limit)
	return cmd
}

func printRuns(p *printer, page admin.Page[admin.Run], what string) {
	if len(page.Items) == 0 {
		p.line("no %s", what)
		return
	}
	rows := [][]string{{"RUN", "HANDLER", "FIRST SEEN", "ATTEMPTS", "REASON", "EVENT", "PLATFORM ID"}}
	for i := range page.Items {
		r := &page.Items[i]
		rows = append(rows, []string{
			r.ID, r.Handler, local(r.FirstSeen.Std()), fmt.Sprint(r.Attempts), reasonText(r), r.EventID, r.PlatformID,
		})
		if r.Drops != 0 { // of dead letters, and so of all
			rows[i+1] = append(rows[i+1], local(r.Drops.Std()))
		}
	}
	if page.Items[0].Drops != 0 {
		rows[0] = append(rows[0], "DROPPED AT")
	}
	p.table(rows...)
	printNext(p, page.Next)
}

func reasonText(r *admin.Run) string {
	if r.Reason.Detail == "" {
		return orDash(r.Reason.Code)
	}
	return r.Reason.Code + ": " + r.Reason.Detail
}

func (c *cli) runsShowCommand(list admin.List, what string) *cobra.Command {
	return c.prints(&cobra.Command{
		Use:     "show RUN",
		Short:   "show one of the " + what,
		Long:    "Show one of the " + what + ". RUN is its id, or the first 8 characters of it or more.",
		Example: fmt.Sprintf("  idemd %s show run_2ca2bw74", list),
		Args:    cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				r, err := client.Run(ctx, list, args[0])
				if err != nil {
					return err
				}
				return c.show(r, func(p *printer) { printRun(p, &r) })
			})
		}),
	})
}

func printRun(p *printer, r *admin.Run) {
	typ := "(the queue no longer holds the event)"
	if r.Event != nil {
		typ = r.Event.Type
	}
	p.table(
		[]string{"run", r.ID},
		[]string{"state", runFacts(r)},
		[]string{"reason", reasonText(r)},
		[]string{"handler", fmt.Sprintf("%s (%s)", r.Handler, r.Effect)},
		[]string{"event", r.EventID},
		[]string{"type", typ},
		[]string{"source", r.Source},
		[]string{"platform id", r.PlatformID},
		[]string{"sequence", fmt.Sprint(r.Seq)},
		[]string{"last run on", orDash(r.Host)},
	)
	if r.Drops != 0 {
		p.line("It is dropped at %s, unless somebody decides before.", local(r.Drops.Std()))
	}
	if r.Explanation != nil {
		p.line("%s", plain(r.Explanation.Text))
	}
	if r.Output == "" {
		return
	}
	p.line("what its command said at the end of the last attempt:")
	for line := range strings.Lines(r.Output) {
		p.line("  | %s", plain(strings.TrimRight(line, "\r\n")))
	}
}

// resolveFlags choose runs and say why.
type resolveFlags struct {
	filter admin.RunFilter
	all    bool
	note   string
	fence  string
}

func (f *resolveFlags) add(cmd *cobra.Command) {
	runFilterFlags(cmd, &f.filter)
	cmd.Flags().BoolVar(&f.all, "all", false, "take every run that --handler and --reason choose")
	cmd.Flags().StringVar(&f.note, "note", "", "`TEXT` that is kept with the decision")
	cmd.Flags().StringVar(&f.fence, "fence", "", "decide only if `FENCE`, as show prints it, is still that of the run: nobody ran or decided since")
}

type resolveResult struct {
	Items     []admin.Run `json:"items"` // as they are now; empty with --all
	Resolved  int         `json:"resolved"`
	Conflicts int         `json:"conflicts"`
}

// resolve decides about the runs that are named, or about all that the filter
// chooses.
func (c *cli) resolve(ctx context.Context, list admin.List, as admin.Resolution, ids []string, f resolveFlags) error {
	switch {
	case f.all && len(ids) > 0:
		return usage("name runs, or give --all")
	case !f.all && len(ids) == 0:
		return usage("name the runs, or give --all (with --handler and --reason to choose among them)")
	case !f.all && f.filter != (admin.RunFilter{}):
		return usage("--handler and --reason go with --all")
	case f.fence != "" && len(ids) != 1:
		return usage("--fence goes with one run")
	}
	req := admin.Resolve{As: as, Note: f.note}
	if f.fence != "" {
		if err := req.Fence.UnmarshalJSON([]byte(strconv.Quote(f.fence))); err != nil || req.Fence == 0 {
			return usage("--fence %q is not a fence; see idemd %s show", f.fence, list)
		}
	}
	result := resolveResult{Items: []admin.Run{}}
	err := c.ask(func(client *admin.Client) error {
		if f.all {
			sum, err := client.ResolveAll(ctx, list, f.filter, req)
			result.Resolved, result.Conflicts = sum.Resolved, sum.Conflicts
			return err
		}
		return c.resolveEach(ctx, client, list, ids, req, &result)
	})
	shown := c.show(result, func(p *printer) {
		for i := range result.Items {
			r := &result.Items[i]
			p.line("%s at %s: %s", r.ID, plain(r.Handler), outcome(r))
		}
		if f.all {
			p.line("%d resolved", result.Resolved)
		}
	})
	if err == nil && result.Conflicts > 0 {
		err = refused("look at the list again", "%d runs changed meanwhile and were left alone", result.Conflicts)
	}
	return errors.Join(err, shown)
}

// resolveEach stops at the first run that cannot be resolved.
func (c *cli) resolveEach(ctx context.Context, client *admin.Client, list admin.List, ids []string, req admin.Resolve, result *resolveResult) error {
	for _, id := range ids {
		r, err := client.Resolve(ctx, list, id, req)
		if err != nil {
			return err
		}
		result.Items = append(result.Items, r)
		result.Resolved++
	}
	return nil
}

func outcome(r *admin.Run) string {
	if r.Outcome != "" {
		return r.Outcome
	}
	if r.State.String() == "waiting" {
		return "runs again now"
	}
	return r.State.String()
}

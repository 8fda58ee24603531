package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
	"idemd/janitor"
)

func (c *cli) janitorCommand() *cobra.Command {
	return group("janitor", "the tasks that keep memory and disk bounded",
		`The janitor moves settled records out of memory, merges them by the day on which
they expire, takes away what has expired, and verifies the rest. Each run of a task
leaves a report, which is kept for 90 days.`,
		c.janitorReportCommand(), c.janitorRunCommand())
}

func (c *cli) janitorReportCommand() *cobra.Command {
	var (
		task  string
		back  = since(24 * time.Hour)
		limit int
	)
	cmd := c.prints(&cobra.Command{
		Use:   "report",
		Short: "show what each run of a task did",
		Long:  "Show how the tasks stand, and what each run of one did, newest first.",
		Example: `  idemd janitor report
  idemd janitor report --task expire --since 7d --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			return c.ask(func(client *admin.Client) error {
				all, err := client.JanitorReports(ctx, task, time.Duration(back), limit)
				if err != nil {
					return err
				}
				return c.show(all, func(p *printer) { printJanitor(p, &all) })
			})
		}),
	})
	cmd.Flags().StringVar(&task, "task", "", "only of the task `NAME`")
	cmd.Flags().Var(&back, "since", "only those of the last `DURATION`: 2h, 90d")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so `MANY` reports")
	return cmd
}

func printJanitor(p *printer, all *admin.JanitorReports) {
	rows := [][]string{{"TASK", "EVERY", "LAST SUCCESS", "STATE"}}
	for _, s := range all.Tasks {
		state := "fine"
		switch {
		case s.Running:
			state = "running"
		case s.Overdue:
			state = "overdue"
		}
		rows = append(rows, []string{s.Task, app.Duration(s.Every).String(), app.Duration(s.Age.Round(time.Second)).String() + " ago", state})
	}
	p.table(rows...)
	p.line("")
	rows = [][]string{{"BEGAN", "TASK", "TOOK", "STEPS", "EXAMINED", "REMOVED", "BYTES", "ERROR"}}
	for _, r := range all.Items {
		rows = append(rows, reportRow(&r))
	}
	p.table(rows...)
}

func reportRow(r *janitor.Report) []string {
	return []string{
		r.Began.Local().Format(time.DateTime), r.Task, r.Took.Round(time.Millisecond).String(), strconv.Itoa(r.Steps),
		fmt.Sprint(r.Examined), fmt.Sprint(r.Removed), fmt.Sprint(r.Bytes), plain(r.Error),
	}
}

func (c *cli) janitorRunCommand() *cobra.Command {
	var confirm bool
	cmd := c.prints(&cobra.Command{
		Use:   "run TASK",
		Short: "run a task at once",
		Long: `Run a task at once, or after the one that is running, and print its report. TASK is
seal, merge, expire, unlink, verify, ledger or dead.

Nothing expires by a clock that may be wrong: after a step of the clock, or when
nothing has expired for more than a day and the kernel does not call the clock
synchronised. With --confirm-clock you say that it is right.`,
		Example: `  idemd janitor run seal
  idemd janitor run expire --confirm-clock`,
		Args: cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				r, err := client.RunJanitor(ctx, args[0], confirm)
				if err != nil {
					return err
				}
				err = c.show(r, func(p *printer) {
					p.table([]string{"BEGAN", "TASK", "TOOK", "STEPS", "EXAMINED", "REMOVED", "BYTES", "ERROR"}, reportRow(&r))
				})
				if err == nil && r.Error != "" {
					err = errors.New(r.Task + ": " + r.Error)
				}
				return err
			})
		}),
	})
	cmd.Flags().BoolVar(&confirm, "confirm-clock", false, "for expire: this machine's clock is right")
	return cmd
}

// verifyFileName is the command that serve calls itself with: reading a damaged
// file may end the process, so that it is done in another one.
const verifyFileName = "verify-file"

func (c *cli) verifyFileCommand() *cobra.Command {
	return &cobra.Command{
		Use: verifyFileName + " PATH", Short: "read a file of the claim store to its end", Hidden: true,
		Long:    "Read a hot or cold file of a claim store to its end. serve calls it for a file that may be damaged.",
		Example: "  idemd verify-file /var/lib/idemd/dedup/hot-000001.db",
		Args:    cobra.ExactArgs(1),
		RunE:    c.action(func(_ context.Context, args []string) error { return app.VerifyFile(args[0]) }),
	}
}

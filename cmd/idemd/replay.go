package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
)

// moment is a flag that takes a time, or how long ago.
type moment time.Time

// String is empty for what is not set, so that the help names no default.
func (m *moment) String() string {
	if time.Time(*m).IsZero() {
		return ""
	}
	return time.Time(*m).Format(time.RFC3339)
}

func (m *moment) Set(text string) error {
	if d, err := app.ParseDuration(text); err == nil {
		*m = moment(time.Now().Add(-d.Std()))
		return nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			*m = moment(t)
			return nil
		}
	}
	return fmt.Errorf(`%q is neither how long ago (3d, 90m) nor a time ("2026-10-31 15:04")`, text)
}

func (m *moment) Type() string { return "time" }

// replayFlags choose what is run again, and how.
type replayFlags struct {
	req          admin.ReplayRequest
	since, until moment
	dryRun       bool
	ahead        goAhead
}

func (f *replayFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.Var(&f.since, "since", "events stored at `TIME` or later: 3d ago, or \"2026-10-31 15:04\" (default: as far back as replay_limit)")
	fs.Var(&f.until, "until", "events stored before `TIME` (default: now)")
	fs.StringVar(&f.req.Source, "source", "", "only of the source `NAME`")
	fs.StringVar(&f.req.Type, "type", "", "only of `TYPE`; a * at its end stands for any rest")
	fs.StringVar(&f.req.Handler, "handler", "", "only at the handler `NAME` (default: all that want the event)")
	fs.BoolVar(&f.req.Dead, "dead", false, "take dead letters, in place of events that have not run")
	fs.StringVar(&f.req.Reason, "reason", "", "of the dead letters only those with the reason `CODE`")
	fs.StringVar(&f.req.Batch, "batch", "", "run each event once more, in the batch `ID`")
	fs.BoolVar(&f.req.Concurrent, "concurrent", false, "in a batch: also beside an ordinary run that has not ended")
	fs.Float64Var(&f.req.Rate, "rate", admin.DefaultRate, "begin at most `N` runs in a second")
	fs.BoolVar(&f.dryRun, "dry-run", false, "show the plan and do nothing")
	f.ahead.add(cmd)
}

func (c *cli) replayCommand() *cobra.Command {
	var f replayFlags
	cmd := c.prints(&cobra.Command{
		Use:   "replay",
		Short: "run stored events again",
		Long: `Run stored events again: those that are chosen and of which the handler has no
record. What has run, or will, is left alone. With --dead, dead letters are taken
up again instead. With --batch every chosen event runs once more, and once only,
whatever became of it before.

First the plan is shown; nothing happens before you agree. The replay then goes on
in the daemon, below live events, also after a restart; this command shows its
progress and may be interrupted.`,
		Example: `  idemd replay --since 3d --handler crm --dry-run
  idemd replay --since 3d --dead --reason http-500
  idemd replay --since '2026-10-31 15:04' --type 'order.*' --batch bat_4x7k2m9q --yes`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			f.req.Since, f.req.Until = time.Time(f.since), time.Time(f.until)
			return c.ask(func(client *admin.Client) error { return c.replay(ctx, client, &f) })
		}),
	})
	f.add(cmd)
	cmd.AddCommand(c.replayListCommand(), c.replayShowCommand(),
		c.replayActionCommand(admin.PauseReplay, "let a replay begin nothing more for now",
			"Let a replay begin nothing more until idemd replay resume. Runs that it has begun\ngo on. The pause is kept over a restart."),
		c.replayActionCommand(admin.ResumeReplay, "let a replay go on", "Let a paused replay go on where it stands."),
		c.replayActionCommand(admin.CancelReplay, "end a replay", "End a replay. Runs that it has begun go on; what it has not come to stays as it is."))
	return cmd
}

// replay plans, asks, begins, and follows.
func (c *cli) replay(ctx context.Context, client *admin.Client, f *replayFlags) error {
	plan, err := client.PlanReplay(ctx, f.req)
	if err != nil {
		return err
	}
	if f.dryRun {
		return c.show(plan, func(p *printer) { printPlan(p, &plan) })
	}
	shown := &printer{w: c.stdout}
	if c.output == "json" { // standard output is for the progress
		shown.w = c.stderr
	}
	printPlan(shown, &plan)
	if shown.err != nil || plan.Runs == 0 {
		return shown.err
	}
	if err := c.agree(shown, f.ahead, fmt.Sprintf("Run %d?", plan.Runs)); err != nil {
		return err
	}
	// What was shown is what is done: its bounds, not those of a moment later.
	rp, err := client.StartReplay(ctx, plan.Request)
	if err != nil {
		return err
	}
	return c.follow(ctx, client, rp)
}

func (c *cli) replayListCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:     "list",
		Short:   "list replays, newest first",
		Long:    "List replays, newest first: those that run and those that are over.",
		Example: "  idemd replay list",
		Args:    cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			return c.ask(func(client *admin.Client) error {
				page, err := client.Replays(ctx)
				if err != nil {
					return err
				}
				return c.show(page, func(p *printer) { printReplays(p, page.Items) })
			})
		}),
	})
}

func (c *cli) replayShowCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:     "show ID",
		Short:   "show one replay, or the report of one that is over",
		Long:    "Show one replay with its progress, or the report of one that is over. ID may be the\nfirst 8 characters of it.",
		Example: "  idemd replay show rpl_2ca2bw74",
		Args:    cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				rp, err := client.Replay(ctx, args[0])
				if err != nil {
					return err
				}
				return c.show(rp, func(p *printer) { printReplay(p, &rp) })
			})
		}),
	})
}

func (c *cli) replayActionCommand(action admin.ReplayAction, short, long string) *cobra.Command {
	return c.prints(&cobra.Command{
		Use: string(action) + " ID", Short: short, Long: long,
		Example: fmt.Sprintf("  idemd replay %s rpl_2ca2bw74", action),
		Args:    cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				rp, err := client.ActOnReplay(ctx, args[0], action)
				if err != nil {
					return err
				}
				return c.show(rp, func(p *printer) { printReplay(p, &rp) })
			})
		}),
	})
}

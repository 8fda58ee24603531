package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
)

func (c *cli) reloadCommand() *cobra.Command {
	var dryRun bool
	cmd := c.prints(&cobra.Command{
		Use:   "reload",
		Short: "put a changed configuration in force without a restart",
		Long: `Have the running idemd read its configuration again: sources, secrets, handlers and
windows. No request is refused for it, and no run is cut: a handler that changed
lets its running attempts end first, and the command waits for them.

What is wrong refuses the whole, and the configuration before it stays in force. A
change of data_dir, [queue] or [receiver] (all but max_body) needs a restart. The
id of a handler or source may not go while runs of it are not settled, unless it is
listed in retire. With --dry-run nothing changes: it shows what would.

SIGHUP does the same. Exit code 2 when the configuration is refused.`,
		Example: `  idemd reload --dry-run
  idemd reload
  idemd reload --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.reload(ctx, dryRun) }),
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would change")
	return cmd
}

// reloadPatience is after how long people are told what a reload waits for.
const reloadPatience = 2 * time.Second

func (c *cli) reload(ctx context.Context, dryRun bool) error {
	return c.ask(func(client *admin.Client) error {
		late := time.AfterFunc(reloadPatience, func() {
			p := &printer{w: c.stderr}
			p.line("waiting for the running attempts of handlers that changed, at most for their timeout")
		})
		defer late.Stop()
		done, err := client.Reload(ctx, dryRun)
		if err != nil {
			return err
		}
		if len(done.Problems) == 0 {
			return c.show(done, func(p *printer) { printReload(p, &done) })
		}
		if c.output == "json" {
			if err := c.showJSON(done); err != nil {
				return err
			}
		}
		return &exitError{exitUsage, "correct it and reload again; the configuration before it stays in force",
			fmt.Errorf("%s is refused:\n  %s", done.File, strings.Join(done.Problems, "\n  "))}
	})
}

func printReload(p *printer, done *admin.Reload) {
	verb := "is in force, after " + time.Duration(done.Took).Round(time.Millisecond).String()
	if done.DryRun {
		verb = "would be in force"
	}
	p.line("%s %s", plain(done.File), verb)
	if len(done.Changes) == 0 {
		p.line("  nothing has changed")
	}
	var rows [][]string
	for _, change := range done.Changes {
		rows = append(rows, []string{"  " + string(change.What), change.Kind, plain(change.Name)})
	}
	p.table(rows...)
}

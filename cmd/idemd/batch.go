package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"idemd/admin"
)

func (c *cli) batchCommand() *cobra.Command {
	return group("batch", "register a reason to run events once more",
		`Batches let events run once more that have run. Each has an id, which becomes a
part of the key of every run in it: an event runs once in a batch, however often
you replay it there. A batch is kept with its reason, and with who made it.`,
		c.batchNewCommand(), c.batchListCommand())
}

func (c *cli) batchNewCommand() *cobra.Command {
	var reason string
	cmd := c.prints(&cobra.Command{
		Use:   "new",
		Short: "register a batch and print its id",
		Long:  "Register a batch and print its id, for idemd replay --batch. Nothing runs yet.",
		Example: `  idemd batch new --reason 'crm lost its October data'
  idemd replay --since 3d --handler crm --batch "$(idemd batch new --reason 'crm restored')"`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			if reason == "" {
				return usage("--reason is missing: say why events are to run once more")
			}
			return c.ask(func(client *admin.Client) error {
				b, err := client.NewBatch(ctx, reason)
				if err != nil {
					return err
				}
				return c.show(b, func(p *printer) { p.line("%s", b.ID) })
			})
		}),
	})
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that is kept with the batch")
	return cmd
}

func (c *cli) batchListCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:     "list",
		Short:   "list batches, newest first",
		Long:    "List batches, newest first. RUNS is how many runs replays have begun in them.",
		Example: "  idemd batch list --output json",
		Args:    cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			return c.ask(func(client *admin.Client) error {
				page, err := client.Batches(ctx)
				if err != nil {
					return err
				}
				return c.show(page, func(p *printer) {
					if len(page.Items) == 0 {
						p.line("no batches")
						return
					}
					rows := [][]string{{"BATCH", "CREATED", "WHO", "RUNS", "REASON"}}
					for i := range page.Items {
						b := &page.Items[i]
						rows = append(rows, []string{b.ID, local(b.Created), b.Who, fmt.Sprint(b.Runs), b.Reason})
					}
					p.table(rows...)
				})
			})
		}),
	})
}

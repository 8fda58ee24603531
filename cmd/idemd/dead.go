package main

import (
	"context"

	"github.com/spf13/cobra"

	"idemd/admin"
)

const deadLetters = "dead letters"

func (c *cli) deadCommand() *cobra.Command {
	return group("dead", "dead letters: runs that idemd has given up",
		`Dead letters are runs that idemd has given up: every attempt failed, or the
handler said that it will never work. Each keeps its event until you decide.
RUN is a run's id, or the first 8 characters of it or more.`,
		c.runsListCommand(admin.DeadList, deadLetters),
		c.runsShowCommand(admin.DeadList, deadLetters),
		c.deadResolveCommand("retry [RUN...]", admin.AsRetry, "run dead letters again",
			"Run dead letters again, now, with all their attempts before them.", "  idemd dead retry run_2ca2bw74\n  idemd dead retry --all --handler crm --reason http-400"),
		c.deadResolveCommand("drop [RUN...]", admin.AsDrop, "drop dead letters",
			"Drop dead letters: they will not run, and a duplicate of them will not either.", "  idemd dead drop run_2ca2bw74 --note 'customer is gone'"),
	)
}

func (c *cli) deadResolveCommand(use string, as admin.Resolution, short, long, example string) *cobra.Command {
	var f resolveFlags
	cmd := c.prints(&cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.resolve(ctx, admin.DeadList, as, args, f)
		}),
	})
	f.add(cmd)
	return cmd
}

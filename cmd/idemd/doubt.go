package main

import (
	"context"

	"github.com/spf13/cobra"

	"idemd/admin"
)

const doubts = "runs in doubt"

func (c *cli) doubtCommand() *cobra.Command {
	return group("doubt", "runs in doubt: nobody knows whether they had their effect",
		`Runs in doubt are attempts of irrevocable handlers that were cut: by a crash, a
timeout, a broken connection. Nobody knows whether they had their effect, so
idemd does not repeat them. Look at the far side, then resolve them.
RUN is a run's id, or the first 8 characters of it or more.`,
		c.runsListCommand(admin.DoubtList, doubts),
		c.runsShowCommand(admin.DoubtList, doubts),
		c.doubtResolveCommand(),
	)
}

func (c *cli) doubtResolveCommand() *cobra.Command {
	var (
		f  resolveFlags
		as string
	)
	cmd := c.prints(&cobra.Command{
		Use:   "resolve [RUN...] --as DECISION",
		Short: "say what became of runs in doubt",
		Long: `Say what became of runs in doubt:
  done   the effect happened
  retry  it did not happen: run it again now
  drop   it did not happen, and is not to
  dead   decide later: make it a dead letter`,
		Example: `  idemd doubt resolve run_2ca2bw74 --as done
  idemd doubt resolve --all --handler crm --reason owner-gone --as retry --note 'checked the CRM'`,
		RunE: c.action(func(ctx context.Context, args []string) error {
			switch r := admin.Resolution(as); r {
			case admin.AsDone, admin.AsRetry, admin.AsDrop, admin.AsDead:
				return c.resolve(ctx, admin.DoubtList, r, args, f)
			}
			return usage("--as is done, retry, drop or dead, not %q", as)
		}),
	})
	f.add(cmd)
	cmd.Flags().StringVar(&as, "as", "", "the `DECISION`: done, retry, drop or dead")
	return cmd
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"idemd/admin"
)

func (c *cli) handlerCommand() *cobra.Command {
	return group("handler", "keep events from a handler, or let them through",
		`Keep events from a handler, or let them through again. NAME is a handler's name
or id, as idemd status shows it.`,
		c.handlerActionCommand(admin.PauseHandler, "give a handler no events",
			`Give a handler no events: they stay queued and use up no attempts. Attempts that
are running end. The pause lasts until idemd handler resume, or until idemd
itself stops: it is not kept over a restart.`),
		c.handlerActionCommand(admin.ResumeHandler, "give a handler its events again",
			`Give a handler its events again, after a pause, or at once when it is held: a
handler that fails on ten different events in a row gets one event every 30
seconds, and the others when one succeeds.`),
	)
}

func (c *cli) handlerActionCommand(action admin.HandlerAction, short, long string) *cobra.Command {
	return c.prints(&cobra.Command{
		Use: string(action) + " NAME", Short: short, Long: long,
		Example: fmt.Sprintf("  idemd handler %s crm", action),
		Args:    cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			return c.ask(func(client *admin.Client) error {
				h, err := client.ActOnHandler(ctx, args[0], action)
				if err != nil {
					return err
				}
				return c.show(h, func(p *printer) {
					p.line("%s: %s, %d events unseen, %d attempts running", plain(h.Name), h.State, h.Pending, h.Running)
				})
			})
		}),
	})
}

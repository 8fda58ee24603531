package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
)

// deliverAnyway is events show's way to run one event once more.
type deliverAnyway struct {
	on         bool
	handler    string
	reason     string
	concurrent bool
	ahead      goAhead
}

func (d *deliverAnyway) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&d.on, "deliver-anyway", false, "run it once more at --handler, whatever became of it before (a batch of its own)")
	fs.StringVar(&d.handler, "handler", "", "with --deliver-anyway: the handler `NAME`")
	fs.StringVar(&d.reason, "reason", "", "with --deliver-anyway: `TEXT` that is kept with the batch")
	fs.BoolVar(&d.concurrent, "concurrent", false, "with --deliver-anyway: also beside a run that has not ended")
	d.ahead.add(cmd)
}

// check finds what does not go together.
func (d *deliverAnyway) check() error {
	switch {
	case d.on && d.handler == "":
		return usage("--deliver-anyway needs --handler NAME")
	case d.on && d.reason == "":
		return usage("--deliver-anyway needs --reason TEXT: say why it is to run once more")
	case !d.on && (d.handler != "" || d.reason != "" || d.concurrent):
		return usage("--handler, --reason and --concurrent go with --deliver-anyway")
	}
	return nil
}

// deliver makes a batch for one event and replays it there.
func (c *cli) deliver(ctx context.Context, client *admin.Client, ref, source string, back time.Duration, d *deliverAnyway) error {
	ev, err := client.Event(ctx, ref, source, back, false)
	if err != nil {
		return err
	}
	shown := &printer{w: c.stdout}
	if c.output == "json" {
		shown.w = c.stderr
	}
	printEvent(shown, &ev)
	if err := errors.Join(shown.err, c.agree(shown, d.ahead, "Run it once more at "+plain(d.handler)+"?")); err != nil {
		return err
	}
	batch, err := client.NewBatch(ctx, d.reason)
	if err != nil {
		return err
	}
	req := admin.ReplayRequest{Seq: ev.Seq, Handler: d.handler, Batch: batch.ID, Concurrent: d.concurrent}
	plan, err := client.PlanReplay(ctx, req)
	if err != nil {
		return err
	}
	if plan.Runs == 0 {
		return notDelivered(&plan, d.handler)
	}
	rp, err := client.StartReplay(ctx, req)
	if err != nil {
		return err
	}
	return c.follow(ctx, client, rp)
}

// notDelivered says why a single event does not run.
func notDelivered(plan *admin.ReplayPlan, handler string) error {
	for i := range plan.Handlers {
		switch skipped := plan.Handlers[i].Skipped; {
		case skipped[admin.SkipRunning] > 0:
			return refused("wait until it has ended, or say --concurrent", "its run at %s has not ended", handler)
		case skipped[admin.SkipTooOld] > 0:
			return refused("", "it is older than the replay limit")
		default:
			return refused("", "%s may not run it: %s", handler, skippedText(skipped))
		}
	}
	return refused("see its sources and types in the configuration", "%s does not want this event", handler)
}

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"idemd/admin"
	"idemd/app"
)

func printPlan(p *printer, plan *admin.ReplayPlan) {
	req := &plan.Request
	if req.Seq == 0 {
		p.line("events stored from %s to %s%s", local(req.Since), local(req.Until), chosenText(req))
	}
	if len(plan.Handlers) == 0 {
		p.line("nothing is chosen")
		return
	}
	rows := [][]string{{"HANDLER", "MATCHES", "DONE", "OPEN", "WILL RUN", "UNKNOWN", "LEFT ALONE"}}
	for i := range plan.Handlers {
		h := &plan.Handlers[i]
		rows = append(rows, []string{
			h.Handler, fmt.Sprint(h.Matches), fmt.Sprint(h.Done), fmt.Sprint(h.Open), fmt.Sprint(h.Runs), fmt.Sprint(h.Unknown), skippedText(h.Skipped),
		})
	}
	p.table(rows...)
	for i := range plan.Handlers {
		if h := &plan.Handlers[i]; h.Effect.String() == "idempotent" && h.Unknown > 0 {
			p.line("%s is idempotent and keeps no records of what it has done: %d of these may have run before.", plain(h.Handler), h.Unknown)
		}
	}
	if plan.Runs == 0 {
		p.line("nothing would run")
		return
	}
	p.line("the first that would run:")
	rows = nil
	for i := range plan.Sample {
		s := &plan.Sample[i]
		rows = append(rows, []string{fmt.Sprint(s.Seq), local(s.Received), s.Source, s.Type, s.ID, platformID(&s.Event), strings.Join(s.Runs, ",")})
	}
	p.table(rows...)
}

func chosenText(req *admin.ReplayRequest) string {
	text := ""
	for _, part := range [][2]string{{"source", req.Source}, {"type", req.Type}, {"handler", req.Handler}, {"reason", req.Reason}, {"batch", req.Batch}} {
		if part[1] != "" {
			text += ", " + part[0] + " " + plain(part[1])
		}
	}
	if req.Dead {
		text += ", dead letters"
	}
	return text
}

func skippedText(skipped map[admin.Skip]uint64) string {
	var parts []string
	for _, skip := range slices.Sorted(maps.Keys(skipped)) {
		parts = append(parts, fmt.Sprintf("%s %d", skip, skipped[skip]))
	}
	return orDash(strings.Join(parts, ", "))
}

func printReplays(p *printer, all []admin.Replay) {
	if len(all) == 0 {
		p.line("no replays")
		return
	}
	rows := [][]string{{"REPLAY", "CREATED", "STATE", "EXAMINED", "BEGUN", "ERRORS", "BATCH"}}
	for i := range all {
		rp := &all[i]
		rows = append(rows, []string{
			rp.ID, local(rp.Created), string(rp.State), fmt.Sprint(rp.Examined), fmt.Sprint(rp.Written), fmt.Sprint(rp.Errors), orDash(rp.Request.Batch),
		})
	}
	p.table(rows...)
}

func printReplay(p *printer, rp *admin.Replay) {
	chosen := fmt.Sprintf("events stored from %s to %s", local(rp.Request.Since), local(rp.Request.Until))
	if rp.Request.Seq != 0 {
		chosen = fmt.Sprintf("sequence %d", rp.Request.Seq)
	}
	rows := [][]string{
		{"replay", rp.ID},
		{"state", string(rp.State)},
		{"created", local(rp.Created) + " by " + rp.Who},
		{"chosen", chosen + chosenText(&rp.Request)},
		{"examined", fmt.Sprint(rp.Examined)},
		{"begun", fmt.Sprint(rp.Written)},
		{"left alone", skippedText(rp.Skipped)},
		{"errors", fmt.Sprint(rp.Errors)},
	}
	if rp.Error != "" {
		rows = append(rows, []string{"last error", rp.Error})
	}
	if rp.Waiting != "" {
		rows = append(rows, []string{"waits", rp.Waiting})
	}
	if rp.State.Over() {
		rows = append(rows, []string{"ended", local(rp.Ended)})
	}
	p.table(rows...)
}

// followEvery is how often a replay's progress is looked at.
const followEvery = 200 * time.Millisecond

// follow shows a replay's progress until it is over. Its interruption leaves the
// replay alone.
func (c *cli) follow(ctx context.Context, client *admin.Client, rp admin.Replay) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for last := ""; !rp.State.Over(); {
		if line := progressText(&rp); line != last {
			last = line
			if err := c.progress(&rp, line); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			p := &printer{w: c.stderr}
			p.line("\nthe replay goes on in idemd: idemd replay show %s, or cancel %s", rp.ID, rp.ID)
			return p.err
		case <-tick.C:
		}
		next, err := client.Replay(ctx, rp.ID)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the replay %s cannot be looked at, it goes on when idemd runs: %w", rp.ID, err)
		}
		if err == nil {
			rp = next
		}
	}
	if err := c.lastReport(&rp); err != nil {
		return err
	}
	if rp.State == admin.ReplayCanceled {
		return refused("", "the replay was canceled by somebody")
	}
	return nil
}

func progressText(rp *admin.Replay) string {
	text := fmt.Sprintf("%s: %s, %d examined, %d begun", rp.ID, rp.State, rp.Examined, rp.Written)
	if n := rp.To - rp.From; !rp.Request.Dead && rp.To > rp.From && rp.Position >= rp.From {
		text += fmt.Sprintf(", %d %%", (rp.Position-rp.From)*100/n)
	}
	if rp.Errors > 0 {
		text += fmt.Sprintf(", %d errors", rp.Errors)
	}
	if rp.Waiting != "" {
		text += ", waiting"
	}
	return text
}

// progress shows one step: as JSON, over the last one on a terminal, else as a line.
func (c *cli) progress(rp *admin.Replay, line string) error {
	if c.output == "json" {
		return c.showJSONLine(rp)
	}
	p := &printer{w: c.stdout}
	if out, ok := c.stdout.(*os.File); ok && app.IsTerminal(out) {
		_, p.err = fmt.Fprintf(c.stdout, "\r\x1b[K%s", line)
	} else {
		p.line("%s", line)
	}
	return p.err
}

func (c *cli) lastReport(rp *admin.Replay) error {
	if c.output == "json" {
		return c.showJSONLine(rp)
	}
	p := &printer{w: c.stdout}
	if out, ok := c.stdout.(*os.File); ok && app.IsTerminal(out) {
		p.line("")
	}
	printReplay(p, rp)
	return p.err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
)

func (c *cli) statusCommand() *cobra.Command {
	var wait time.Duration
	cmd := c.prints(&cobra.Command{
		Use:   "status",
		Short: "show what the running idemd does",
		Long: `Show the running idemd: sources, handlers, what is open, the queue, and warnings.
Counters begin anew when the process does. With --wait, first wait until it is
ready.`,
		Example: `  idemd status
  idemd status --wait 10s
  idemd status --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			if wait < 0 {
				return usage("--wait is a time to come, not %s", wait)
			}
			return c.ask(func(client *admin.Client) error {
				st, err := waitReady(ctx, client, wait)
				if err != nil {
					return err
				}
				return c.show(st, func(p *printer) { printStatus(p, st) })
			})
		}),
	})
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait up to `DURATION` for idemd to be ready")
	return cmd
}

// waitReady asks until idemd is ready or the time is over.
func waitReady(ctx context.Context, client *admin.Client, wait time.Duration) (admin.Status, error) {
	over := time.After(wait)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		st, err := client.Status(ctx)
		if wait <= 0 || err == nil && st.Ready || err != nil && !errors.Is(err, admin.ErrNotRunning) {
			return st, err
		}
		select {
		case <-again.C:
		case <-over:
			if err == nil {
				err = fmt.Errorf("idemd runs, but is not ready after %s", wait)
			}
			return st, err
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}

func printStatus(p *printer, st admin.Status) {
	ready := "ready"
	if !st.Ready {
		ready = "NOT READY"
	}
	p.line("idemd %s, pid %d, %s since %s", plain(st.Version), st.PID, ready, local(st.Started))
	p.table(
		[]string{"listens on", st.Listen},
		[]string{"configuration", orDemo(st.ConfigFile)},
		[]string{"environment", st.Environment},
		[]string{"data", st.DataDir},
		[]string{"queue", queueText(&st.Queue)},
		[]string{"claims", fmt.Sprintf("%d keys, %s on disk, epoch %d", st.Store.Keys, bytesText(st.Store.DiskBytes), st.Store.Epoch)},
	)
	for _, w := range st.Warnings {
		p.line("warning: %s", plain(w))
	}
	p.line("")
	rows := [][]string{{"SOURCE", "SCHEME", "PATH", "SINCE START"}}
	for _, s := range st.Sources {
		rows = append(rows, []string{s.Name, s.Scheme, s.Path, counters(s.Counters)})
	}
	p.table(rows...)
	p.line("")
	rows = [][]string{{"HANDLER", "EFFECT", "STATE", "UNSEEN", "RUNNING", "OPEN", "SINCE START"}}
	for _, h := range st.Handlers {
		open := map[string]uint64{}
		for state, n := range h.Open {
			open[state] = uint64(n)
		}
		rows = append(rows, []string{
			h.Name, h.Effect.String(), string(h.State), fmt.Sprint(h.Pending), fmt.Sprint(h.Running), counters(open), counters(h.Counters),
		})
	}
	p.table(rows...)
}

func queueText(q *admin.QueueStatus) string {
	if q.Messages == 0 {
		return fmt.Sprintf("empty, up to %s", bytesText(q.MaxBytes))
	}
	return fmt.Sprintf("%d events, %s of %s, sequences %d to %d, %d parked",
		q.Messages, bytesText(int64(q.Bytes)), bytesText(q.MaxBytes), q.FirstSeq, q.LastSeq, q.Parked)
}

// counters lists those that are not zero.
func counters(m map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
		}
	}
	return orDash(strings.Join(parts, ", "))
}

func orDemo(file string) string {
	if file == "" {
		return "none (demo)"
	}
	return file
}

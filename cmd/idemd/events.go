package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
)

func (c *cli) eventsCommand() *cobra.Command {
	return group("events", "look at stored events",
		`Look at the events in the queue, newest first. EVENT is an event's id (evt_... or
its first 8 characters), its sequence in the queue, or the platform's own id; with
--source, a number is that source's id.`,
		c.eventsListCommand(), c.eventsShowCommand(), c.eventsTailCommand())
}

// since is a flag that takes days, too.
type since time.Duration

// String is empty for what is not set, so that the help names no default.
func (s *since) String() string {
	if *s == 0 {
		return ""
	}
	return app.Duration(*s).String()
}

func (s *since) Set(text string) error {
	d, err := app.ParseDuration(text)
	if err == nil && d <= 0 {
		err = fmt.Errorf("%q is no time at all", text)
	}
	*s = since(d)
	return err
}

func (s *since) Type() string { return "duration" }

func filterFlags(cmd *cobra.Command, f *admin.EventFilter) {
	cmd.Flags().StringVar(&f.Source, "source", "", "only of the source `NAME`")
	cmd.Flags().StringVar(&f.Type, "type", "", "only of `TYPE`; a * at its end stands for any rest")
	cmd.Flags().BoolVar(&f.Unrouted, "unrouted", false, "only those that no handler wants")
}

func (c *cli) eventsListCommand() *cobra.Command {
	var (
		f      admin.EventFilter
		back   since
		cursor string
		limit  int
	)
	cmd := c.prints(&cobra.Command{
		Use:   "list",
		Short: "list events, newest first",
		Long:  "List events, newest first. The last line names the cursor of what follows.",
		Example: `  idemd events list --since 2h --type 'change_contact.*'
  idemd events list --unrouted --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			if limit < 1 {
				return usage("--limit is 1 or more")
			}
			f.Since = time.Duration(back)
			return c.ask(func(client *admin.Client) error {
				page, err := collect(cursor, limit, func(cursor string, n int) (admin.Page[admin.Event], error) {
					return client.Events(ctx, f, cursor, n)
				})
				if err != nil {
					return err
				}
				return c.show(page, func(p *printer) { printEvents(p, page) })
			})
		}),
	})
	filterFlags(cmd, &f)
	cmd.Flags().Var(&back, "since", "only those of the last `DURATION`: 2h, 3d (default: however old)")
	pageFlags(cmd, &cursor, &limit)
	return cmd
}

func pageFlags(cmd *cobra.Command, cursor *string, limit *int) {
	cmd.Flags().StringVar(cursor, "cursor", "", "go on at `CURSOR`")
	cmd.Flags().IntVar(limit, "limit", 50, "at most `N`")
}

// largestPage is what the API gives at once.
const largestPage = 1000

// collect asks for pages until there are limit items or no more.
func collect[T any](cursor string, limit int, ask func(cursor string, n int) (admin.Page[T], error)) (admin.Page[T], error) {
	all := admin.Page[T]{Items: []T{}, Next: cursor}
	for {
		page, err := ask(all.Next, min(limit-len(all.Items), largestPage))
		if err != nil {
			return all, err
		}
		all.Items, all.Next = append(all.Items, page.Items...), page.Next
		if all.Next == "" || len(all.Items) >= limit {
			return all, nil
		}
	}
}

func eventRow(ev *admin.Event) []string {
	handlers := strings.Join(ev.Handlers, ",")
	if handlers == "" {
		handlers = "(unrouted)"
	}
	return []string{fmt.Sprint(ev.Seq), local(ev.Received), ev.Source, ev.Type, ev.ID, platformID(ev), handlers}
}

func platformID(ev *admin.Event) string {
	if ev.Kind == "platform" {
		return ev.PlatformID
	}
	return "(" + string(ev.Kind) + ")"
}

func eventHeader() []string {
	return []string{"SEQ", "RECEIVED", "SOURCE", "TYPE", "ID", "PLATFORM ID", "HANDLERS"}
}

func printEvents(p *printer, page admin.Page[admin.Event]) {
	if len(page.Items) == 0 {
		p.line("no events")
	} else {
		rows := [][]string{eventHeader()}
		for i := range page.Items {
			rows = append(rows, eventRow(&page.Items[i]))
		}
		p.table(rows...)
	}
	printNext(p, page.Next)
}

func printNext(p *printer, next string) {
	if next != "" {
		p.line("more: --cursor %s", next)
	}
}

func (c *cli) eventsShowCommand() *cobra.Command {
	var (
		back   since
		source string
		body   bool
		again  deliverAnyway
	)
	cmd := c.prints(&cobra.Command{
		Use:   "show EVENT",
		Short: "show one event",
		Long: `Show one event and all deliveries that brought it. The payload is shown only with
--body: it may hold what not everybody is to see.

With --deliver-anyway it runs once more at a handler: a batch is made for it.`,
		Example: `  idemd events show evt_75hwlapm
  idemd events show 1042 --body
  idemd events show 1042 --deliver-anyway --handler crm --reason 'crm lost it'`,
		Args: cobra.ExactArgs(1),
		RunE: c.action(func(ctx context.Context, args []string) error {
			if err := again.check(); err != nil {
				return err
			}
			return c.ask(func(client *admin.Client) error {
				if again.on {
					return c.deliver(ctx, client, args[0], source, time.Duration(back), &again)
				}
				ev, err := client.Event(ctx, args[0], source, time.Duration(back), body)
				if err != nil {
					return err
				}
				return c.show(ev, func(p *printer) {
					printEvent(p, &ev)
					for _, handler := range slices.Sorted(maps.Keys(ev.Suppressions)) {
						p.line("\n%s", plain(handler))
						printSuppressions(p, ev.Suppressions[handler])
					}
					if body {
						p.line("\n%s", bodyText(ev.Payload()))
					}
				})
			})
		}),
	})
	findFlags(cmd, &source, &back)
	cmd.Flags().BoolVar(&body, "body", false, "show the payload, too")
	again.add(cmd)
	return cmd
}

// findFlags says where an EVENT is looked for.
func findFlags(cmd *cobra.Command, source *string, back *since) {
	cmd.Flags().StringVar(source, "source", "", "look only in the source `NAME`")
	cmd.Flags().Var(back, "since", "look for an id as far back as `DURATION` (default 24h)")
}

// bodyText keeps the line structure of a payload and nothing else that a
// terminal would act upon.
func bodyText(body []byte) string {
	lines := strings.Split(string(body), "\n")
	for i := range lines {
		lines[i] = plain(strings.ReplaceAll(strings.TrimSuffix(lines[i], "\r"), "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

func printEvent(p *printer, ev *admin.EventDetail) {
	happened := "-"
	if ev.Time != nil {
		happened = local(*ev.Time)
	}
	rows := [][]string{
		{"event", ev.ID},
		{"type", ev.Type},
		{"source", ev.Source},
		{"platform id", fmt.Sprintf("%s (%s)", ev.PlatformID, ev.Kind)},
		{"tenant", orDash(ev.Tenant)},
		{"happened", happened},
		{"received", fmt.Sprintf("%s, sequence %d, by %s", local(ev.Received), ev.Seq, ev.Origin)},
		{"payload", fmt.Sprintf("%d bytes, %s", ev.Size, orDash(ev.ContentType))},
		{"handlers", orDash(strings.Join(ev.Handlers, ", "))},
	}
	if ev.Batch != "" {
		rows = append(rows, []string{"batch", ev.Batch})
	}
	if ev.Count > 1 {
		rows = append(rows, []string{"deliveries", deliveries(ev)})
	}
	p.table(rows...)
}

// deliveries tells how often an event came.
func deliveries(ev *admin.EventDetail) string {
	var seqs []string
	for _, d := range ev.Deliveries {
		text := fmt.Sprint(d.Seq)
		if d.Differs {
			text += " (other payload)"
		}
		seqs = append(seqs, text)
	}
	if len(seqs) > maxShown {
		seqs = append(seqs[:maxShown], "...")
	}
	text := fmt.Sprintf("%d, sequences %s", ev.Count, strings.Join(seqs, ", "))
	if ev.Partial {
		text += ", and perhaps older ones"
	}
	return text
}

func (c *cli) eventsTailCommand() *cobra.Command {
	var f admin.EventFilter
	cmd := c.prints(&cobra.Command{
		Use:   "tail",
		Short: "show events as they are stored",
		Long:  "Show events as they are stored, until you stop it. With --output json, one JSON value a line.",
		Example: `  idemd events tail --source wecom
  idemd events tail --output json | jq .type`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error {
			return c.ask(func(client *admin.Client) error {
				return client.Tail(ctx, f, func(ev admin.Event) error { return c.showLine(ev) })
			})
		}),
	})
	filterFlags(cmd, &f)
	return cmd
}

func (c *cli) showLine(ev admin.Event) error {
	if c.output == "json" {
		return c.showJSONLine(ev)
	}
	row := eventRow(&ev)
	for i := range row {
		row[i] = plain(row[i])
	}
	p := &printer{w: c.stdout}
	p.line("%s", strings.Join(row, "  "))
	return p.err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
)

type sendFlags struct {
	source   string
	file     string
	id       string
	typ      string
	url      string
	repeat   int
	parallel int
}

func (c *cli) sendCommand() *cobra.Command {
	var f sendFlags
	cmd := c.prints(&cobra.Command{
		Use:   "send",
		Short: "sign and send a sample event to a running source",
		Long: `Send an event to a running source, signed with the source's own secret as its
platform would. With --repeat the same event is sent several times, as platforms
do; it is to be handled once.

--id and --type are for sources that take them from outside the payload. Exit
code 4 when idemd does not accept it.`,
		Example: `  idemd send
  idemd send --source shop --type order.paid --id order-17 --repeat 3
  idemd send --source wecom --file event.xml`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.send(ctx, f) }),
	})
	flags := cmd.Flags()
	flags.StringVar(&f.source, "source", "", "`NAME` of the source (default: the first one)")
	flags.StringVar(&f.file, "file", "", "`FILE` that holds the payload, - for the standard input (default: a small sample)")
	flags.StringVar(&f.id, "id", "", "`ID` of the event (default: a new one)")
	flags.StringVar(&f.typ, "type", "", "`TYPE` of the event (default: the source's)")
	flags.StringVar(&f.url, "url", "", "base `URL` of the receiver (default: where this configuration listens)")
	flags.IntVar(&f.repeat, "repeat", 1, "send it `N` times")
	flags.IntVar(&f.parallel, "parallel", 1, "up to `N` requests at the same time")
	return cmd
}

type sendResult struct {
	Source  string       `json:"source"`
	Type    string       `json:"type"`
	EventID string       `json:"event_id"` // empty: it has no identity
	Answers []sendAnswer `json:"answers"`
}

type sendAnswer struct {
	Status int     `json:"status"`
	Millis float64 `json:"ms"`
	Error  string  `json:"error,omitempty"`
}

func (c *cli) send(ctx context.Context, f sendFlags) error {
	if f.repeat < 1 || f.parallel < 1 {
		return usage("--repeat and --parallel are 1 or more")
	}
	cfg, err := c.loadConfig()
	if err != nil {
		return err
	}
	payload, err := c.payload(f.file)
	if err != nil {
		return err
	}
	sample, err := cfg.NewSample(app.SampleEvent{Source: f.source, Payload: payload, ID: f.id, Type: f.typ})
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	base := f.url
	if base == "" {
		if base, err = c.receiverURL(ctx, cfg); err != nil {
			return err
		}
	}
	result := sendResult{Source: sample.Source, Type: sample.Type, EventID: sample.EventID}
	result.Answers, err = sendAll(ctx, sample, base, f)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("nobody listens on %s: %w", base, admin.ErrNotRunning)
	}
	if err := c.show(result, func(p *printer) { c.printSent(p, result) }); err != nil {
		return err
	}
	for _, a := range result.Answers {
		if a.Error != "" {
			return fmt.Errorf("send event: %s", a.Error)
		}
		if a.Status != http.StatusOK {
			return refused("idemd's log and idemd status tell why", "idemd answered with status %d", a.Status)
		}
	}
	return nil
}

func (c *cli) payload(file string) ([]byte, error) {
	switch file {
	case "":
		return nil, nil
	case "-":
		return io.ReadAll(c.stdin)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	return b, nil
}

// receiverURL is where the receiver of this configuration can be reached from
// here. Only the daemon knows a port that was chosen at its start.
func (c *cli) receiverURL(ctx context.Context, cfg *app.Config) (string, error) {
	host, port, err := net.SplitHostPort(cfg.Receiver.Listen)
	if err != nil {
		return "", fmt.Errorf("read receiver.listen: %w", err)
	}
	if port == "0" {
		err := c.ask(func(client *admin.Client) error {
			st, err := client.Status(ctx)
			if err == nil {
				host, port, err = net.SplitHostPort(st.Listen)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return (&url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}).String(), nil
}

// sendAll gives an answer for each sending, and one of the errors.
func sendAll(ctx context.Context, sample *app.Sample, base string, f sendFlags) ([]sendAnswer, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: f.parallel}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	answers, errs := make([]sendAnswer, f.repeat), make([]error, f.repeat)
	next := make(chan int)
	var senders sync.WaitGroup
	for range min(f.parallel, f.repeat) {
		senders.Go(func() {
			for i := range next {
				sent, err := sample.Send(ctx, client, base)
				answers[i] = sendAnswer{Status: sent.Status, Millis: float64(sent.Took.Microseconds()) / 1000}
				if errs[i] = err; err != nil {
					answers[i].Error = err.Error()
				}
			}
		})
	}
	for i := range f.repeat {
		next <- i
	}
	close(next)
	senders.Wait()
	return answers, errors.Join(errs...)
}

// maxShown bounds the answers that are printed one by one.
const maxShown = 10

func (c *cli) printSent(p *printer, r sendResult) {
	for i, a := range r.Answers {
		switch {
		case i >= maxShown:
		case a.Error != "":
			p.line("no answer: %s", plain(a.Error))
		case a.Status == http.StatusOK:
			p.line("200, stored (%.1f ms)", a.Millis)
		default:
			p.line("%d, not stored (%.1f ms)", a.Status, a.Millis)
		}
	}
	if n := len(r.Answers); n > maxShown {
		p.line("... %d in all", n)
	}
	if r.EventID == "" {
		p.line("event  %s from %s, without an id: each sending is a new event", plain(r.Type), r.Source)
		return
	}
	p.line("event  %s  (%s from %s)", r.EventID, plain(r.Type), r.Source)
	if slices.ContainsFunc(r.Answers, func(a sendAnswer) bool { return a.Status == http.StatusOK && a.Error == "" }) {
		p.line("next   %s why %s", c.program, r.EventID)
	}
}

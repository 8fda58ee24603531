package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"idemd/app"
)

func (c *cli) doctorCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:   "doctor",
		Short: "look at the data directory and the machine under it",
		Long: `Look at the claims, at every record of the queue, at disk space, clock and
permissions, and measure how long a sync takes. It may be run whether or not
idemd runs, as the user that runs it; nothing is changed.

Exit codes: 0 when all is well, 1 when something is not.`,
		Example: `  idemd doctor
  idemd doctor --config /etc/idemd/idemd.toml --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.doctor(ctx) }),
	})
}

type doctorResult struct {
	OK       bool          `json:"ok"`
	DataDir  string        `json:"data_dir"`
	Findings []app.Finding `json:"findings"`
}

func (c *cli) doctor(ctx context.Context) error {
	cfg, err := c.loadConfig()
	if err != nil {
		return err
	}
	result := doctorResult{OK: true, DataDir: cfg.DataDir, Findings: cfg.Doctor(ctx)}
	for _, f := range result.Findings {
		result.OK = result.OK && f.OK
	}
	if err := c.show(result, func(p *printer) { printFindings(p, result.Findings) }); err != nil {
		return err
	}
	if !result.OK {
		return errors.New("not all is well: see FAIL above")
	}
	return nil
}

func printFindings(p *printer, all []app.Finding) {
	for _, f := range all {
		word := "ok  "
		if !f.OK {
			word = "FAIL"
		}
		p.line("  %s  %s: %s", word, plain(f.Subject), plain(f.What))
		if f.Hint != "" {
			p.line("        hint: %s", plain(f.Hint))
		}
	}
}

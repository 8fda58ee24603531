package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"idemd/app"
)

func (c *cli) checkCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:   "check",
		Short: "look for everything that is wrong with the configuration",
		Long: `Read the configuration and report every problem in it at once, with its line and
what to write instead. Then look around it: can the secrets be read, is the
address free, can the data directory be written. Nothing is changed.

Exit codes: 2 when the configuration is wrong, 1 when something around it is.
What this user may not read, the service's user may.`,
		Example: `  idemd check
  idemd check --config /etc/idemd/idemd.toml --output json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.check(ctx) }),
	})
}

type checkResult struct {
	OK       bool          `json:"ok"`
	File     string        `json:"file"`
	Problems []app.Problem `json:"problems"`
	Findings []app.Finding `json:"findings"`

	Windows []app.WindowSum `json:"windows,omitempty"` // what cold must be, for each handler and source
	History app.HistorySum  `json:"history,omitzero"`  // what [queue] history must be
}

func (c *cli) check(ctx context.Context) error {
	file := c.configFile()
	if file == "" {
		return &exitError{exitUsage, "write one with " + c.program + " init idemd.toml, or name it with --config",
			errors.New("there is no configuration")}
	}
	result := checkResult{File: file, Problems: []app.Problem{}, Findings: []app.Finding{}}
	cfg, err := app.Load(file)
	var bad *app.ConfigError
	if errors.As(err, &bad) && c.output == "json" {
		result.Problems = bad.Problems
		return errors.Join(c.showJSON(result), c.wrongConfig(err))
	}
	if err != nil {
		return c.wrongConfig(err)
	}
	result.Findings, result.Windows, result.History = cfg.Check(ctx), cfg.WindowSums(), cfg.HistorySum()
	failed := 0
	for _, f := range result.Findings {
		if !f.OK {
			failed++
		}
	}
	result.OK = failed == 0
	if err := c.show(result, func(p *printer) { printCheck(p, cfg, result) }); err != nil {
		return err
	}
	if failed > 0 {
		return errors.New("the configuration is right, but not everything around it: see FAIL above")
	}
	return nil
}

func printCheck(p *printer, cfg *app.Config, result checkResult) {
	p.line("%s: the configuration is right", result.File)
	var rows [][]string
	for i := range cfg.Sources {
		s := &cfg.Sources[i]
		rows = append(rows, []string{"  source", s.Name, s.Scheme, "POST " + s.Path})
	}
	for i := range cfg.Handlers {
		h := &cfg.Handlers[i]
		rows = append(rows, []string{"  handler", h.Name, h.Kind, fmt.Sprintf("%s, attempts %d, cold %s", h.Effect, len(h.Retry)+1, h.Cold)})
	}
	p.table(rows...)
	if len(cfg.Handlers) == 0 {
		p.line("  no handler: events are stored, and nothing is done with them")
	}
	for i := range result.Windows {
		s := &result.Windows[i]
		p.line("  cold of %s for %s: %s, of %s", s.Handler, s.Source, s, s.Cold)
	}
	p.line("  history: %s, of %s", result.History, result.History.History)
	printFindings(p, result.Findings)
	if result.OK {
		p.line("ok")
	}
}

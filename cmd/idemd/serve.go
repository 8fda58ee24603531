package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"idemd/app"
)

type serveFlags struct {
	logFormat string
	logLevel  string
	restored  bool
	moved     bool
	abandon   since
}

func (c *cli) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "receive events and run the handlers",
		Long: `Receive events and run the handlers until SIGINT or SIGTERM; then let running attempts
end and stop. A second signal ends the process at once, as a crash would: nothing
that was answered is lost. SIGHUP reads the configuration again, as idemd reload does.

Without any configuration it runs a demo: one source, one handler that logs, data
in ./idemd-data.`,
		Example: `  idemd serve
  idemd serve --config /etc/idemd/idemd.toml --log-format json`,
		Args: cobra.NoArgs,
		RunE: c.action(func(ctx context.Context, _ []string) error { return c.serve(ctx, f) }),
	}
	cmd.Flags().StringVar(&f.logFormat, "log-format", "auto", "`FORMAT` of the log: text, json, or auto (text on a terminal)")
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "least `LEVEL` that is logged: debug, info, warn or error")
	cmd.Flags().BoolVar(&f.restored, "restored", false, "the data directory is an older state of itself (a snapshot of the machine, for instance): hold what it cannot know")
	cmd.Flags().BoolVar(&f.moved, "moved", false, "the data directory was stopped cleanly and moved here, and there is no other: it is no copy")
	cmd.Flags().Var(&f.abandon, "abandon-claims", "give up claims that are damaged and start with none: of the events of the last `DURATION`, irrevocable handlers get those in doubt, others run again")
	cmd.MarkFlagsMutuallyExclusive("restored", "moved", "abandon-claims")
	return cmd
}

// gcPercent is how much garbage may pile up, in percent of what is alive. Half of
// Go's default: collecting takes 1 % of the processor's time, and an appliance
// that shares a small machine should stay small. GOGC overrides it.
const gcPercent = 50

func (c *cli) serve(ctx context.Context, f serveFlags) error {
	logger, err := newLogger(c.stderr, f)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	opts := app.Options{Logger: logger, Version: programVersion(), Restored: f.restored, Moved: f.moved, Abandon: time.Duration(f.abandon)}
	if program, err := os.Executable(); err == nil {
		opts.VerifyProgram = []string{program, verifyFileName}
	}
	if c.configFile() == "" {
		if os.Getenv("INVOCATION_ID") != "" {
			return &exitError{exitUsage, "name the configuration with --config in the unit's ExecStart",
				errors.New("the demo does not run under systemd")}
		}
		opts.Ready = c.greet
		var stop context.CancelFunc // nothing to reload: a terminal that closes ends the demo
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	} else {
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		opts.Reload = hangup
	}
	cfg, err := c.loadConfig()
	if err != nil {
		return err
	}
	if opts.Systemd, err = app.TakeSystemd(); err != nil {
		return err
	}
	a, err := app.New(ctx, cfg, opts)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// greet tells whoever tries the demo what to do next.
func (c *cli) greet(addr string) {
	p := &printer{w: c.stdout}
	p.line("")
	p.line("This is the demo: source \"demo\" on http://%s/in/demo, handler \"log\", data in ./idemd-data.", addr)
	p.line("Try, in another terminal here:")
	p.line("  %s send --repeat 3      # one event, three times: it is handled once", c.program)
	p.line("  %s events list", c.program)
	p.line("  %s status", c.program)
	p.line("For a real one: %s init idemd.toml", c.program)
	p.line("")
}

func newLogger(w io.Writer, f serveFlags) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, usage("--log-level is debug, info, warn or error, not %q", f.logLevel)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch {
	case f.logFormat == "text", f.logFormat == "auto" && isTerminal(w):
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case f.logFormat == "json", f.logFormat == "auto":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, usage("--log-format is text, json or auto, not %q", f.logFormat)
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

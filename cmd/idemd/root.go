package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"idemd/admin"
	"idemd/app"
)

// The exit codes.
const (
	exitFailed     = 1 // it did not work
	exitUsage      = 2 // the command line or the configuration is wrong
	exitNotRunning = 3 // no idemd runs on this data directory
	exitRefused    = 4 // idemd, or this command, refuses to do it
)

// exitError gives an error its exit code, and a hint where the error has none.
type exitError struct {
	code int
	hint string
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

func refused(hint, format string, args ...any) error {
	return &exitError{code: exitRefused, hint: hint, err: fmt.Errorf(format, args...)}
}

// cli is one call of the program.
type cli struct {
	program string // how to call it again
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer

	config string // --config
	output string // --output
	began  bool   // the command line was fine, the command runs
}

// run executes a command line and gives its exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	c := &cli{program: programName(args[0]), stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(args[1:])
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	return c.report(err)
}

// programName is what to type for another command: `go run` leaves nothing in
// the path.
func programName(arg string) string {
	if strings.Contains(arg, string(filepath.Separator)+"go-build") {
		return "go run ./cmd/idemd"
	}
	return arg
}

// report prints an error in one sentence, and what to do on a line of its own.
func (c *cli) report(err error) int {
	code, hint := c.explain(err)
	text := err.Error()
	if _, err := fmt.Fprintf(c.stderr, "idemd: %s\n", text); err != nil {
		return exitFailed
	}
	if hint != "" {
		if _, err := fmt.Fprintf(c.stderr, "hint: %s\n", hint); err != nil {
			return exitFailed
		}
	}
	return code
}

func (c *cli) explain(err error) (code int, hint string) {
	var (
		exit     *exitError
		config   *app.ConfigError
		operator *app.OperatorError
		told     *admin.Error
	)
	code = exitFailed
	if errors.As(err, &operator) {
		hint = operator.Hint
	}
	switch {
	case errors.As(err, &exit):
		code = exit.code
		if hint == "" {
			hint = exit.hint
		}
		if hint == "" && code == exitUsage {
			hint = "see " + c.program + " --help"
		}
	case !c.began:
		code, hint = exitUsage, "see "+c.program+" --help"
	case errors.As(err, &config):
		code = exitUsage
		hint = "correct the configuration; " + c.program + " check looks at it again"
	case errors.Is(err, admin.ErrNotRunning):
		code, hint = exitNotRunning, "start it with "+c.program+" serve, or name its configuration with --config"
	case errors.As(err, &told):
		hint = told.Hint
		switch told.Code {
		case admin.CodeBadRequest, admin.CodeAmbiguous:
			code = exitUsage
		case admin.CodeConflict, admin.CodeRefused:
			code = exitRefused
		}
	}
	return code, hint
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "idemd",
		Short: "receive webhooks durably and handle each event once",
		Long: `idemd receives webhooks, stores each event before it answers, and runs your
handlers for it. A duplicate is not run again, a failure is retried, and whatever
needs a person is kept in a list: dead letters and runs in doubt.

Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 idemd is not
running, 4 refused.`,
		Example: `  idemd serve                  # without a configuration: a demo
  idemd init idemd.toml        # a commented configuration
  idemd check
  idemd why EVENT`,
		Version:       programVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&c.config, "config", "",
		"configuration `FILE` (default $IDEMD_CONFIG, ./idemd.toml, /etc/idemd/idemd.toml)")
	root.AddCommand(
		c.serveCommand(), c.initCommand(), c.checkCommand(), c.sendCommand(), c.statusCommand(), c.reloadCommand(),
		c.eventsCommand(), c.whyCommand(), c.deadCommand(), c.doubtCommand(),
		c.replayCommand(), c.batchCommand(), c.handlerCommand(),
		c.windowsCommand(), c.janitorCommand(), c.verifyFileCommand(), c.doctorCommand(), c.versionCommand(),
	)
	root.SetVersionTemplate(versionLine() + "\n")
	return root
}

// addCompletion adds cobra's command, which by itself would answer an unknown
// shell with its help and exit code 0. It writes where root does now.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.RunE = needsCommand
		}
	}
}

// action wraps what a command does once its command line was understood.
func (c *cli) action(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if f := cmd.Flags().Lookup("output"); f != nil && c.output != "text" && c.output != "json" {
			return usage("--output is text or json, not %q", c.output)
		}
		c.began = true
		return do(cmd.Context(), args)
	}
}

// group is a command that has only other commands.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.NoArgs, RunE: needsCommand}
	cmd.AddCommand(commands...)
	return cmd
}

func needsCommand(cmd *cobra.Command, _ []string) error {
	return fmt.Errorf("%s needs one of its commands", cmd.CommandPath())
}

// prints adds --output.
func (c *cli) prints(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVarP(&c.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// configFile finds the configuration; empty when there is none.
func (c *cli) configFile() string {
	if c.config != "" {
		return c.config
	}
	if file := os.Getenv("IDEMD_CONFIG"); file != "" {
		return file
	}
	for _, file := range []string{"idemd.toml", "/etc/idemd/idemd.toml"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// loadConfig reads the configuration, or gives the demo's.
func (c *cli) loadConfig() (*app.Config, error) {
	file := c.configFile()
	if file == "" {
		return app.DemoConfig(), nil
	}
	cfg, err := app.Load(file)
	if err != nil {
		return nil, c.wrongConfig(err)
	}
	return cfg, nil
}

func (c *cli) wrongConfig(err error) error {
	return &exitError{exitUsage, "correct the configuration; " + c.program + " check looks at it again", err}
}

// ask calls fn with a client of the running daemon. Of the configuration only the
// place of its data counts: the rest may be wrong while somebody edits it.
func (c *cli) ask(fn func(client *admin.Client) error) error {
	cfg := app.DemoConfig()
	if file := c.configFile(); file != "" {
		var err error
		if cfg, err = app.LoadPlace(file); err != nil {
			return c.wrongConfig(err)
		}
	}
	socket, err := cfg.SocketPath()
	if err != nil {
		return err
	}
	client := admin.NewClient(socket)
	defer client.Close()
	if err := fn(client); errors.Is(err, admin.ErrNotRunning) {
		return fmt.Errorf("%w on %s", err, cfg.DataDir)
	} else if err != nil {
		return err
	}
	return nil
}

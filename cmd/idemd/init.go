package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"idemd"
)

func (c *cli) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "write a commented configuration",
		Long: `Write a configuration that holds every key with a comment and its default: into
FILE, or to the standard output. A file that exists is never overwritten.`,
		Example: `  idemd init /etc/idemd/idemd.toml
  idemd init > idemd.toml`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.action(func(_ context.Context, args []string) error {
			if len(args) == 0 {
				_, err := io.WriteString(c.stdout, idemd.ExampleConfig())
				return err
			}
			if err := writeNew(args[0], idemd.ExampleConfig()); err != nil {
				return err
			}
			return c.show(nil, func(p *printer) {
				p.line("wrote %s; edit it, then run: %s check --config %s", args[0], c.program, args[0])
			})
		}),
	}
}

func writeNew(file, content string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if errors.Is(err, fs.ErrExist) {
		return refused("give another name, or move the file away", "%s exists already", file)
	}
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"idemd/app"
)

// goAhead is the flag that stands for a person's yes.
type goAhead struct{ yes bool }

func (g *goAhead) add(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&g.yes, "yes", "y", false, "do not ask")
}

// agree returns nil when somebody has said yes: by the flag, or at the terminal.
func (c *cli) agree(p *printer, g goAhead, question string) error {
	if g.yes {
		return nil
	}
	if in, ok := c.stdin.(*os.File); !ok || !app.IsTerminal(in) {
		return &exitError{code: exitUsage, hint: "look at the plan (--dry-run), then say --yes",
			err: errors.New("nobody can be asked: standard input is no terminal")}
	}
	p.line("%s Type yes:", question)
	if p.err != nil {
		return p.err
	}
	answer, err := bufio.NewReader(c.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(answer) != "yes" {
		return refused("", "nothing was done: the answer was not yes")
	}
	return nil
}

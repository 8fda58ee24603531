package app

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"idemd/dedup/boltstore"
)

// VerifyFile reads a hot or cold file of a claim store to its end. A damaged one
// may end the process.
func VerifyFile(path string) error { return boltstore.VerifyFile(path) }

// verify gives what looks at a suspect file in a process of its own, nil when
// there is no such program.
func (o *Options) verify() func(ctx context.Context, path string) error {
	if len(o.VerifyProgram) == 0 {
		return nil
	}
	return func(ctx context.Context, path string) error {
		args := append(slices.Clone(o.VerifyProgram[1:]), path)
		out, err := exec.CommandContext(ctx, o.VerifyProgram[0], args...).CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Exited() {
			text, _, _ := strings.Cut(string(out), "\n")
			return fmt.Errorf("%s", strings.TrimPrefix(text, "error: "))
		}
		if err != nil {
			return fmt.Errorf("the process that read it ended: %w", err)
		}
		return nil
	}
}

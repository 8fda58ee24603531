package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (c *cli) versionCommand() *cobra.Command {
	return c.prints(&cobra.Command{
		Use:     "version",
		Short:   "print the version",
		Long:    "Print the version of this program, and the Go version that built it.",
		Example: "  idemd version --output json",
		Args:    cobra.NoArgs,
		RunE: c.action(func(context.Context, []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{programVersion(), runtime.Version()}
			return c.show(v, func(p *printer) {
				p.line("%s", versionLine())
			})
		}),
	})
}

// versionLine is the version for people.
func versionLine() string {
	return fmt.Sprintf("idemd %s (%s, %s/%s)", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// programVersion is what the linker was told, else what the build was made from.
func programVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return fmt.Sprintf("dev-%s", s.Value[:12])
		}
	}
	return "dev"
}

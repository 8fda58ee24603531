package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"idemd/app"
)

// blocks gives the fenced blocks of a language in a document.
func blocks(t *testing.T, file, language string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, part := range strings.Split(string(text), "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		all = append(all, block)
	}
	return all
}

func readmes() []string { return []string{"../../README.md", "../../README.zh-CN.md"} }

// Every command line of the READMEs is one that idemd understands.
func TestReadme_CommandsExist(t *testing.T) {
	for _, file := range readmes() {
		found := 0
		for _, block := range blocks(t, file, "sh") {
			for line := range strings.Lines(block) {
				line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
				args := strings.Fields(line)
				if len(args) > 2 && args[0] == "go" && args[1] == "run" {
					args = args[2:]
				}
				if len(args) < 2 || args[0] != "idemd" && args[0] != "./cmd/idemd" {
					continue
				}
				found++
				root := (&cli{program: "idemd", stdout: io.Discard, stderr: io.Discard}).root()
				cmd, rest, err := root.Find(args[1:])
				if err != nil || cmd == root {
					t.Errorf("%s: %s: %v", file, line, err)
					continue
				}
				if err := cmd.ParseFlags(rest); err != nil {
					t.Errorf("%s: %s: %v", file, line, err)
				}
				if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
					t.Errorf("%s: %s: %v", file, line, err)
				}
			}
		}
		if found < 10 {
			t.Errorf("%s: only %d commands found", file, found)
		}
	}
}

// Every configuration in the READMEs is one that idemd takes.
func TestReadme_ConfigurationsAreValid(t *testing.T) {
	for _, file := range readmes() {
		all := blocks(t, file, "toml")
		if len(all) == 0 {
			t.Errorf("%s shows no configuration", file)
		}
		for _, block := range all {
			if _, err := app.Parse([]byte(block), "/etc/idemd/idemd.toml"); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// CI runs the command that the READMEs name for the tests.
func TestReadme_TestCommandIsWhatCIRuns(t *testing.T) {
	ci, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(ci), "\nmake test\n") {
		t.Error(".ci/run does not call make test")
	}
	for _, file := range readmes() {
		if first := blocks(t, file, "sh")[0]; !strings.Contains(first, "\nmake test ") || !strings.HasPrefix(first, "go run ./cmd/idemd serve ") {
			t.Errorf("%s does not begin with the two commands: %s", file, first)
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"idemd/admin"
	"idemd/app"
)

func TestReport_GivesEachErrorItsExitCodeAndHint(t *testing.T) {
	operator := &app.OperatorError{What: "cannot listen", Where: "127.0.0.1:1", Hint: "stop the other one"}
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{errors.New("disk burns"), 1, "idemd: disk burns\n"},
		{fmt.Errorf("start: %w", operator), 1, "idemd: start: cannot listen: 127.0.0.1:1\nhint: stop the other one\n"},
		{&exitError{code: exitUsage, hint: "other", err: operator}, 2, "idemd: cannot listen: 127.0.0.1:1\nhint: stop the other one\n"},
		{&app.ConfigError{Problems: []app.Problem{{Path: "a", Line: 1, What: "is wrong"}}}, 2, "idemd: 1 problem\n  a, line 1: is wrong\nhint: correct the configuration"},
		{usage("no %s", "way"), 2, "idemd: no way\nhint: see idemd --help\n"},
		{fmt.Errorf("%w on /data", admin.ErrNotRunning), 3, "idemd: idemd is not running on /data\nhint: start it"},
		{&admin.Error{Code: admin.CodeConflict, Message: "changed", Hint: "look again"}, 4, "idemd: changed\nhint: look again\n"},
		{&admin.Error{Code: admin.CodeBadRequest, Message: "nonsense"}, 2, "idemd: nonsense\n"},
		{&admin.Error{Code: admin.CodeAmbiguous, Message: "two"}, 2, "idemd: two\n"},
		{&admin.Error{Code: admin.CodeNotFound, Message: "none"}, 1, "idemd: none\n"},
		{refused("do not", "no"), 4, "idemd: no\nhint: do not\n"},
	} {
		var out strings.Builder
		code := (&cli{program: "idemd", stderr: &out, began: true}).report(c.err)
		if code != c.code || !strings.HasPrefix(out.String(), c.text) {
			t.Errorf("%v: got %d, %q", c.err, code, out.String())
		}
	}
}

func TestProgramName_IsWhatCanBeTypedAgain(t *testing.T) {
	for arg, want := range map[string]string{
		"idemd": "idemd", "bin/idemd": "bin/idemd", "/tmp/go-build123/b001/exe/idemd": "go run ./cmd/idemd",
	} {
		if got := programName(arg); got != want {
			t.Errorf("%s: got %s", arg, got)
		}
	}
}

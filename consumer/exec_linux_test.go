package consumer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"idemd/dedup"
)

func newExec(t *testing.T, cfg ExecConfig) *Exec {
	t.Helper()
	e, err := NewExec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// shell runs a script whose $1 is a file of the test, and gives the answer and
// what stands in the file.
func shell(t *testing.T, ctx context.Context, script string) (Answer, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "out")
	a := newExec(t, ExecConfig{Command: []string{"sh", "-c", script, "sh", file}}).Handle(ctx, attemptOf(payloadEvent()))
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return a, string(text)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// runs reports whether a process is there and no zombie.
func runs(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil {
		return false
	}
	_, state, ok := strings.Cut(string(stat), ") ")
	return ok && !strings.HasPrefix(state, "Z")
}

func TestExec_GetsPayloadAndACleanEnvironment(t *testing.T) {
	t.Setenv("HOME", "/home/secret")
	t.Setenv("CRM_TOKEN", "hunter2")
	ev := payloadEvent()
	ev.Type = "a\nb () { :; }"
	a := attemptOf(ev)
	file := filepath.Join(t.TempDir(), "out")
	dir := t.TempDir()
	e := newExec(t, ExecConfig{Command: []string{"sh", "-c", `{ cat; echo; pwd; env; } > "$1"`, "sh", file}, Dir: dir})
	if answer := e.Handle(t.Context(), a); answer != (Answer{Class: Done}) {
		t.Fatalf("answer %+v", answer)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if lines[0] != payload || lines[1] != dir {
		t.Errorf("payload and directory are %q", lines[:2])
	}
	var names []string
	for _, line := range lines[2:] {
		name, _, _ := strings.Cut(line, "=")
		if name != "PWD" && name != "_" && name != "SHLVL" { // the shell's own
			names = append(names, name)
		}
	}
	slices.Sort(names)
	want := []string{
		"IDEMD_ATTEMPT", "IDEMD_CONTENT_TYPE", "IDEMD_FENCE", "IDEMD_HANDLER", "IDEMD_ID", "IDEMD_IDEMPOTENCY_KEY",
		"IDEMD_ORIGIN", "IDEMD_SOURCE", "IDEMD_SPECVERSION", "IDEMD_TIME", "IDEMD_TYPE", "PATH",
	}
	if !slices.Equal(names, want) {
		t.Errorf("environment is %v, want %v", names, want)
	}
	for _, line := range []string{
		"IDEMD_ID=" + ev.ID(), "IDEMD_IDEMPOTENCY_KEY=" + a.Key.RunID(), "IDEMD_ATTEMPT=3", "IDEMD_FENCE=42",
		"IDEMD_TYPE=a%0Ab%20()%20{%20:;%20}", "IDEMD_SOURCE=/in/wecom",
	} {
		if !slices.Contains(lines, line) {
			t.Errorf("%s is missing in %q", line, lines)
		}
	}
}

// Case 30: the table of exit codes.
func TestExec_ExitCodes(t *testing.T) {
	for script, want := range map[string]Answer{
		"exit 0":        {Class: Done},
		"exit 75":       {Class: NoEffect, Reason: dedup.Reason{Code: "exit-75", Detail: "the command ended with exit code 75"}},
		"exit 65":       {Class: Permanent, Reason: dedup.Reason{Code: "exit-65", Detail: "the command ended with exit code 65"}},
		"exit 1":        {Class: Unknown, Reason: dedup.Reason{Code: "exit-1", Detail: "the command ended with exit code 1"}},
		"exit 255":      {Class: Unknown, Reason: dedup.Reason{Code: "exit-255", Detail: "the command ended with exit code 255"}},
		"kill -TERM $$": {Class: Unknown, Reason: dedup.Reason{Code: "signal-15", Detail: "the command was killed by a signal: terminated"}},
	} {
		if a, _ := shell(t, t.Context(), script); a != want {
			t.Errorf("%s: %+v, want %+v", script, a, want)
		}
	}
	e := newExec(t, ExecConfig{Command: []string{"sh", "-c", "exit 3"}, Answers: map[string]string{"3": "done"}})
	if a := e.Handle(t.Context(), attemptOf(payloadEvent())); a != (Answer{Class: Done}) {
		t.Errorf("own rule: %+v", a)
	}
}

func TestExec_RefusesWhatCannotRun(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []ExecConfig{
		{}, {Command: []string{""}}, {Command: []string{"no-such-program-here"}}, {Command: []string{plain}},
		{Command: []string{"true"}, Answers: map[string]string{"256": "done"}},
		{Command: []string{"true"}, Answers: map[string]string{"1": "wait"}},
	} {
		if _, err := NewExec(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	// What vanishes later has no effect, and is not the event's fault.
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	e := newExec(t, ExecConfig{Command: []string{program}})
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	a := e.Handle(t.Context(), attemptOf(payloadEvent()))
	if a.Class != NoEffect || !a.Endless || a.Reason.Code != "exec-start" || strings.Contains(a.Reason.Detail, program) {
		t.Errorf("answer %+v", a)
	}
}

// A command's children do not outlive it: neither its end nor its timeout.
func TestExec_LeavesNoOrphans(t *testing.T) {
	began := time.Now()
	a, pid := shell(t, t.Context(), `sleep 600 & echo $! > "$1"`)
	if a.Class != Done || pid == "" {
		t.Errorf("after its end: %+v, child %q", a, pid)
	}
	until(t, "the child to go", func() bool { return !runs(t, pid) })
	a, pid = shell(t, within(t, 500*time.Millisecond), `trap "" TERM; sleep 600 & echo $! > "$1"; wait; sleep 600`)
	if a.Class != Unknown || a.Reason.Code != "timeout" || pid == "" {
		t.Errorf("after its timeout: %+v, child %q", a, pid)
	}
	until(t, "the child to go", func() bool { return !runs(t, pid) })
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

// What left the group cannot be killed, but nobody waits for it either.
func TestExec_DoesNotWaitForWhatHasLeftTheGroup(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Log("no setsid here: the pipe is held by nobody")
		return
	}
	ev := payloadEvent()
	ev.Body = make([]byte, 1<<20) // more than a pipe holds
	file := filepath.Join(t.TempDir(), "out")
	e := newExec(t, ExecConfig{Command: []string{"sh", "-c", `exec 3<&0; setsid sh -c 'echo $$ > "$1"; exec sleep 600' sh "$1" <&3 & until [ -s "$1" ]; do :; done`, "sh", file}})
	began := time.Now()
	a := e.Handle(t.Context(), attemptOf(ev))
	if d := time.Since(began); a.Class != Done || d < pipeDelay || d > 8*time.Second {
		t.Errorf("answer %+v after %v", a, d)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("kill what left: %v", err)
	}
}

func TestExec_NeedNotReadThePayloadNorBeHeard(t *testing.T) {
	ev := payloadEvent()
	ev.Body = make([]byte, 2<<20)
	for _, script := range []string{"exit 0", "exec <&-; exit 0", "head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2"} {
		e := newExec(t, ExecConfig{Command: []string{"sh", "-c", script}})
		if a := e.Handle(within(t, 20*time.Second), attemptOf(ev)); a.Class != Done {
			t.Errorf("%s: %+v", script, a)
		}
	}
}

func TestPool_RunsCommandsBesideEachOther(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(t.TempDir(), "out")
	s := spec("script", newExec(t, ExecConfig{Command: []string{"sh", "-c", `echo "$IDEMD_ID" >> "$1"`, "sh", file}}))
	p := r.start(s)
	var want []string
	for i := range 30 {
		ev := newEvent(fmt.Sprintf("e%d", i))
		r.publish(ev)
		want = append(want, ev.ID())
	}
	until(t, "all runs", func() bool { return p.Snapshot().SettledTo == 30 })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(text))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
}

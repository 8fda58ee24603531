package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Of a failed command the last 4 KiB are kept, whatever it says, until an attempt
// succeeds; nobody waits for a command that does not stop saying things.
func TestExec_KeepsTheEndOfWhatAFailedCommandSaid(t *testing.T) {
	notes := NewCommands(filepath.Join(t.TempDir(), "commands"))
	a := attemptOf(payloadEvent())
	run := a.Key.RunID()
	for _, c := range []struct {
		script  string
		number  int
		timeout time.Duration
		want    func(said string) bool
	}{
		{"exit 3", 1, patient, func(s string) bool { return s == "" }},
		{"echo one; echo two >&2; exit 3", 1, patient, func(s string) bool { return s == "one\ntwo\n" }},
		{"echo fine", 1, patient, func(s string) bool { return s == "one\ntwo\n" }}, // a first attempt has nothing to forget
		{"echo fine", 2, patient, func(s string) bool { return s == "" }},
		{"head -c 1000000 /dev/zero | tr '\\0' x; echo end; exit 65", 1, patient, func(s string) bool { return len(s) == outputBytes && strings.HasSuffix(s, "xend\n") }},
		{"yes", 1, 200 * time.Millisecond, func(s string) bool { return len(s) == outputBytes }},
		{"printf '\\377'; exit 3", 1, patient, func(s string) bool { return s == "?" }},
	} {
		e := newExec(t, ExecConfig{Command: []string{"sh", "-c", c.script}, Notes: notes})
		a.Number = c.number
		e.Handle(within(t, c.timeout), a)
		if said, err := notes.Output(run); err != nil || !c.want(said) {
			t.Errorf("%s: kept %d bytes, %v", c.script, len(said), err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(notes.dir, "*"+runningName)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	old := time.Now().Add(-outputFor - time.Hour)
	if err := os.Chtimes(notes.outputPath(run), old, old); err != nil {
		t.Fatal(err)
	}
	if err := notes.Sweep(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(notes.outputPath(run)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old output is still there: %v", err)
	}
	if _, err := notes.Output("../secret"); err == nil {
		t.Error("a path was read")
	}
}

// patient is longer than any command here takes.
const patient = 30 * time.Second

// group is a command in a group of its own with a child in the background, whose
// pid it gives. The child has the run in its environment.
func group(t *testing.T, run string) (leader *exec.Cmd, child string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "child")
	leader = exec.Command("sh", "-c", `sleep 1000 & echo $! > "$1.new"; mv "$1.new" "$1"; wait`, "sh", file)
	leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	leader.Env = []string{"PATH=" + plainPath, "IDEMD_IDEMPOTENCY_KEY=" + run}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killGroup(leader.Process.Pid) })
	until(t, "the child", func() bool { _, err := os.Stat(file); return err == nil })
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return leader, strings.TrimSpace(string(b))
}

func TestCommands_KillOrphans(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(r *command)
		run        string // in the environment
		leaderGone bool
		killed     int
	}{
		"both run":                        {run: "run_a", killed: 2},
		"its child is left":               {run: "run_a", leaderGone: true, killed: 1},
		"another process has its number":  {change: func(r *command) { r.Start = "1" }, run: "run_b"},
		"another one, and of another run": {run: "run_b", leaderGone: true},
		"before a boot":                   {change: func(r *command) { r.Boot = "x" }, run: "run_a"},
		"a number that nobody has":        {change: func(r *command) { r.PID = 0 }, run: "run_a"},
	} {
		t.Run(name, func(t *testing.T) {
			leader, child := group(t, c.run)
			notes := NewCommands(filepath.Join(t.TempDir(), "commands"))
			start, err := processStart(leader.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			r := command{PID: leader.Process.Pid, Start: start, Boot: bootID(), Run: "run_a"}
			if c.change != nil {
				c.change(&r)
			}
			text := fmt.Sprintf(`{"pid":%d,"start":%q,"boot":%q,"run":%q}`, r.PID, r.Start, r.Boot, r.Run)
			if err := notes.write(filepath.Join(notes.dir, "run_a-1"+runningName), []byte(text)); err != nil {
				t.Fatal(err)
			}
			if c.leaderGone {
				if err := leader.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = leader.Wait() // it was killed
			}
			killed, err := notes.KillOrphans(t.Context())
			if err != nil || killed != c.killed {
				t.Errorf("%d killed, %v", killed, err)
			}
			if c.killed > 0 {
				until(t, "the child's end", func() bool { return !runs(t, child) })
			} else if !runs(t, child) {
				t.Error("somebody else's process was killed")
			}
			if left, err := os.ReadDir(notes.dir); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			if killed, err = notes.KillOrphans(context.Background()); killed != 0 || err != nil {
				t.Errorf("again: %d, %v", killed, err)
			}
		})
	}
}

package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"idemd/admin"
)

// What a command has started and left in the background does not outlive a
// kill -9 of idemd for longer than to the next start; its run is in doubt.
func TestApp_OrphansAreEndedAtTheStart(t *testing.T) {
	d := newDaemon(t, "")
	pids := filepath.Join(filepath.Dir(d.dir), "pids")
	d.configure("test-token", fmt.Sprintf(`[[handler]]
name = "cmd"
sources = ["src"]
kind = "exec"
effect = "irrevocable"
store_unavailable = "refuse"
command = ["sh", "-c", "sleep 1000 & echo $$ $! > $1.new; mv $1.new $1; wait", "sh", %q]
`, pids))
	d.start("", 0)
	d.mustSend("e1")
	until(t, "the command", func() bool { _, err := os.Stat(pids); return err == nil })
	b, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	command, child, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	d.kill()
	until(t, "the command's end", func() bool { return !alive(command) })
	if !alive(child) {
		t.Fatal("nothing was left behind: the test shows nothing")
	}
	d.start("", 0)
	if alive(child) {
		t.Error("the child still runs")
	}
	if doubt := d.doubtful("cmd"); !doubt["e1"] {
		t.Errorf("in doubt: %v", doubt)
	}
	st, err := d.client().Status(t.Context())
	if err != nil || !strings.Contains(strings.Join(st.Warnings, "\n"), "processes killed at this start: 1") {
		t.Errorf("status warns of %q, %v", st.Warnings, err)
	}
	d.terminate()
	if !strings.Contains(d.stderr.String(), "commands of an earlier process were still running and are killed") {
		t.Error("the log does not tell")
	}
}

// alive reports whether a process is there and no zombie.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	_, state, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && !strings.HasPrefix(state, "Z")
}

// What a failed command said is shown with its run.
func TestApp_OutputOfACommandIsShown(t *testing.T) {
	d := newDaemon(t, "[[handler]]\nname = \"cmd\"\nsources = [\"src\"]\nkind = \"exec\"\neffect = \"retryable\"\nstore_unavailable = \"refuse\"\n"+
		"command = [\"sh\", \"-c\", \"echo no such customer; exit 65\"]\n")
	d.start("", 0)
	d.mustSend("e1")
	until(t, "the dead letter", func() bool { return d.state("cmd", "e1") == "dead" })
	page, err := d.client().Runs(t.Context(), admin.DeadList, admin.RunFilter{}, "", 1)
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	run, err := d.client().Run(t.Context(), admin.DeadList, page.Items[0].ID)
	if err != nil || run.Output != "no such customer\n" {
		t.Errorf("output %q, %v", run.Output, err)
	}
	d.terminate()
	if strings.Contains(d.stderr.String(), "no such customer") {
		t.Error("the log quotes the command")
	}
}

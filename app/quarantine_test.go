package app

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"idemd/admin"
)

// guarded is a daemon with an irrevocable and a retryable handler that has run
// old0, old1 and old2 and stopped.
func guarded(t *testing.T) (*daemon, *sink) {
	t.Helper()
	s := newSink(t, func(call, int) int { return 200 })
	d := newDaemon(t, handlerTable("strict", s.URL, `effect = "irrevocable"`)+handlerTable("loose", s.URL, `effect = "retryable"`))
	d.start("", 0)
	for i := range 3 {
		d.handled(s, fmt.Sprint("old", i))
	}
	d.terminate()
	return d, s
}

// handled sends an event and waits until both handlers are done with it.
func (d *daemon) handled(s *sink, id string) {
	d.t.Helper()
	d.mustSend(id)
	until(d.t, id, func() bool { return d.state("strict", id) == "done" && d.state("loose", id) == "done" })
}

// harmClaims flips a bit in each journal, and gives what puts it back.
func harmClaims(t *testing.T, dir string) (mend func()) {
	t.Helper()
	whole := filepath.Join(filepath.Dir(dir), "whole")
	claims := filepath.Join(dir, "dedup")
	if err := errors.Join(os.RemoveAll(whole), os.CopyFS(whole, os.DirFS(claims))); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(claims, "journal-*.log"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if err := harms()["bit flipped"](name, ""); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := errors.Join(os.RemoveAll(claims), os.Rename(whole, claims)); err != nil {
			t.Fatal(err)
		}
	}
}

// quarantined checks that the daemon stores and runs nothing, and says so.
func (d *daemon) quarantined(s *sink, ids ...string) {
	d.t.Helper()
	for _, id := range ids {
		d.mustSend(id)
		d.mustSend(id)
	}
	client := d.client()
	st, err := client.Status(d.t.Context())
	if err != nil || !st.Ready || st.Quarantine == nil || !strings.Contains(st.Quarantine.Reason, "file is damaged") ||
		!strings.Contains(st.Quarantine.Hint, "--abandon-claims") || len(st.Warnings) != 1 {
		d.t.Fatalf("got %+v, %v", st, err)
	}
	page, err := client.Events(d.t.Context(), admin.EventFilter{}, "", 100)
	if err != nil || len(page.Items) < len(ids) {
		d.t.Errorf("%d events, %v", len(page.Items), err)
	}
	var told *admin.Error
	if _, err := client.Runs(d.t.Context(), admin.DeadList, admin.RunFilter{}, "", 10); !errors.As(err, &told) || told.Code != admin.CodeRefused {
		d.t.Errorf("dead letters: %v", err)
	}
	if _, err := client.Reload(d.t.Context(), false); !errors.As(err, &told) || told.Code != admin.CodeRefused {
		d.t.Errorf("reload: %v", err)
	}
	for _, id := range ids {
		if len(s.seen("strict", id))+len(s.seen("loose", id)) > 0 {
			d.t.Errorf("%s ran in quarantine", id)
		}
	}
}

// Events are stored while the claims are damaged, whatever happens meanwhile, and
// run once when these are put back.
func TestQuarantine_StoresAndRunsNothing(t *testing.T) {
	d, s := guarded(t)
	mend := harmClaims(t, d.dir)
	d.start("", 0)
	d.quarantined(s, "new0", "new1")
	d.kill()
	d.start("", 0)
	d.quarantined(s, "new2", "new3")
	d.terminate()
	mend()
	d.start("", 0)
	d.handled(s, "new4")
	d.settled()
	if doubt := d.doubtful("strict"); len(doubt) > 0 {
		t.Errorf("in doubt: %v", doubt)
	}
	for _, handler := range []string{"strict", "loose"} {
		for _, id := range []string{"old0", "old1", "old2", "new0", "new1", "new2", "new3", "new4"} {
			if n := len(s.seen(handler, id)); n != 1 {
				t.Errorf("%s ran %s %d times", handler, id, n)
			}
		}
	}
}

// Claims alone may be put back from an older backup: what irrevocable handlers
// did since is in doubt, and what was stored in quarantine is not.
func TestQuarantine_OlderClaimsPutBack(t *testing.T) {
	d, s := guarded(t)
	older := filepath.Join(filepath.Dir(d.dir), "older")
	if err := os.CopyFS(older, os.DirFS(filepath.Join(d.dir, "dedup"))); err != nil {
		t.Fatal(err)
	}
	d.start("", 0)
	d.handled(s, "since")
	d.terminate()
	harmClaims(t, d.dir)
	d.start("", 0)
	d.quarantined(s, "new0")
	d.terminate()
	if err := errors.Join(os.RemoveAll(filepath.Join(d.dir, "dedup")), os.Rename(older, filepath.Join(d.dir, "dedup"))); err != nil {
		t.Fatal(err)
	}
	d.start("", 0)
	d.afterLoss(s, map[string]bool{"since": true}, "old0", "old1", "old2")
}

// afterLoss waits until the retryable handler is through, and checks that each of
// those in doubt is held at the irrevocable one, that new0 has run once at both,
// and that those that are known to be done have not run again.
func (d *daemon) afterLoss(s *sink, held map[string]bool, done ...string) {
	d.t.Helper()
	d.handled(s, "new1")
	d.settled()
	doubt := d.doubtful("strict")
	for id := range held {
		if !doubt[id] || len(s.seen("strict", id)) != 1 || len(s.seen("loose", id)) != 2 {
			d.t.Errorf("%s: in doubt %t, ran %d and %d times", id, doubt[id], len(s.seen("strict", id)), len(s.seen("loose", id)))
		}
	}
	if len(doubt) != len(held) {
		d.t.Errorf("in doubt: %v, want %v", doubt, held)
	}
	for _, id := range append(done, "new0", "new1") {
		if a, b := len(s.seen("strict", id)), len(s.seen("loose", id)); a != 1 || b != 1 {
			d.t.Errorf("%s ran %d and %d times", id, a, b)
		}
	}
}

// Claims that are given up are set aside. A crash on the way there is gone on
// from, and a second start finds nothing left to do.
func TestQuarantine_ClaimsGivenUp(t *testing.T) {
	for _, point := range []string{"", pointAbandon, pointAside} {
		t.Run(point, func(t *testing.T) {
			d, s := guarded(t)
			harmClaims(t, d.dir)
			d.start("", 0)
			d.quarantined(s, "new0")
			d.terminate()
			if point != "" {
				cmd := d.command(envAbandon+"=1h", envPoint+"="+point, envHit+"=-1")
				if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != -1 {
					t.Fatalf("ended with %v", err)
				}
				d.start("", 0) // it goes on by itself
			} else {
				exe, err := os.Executable()
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(exe)
				cmd.Env = []string{envAbandon + "=1h"}
				d.run(cmd, "", 0)
			}
			held := map[string]bool{"old0": true, "old1": true, "old2": true}
			d.afterLoss(s, held)
			d.terminate()
			if kept, err := filepath.Glob(d.dir + "/dedup.damaged-*"); err != nil || len(kept) != 1 {
				t.Errorf("kept %v, %v", kept, err)
			}
			d.start("", 0)
			d.settled()
			if doubt := d.doubtful("strict"); len(doubt) != len(held) || len(s.seen("loose", "old0")) != 2 {
				t.Errorf("after another start: in doubt %v, %d runs", doubt, len(s.seen("loose", "old0")))
			}
			d.terminate()
			out, err := d.command(envAbandon + "=1h").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "the claims are whole, there is nothing to give up") {
				t.Errorf("whole claims given up: %v, %s", err, out)
			}
		})
	}
}

// command is the daemon once more.
func (d *daemon) command(env ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(append(os.Environ(), envConfig+"="+d.config), env...)
	return cmd
}

package app

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"idemd/admin"
)

// envReloads is for how many seconds the configuration is reloaded under load.
const envReloads = "IDEMD_TEST_RELOADS"

// handlerTable is a handler that calls the sink.
func handlerTable(name, url, more string) string {
	return fmt.Sprintf("[[handler]]\nname = %q\nsources = [\"src\"]\nkind = \"http\"\nurl = %q\nstore_unavailable = \"refuse\"\n%s\n", name, url, more)
}

// A reload every second under load: no request is refused, no run is cut, and
// nothing runs twice. Every other one comes by SIGHUP.
func TestApp_ReloadsUnderLoad(t *testing.T) {
	seconds := 6
	if text := os.Getenv(envReloads); text != "" {
		var err error
		if seconds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	s := newSink(t, func(c call, n int) int {
		<-time.After(20 * time.Millisecond)
		if n == 1 && c.handler == "retried" && strings.HasSuffix(c.id, "7") {
			return 503
		}
		return 200
	})
	tables := func(i int) string {
		text := handlerTable("strict", s.URL, fmt.Sprintf("effect = \"irrevocable\"\nconcurrency = %d\ntimeout = \"%ds\"", 4+i%3, 10+i%7)) +
			handlerTable("retried", s.URL, fmt.Sprintf("effect = \"retryable\"\nretry = [\"%dms\", \"1s\", \"1s\", \"1s\"]\nconcurrency = 4", 100+i)) +
			handlerTable("steady", s.URL, "effect = \"irrevocable\"")
		if i%2 == 1 {
			text += fmt.Sprintf("[[source]]\nname = \"extra%d\"\nscheme = \"token\"\ntoken = \"x\"\nid_header = \"X-Event-Id\"\n", i)
		}
		return text
	}
	d := newDaemon(t, tables(0))
	d.start("", 0)
	client := d.client()
	stop := make(chan struct{})
	var sent, refused atomic.Int64
	var load sync.WaitGroup
	for w := range 4 {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(40 * time.Millisecond):
				}
				if err := d.send(fmt.Sprintf("w%d-%d", w, n)); err != nil {
					refused.Add(1)
					t.Errorf("refused: %v", err)
				}
				sent.Add(1)
			}
		})
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := 1; i <= seconds; i++ {
		d.configure(fmt.Sprint("token-", i), tables(i))
		if i%2 == 0 {
			st, err := client.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			until(t, "the reload", func() bool {
				now, err := client.Status(t.Context())
				return err == nil && now.Reload != nil && now.Reload.At.After(st.Reload.At)
			})
		} else if done, err := client.Reload(t.Context(), false); err != nil || len(done.Problems) > 0 || len(done.Changes) == 0 {
			t.Fatalf("reload %d: %+v, %v", i, done, err)
		}
		<-second.C
	}
	close(stop)
	load.Wait()
	d.settled()
	d.terminate()
	if sent.Load() == 0 || refused.Load() > 0 {
		t.Errorf("%d sent, %d refused", sent.Load(), refused.Load())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := 3 * int(sent.Load()); len(s.calls) != want {
		t.Errorf("%d runs at three handlers for %d events", len(s.calls), sent.Load())
	}
	for at, calls := range s.calls {
		want := 1
		if calls[0].handler == "retried" && strings.HasSuffix(calls[0].id, "7") {
			want = 2
		}
		if len(calls) != want || slices.ContainsFunc(calls, func(c *call) bool { return !c.ended }) {
			t.Errorf("%s: %d attempts, want %d", at, len(calls), want)
		}
	}
	t.Logf("%d events, %d reloads", sent.Load(), seconds)
}

// A configuration that is wrong anywhere is refused as a whole, with all reasons,
// and status says so until a right one is in force.
func TestApp_ReloadRefusesAsAWhole(t *testing.T) {
	s := newSink(t, func(call, int) int { return 200 })
	good := handlerTable("crm", s.URL, `effect = "irrevocable"`)
	d := newDaemon(t, good)
	d.start("", 0)
	client := d.client()
	bad := strings.Replace(good, `effect = "irrevocable"`, "effect = \"irrevocable\"\nsecret = \"env:IDEMD_TEST_NOT_THERE\"", 1)
	d.configure("other-token", bad)
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), `max_bytes = "256MiB"`, `max_bytes = "128MiB"`, 1)
	changed = strings.Replace(changed, "127.0.0.1:0", "127.0.0.1:1", 1)
	if err := os.WriteFile(d.config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dryRun := range []bool{true, false} {
		done, err := client.Reload(t.Context(), dryRun)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(done.Problems, "\n")
		for _, want := range []string{"receiver.listen, line 5: differs from", "queue, line 6: differs from", "IDEMD_TEST_NOT_THERE is not set"} {
			if !strings.Contains(all, want) {
				t.Errorf("want %q in %q", want, all)
			}
		}
		if len(done.Problems) != 3 || len(done.Changes) != 0 {
			t.Errorf("got %+v", done)
		}
		st, err := client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(st.Warnings, func(w string) bool { return strings.Contains(w, "is refused, the one before it is in force") })
		if said == dryRun || (st.Reload == nil) != dryRun {
			t.Errorf("dry run %t: warnings %q, reload %+v", dryRun, st.Warnings, st.Reload)
		}
	}
	d.mustSend("e1") // with the token of before
	until(t, "the run", func() bool { return d.state("crm", "e1") == "done" })
	d.configure("test-token", good)
	done, err := client.Reload(t.Context(), false)
	if err != nil || len(done.Problems) != 0 || len(done.Changes) != 0 {
		t.Errorf("the same again: %+v, %v", done, err)
	}
	if st, err := client.Status(t.Context()); err != nil || len(st.Warnings) != 0 {
		t.Errorf("warnings %q, %v", st.Warnings, err)
	}
}

// The id of a handler or a source may not go while runs of it are not settled,
// unless it is retired; a start tells of what was left.
func TestApp_ReloadAndIDsThatVanish(t *testing.T) {
	s := newSink(t, func(c call, _ int) int {
		if c.handler == "old" {
			return 503
		}
		return 200
	})
	old := handlerTable("old", s.URL, "effect = \"retryable\"\nretry = [\"1h\"]")
	next := handlerTable("new", s.URL, `effect = "retryable"`)
	d := newDaemon(t, old)
	d.start("", 0)
	client := d.client()
	d.mustSend("e1")
	until(t, "the retry", func() bool { return d.state("old", "e1") == "waiting" })

	d.configure("test-token", next)
	done, err := client.Reload(t.Context(), false)
	if err != nil || len(done.Problems) != 1 || !strings.Contains(done.Problems[0], `handler "old"`) || !strings.Contains(done.Problems[0], `retire = ["old"]`) {
		t.Fatalf("got %+v, %v", done, err)
	}
	d.terminate()
	d.start("", 0) // a start does not refuse: receiving goes on
	client = d.client()
	st, err := client.Status(t.Context())
	if err != nil || !slices.ContainsFunc(st.Warnings, func(w string) bool {
		return strings.Contains(w, "no handler has the id old, for which 1 runs are not settled")
	}) {
		t.Errorf("warnings %q, %v", st.Warnings, err)
	}
	d.mustSend("e2")
	until(t, "the new handler", func() bool { return d.state("new", "e2") == "done" })

	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.config, []byte("retire = [\"old\"]\n"+string(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err = client.Reload(t.Context(), false); err != nil || len(done.Problems) != 0 {
		t.Fatalf("got %+v, %v", done, err)
	}
	page, err := client.Runs(t.Context(), admin.DeadList, admin.RunFilter{}, "", 10)
	if err != nil || len(page.Items) != 1 || page.Items[0].Reason.Code != "retired" {
		t.Errorf("got %+v, %v", page, err)
	}
	if st, err = client.Status(t.Context()); err != nil || len(st.Warnings) != 0 {
		t.Errorf("warnings %q, %v", st.Warnings, err)
	}
}

// systemd is told when a reload begins and when it has ended.
func TestApp_ReloadTellsSystemd(t *testing.T) {
	m := newManager(t)
	d := newDaemon(t, "[[handler]]\nname = \"log\"\nsources = [\"src\"]\nkind = \"log\"\neffect = \"idempotent\"\n")
	t.Setenv("NOTIFY_SOCKET", m.path)
	d.start("", 0)
	m.want("READY=1")
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := m.next(patience); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("told %q", got)
	}
	m.want("READY=1")
}

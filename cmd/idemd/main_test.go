package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"idemd/dedup"
	"idemd/dedup/ledger"
	"idemd/event"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"idemd": main})
}

// patience bounds every wait. Nothing passes by waiting it out.
const patience = 10 * time.Second

// TestScripts runs testdata/script/*.txtar. Beside testscript's own commands
// there are:
//
//	exits CODE command...    runs a command that ends with that code
//	until REGEXP command...  runs a command again until its output matches
//	answer STATUS            what the sink at $SINK answers from now on; hang: nothing until then
//	effects N                waits until the sink has had N requests
//	free PORT                waits until nobody listens on the port
//	suppress DATA SOURCE N   writes down that N events of a source came again, the i-th one after i seconds
//	batch                    sets BATCH to the id that the last command has printed
//	runs LIST                sets RUN_x to the id of the run of the event x, for each in the list
//
// In files, SINK and SINKADDR are the sink's URL and address.
func TestScripts(t *testing.T) {
	root, err := os.MkdirTemp("", "i") // short: a unix socket's path has a bound
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", WorkdirRoot: root,
		Setup: func(e *testscript.Env) error {
			s := newSink()
			e.Defer(s.server.Close)
			e.Values["sink"] = s
			e.Setenv("SINK", s.server.URL)
			if err := fillIn(e.WorkDir, s.server.URL); err != nil {
				return err
			}
			e.Setenv("TZ", "Asia/Shanghai")
			e.Setenv("GORACE", os.Getenv("GORACE"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "until": until, "answer": answer, "effects": effects, "free": free, "runs": runs,
			"suppress": suppress, "batch": batch,
		},
	})
}

// fillIn puts the sink's address into the script's configurations.
func fillIn(dir, url string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.toml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		addr := strings.TrimPrefix(url, "http://")
		filled := strings.NewReplacer("SINKADDR", addr, "SINK", url).Replace(string(text))
		if err := os.WriteFile(file, []byte(filled), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func suppress(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	l := ledger.Open(context.Background(), ledger.Config{Dir: filepath.Join(ts.MkAbs(args[0]), "ledger")})
	now := time.Now()
	for i := range n {
		delay := time.Duration(i+1) * time.Second
		ev := &event.Event{
			Source: args[1], Type: "order.paid", Identity: event.NewIdentity("", event.KindPlatform, "", fmt.Sprint("old-", i)),
			Received: now, Origin: event.OriginCallback,
		}
		l.Note(ledger.NewEntry(now, event.KeyFor(ev, "crm"), "crm", ev, 2, dedup.AlreadyDone, &dedup.Record{
			State: dedup.Done, Origin: ev.Origin, FirstSeen: dedup.At(now.Add(-delay)), Seq: 1,
		}))
	}
	ts.Check(l.Close())
}

func runs(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(ts.Exec("idemd", args[0], "list", "--output", "json"))
	var page struct {
		Items []struct {
			ID         string `json:"id"`
			PlatformID string `json:"platform_id"`
		} `json:"items"`
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &page))
	for _, run := range page.Items {
		ts.Setenv("RUN_"+strings.ReplaceAll(run.PlatformID, "-", "_"), run.ID)
	}
}

func batch(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Setenv("BATCH", strings.TrimSpace(ts.ReadFile("stdout")))
}

// sink is a handler's far side.
type sink struct {
	server  *httptest.Server
	mu      sync.Mutex
	status  int           // 0: hangs
	changed chan struct{} // closed when the status changes
	calls   int
	more    chan struct{} // closed at the next call
}

func newSink() *sink {
	s := &sink{status: http.StatusOK, changed: make(chan struct{}), more: make(chan struct{})}
	s.server = httptest.NewServer(s)
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.calls++
	close(s.more)
	s.more = make(chan struct{})
	status, changed := s.status, s.changed
	s.mu.Unlock()
	if status == 0 {
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		status = s.status
		s.mu.Unlock()
	}
	w.WriteHeader(status)
}

func (s *sink) state() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.more
}

func sinkOf(ts *testscript.TestScript) *sink { return ts.Value("sink").(*sink) }

func number(ts *testscript.TestScript, text string) int {
	n, err := strconv.Atoi(text)
	ts.Check(err)
	return n
}

func answer(ts *testscript.TestScript, _ bool, args []string) {
	s := sinkOf(ts)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status = 0; args[0] != "hang" {
		s.status = number(ts, args[0])
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func effects(ts *testscript.TestScript, _ bool, args []string) {
	want, over := number(ts, args[0]), time.After(patience)
	for {
		got, more := sinkOf(ts).state()
		if got == want {
			return
		}
		if got > want {
			ts.Fatalf("%d effects, more than %d", got, want)
		}
		select {
		case <-more:
		case <-over:
			ts.Fatalf("%d effects, fewer than %d", got, want)
		}
	}
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, got := number(ts, args[0]), 0
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, not %d\n%s%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
	ts.Logf("[exit code %d]", got)
}

func until(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[0])
	poll(ts, func() bool {
		err := ts.Exec(args[1], args[2:]...)
		return err == nil && want.MatchString(ts.ReadFile("stdout"))
	}, func() string {
		return "no match for " + args[0] + " in\n" + ts.ReadFile("stdout") + ts.ReadFile("stderr")
	})
}

func free(ts *testscript.TestScript, _ bool, args []string) {
	poll(ts, func() bool {
		l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
		return err == nil && l.Close() == nil
	}, func() string { return "port " + args[0] + " is in use" })
}

func poll(ts *testscript.TestScript, done func() bool, complaint func() string) {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for over := time.After(patience); !done(); {
		select {
		case <-again.C:
		case <-over:
			ts.Fatalf("%s", complaint())
		}
	}
}

func TestPlain_KeepsTheTerminalAsItIs(t *testing.T) {
	if got := plain("a\x1b[31m\r\nb\u202e企业"); got != "a?[31m??b?企业" {
		t.Errorf("got %q", got)
	}
}

func TestCommands_HaveHelpWithAnExample(t *testing.T) {
	root := (&cli{program: "idemd"}).root()
	for queue := root.Commands(); len(queue) > 0; queue = queue[1:] {
		cmd := queue[0]
		queue = append(queue, cmd.Commands()...)
		if cmd.Long == "" || cmd.Short == "" || !cmd.HasSubCommands() && !strings.Contains(cmd.Example, "idemd "+strings.TrimPrefix(cmd.CommandPath(), "idemd ")) {
			t.Errorf("%s: short %q, long %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Long, cmd.Example)
		}
	}
}

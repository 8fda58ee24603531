package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"idemd/dedup"
)

// The exit codes that mean something by themselves; those of sysexits.h.
const (
	exitDataErr  = 65 // the event will never work
	exitTempFail = 75 // nothing happened, try again
)

const (
	plainPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // where idemd has no PATH

	// pipeDelay is how long a payload may still be on its way to a process that
	// has left the group, after the command itself has ended.
	pipeDelay = time.Second
)

// ExecConfig says which command an Exec runs.
type ExecConfig struct {
	Command []string          // program and arguments; the program is looked for in PATH unless it has a slash
	Dir     string            // where it runs, and where a relative path to it begins; idemd's own when empty
	Answers map[string]string // own classification, exit code to class: "3" = "done"
	Notes   *Commands         // where commands leave what outlives this process; nil: nowhere
}

// Exec is the handler that runs a command for each event: the payload on
// standard input, what an HTTP handler gets in headers in variables. The
// environment holds these and PATH, nothing else. Of its output the last 4 KiB are
// kept when it failed, for whoever looks at the run; never in a log, for it may
// quote the payload.
//
// The command has a process group of its own, all of which is killed when the
// command ends or its time is over; the command itself also when idemd dies.
type Exec struct {
	path string
	args []string
	dir  string
	env  []string
	own  map[int]Class

	notes *Commands
}

// NewExec makes an Exec. The error says what is wrong with cfg.
func NewExec(cfg ExecConfig) (*Exec, error) {
	if !execSupported {
		return nil, errors.New("check kind: commands can be run on Linux only")
	}
	if len(cfg.Command) == 0 || cfg.Command[0] == "" {
		return nil, errors.New("check command: it names no program")
	}
	own, err := parseAnswers(cfg.Answers, 0, 255, "an exit code")
	if err != nil {
		return nil, err
	}
	program := cfg.Command[0]
	if strings.Contains(program, "/") && !filepath.IsAbs(program) {
		program = filepath.Join(cfg.Dir, program)
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("check command: %w", err)
	}
	return &Exec{
		path: path, args: slices.Clone(cfg.Command), dir: cfg.Dir, own: own, notes: cfg.Notes,
		env: []string{"PATH=" + orDefault(os.Getenv("PATH"), plainPath)},
	}, nil
}

// Handle runs the command once and classifies its exit code.
func (e *Exec) Handle(ctx context.Context, a *Attempt) Answer {
	var said lastBytes
	answer := e.handle(ctx, a, &said)
	run := a.Key.RunID()
	switch {
	case answer.Class == Done && a.Number > 1:
		e.notes.forget(run)
	case answer.Class != Done:
		if err := e.notes.keep(run, said.bytes()); err != nil {
			answer.Reason.Detail += "; what it said could not be kept"
		}
	}
	return answer
}

func (e *Exec) handle(ctx context.Context, a *Attempt, said *lastBytes) Answer {
	// The system kills the child when the thread that made it ends: that must not
	// happen while the child runs.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := &exec.Cmd{
		Path: e.path, Args: e.args, Dir: e.dir, Env: append(slices.Clip(e.env), eventEnv(a)...),
		Stdin: bytes.NewReader(a.Event.Body), Stdout: said, Stderr: said, SysProcAttr: ownGroup(), WaitDelay: pipeDelay,
	}
	if err := cmd.Start(); err != nil {
		return Answer{Class: NoEffect, Endless: true, Reason: dedup.Reason{Code: "exec-start", Detail: "the command could not be started: " + startError(err)}}
	}
	// A command that could not be noted runs all the same: it dies with idemd, and
	// only what it has started would not be found again.
	end, _ := e.notes.begin(cmd.Process.Pid, a.Key.RunID())
	defer end()
	if err := superviseGroup(ctx, cmd.Process.Pid); err != nil {
		return Answer{Class: Unknown, Reason: dedup.Reason{Code: "exec-wait", Detail: "the end of the command was not seen"}}
	}
	// An error that is no exit code is one of standard input, which the command
	// need not have read: the exit code stands.
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		return Answer{Class: Unknown, Reason: dedup.Reason{Code: "exec-wait", Detail: "the exit code of the command is not known"}}
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return killedAnswer(ctx, status.Signal())
	default:
		return classifyExit(cmd.ProcessState.ExitCode(), e.own)
	}
}

// superviseGroup returns when the process has ended and nothing is left of its
// group. It has not been waited for then: until it is, no other process can have
// its id, so that nobody else's group is killed.
func superviseGroup(ctx context.Context, pid int) error {
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
			killGroup(pid)
		case <-ended:
		}
	}()
	err := awaitExit(pid)
	close(ended)
	<-watched
	killGroup(pid)
	return err
}

// killGroup kills all processes of a group. That none is left is what it is for.
func killGroup(pid int) {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		return
	}
}

// eventEnv gives the variables of an attempt: the values of the headers of an
// HTTP handler, in the same safe writing. Ce-Id becomes IDEMD_ID, Idemd-Fence
// IDEMD_FENCE, Idempotency-Key IDEMD_IDEMPOTENCY_KEY.
func eventEnv(a *Attempt) []string {
	h := http.Header{}
	setEventHeaders(h, a)
	env := make([]string, 0, len(h))
	for name := range h {
		short := strings.TrimPrefix(strings.TrimPrefix(name, "Ce-"), "Idemd-")
		env = append(env, "IDEMD_"+strings.ToUpper(strings.ReplaceAll(short, "-", "_"))+"="+h.Get(name))
	}
	slices.Sort(env)
	return env
}

// classifyExit says what an exit code means. Own holds the handler's own rules,
// which go first.
func classifyExit(code int, own map[int]Class) Answer {
	a := Answer{Class: Unknown}
	if class, ok := own[code]; ok {
		a.Class = class
	} else {
		switch code {
		case 0:
			a.Class = Done
		case exitTempFail:
			a.Class = NoEffect
		case exitDataErr:
			a.Class = Permanent
		}
	}
	if a.Class != Done {
		n := strconv.Itoa(code)
		a.Reason = dedup.Reason{Code: "exit-" + n, Detail: "the command ended with exit code " + n}
	}
	return a
}

func killedAnswer(ctx context.Context, signal syscall.Signal) Answer {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Answer{Class: Unknown, Reason: dedup.Reason{Code: "timeout", Detail: "the command was killed: it had not ended in time"}}
	case ctx.Err() != nil:
		return Answer{Class: Unknown, Reason: dedup.Reason{Code: "canceled", Detail: "the command was killed: the attempt was cut"}}
	}
	return Answer{Class: Unknown, Reason: dedup.Reason{
		Code: "signal-" + strconv.Itoa(int(signal)), Detail: "the command was killed by a signal: " + signal.String(),
	}}
}

// startError leaves out paths, which the reason is not for.
func startError(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "it is not there, or may not be run"
}

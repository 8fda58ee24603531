package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Commands is the directory in which commands leave what outlives the process
// that runs them: who they are, so that a start after a crash can end those that
// still run, and the end of what a failed one said. Nothing is decided from it.
type Commands struct{ dir string }

// NewCommands names the directory, which is made when something is written.
func NewCommands(dir string) *Commands { return &Commands{dir} }

const (
	outputBytes = 4 << 10             // of a command's output, the last
	outputFor   = 30 * 24 * time.Hour // how long it is kept
	outputName  = ".out"
	runningName = ".running"
)

// command is one that runs. Its group has its pid.
type command struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // since boot, in clock ticks
	Boot  string `json:"boot"`  // id of the boot
	Run   string `json:"run"`
}

// begin notes a command. It gives what forgets it again.
func (c *Commands) begin(pid int, run string) (end func(), err error) {
	if c == nil {
		return func() {}, nil
	}
	start, err := processStart(pid)
	if err != nil {
		return func() {}, fmt.Errorf("note command: %w", err)
	}
	b, err := json.Marshal(command{PID: pid, Start: start, Boot: bootID(), Run: run})
	if err != nil {
		return func() {}, fmt.Errorf("note command: %w", err)
	}
	path := filepath.Join(c.dir, run+"-"+strconv.Itoa(pid)+runningName)
	// No sync: what does not outlive the machine is of no use on the next boot.
	if err := c.write(path, b); err != nil {
		return func() {}, fmt.Errorf("note command: %w", err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			return // the next start looks at it, and finds another process or none
		}
	}, nil
}

func (c *Commands) write(path string, b []byte) error {
	err := os.WriteFile(path, b, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(c.dir, 0o750); err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
	}
	return err
}

// KillOrphans ends what commands of an earlier process have left running, and
// gives the number of processes. It is for a start, before anything runs. A
// process that has got the id of one of them meanwhile is left alone.
func (c *Commands) KillOrphans(ctx context.Context) (killed int, err error) {
	names, err := filepath.Glob(filepath.Join(c.dir, "*"+runningName))
	if err != nil {
		return 0, fmt.Errorf("look for commands that still run: %w", err)
	}
	var errs []error
	for _, name := range names {
		b, err := os.ReadFile(name)
		var r command
		if err == nil && json.Unmarshal(b, &r) == nil && r.PID > 1 && r.Boot == bootID() {
			n, kerr := killOrphan(ctx, r)
			killed, err = killed+n, kerr
		}
		errs = append(errs, err, os.Remove(name))
	}
	return killed, errors.Join(errs...)
}

// keep keeps what a run's last attempt said; nothing when it said nothing.
func (c *Commands) keep(run string, output []byte) error {
	if c == nil || len(output) == 0 {
		return nil
	}
	return c.write(c.outputPath(run), output)
}

// forget removes what an earlier attempt of a run said.
func (c *Commands) forget(run string) {
	if c == nil {
		return
	}
	if err := os.Remove(c.outputPath(run)); err != nil {
		return // there is none, or Sweep finds it
	}
}

func (c *Commands) outputPath(run string) string { return filepath.Join(c.dir, run+outputName) }

// Output gives the last 4 KiB of what a run's last attempt said, if it failed and
// said anything. It may quote the payload.
func (c *Commands) Output(run string) (string, error) {
	if run != filepath.Base(run) {
		return "", fmt.Errorf("read output: %q is no run", run)
	}
	b, err := os.ReadFile(c.outputPath(run))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.ToValidUTF8(string(b), "?"), err
}

// Sweep removes output that is older than 30 days.
func (c *Commands) Sweep(now time.Time) error {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasSuffix(e.Name(), outputName) && now.Sub(info.ModTime()) > outputFor {
			errs = append(errs, os.Remove(filepath.Join(c.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// lastBytes keeps the last outputBytes of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

// Write takes everything, so that a command that says much is not held up.
func (l *lastBytes) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	if n > outputBytes {
		b = b[n-outputBytes:]
	}
	if over := len(l.buf) + len(b) - outputBytes; over > 0 {
		l.buf = l.buf[:copy(l.buf, l.buf[over:])]
	}
	l.buf = append(l.buf, b...)
	return n, nil
}

func (l *lastBytes) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]byte(nil), l.buf...)
}

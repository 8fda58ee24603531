package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processStart gives when a process began, in clock ticks since boot: with its
// pid, that names it for as long as the machine is up.
func processStart(pid int) (string, error) {
	fields, err := processStat(pid)
	if err != nil {
		return "", err
	}
	return fields[statStart], nil
}

// The fields of /proc/PID/stat behind the name; proc(5) counts from 1, and the
// first one here is its third.
const (
	statState = 0 // its third
	statGroup = 5 - 3
	statStart = 22 - 3
)

func processStat(pid int) ([]string, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, err
	}
	// The name is in parentheses, and may hold some itself.
	end := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if end < 0 || len(fields) <= statStart {
		return nil, fmt.Errorf("read process %d: its stat is not understood", pid)
	}
	return fields, nil
}

// bootID names this boot; pids of another one mean nothing.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// killOrphan kills what is left of a command's group. A process is the command
// when it began when that did; it is a child of it when it is in its group and
// has its run in the environment: a number that was given again has neither.
func killOrphan(ctx context.Context, r command) (killed int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || ctx.Err() != nil {
			continue
		}
		fields, err := processStat(pid)
		if err != nil || fields[statGroup] != strconv.Itoa(r.PID) || fields[statState] == "Z" {
			continue // it has ended, or is somebody else's
		}
		if pid == r.PID && fields[statStart] != r.Start || pid != r.PID && !hasRun(pid, r.Run) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			killed++
		} else if !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
		}
	}
	return killed, errors.Join(errs...)
}

// hasRun reports whether a process has a run's id in its environment.
func hasRun(pid int, run string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00IDEMD_IDEMPOTENCY_KEY="+run+"\x00"))
}

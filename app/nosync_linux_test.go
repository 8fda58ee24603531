package app

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envNoSync lists numbers of system calls that a daemon only seems to make.
const envNoSync = "IDEMD_TEST_NO_SYNC"

// pretend lets system calls of this process return success without doing
// anything, for good: a disk that lies could do no worse.
func pretend(calls string) error {
	const (
		loadNumber = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS // of the call: the first word of seccomp_data
		ifEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		give       = unix.BPF_RET | unix.BPF_K

		allow   = 0x7fff0000 // SECCOMP_RET_ALLOW
		success = 0x00050000 // SECCOMP_RET_ERRNO, errno 0
		allNow  = 1          // SECCOMP_FILTER_FLAG_TSYNC: every thread
		filter  = 1          // SECCOMP_SET_MODE_FILTER
	)
	program := []unix.SockFilter{{Code: loadNumber}}
	for text := range strings.SplitSeq(calls, ",") {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return err
		}
		program = append(program, unix.SockFilter{Code: ifEqual, K: uint32(n), Jf: 1}, unix.SockFilter{Code: give, K: success})
	}
	program = append(program, unix.SockFilter{Code: give, K: allow})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, filter, allNow, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return fmt.Errorf("set seccomp filter: %w", errno)
	}
	return nil
}

// startWith is start with more variables.
func (d *daemon) startWith(env ...string) {
	d.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = env
	d.run(cmd, "", 0)
}

// canPretend reports whether this machine lets a process filter its own calls; in
// CI it always must.
func canPretend(t *testing.T) bool {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envConfig+"=/nonexistent", envNoSync+"="+strconv.Itoa(unix.SYS_SYNCFS))
	out, err := cmd.CombinedOutput() // it ends for the want of a configuration, at the latest
	if err == nil || !strings.Contains(string(out), "seccomp") {
		return true
	}
	if os.Getenv("CI") != "" {
		t.Fatal(string(out))
	}
	t.Logf("NOT TESTED: system calls cannot be filtered: %s", out)
	return false
}

// The controls of TestPowerCut_LosesNothingThatWasAnswered: without the queue's group
// sync answered events are missing after the same cut, and without the claim store's
// syncs it does not know of outcomes that it had recorded.
func TestPowerCut_WithoutSyncsItLoses(t *testing.T) {
	if !canPretend(t) {
		return
	}
	all := fmt.Sprintf("%d,%d,%d", unix.SYS_SYNCFS, unix.SYS_FSYNC, unix.SYS_FDATASYNC)
	for name, c := range map[string]struct {
		off    string
		events bool // answered events are missing
		claims bool // recorded outcomes are not known
	}{
		"all syncs":             {},
		"no sync at all":        {off: all, events: true},
		"no sync of the queue":  {off: fmt.Sprintf("%d", unix.SYS_SYNCFS), events: true},
		"no sync of the claims": {off: fmt.Sprintf("%d,%d", unix.SYS_FSYNC, unix.SYS_FDATASYNC), claims: true},
	} {
		t.Run(name, func(t *testing.T) {
			// What is not synced is not lost for certain: something else may have had
			// it written just then.
			tries := 5
			if c.off == "" {
				tries = 1
			}
			for range tries {
				missing, forgotten, ok := cutWithout(t, c.off)
				// Of events that are missing nobody can tell what ran.
				if !ok || (missing > 0) == c.events && (c.events || (forgotten > 0) == c.claims) {
					return
				}
				t.Logf("%d of 20 answered events are missing, %d outcomes forgotten", missing, forgotten)
			}
			t.Error("never as it should be")
		})
	}
}

// cutWithout sends 20 events to a daemon without some system calls, cuts the power
// when all are done, and gives how many of them are missing afterwards, and of how
// many it is forgotten that they were done: they are in doubt, run once more, or have
// no record. It is false where that cannot be tested.
func cutWithout(t *testing.T, off string) (missing, forgotten int, ok bool) {
	t.Helper()
	s := newSink(t, func(call, int) int { return http.StatusOK })
	d := newDaemon(t, crashHandlers(s.URL, "irrevocable"))
	base := filepath.Dir(d.config)
	fs, ok := newDisk(t, base)
	if !ok {
		return 0, 0, false
	}
	t.Cleanup(d.kill)
	d.moveTo(fs.mount)
	d.start("", 0)
	d.mustSend("before")
	until(t, "the first run", func() bool { return d.state("irrevocable", "before") == "done" })
	d.terminate()
	if err := run("sync", "-f", fs.mount); err != nil {
		t.Fatal(err)
	}
	if off == "" {
		d.start("", 0)
	} else {
		d.startWith(envNoSync + "=" + off)
	}
	var ids []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint("e", i))
		d.mustSend(ids[i])
	}
	for _, id := range ids {
		until(t, id, func() bool { return d.state("irrevocable", id) == "done" })
	}
	image := filepath.Join(base, "cut")
	if err := run("cp", "--sparse=always", fs.image, image); err != nil {
		t.Fatal(err)
	}
	d.kill()
	fs.cut(image)
	d.start("", 0)
	missing = len(d.missing(ids))
	d.settled()
	for _, id := range ids {
		if d.state("irrevocable", id) != "done" || len(s.seen("irrevocable", id)) > 1 {
			forgotten++
		}
	}
	return missing, forgotten, true
}

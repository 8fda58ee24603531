package consumer

import (
	"os"
	"syscall"
)

const execSupported = true

// ownGroup makes a child the leader of a process group of its own, which dies
// with the thread that makes it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// The arguments of waitid that package syscall does not name.
const (
	onePID  = 1         // P_PID
	exited  = 0x4       // WEXITED
	noReap  = 0x1000000 // WNOWAIT
	noValue = 0         // no siginfo, no rusage
)

// awaitExit returns when the child has ended. It stays a zombie.
func awaitExit(pid int) error {
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, onePID, uintptr(pid), noValue, exited|noReap, noValue, noValue)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return os.NewSyscallError("waitid", errno)
		}
	}
}

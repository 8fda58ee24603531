package admin

import (
	"net"
	"strconv"
	"syscall"
)

// peerUser gives the user id of who made a connection to the unix socket, as the
// kernel knows it; "" when it does not say.
func peerUser(conn net.Conn) string {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return ""
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return ""
	}
	uid := ""
	err = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			uid = strconv.FormatUint(uint64(cred.Uid), 10)
		}
	})
	if err != nil {
		return ""
	}
	return uid
}

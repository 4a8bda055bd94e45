package stdio

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const supported = true

// ownGroup puts a child in its own process group and ends it with the sidecar, however the sidecar ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the child has ended and does not reap it.
func awaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

func signalGroup(leader int, sig syscall.Signal) { syscall.Kill(-leader, sig) }

package e2e

import "syscall"

// ownGroup puts a process in a group of its own, which ends when the tests do, however they end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

//go:build !linux

package e2e

import "syscall"

// ownGroup puts a process in a group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

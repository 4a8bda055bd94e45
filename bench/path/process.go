package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is the unit of CPU times under /proc, fixed for user space on Linux (USER_HZ).
const ticksPerSecond = 100

// process is a program that the bench started.
type process struct {
	cmd *exec.Cmd
}

// stopGrace is how long a process may take to end by itself.
const stopGrace = 5 * time.Second

// stop ends the process and waits for it.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	force := time.AfterFunc(stopGrace, func() { p.cmd.Process.Kill() })
	p.cmd.Wait()
	force.Stop()
}

// command is a program whose process ends when this one does, pinned to one core when core is not negative.
func command(core int, name string, args ...string) *exec.Cmd {
	if core >= 0 {
		args = append([]string{"-c", strconv.Itoa(core), name}, args...)
		name = "taskset"
	}
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// cpu is the user and system time that a process, all its threads and its living children have used.
func cpu(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	total, err := parseStat(stat)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, file := range children {
		list, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended, and its children are another's
		}
		for _, f := range strings.Fields(string(list)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", file, err)
			}
			used, err := cpu(child)
			if err != nil {
				continue // the child has ended
			}
			total += used
		}
	}
	return total, nil
}

// parseStat is utime plus stime of a /proc/PID/stat (proc_pid_stat(5), fields 14 and 15). The second field is a name
// in parentheses that may hold anything.
func parseStat(stat []byte) (time.Duration, error) {
	_, after, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") "))
	fields := strings.Fields(string(after))
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("not a stat line: %q", stat)
	}
	return ticks(fields[11:13])
}

// busy is the time that all processes of the machine have used, in user mode and in the kernel on their behalf.
func busy() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	fields := strings.Fields(line) // cpu user nice system ...
	if len(fields) < 4 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	return ticks(fields[1:4])
}

// ticks adds up numbers of ticks.
func ticks(fields []string) (time.Duration, error) {
	var sum int64
	for _, f := range fields {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticksPerSecond, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	stopGrace = 15 * time.Second // for a program to end after SIGTERM; longer than each takes at most by itself
	pollEvery = 2 * time.Millisecond
	tailLines = 12
	tailBytes = 8 << 10
)

// process is a program that the quickstart started, in a process group of its own so that a Ctrl-C in the terminal
// reaches only the quickstart, which then stops its programs in order.
type process struct {
	name    string
	logFile string // what it writes, both standard output and standard error
	cmd     *exec.Cmd
	began   time.Time

	ended chan struct{} // closed when the program has ended; then err is set
	err   error
}

// startProcess runs a program whose log goes to a file in dir. The kernel ends it when this process ends.
func startProcess(dir, name, program string, args ...string) (*process, error) {
	p := &process{name: name, logFile: filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the program has its own
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.began = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// answers waits until url answers 200, and returns how long that took from the program's start.
func (p *process) answers(ctx context.Context, url string) (time.Duration, error) {
	for {
		_, err := fetch(ctx, url)
		if err == nil {
			return time.Since(p.began), nil
		}
		select {
		case <-time.After(pollEvery):
		case <-p.ended:
			return 0, fmt.Errorf("the program ended: %s", p.outcome())
		case <-ctx.Done():
			return 0, err
		}
	}
}

// outcome says how the program ended. Only after ended is closed.
func (p *process) outcome() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// stop ends the program and waits for it. The error says that it had to be killed, or failed while it stopped. One that
// had ended before is no error: that was reported when it happened.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the %s: %w", p.name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopGrace):
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // the group; it exists, since its leader was not waited for
		<-p.ended
		return fmt.Errorf("the %s did not stop within %v and was killed", p.name, stopGrace)
	}
	if p.err != nil {
		return fmt.Errorf("the %s stopped with %s", p.name, p.outcome())
	}
	return nil
}

// tail is the end of the program's log.
func (p *process) tail() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	b = b[max(0, len(b)-tailBytes):]
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

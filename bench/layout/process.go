package layout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// stopGrace is how long a process may take to end by itself.
const stopGrace = 10 * time.Second

// Process is a program that a Layout started, or one that runs already and was told to it.
type Process struct {
	Name    string // in record.Usage
	Address string // host:port where it serves its clients
	Admin   string // host:port of its health and metrics, if it has any
	URL     string // of its MCP endpoint, if it has one
	Log     string // the file of its output, if the layout started it

	layout *Layout
	pid    int       // 0: not known
	cmd    *exec.Cmd // nil: the layout did not start it
	done   chan struct{}
	err    error // why it ended; read after done

	once sync.Once // of Stop
}

// newProcess starts a process in a process group of its own, so that ending it ends what it started too. It dies with
// this process, whichever way that ends.
func newProcess(s spec, log string) (*Process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644) // appending, so that trim works
	if err != nil {
		return nil, err
	}
	defer f.Close()
	args := pinned(s.cores, s.command)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = f, f
	if s.stdout != nil {
		cmd.Stdout = s.stdout
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Name: s.name, Address: s.address, Admin: s.admin, Log: log, pid: cmd.Process.Pid, cmd: cmd,
		done: make(chan struct{})}
	if s.path != "" {
		p.URL = "http://" + s.address + s.path
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process's id; 0 for one that runs elsewhere.
func (p *Process) PID() int { return p.pid }

// Stop ends the process and what it started, and waits for it. It is an error when it had to be killed. It may be
// called again, and does nothing to a process that the layout did not start.
func (p *Process) Stop() (err error) {
	if p.cmd == nil {
		return nil
	}
	p.once.Do(func() {
		defer p.layout.forget(p)
		syscall.Kill(-p.pid, syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(stopGrace):
			err = fmt.Errorf("%s did not end within %v of SIGTERM", p.Name, stopGrace)
		}
		syscall.Kill(-p.pid, syscall.SIGKILL) // what it left behind in its group
		<-p.done
	})
	return err
}

// Interrupt sends SIGTERM and does not wait.
func (p *Process) Interrupt() { syscall.Kill(p.pid, syscall.SIGTERM) }

// Wait waits until the process ends by itself.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		p.layout.forget(p)
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endedWith says how a process ended that should run.
func (p *Process) endedWith() error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}

// maxLog is how long a log may be when a measurement begins, in bytes.
const maxLog = 64 << 20

// trim empties a log that has become too long: an access line for each of a million calls is nobody's to read.
func (p *Process) trim() {
	if info, err := os.Stat(p.Log); err == nil && info.Size() > maxLog {
		os.Truncate(p.Log, 0)
	}
}

// Usage is what the process has used since it began.
func (p *Process) Usage() (record.Usage, error) {
	if p.pid == 0 {
		return record.Usage{}, fmt.Errorf("%s: its process id is not known", p.Name)
	}
	u, err := usageOf(p.pid)
	u.Process = p.Name
	return u, err
}

package stdio

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	defaultGrace = 5 * time.Second
	termGrace    = 2 * time.Second // between SIGTERM and SIGKILL
	drainTime    = time.Second     // to read what an ended process left in its pipes
)

// passedOn is all that a process gets of the sidecar's own environment.
var passedOn = []string{"PATH", "HOME", "LANG"}

// command is how to start a server's process.
type command struct {
	args, env []string
	dir       string
	grace     time.Duration // from the end of its input to SIGTERM
}

func newCommand(spec *outriggerv1.StdioTransport) command {
	c := command{args: spec.GetCommand(), dir: spec.GetWorkingDirectory(), grace: defaultGrace}
	if d := spec.GetStopGrace().AsDuration(); d > 0 {
		c.grace = d
	}
	for _, name := range passedOn {
		if _, given := spec.GetEnv()[name]; given {
			continue
		}
		if value, ok := os.LookupEnv(name); ok {
			c.env = append(c.env, name+"="+value)
		}
	}
	for name, value := range spec.GetEnv() {
		c.env = append(c.env, name+"="+value)
	}
	return c
}

// process is one running child in a process group of its own. When it ends, so does whatever is left of its group; only
// a descendant that made itself a session leader gets away.
type process struct {
	stdin  *os.File // written by the pipe's writer, closed by stop
	stdout *os.File // read by the pipe's reader until its end
	stderr *os.File
	grace  time.Duration

	exited chan struct{} // closed when the process is reaped
	logged chan struct{} // closed when its standard error is read to the end
	err    error         // how it exited; read after exited

	mu     sync.Mutex // guards below
	pid    int
	reaped bool // the pid may belong to somebody else now
}

// start runs the command. Its standard error goes to log.
func (c command) start(log *slog.Logger) (*process, error) {
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Env, cmd.Dir, cmd.SysProcAttr = c.env, c.dir, ownGroup()
	p := &process{grace: c.grace, exited: make(chan struct{}), logged: make(chan struct{})}
	theirs, err := p.connect(cmd)
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go p.run(cmd, started)
	err = <-started
	closeAll(theirs...)
	if err != nil {
		closeAll(p.stdin, p.stdout, p.stderr)
		return nil, err
	}
	go func() {
		defer close(p.logged)
		logStderr(p.stderr, log.With("pid", p.pid))
	}()
	return p, nil
}

// connect makes the three pipes and returns the child's ends. The pipes are ours rather than exec's, so that reaping
// the process waits for no reader and a grandchild that holds one open delays nothing.
func (p *process) connect(cmd *exec.Cmd) (theirs []*os.File, err error) {
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		closeAll(inRead, inWrite)
		return nil, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		closeAll(inRead, inWrite, outRead, outWrite)
		return nil, err
	}
	p.stdin, p.stdout, p.stderr = inWrite, outRead, errRead
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inRead, outWrite, errWrite
	return []*os.File{inRead, outWrite, errWrite}, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// run starts the process and stays until it is reaped. It keeps its thread, because the kernel sends the parent-death
// signal when the thread that forked ends, not the process.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	started <- nil

	awaitExit(p.pid)
	p.kill() // what is left of the group, while the unreaped leader still holds its number
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	p.err = cmd.Wait()
	deadline := time.Now().Add(drainTime)
	p.stdout.SetReadDeadline(deadline)
	p.stderr.SetReadDeadline(deadline)
	close(p.exited)
}

// signal sends sig to the whole group, unless the process is gone.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		signalGroup(p.pid, sig)
	}
}

// stop ends the process: the end of its input, then SIGTERM, then SIGKILL. It returns when the process is reaped; once
// ctx ends there is no more waiting between the steps.
func (p *process) stop(ctx context.Context) {
	p.stdin.Close()
	if p.exitsWithin(ctx, p.grace) {
		return
	}
	p.signal(syscall.SIGTERM)
	if p.exitsWithin(ctx, termGrace) {
		return
	}
	p.kill()
	<-p.exited
}

// kill ends the process at once; stop then only waits for it to be reaped.
func (p *process) kill() { p.signal(syscall.SIGKILL) }

func (p *process) exitsWithin(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// startFailure says why a program did not start, without naming paths.
func startFailure(err error) string {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "its program or working directory does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "its program may not be executed"
	}
	return "its process could not be started"
}

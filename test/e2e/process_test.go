package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a program at work.
type process struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed once it has ended and been waited for

	mu      sync.Mutex // guards below
	log     bytes.Buffer
	changed chan struct{} // closed and replaced whenever the log grows
}

// shownLog is how much of its end is shown of a log when a test fails, in bytes.
const shownLog = 12 << 10

// start runs a program of the run's, or any other by its path. env is added to PATH and HOME, which is all it gets.
func start(t testing.TB, env []string, program string, args ...string) *process {
	t.Helper()
	if !strings.Contains(program, "/") {
		program = filepath.Join(programs, program)
	}
	p := &process{t: t, name: filepath.Base(program), ended: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = environment(env)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr, p.cmd.WaitDelay = ownGroup(), 5*time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState has the outcome
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			log := p.output()
			t.Logf("the end of what %s said:\n%s", p.name, log[max(0, len(log)-shownLog):])
		}
	})
	return p
}

// environment is all that a process gets: no setting of whoever runs the tests changes what they test.
func environment(more []string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"GORACE=atexit_sleep_ms=0"}, more...) // by default a program with the detector takes a second to end
}

// Write takes what the process says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return p.log.Write(b)
}

// output is all it has said.
func (p *process) output() string {
	log, _ := p.read()
	return log
}

func (p *process) read() (log string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String(), p.changed
}

// kill ends the whole group at once. It may have ended already.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it is gone, then
	<-p.ended
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

// freeze stops the process where it is, until SIGCONT.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, p.name+" is stopped", func() error { // each of its threads for itself
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(states) == 0 {
			return fmt.Errorf("it has no threads (%w)", err)
		}
		for _, path := range states {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
				return fmt.Errorf("%s is %.1s", path, state)
			}
		}
		return nil
	})
}

// exit waits until the process ends by itself, and returns its exit status.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		p.t.Fatalf("%s did not end within %v", p.name, within)
	}
	return p.cmd.ProcessState.ExitCode()
}

// stop ends the process in good order.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exit(patience); code != 0 {
		p.t.Errorf("%s ended with status %d after SIGTERM, want 0", p.name, code)
	}
}

// says waits for a line that has all these words, and returns it.
func (p *process) says(words ...string) string {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		log, changed := p.read()
		for line := range strings.Lines(log) {
			if strings.HasSuffix(line, "\n") && containsAll(line, words) {
				return line
			}
		}
		select {
		case <-changed:
		case <-p.ended:
			if now := p.output(); now == log {
				p.t.Fatalf("%s ended without saying %q", p.name, words)
			}
		case <-deadline:
			p.t.Fatalf("%s did not say %q within %v", p.name, words, patience)
		}
	}
}

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

// field is a string of a line of JSON.
func (p *process) field(line, name string) string {
	p.t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		p.t.Fatalf("%s said %q: %v", p.name, line, err)
	}
	s, ok := fields[name].(string)
	if !ok {
		p.t.Fatalf("%s said %q, want %q in it", p.name, line, name)
	}
	return s
}

// eventually waits until a condition has no error.
func eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for again := time.NewTicker(10 * time.Millisecond); ; <-again.C {
		err := condition()
		if err == nil {
			again.Stop()
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}

// within is a context for one wait of a test.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// freeAddress is one on loopback where nobody listens now.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// writeFile puts a whole file in place at once.
func writeFile(t testing.TB, path, content string) string {
	t.Helper()
	err := errors.Join(os.WriteFile(path+".new", []byte(content), 0o600), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// command runs a program to its end.
func command(t testing.TB, env []string, program string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	if !strings.Contains(program, "/") {
		program = filepath.Join(programs, program)
	}
	c := exec.CommandContext(within(t), program, args...)
	c.Env = environment(env)
	var out, errs strings.Builder
	c.Stdout, c.Stderr, c.SysProcAttr, c.WaitDelay = &out, &errs, ownGroup(), 5*time.Second
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(fmt.Errorf("%v: %w", c.Args, err))
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

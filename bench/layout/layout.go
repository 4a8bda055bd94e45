// Package layout lays out the processes of a measurement on this machine, and says what they used.
//
// A Layout starts upstreams that do nothing, proxies in front of them, control planes, Redis, and the load generator;
// waits until each serves; and ends all of them with Close. Proxies run on the machine's last core and everything else
// on the others, where there are two cores or more and taskset is installed. Measure reads /proc around a load: what
// every process used, what the rest of the machine did meanwhile, and whether that was too much for the row to count.
//
// A Layout's processes may be started and stopped from several goroutines; one Measure runs at a time. Not here: what
// to measure (package scenario), and the load itself (bench/load).
package layout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// DefaultNoiseLimit is the share of the machine that others may use before a row does not count.
const DefaultNoiseLimit = 0.05

// readyTimeout is how long a process may take until it serves.
const readyTimeout = 20 * time.Second

// Programs are the files that a Layout starts. An empty one is looked up by its usual name when it is needed: in bin/
// for ours, on the PATH for others, and for nginx in /usr/sbin too.
type Programs struct {
	Sidecar, ControlPlane, Load, Null string
	Nginx, Redis                      string
}

// withDefaults fills in the empty ones.
func (p Programs) withDefaults() Programs {
	for _, d := range []struct {
		at   *string
		name string
	}{
		{&p.Sidecar, "bin/sidecar"}, {&p.ControlPlane, "bin/controlplane"}, {&p.Load, "bin/bench/load"},
		{&p.Null, "bin/bench/null"}, {&p.Nginx, nginxProgram()}, {&p.Redis, "redis-server"},
	} {
		if *d.at == "" {
			*d.at = d.name
		}
	}
	return p
}

// nginxProgram is nginx where Debian has it, which is not on everybody's PATH.
func nginxProgram() string {
	const there = "/usr/sbin/nginx"
	if _, err := exec.LookPath("nginx"); err != nil {
		if _, err := exec.LookPath(there); err == nil {
			return there
		}
	}
	return "nginx"
}

// Layout is a set of running processes.
type Layout struct {
	// Set by New, never changed.
	dir      string // configurations and logs
	programs Programs
	pins     Pins

	// NoiseLimit is the share of the machine that others may use before Measure discards a row. Set before Measure.
	NoiseLimit float64

	mu        sync.Mutex // guards below
	processes []*Process // that run, in the order of their start
	names     map[string]int
	uncounted bool // a process that the layout did not start, and cannot count, serves here
	closed    bool
}

// New makes a layout whose configurations and logs are files in dir, which is made if missing.
func New(dir string, p Programs) (*Layout, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &Layout{dir: dir, programs: p.withDefaults(), pins: PinsHere(), NoiseLimit: DefaultNoiseLimit,
		names: map[string]int{}}, nil
}

// Dir is where the layout's configurations and logs are, an absolute path.
func (l *Layout) Dir() string { return l.dir }

// Close ends every process, the newest first, and waits for them. It may be called again.
func (l *Layout) Close() error {
	l.mu.Lock()
	l.closed = true
	running := slices.Clone(l.processes)
	l.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(running) {
		errs = append(errs, p.Stop())
	}
	return errors.Join(errs...)
}

// spec is a process to start.
type spec struct {
	name    string // of the process in usage and logs
	cores   string // as taskset takes them; empty: any
	command []string
	address string // where it will serve
	admin   string
	path    string                          // of its MCP endpoint
	ready   func(ctx context.Context) error // nil: it is ready at once
	stdout  *os.File                        // nil: the log
}

// start runs a process and waits until it is ready. One that does not become ready is ended.
func (l *Layout) start(ctx context.Context, s spec) (*Process, error) {
	p, err := l.launch(s)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	if s.ready == nil {
		return p, nil
	}
	if err := p.await(ctx, s.ready); err != nil {
		p.Stop()
		return nil, fmt.Errorf("%s is not ready: %w (its log is %s)", s.name, err, p.Log)
	}
	return p, nil
}

// launch runs a process.
func (l *Layout) launch(s spec) (*Process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.New("the layout is closed")
	}
	p, err := newProcess(s, l.file(s.name, ".log"))
	if err != nil {
		return nil, err
	}
	p.layout = l
	l.processes = append(l.processes, p)
	return p, nil
}

// forget drops a process that has ended.
func (l *Layout) forget(p *Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.processes = slices.DeleteFunc(l.processes, func(q *Process) bool { return q == p })
}

// running are the processes at this moment.
func (l *Layout) running() []*Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.processes)
}

// file is a path in the layout's folder that no other process of that name has. The caller holds mu.
func (l *Layout) file(name, extension string) string {
	key := name + extension
	l.names[key]++
	if n := l.names[key]; n > 1 {
		name = fmt.Sprintf("%s-%d", name, n)
	}
	return filepath.Join(l.dir, name+extension)
}

// write puts a configuration into the layout's folder and returns its path.
func (l *Layout) write(name, extension, text string) (string, error) {
	l.mu.Lock()
	path := l.file(name, extension)
	l.mu.Unlock()
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// await calls check until it passes, the process ends, or the time for that is over.
func (p *Process) await(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", p.endedWith())
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// FreeAddress is an address of 127.0.0.1 on which nothing listens.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// accepts passes when something accepts connections at an address.
func accepts(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

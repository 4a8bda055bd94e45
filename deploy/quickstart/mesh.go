package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

// node is the sidecar's node id.
const node = "example-1"

// startTries is how often a program may be started to be measured: other work on the machine delays one start, not all.
const startTries = 3

// mesh is a control plane, a server and its sidecar, as far as they have been started.
type mesh struct {
	o   *options
	out io.Writer
	dir string // everything that the programs write; removed at the end
	at  *addresses

	plane, server, sidecar *process // nil before it was started
	api                    outriggerv1connect.ResourceServiceClient

	fail context.CancelCauseFunc // ends the step under way
}

// step is one thing that has to work. do returns what to say of it.
type step struct {
	name    string
	timeout time.Duration
	do      func(context.Context) (string, error)
}

// run brings a mesh up, stays until ctx ends or, with -once, checks it; then it stops everything.
func run(ctx context.Context, o *options, out io.Writer) (err error) {
	began := time.Now()
	m := &mesh{o: o, out: out}
	if m.dir, err = os.MkdirTemp("", "outrigger-quickstart-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	var taken []string
	if m.at, taken, err = chooseAddresses(o.freePorts); err != nil {
		return err
	}
	defer m.at.releaseAll()
	fmt.Fprintf(out, "Outrigger quickstart: a whole mesh on this machine, in %s\n", m.dir)
	for _, usual := range taken {
		fmt.Fprintf(out, "%s is taken: a free port is used in its place\n", usual)
	}
	fmt.Fprintln(out)
	err = m.work(ctx)
	if err == nil && !o.once {
		m.invite()
		m.stay(ctx)
	}
	err = errors.Join(err, m.stop())
	if err == nil && o.once {
		fmt.Fprintf(out, "\nEvery step passed, in %.1f s.\n", time.Since(began).Seconds())
	}
	return err
}

// work does every step. The first that fails ends it, and so does a program that ends meanwhile.
func (m *mesh) work(signalled context.Context) error {
	ctx, fail := context.WithCancelCause(signalled)
	m.fail = fail
	defer fail(nil)
	steps := m.bringUp()
	if m.o.once {
		steps = append(steps, m.checks()...)
	}
	for _, s := range steps {
		stepCtx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("no success within %v", s.timeout))
		result, err := s.do(stepCtx)
		if cause := context.Cause(stepCtx); err != nil && cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		cancel()
		switch {
		case signalled.Err() != nil:
			return errors.New("interrupted")
		case err != nil:
			return m.failed(s, err)
		}
		fmt.Fprintf(m.out, "  %-15s  %s\n", s.name, result)
	}
	return nil
}

// bringUp is what makes a mesh, in order.
func (m *mesh) bringUp() []step {
	return []step{
		{"control plane", 30 * time.Second, m.startPlane},
		{"example server", 15 * time.Second, m.startServer},
		{"configuration", 15 * time.Second, m.apply},
		{"sidecar", 15 * time.Second, m.startSidecar},
		{"delivery", 30 * time.Second, m.awaitRunning},
		{stateless + " wire", 30 * time.Second, func(ctx context.Context) (string, error) { return tour(ctx, m.endpoint(), stateless) }},
		{legacy + " wire", 30 * time.Second, func(ctx context.Context) (string, error) { return tour(ctx, m.endpoint(), legacy) }},
	}
}

// endpoint is where clients dial.
func (m *mesh) endpoint() string { return "http://" + m.at.mcp + "/mcp" }

// planeDir is the control plane's data directory.
func (m *mesh) planeDir() string { return filepath.Join(m.dir, "control-plane") }

// adminToken is the file with the token for the API.
func (m *mesh) adminToken() string { return filepath.Join(m.planeDir(), "admin.token") }

func (m *mesh) program(name string) string { return filepath.Join(m.o.bin, name) }

func (m *mesh) startPlane(ctx context.Context) (string, error) {
	m.at.release(m.at.api, m.at.xds, m.at.planeAdmin)
	said, err := m.start(ctx, &m.plane, "http://"+m.at.planeAdmin+"/healthz", "control plane", m.program("controlplane"),
		"--data-dir", m.planeDir(), "--api", m.at.api, "--xds", m.at.xds, "--admin", m.at.planeAdmin)
	if err != nil {
		return "", err
	}
	if _, err := m.plane.answers(ctx, "http://"+m.at.planeAdmin+"/readyz"); err != nil {
		return "", err
	}
	token, err := os.ReadFile(m.adminToken())
	if err != nil {
		return "", err
	}
	m.api = newAPI("http://"+m.at.api, strings.TrimSpace(string(token)))
	return said + ", API at http://" + m.at.api, nil
}

func (m *mesh) startServer(ctx context.Context) (string, error) {
	m.at.release(m.at.server)
	said, err := m.start(ctx, &m.server, "http://"+m.at.server+"/healthz", "example server", m.program("example-server"),
		"--listen", m.at.server)
	return said + ", MCP at http://" + m.at.server + "/mcp", err
}

// startSidecar gives the sidecar what it needs to know of the mesh, and its own addresses; the rest it is told.
func (m *mesh) startSidecar(ctx context.Context) (string, error) {
	token := filepath.Join(m.dir, "join.token")
	if err := m.writeJoinToken(ctx, token); err != nil {
		return "", err
	}
	m.at.release(m.at.mcp, m.at.sidecarAdmin)
	said, err := m.start(ctx, &m.sidecar, "http://"+m.at.sidecarAdmin+"/healthz", "sidecar", m.program("sidecar"),
		"--control-plane", m.at.xds, "--node-id", node, "--join-token-file", token,
		"--state-dir", filepath.Join(m.dir, "sidecar"), "--listen", m.at.mcp, "--admin", m.at.sidecarAdmin,
		"--drain-timeout", "5s", "--log-format", "text")
	return said + ", with a join token", err
}

// start runs a program and waits until it answers at url. When it ends before the steps do, they fail.
func (m *mesh) start(ctx context.Context, to **process, url, name, program string, args ...string) (string, error) {
	var took time.Duration
	for try := 1; ; try++ {
		p, err := startProcess(m.dir, name, program, args...)
		if err != nil {
			return "", err
		}
		*to = p
		if took, err = p.answers(ctx, url); err != nil {
			return "", err
		}
		if !m.o.once || took < m.o.startLimit {
			break
		}
		if try == startTries {
			return "", fmt.Errorf("it answered %d ms after its start, expected less than %v, also when started again", took.Milliseconds(), m.o.startLimit)
		}
		if err := p.stop(); err != nil {
			return "", err
		}
	}
	p := *to
	go func() {
		<-p.ended
		m.fail(fmt.Errorf("the %s ended: %s", p.name, p.outcome()))
	}()
	return fmt.Sprintf("pid %d, answered after %d ms", p.cmd.Process.Pid, took.Milliseconds()), nil
}

// started are the programs in the order in which they are stopped: calls end before what they need.
func (m *mesh) started() []*process {
	var all []*process
	for _, p := range []*process{m.sidecar, m.server, m.plane} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// stay returns when ctx ends. A program that ends meanwhile is reported and the others go on: it may be an experiment.
func (m *mesh) stay(ctx context.Context) {
	ended := make(chan *process, 3)
	for _, p := range m.started() {
		go func() {
			<-p.ended // at the latest when it is stopped
			ended <- p
		}()
	}
	for {
		select {
		case p := <-ended:
			fmt.Fprintf(m.out, "\nThe %s ended: %s. The others go on; Ctrl-C stops them. Its log is %s\n", p.name, p.outcome(), p.logFile)
		case <-ctx.Done():
			fmt.Fprintln(m.out, "\nStopping.")
			return
		}
	}
}

// stop ends every program in order.
func (m *mesh) stop() error {
	var errs []error
	for _, p := range m.started() {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}

// failed says which step did not work, and what the programs last said.
func (m *mesh) failed(s step, err error) error {
	var b strings.Builder
	fmt.Fprintf(&b, "the step %q failed: %v", s.name, err)
	for _, p := range m.started() {
		fmt.Fprintf(&b, "\n\nlast lines of the %s's log:\n%s", p.name, p.tail())
	}
	return errors.New(b.String())
}

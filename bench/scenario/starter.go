package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
)

const (
	// bootPoll is how often a process that starts is tried.
	bootPoll = time.Millisecond
	// bootMost is how long a start may take, and the end after it.
	bootMost = 15 * time.Second
)

// starter starts a sidecar again as it was started before.
type starter struct {
	name           string
	command        []string
	address, admin string
}

// again makes a starter of a sidecar that runs, and stops it.
func again(name string, p *layout.Process) (*starter, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID()))
	if err != nil {
		return nil, err
	}
	command := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if command[0], err = os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID())); err != nil {
		return nil, err
	}
	if cores := layout.PinsHere().Proxy; cores != "" {
		command = append([]string{"taskset", "-c", cores}, command...)
	}
	return &starter{name: name, command: command, address: p.Address, admin: p.Admin}, p.Stop()
}

// start is one start: how long until each worked.
type start struct{ healthz, call, cpu time.Duration }

// start starts the sidecar, and ends it when it has served a call.
func (c *starter) start(ctx context.Context) (start, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootMost, fmt.Errorf("it served nothing within %v", bootMost))
	defer cancel()
	cmd := exec.Command(c.command[0], c.command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return start{}, err
	}
	var s start
	var callErr, healthErr error
	var wait sync.WaitGroup
	wait.Go(func() { s.healthz, healthErr = since(ctx, begun, func() error { return c.healthy(ctx) }) })
	wait.Go(func() { s.call, callErr = since(ctx, begun, func() error { return c.list(ctx) }) })
	wait.Wait()
	_ = cmd.Process.Signal(syscall.SIGTERM) // fails when it has ended, which Wait tells
	kill := time.AfterFunc(bootMost, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	waitErr := cmd.Wait()
	s.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return s, errors.Join(callErr, healthErr, waitErr)
}

// since tries until it works, and returns how long after begun that was.
func since(ctx context.Context, begun time.Time, try func() error) (time.Duration, error) {
	tick := time.NewTicker(bootPoll)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return time.Since(begun), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, errors.Join(context.Cause(ctx), err)
		}
	}
}

func (c *starter) healthy(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin+"/healthz", nil)
	if err != nil {
		return err
	}
	_, err = ask(req)
	return err
}

const listBody = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{` +
	`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

// list makes one call, and fails unless it has a result.
func (c *starter) list(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+layout.MCPPath, strings.NewReader(listBody))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", "tools/list")
	body, err := ask(req)
	if err == nil && !bytes.Contains(body, []byte(`"result"`)) {
		err = fmt.Errorf("tools/list was answered with %s", body)
	}
	return err
}

// ask makes a request of its own connection, and returns the body of an answer with status 200.
func ask(req *http.Request) ([]byte, error) {
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", req.URL, res.Status, body)
	}
	return body, err
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// checks try what a user would, with -once.
func (m *mesh) checks() []step {
	const timeout = 20 * time.Second
	curl := func(line, want string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return shell(ctx, line, want, "curl") }
	}
	return []step{
		{"curl " + stateless, timeout, curl(m.statelessLine(), sum)},
		{"curl " + legacy, timeout, curl(m.legacyLine(), sum)},
		{"curl API", timeout, curl(m.apiLine(), `"id":"`+node+`"`)},
		{"rigctl", timeout, func(ctx context.Context) (string, error) {
			return shell(ctx, lines(m.environmentLine(), m.rigctlLine()), node, m.program("rigctl"))
		}},
		{"/readyz", timeout, m.checkReady},
		{"/metrics", timeout, m.checkMetrics},
	}
}

// shell pastes lines into a shell, and wants their output to contain want. Without the program there is nothing to try.
func shell(ctx context.Context, text, want, program string) (string, error) {
	if _, err := exec.LookPath(program); err != nil {
		return "not tried: " + err.Error(), nil
	}
	var output, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text+"\n"), &output, &complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // what the shell started, too
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s\n%s", err, complaints.String(), text)
	}
	if !strings.Contains(output.String(), want) {
		return "", fmt.Errorf("got %q, want %s in it, from\n%s", output.String(), want, text)
	}
	return "works as printed", nil
}

func (m *mesh) checkReady(ctx context.Context) (string, error) {
	for _, admin := range []string{m.at.sidecarAdmin, m.at.planeAdmin} {
		if _, err := fetch(ctx, "http://"+admin+"/readyz"); err != nil {
			return "", err
		}
	}
	return "the sidecar and the control plane are ready", nil
}

// checkMetrics waits until the sidecar has counted the calls: it does so after their answers' last byte.
func (m *mesh) checkMetrics(ctx context.Context) (string, error) {
	for {
		page, err := fetch(ctx, "http://"+m.at.sidecarAdmin+"/metrics")
		if err != nil {
			return "", err
		}
		older, newer := toolCalls(page, "legacy"), toolCalls(page, "stateless")
		// add, progress and ask of the tour, and curl's; ask is two calls on the newer wire.
		if older >= 3 && newer >= 4 {
			return fmt.Sprintf("the sidecar counted %d tool calls on the newer wire and %d on the older", newer, older), nil
		}
		select {
		case <-time.After(10 * pollEvery):
		case <-ctx.Done():
			return "", fmt.Errorf("%d tool calls counted on the newer wire and %d on the older, want 4 and 3", newer, older)
		}
	}
}

// toolCalls reads from a page of metrics how many tool calls went well in an era.
func toolCalls(page, era string) int {
	series := fmt.Sprintf(`outrigger_call_duration_seconds_count{binding="example",era=%q,method="tools/call",outcome="ok"} `, era)
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, series); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err == nil {
				return n
			}
		}
	}
	return 0
}

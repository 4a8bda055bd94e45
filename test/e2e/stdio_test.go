package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// node finds Node.js and the npm packages of test/interop. Only on a machine of a person without Node are tests skipped.
func node(t *testing.T) (program, interop string) {
	t.Helper()
	program, err := exec.LookPath("node")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("SKIPPED: there is no node on this machine")
	}
	if err != nil {
		t.Fatal(err)
	}
	interop, err = filepath.Abs("../interop")
	if err == nil {
		_, err = os.Stat(filepath.Join(interop, "bridges", "node_modules"))
	}
	if err != nil {
		t.Fatalf("%v: run test/interop/install.sh first", err)
	}
	return program, interop
}

// filesystem runs a sidecar in front of npm's server-filesystem, which serves a directory.
func filesystem(t *testing.T, isolation string) (s *sidecar, directory string) {
	t.Helper()
	node, interop := node(t)
	directory, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(interop, "bridges/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")
	s, _ = fileSidecar(t, nil,
		upstream("files", fmt.Sprintf("stdio: {command: [%q, %q, %q], isolation: %s}", node, server, directory, isolation)),
		binding("files", "/mcp", "files", ""))
	s.url += "/mcp"
	s.serves()
	return s, directory
}

// children are the processes that a process has started and that still run.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(all) == 0 {
		t.Fatalf("/proc tells of no processes (%v)", err)
	}
	for _, path := range all {
		b, _ := os.ReadFile(path) // of one that has ended meanwhile it has nothing
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 2 && fields[1] == strconv.Itoa(parent) && fields[0] != "Z" {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// writeAndRead is one client at work with a file of its own.
func writeAndRead(t *testing.T, c *sdk.ClientSession, directory, name string) error {
	type args = map[string]any
	file := filepath.Join(directory, name)
	for _, content := range []string{"first of " + name, "second of " + name + ": ünïcödé"} {
		if _, err := callSDK(t, c, "write_file", args{"path": file, "content": content}); err != nil {
			return err
		}
		if got, err := callSDK(t, c, "read_text_file", args{"path": file}); err != nil || got != content {
			return fmt.Errorf("%s holds %q (%w), want %q", name, got, err, content)
		}
	}
	list, err := callSDK(t, c, "list_directory", args{"path": directory})
	if err != nil || !strings.Contains(list, name) {
		return fmt.Errorf("the directory holds %q (%w), want %s in it", list, err, name)
	}
	if got, err := callSDK(t, c, "read_text_file", args{"path": "/etc/passwd"}); err == nil || !strings.Contains(err.Error(), "denied") {
		return fmt.Errorf("/etc/passwd was read as %q (%w), want that access is denied", got, err)
	}
	return nil
}

// allAtOnce connects clients of the go-sdk and lets them work at once.
func allAtOnce(t *testing.T, url, directory string, clients int) (sessions []*sdk.ClientSession) {
	t.Helper()
	var wait sync.WaitGroup
	var mu sync.Mutex // guards sessions
	for i := range clients {
		wait.Go(func() {
			c, err := tryConnectSDK(t, url, versionLegacy, nil)
			if err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			if tools, err := c.ListTools(t.Context(), nil); err != nil || len(tools.Tools) < 10 {
				t.Errorf("client %d: tools %+v (%v), want at least 10", i, tools, err)
			}
			if err := writeAndRead(t, c, directory, fmt.Sprintf("go-%d.txt", i)); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			sessions = append(sessions, c)
		})
	}
	wait.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return sessions
}

func TestServerFilesystemIsSharedByManyClients(t *testing.T) {
	t.Parallel()
	const clients = 50
	s, directory := filesystem(t, "shared")
	sessions := allAtOnce(t, s.url, directory, clients)
	if got := children(t, s.cmd.Process.Pid); len(got) != 1 {
		t.Errorf("processes %v for %d clients, want one", got, clients)
	}
	program, interop := node(t)
	out, errs, status := command(t, nil, program, "testdata/filesystem.mjs", filepath.Join(interop, "node_modules"), s.url, directory, strconv.Itoa(clients))
	if n, err := strconv.Atoi(strings.TrimSpace(out)); status != 0 || err != nil || n < 10 {
		t.Errorf("the TypeScript clients ended with %d and said %s%s, want at least 10 tools", status, out, errs)
	}

	pid := children(t, s.cmd.Process.Pid)[0]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	eventually(t, "a session from before is served again", func() error {
		return writeAndRead(t, sessions[0], directory, "after.txt")
	})
	t.Logf("served again %v after the process was killed", time.Since(killed))
	for i, c := range sessions[1:] {
		if _, err := callSDK(t, c, "list_directory", map[string]any{"path": directory}); err != nil {
			t.Errorf("client %d, afterwards: %v", i, err)
		}
	}
	s.stop()
	if left := children(t, s.cmd.Process.Pid); len(left) != 0 {
		t.Errorf("processes %v outlived the sidecar", left)
	}
}

func TestServerFilesystemWithAProcessForEachSession(t *testing.T) {
	t.Parallel()
	const clients = 4
	s, directory := filesystem(t, "session")
	standing := children(t, s.cmd.Process.Pid) // of readiness, and of no client
	sessions := allAtOnce(t, s.url, directory, clients)
	own := func() []int {
		return slices.DeleteFunc(children(t, s.cmd.Process.Pid), func(pid int) bool { return slices.Contains(standing, pid) })
	}
	are := func(n int) func() error {
		return func() error {
			if got := own(); len(got) != n {
				return fmt.Errorf("processes %v, want %d", got, n)
			}
			return nil
		}
	}
	eventually(t, "a process for each session", are(clients))
	if err := sessions[0].Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "none for the session that ended", are(clients-1))
	if err := syscall.Kill(own()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one session has ended with its process", func() error {
		ended := 0
		for _, c := range sessions[1:] {
			_, err := callSDK(t, c, "list_directory", map[string]any{"path": directory})
			if errors.Is(err, sdk.ErrSessionMissing) || errors.Is(err, sdk.ErrConnectionClosed) {
				ended++
			}
		}
		if ended != 1 {
			return fmt.Errorf("%d have", ended)
		}
		return nil
	})
	if err := writeAndRead(t, connectSDK(t, s.url, versionLegacy, nil), directory, "after.txt"); err != nil {
		t.Errorf("a session after that: %v", err)
	}
	s.stop()
}

func TestADrainWaitsForACallOfAProcess(t *testing.T) {
	t.Parallel()
	node, interop := node(t)
	server := filepath.Join(interop, "node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	s, _ := fileSidecar(t, nil, upstream("everything", fmt.Sprintf("stdio: {command: [%q, %q, stdio]}", node, server)),
		binding("everything", "/mcp", "everything", ""))
	begun := make(chan bool, 8)
	c := connectSDK(t, s.url+"/mcp", versionLegacy, &sdk.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { begun <- true },
	})
	params := &sdk.CallToolParams{Name: "trigger-long-running-operation", Arguments: map[string]any{"duration": 1, "steps": 4}}
	params.SetProgressToken("p")
	ended := make(chan error, 1)
	go func() {
		res, err := c.CallTool(within(t), params)
		if err == nil && (res.IsError || len(res.Content) == 0) {
			err = fmt.Errorf("answered %+v", res)
		}
		ended <- err
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the call ended without progress: %v", err)
	}
	s.signal(syscall.SIGTERM)
	if err := <-ended; err != nil {
		t.Errorf("the call under way: %v", err)
	}
	if code := s.exit(patience); code != 0 {
		t.Errorf("it ended with status %d, want 0", code)
	}
	if left := children(t, s.cmd.Process.Pid); len(left) != 0 {
		t.Errorf("processes %v outlived the sidecar", left)
	}
}

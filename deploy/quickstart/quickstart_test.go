package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// asProgram makes the test binary the quickstart itself, race detector included.
const asProgram = "QUICKSTART_TEST_AS_PROGRAM"

// patience bounds a whole test, with the programs' build.
const patience = 2 * time.Minute

var (
	buildDir string
	build    = sync.OnceValue(buildPrograms)
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "quickstart-test-")
	if err != nil {
		panic(err)
	}
	buildDir = dir
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// buildPrograms builds what the quickstart runs, with the Makefile's flags so that the cache is shared.
func buildPrograms() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, args := range [][]string{
		{"-o", buildDir + "/", "../../controlplane/cmd/controlplane", "../../controlplane/cmd/rigctl", "../../sidecar/cmd/sidecar"},
		{"-o", filepath.Join(buildDir, "example-server"), "./server"},
	} {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return nil
}

// programs is a directory with everything that the quickstart runs.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs every program")
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return buildDir
}

// quickstart is a command that runs the quickstart on free ports, with nothing outside its directory for temporary
// files, which is returned. Limits of time are for machines with nothing else to do, so they are widened.
func quickstart(t *testing.T, bin string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	temporary := t.TempDir()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"-bin", bin, "-free-ports", "-start-limit", "30s"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "ONCE=", "TMPDIR="+temporary)
	cmd.WaitDelay = 10 * time.Second
	return cmd, temporary
}

var pidText = regexp.MustCompile(`pid (\d+)`)

// wantGone waits until every program that the output names has ended.
func wantGone(t *testing.T, output string, want int) {
	t.Helper()
	found := pidText.FindAllStringSubmatch(output, -1)
	if len(found) != want {
		t.Fatalf("%d programs were started, want %d:\n%s", len(found), want, output)
	}
	for _, m := range found {
		pid, _ := strconv.Atoi(m[1])
		for deadline := time.Now().Add(20 * time.Second); !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the program with pid %d still runs:\n%s", pid, output)
			}
		}
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOnceChecksEveryStepAndLeavesNothing(t *testing.T) {
	cmd, temporary := quickstart(t, programs(t), "-once")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	t.Logf("%s", output)
	if !strings.Contains(string(output), "Every step passed") {
		t.Errorf("it does not say that every step passed:\n%s", output)
	}
	wantGone(t, string(output), 3)
	wantEmpty(t, temporary)
}

// begin starts the quickstart, and returns what it printed until it was up.
func begin(t *testing.T, cmd *exec.Cmd) (transcript string, rest *bufio.Reader) {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rest = bufio.NewReader(stdout)
	for {
		line, err := rest.ReadString('\n')
		transcript += line
		if strings.Contains(line, "goes on from here") {
			return transcript, rest
		}
		if err != nil {
			cmd.Wait()
			t.Fatalf("it ended before it was up:\n%s", transcript)
		}
	}
}

func TestASignalStopsEverything(t *testing.T) {
	cmd, temporary := quickstart(t, programs(t))
	transcript, rest := begin(t, cmd)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	end, err := io.ReadAll(rest)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("ended with %v\n%s%s", err, transcript, end)
	}
	wantGone(t, transcript, 3)
	wantEmpty(t, temporary)
}

func TestASignalDuringTheStartLeavesNothing(t *testing.T) {
	cmd, temporary := quickstart(t, programs(t))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rest := bufio.NewReader(stdout)
	first, err := rest.ReadString('\n') // printed before the first program is started
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	end, _ := io.ReadAll(rest)
	if err := cmd.Wait(); err == nil || !strings.Contains(complaints.String(), "interrupted") {
		t.Errorf("ended with %v and %q after\n%s%s", err, complaints.String(), first, end)
	}
	wantEmpty(t, temporary)
}

func TestTheOthersGoOnWithoutTheControlPlane(t *testing.T) {
	cmd, _ := quickstart(t, programs(t))
	transcript, rest := begin(t, cmd)
	plane, _ := strconv.Atoi(pidText.FindStringSubmatch(transcript)[1])
	if err := syscall.Kill(plane, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for said := ""; !strings.Contains(said, "control plane ended: signal: killed"); {
		line, err := rest.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended with its control plane, saying %q", said+line)
		}
		said += line
	}
	endpoint := regexp.MustCompile(`MCP endpoint +(\S+),`).FindStringSubmatch(transcript)[1]
	for _, version := range []string{stateless, legacy} {
		if _, err := tour(t.Context(), endpoint, version); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	io.Copy(io.Discard, rest)
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	wantGone(t, transcript, 3)
}

func TestTheProgramsEndWithAKilledQuickstart(t *testing.T) {
	cmd, _ := quickstart(t, programs(t))
	transcript, _ := begin(t, cmd)
	cmd.Process.Kill()
	cmd.Wait() // says that it was killed
	wantGone(t, transcript, 3)
}

func TestAFailedStepIsNamedWithTheProgramsLastWords(t *testing.T) {
	for _, c := range []struct {
		name, program, script string
		want                  []string
		started               int // programs that answered
	}{
		{"the sidecar ends", "sidecar", "echo cannot do it; exit 3",
			[]string{`the step "sidecar" failed`, "exit status 3", "cannot do it"}, 2},
		{"the control plane ends", "controlplane", "echo no disk; exit 1",
			[]string{`the step "control plane" failed`, "exit status 1", "no disk"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := t.TempDir()
			for _, name := range []string{"controlplane", "sidecar", "rigctl", "example-server"} {
				if err := os.Symlink(filepath.Join(programs(t), name), filepath.Join(bin, name)); err != nil {
					t.Fatal(err)
				}
			}
			os.Remove(filepath.Join(bin, c.program))
			if err := os.WriteFile(filepath.Join(bin, c.program), []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd, temporary := quickstart(t, bin, "-once")
			output, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit status 1", err)
			}
			for _, want := range c.want {
				if !strings.Contains(string(output), want) {
					t.Errorf("no %q in\n%s", want, output)
				}
			}
			wantGone(t, string(output), c.started)
			wantEmpty(t, temporary)
		})
	}
}

func TestASlowStartFailsOnlyWhenItIsSlowEachTime(t *testing.T) {
	cmd, temporary := quickstart(t, programs(t), "-once", "-start-limit", "1ns")
	output, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "also when started again") {
		t.Errorf("ended with %v, want a start that is too slow, in\n%s", err, output)
	}
	wantEmpty(t, temporary)
}

func TestATakenPortIsReplaced(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	l, err := hold(held.Addr().String(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Addr().String() == held.Addr().String() {
		t.Errorf("%s was given out while somebody else had it", l.Addr())
	}
}

func TestEveryAddressIsAnother(t *testing.T) {
	a, taken, err := chooseAddresses(true)
	if err != nil || len(taken) > 0 {
		t.Fatalf("got %v, taken %v", err, taken)
	}
	defer a.releaseAll()
	seen := map[string]bool{}
	for _, address := range []string{a.api, a.xds, a.planeAdmin, a.server, a.mcp, a.sidecarAdmin} {
		if address == "" || seen[address] {
			t.Errorf("address %q is missing or given out twice: %+v", address, a)
		}
		seen[address] = true
	}
}

func TestAnAddressIsHeldUntilItIsReleased(t *testing.T) {
	a, _, err := chooseAddresses(true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.releaseAll()
	if l, err := net.Listen("tcp", a.mcp); err == nil {
		l.Close()
		t.Errorf("%s could be taken before it was released", a.mcp)
	}
	a.release(a.mcp)
	l, err := net.Listen("tcp", a.mcp)
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	l.Close()
}

func TestTheConfigurationIsValidAndNamesTheServer(t *testing.T) {
	if _, mistakes := resource.Load("outrigger.yaml", []byte(configuration)); len(mistakes) > 0 {
		t.Error(mistakes)
	}
	if n := strings.Count(configuration, usualServer); n != 1 {
		t.Errorf("outrigger.yaml has %s %d times, want once", usualServer, n)
	}
}

func TestOnlyASidecarThatRunsAllOfItIsRunning(t *testing.T) {
	state := func(s outriggerv1.State, reason string) []*outriggerv1.SidecarResource {
		return []*outriggerv1.SidecarResource{{Kind: "Upstream", Name: "example", State: s, Reason: reason}}
	}
	good := state(outriggerv1.State_STATE_RUNNING, "")
	for _, c := range []struct {
		name    string
		sidecar *outriggerv1.Sidecar
		why     string
	}{
		{"runs", &outriggerv1.Sidecar{Id: node, Connected: true, Resources: good}, ""},
		{"another", &outriggerv1.Sidecar{Id: "other", Connected: true, Resources: good}, "there is no sidecar example-1"},
		{"gone", &outriggerv1.Sidecar{Id: node, Resources: good}, "not connected"},
		{"empty", &outriggerv1.Sidecar{Id: node, Connected: true}, "nothing to run"},
		{"old", &outriggerv1.Sidecar{Id: node, Connected: true, Resources: good, DesiredGeneration: "2"}, "another generation"},
		{"refused", &outriggerv1.Sidecar{Id: node, Connected: true, Resources: state(outriggerv1.State_STATE_REFUSED, "no key")}, "no key"},
	} {
		_, why := running([]*outriggerv1.Sidecar{c.sidecar})
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: got %q, want %q", c.name, why, c.why)
		}
	}
}

func TestPastedLinesFailWithTheirOutput(t *testing.T) {
	if _, err := shell(t.Context(), "echo 41", "42", "sh"); err == nil || !strings.Contains(err.Error(), "41") {
		t.Errorf("wrong output: got %v", err)
	}
	if _, err := shell(t.Context(), "echo 42; exit 7", "42", "sh"); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("failed command: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := shell(ctx, "sleep 60 | cat", "", "sh"); err == nil {
		t.Error("a command that hangs succeeded")
	}
	if said, err := shell(t.Context(), "", "", "a-program-that-is-not-there"); err != nil || !strings.Contains(said, "not tried") {
		t.Errorf("missing program: got %q, %v", said, err)
	}
}

func TestToolCallsAreReadFromMetrics(t *testing.T) {
	page := `# HELP x y
outrigger_call_duration_seconds_count{binding="example",era="legacy",method="tools/call",outcome="ok"} 12
outrigger_call_duration_seconds_count{binding="example",era="stateless",method="tools/call",outcome="failed"} 3
`
	if n := toolCalls(page, "legacy"); n != 12 {
		t.Errorf("got %d legacy calls, want 12", n)
	}
	if n := toolCalls(page, "stateless"); n != 0 {
		t.Errorf("got %d stateless calls, want 0: failed ones do not count", n)
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args     []string
		variable string
		once, ok bool
	}{
		{nil, "", false, true},
		{nil, "1", true, true},
		{nil, "0", false, true},
		{[]string{"-once"}, "", true, true},
		{[]string{"once"}, "", false, false},
		{[]string{"-nonsense"}, "", false, false},
	} {
		o, err := parseFlags(c.args, c.variable, &bytes.Buffer{})
		if (err == nil) != c.ok || c.ok && o.once != c.once {
			t.Errorf("%q with ONCE=%q: once %t, error %v", c.args, c.variable, o.once, err)
		}
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
	"github.com/outrigger-mesh/outrigger/bench/report"
	"github.com/outrigger-mesh/outrigger/bench/scenario"
)

// binaries is where every program is that a run starts, built once for all tests.
var binaries string

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && !strings.HasPrefix(os.Args[1], "-") { // as a peer: KIND UPSTREAM PORT
		log.Fatal(serveProxy(os.Args[1], os.Args[2], os.Args[3]))
	}
	var err error
	if binaries, err = os.MkdirTemp("", "run"); err != nil {
		log.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", binaries, ".", "../load", "../null", "../../sidecar/cmd/sidecar")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("%v: %s", err, out)
	}
	code := m.Run()
	os.RemoveAll(binaries)
	os.Exit(code)
}

// serveProxy is a reverse proxy as anybody would write it; the kind "liar" changes a letter of every answer.
func serveProxy(kind, upstream, port string) error {
	u, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	u.Path = ""
	p := httputil.NewSingleHostReverseProxy(u)
	p.FlushInterval = -1
	if kind == "liar" {
		p.ModifyResponse = func(r *http.Response) error {
			body, err := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(bytes.Replace(body, []byte("bb"), []byte("bc"), 1)))
			return err
		}
	}
	return http.ListenAndServe("127.0.0.1:"+port, p)
}

// peerFlag names this test as a proxy of a kind.
func peerFlag(t *testing.T, kind string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s=%s %s {UPSTREAM} {PORT}", kind, self, kind)
}

// command is the bench with tiny durations, its results in dir/out.
func command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	program := func(name string) string { return filepath.Join(binaries, name) }
	cmd := exec.CommandContext(ctx, program("run"), append([]string{"-sidecar", program("sidecar"), "-load", program("load"),
		"-null", program("null"), "-out", filepath.Join(dir, "out"), "-logs", filepath.Join(dir, "logs"), "-short",
		"-rounds", "1", "-retries", "0", "-warm", "10ms"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// readRows are the lines of a results folder, by kind.
func readRows(t *testing.T, dir string) (rows []record.Row, env *record.Environment) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "out", "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); ; {
		var l record.Line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return rows, env
		} else if err != nil {
			t.Fatal(err)
		}
		switch l.Kind {
		case record.KindEnvironment:
			env = l.Environment
		case record.KindRow:
			rows = append(rows, *l.Row)
		}
	}
}

// needsNginx skips a test on a machine without nginx. Where CI is set it was installed, and the test fails.
func needsNginx(t *testing.T) {
	t.Helper()
	for _, program := range []string{"nginx", "/usr/sbin/nginx"} {
		if _, err := exec.LookPath(program); err == nil {
			return
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("there is no nginx here")
	}
	t.Skip("there is no nginx here")
}

func TestAnyProxyIsMeasuredInTheSamePlaces(t *testing.T) {
	needsNginx(t)
	dir := t.TempDir()
	out, err := command(t.Context(), dir, "-scenario", "latency", "-keep-noisy", "-peer", peerFlag(t, "plain")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows, env := readRows(t, dir)
	var subjects []string
	for _, r := range rows {
		subjects = append(subjects, r.Subject+" "+r.Case["era"])
		if r.Values["p50_us"] <= 0 || r.Load.Calls != 2000 || r.Discarded != "" {
			t.Errorf("row %+v, want 2000 calls and their p50", r)
		}
		if added, ok := r.Values["added_p50_us"]; !ok {
			t.Errorf("%s adds %v to p50, which was not measured", r.Subject, added)
		}
	}
	want := []string{"nginx stateless", "sidecar stateless", "plain stateless", "nginx legacy", "sidecar legacy", "plain legacy"}
	if !slices.Equal(subjects, want) {
		t.Errorf("measured %q, want %q", subjects, want)
	}
	if env == nil || env.Machine == "" || env.Kernel == "" || env.Builds["sidecar"] == "" || env.Versions["nginx"] == "" || !strings.Contains(env.Config["plain"], "{PORT}") {
		t.Errorf("environment %+v, want machine, kernel, builds, versions and the peer's command", env)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "out", "README.md")); err != nil || !bytes.Contains(page, []byte("plain")) {
		t.Errorf("the report (%v) does not name the peer", err)
	}
}

func TestAWrongAnswerFailsItsRowAndTheRun(t *testing.T) {
	needsNginx(t)
	dir := t.TempDir()
	out, err := command(t.Context(), dir, "-scenario", "latency", "-era", "stateless", "-keep-noisy", "-peer", peerFlag(t, "liar")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !bytes.Contains(out, []byte("1 of 3 rows had failures or wrong answers")) {
		t.Errorf("the run ended with %v and said %s, want status 1 and how many rows failed", err, out)
	}
	rows, _ := readRows(t, dir)
	for _, r := range rows {
		if lied := r.Subject == "liar"; lied != (r.Discarded != "") || lied && r.Load.Wrong == 0 {
			t.Errorf("%s: %d wrong answers, discarded %q", r.Subject, r.Load.Wrong, r.Discarded)
		}
	}
}

func TestATargetIsMeasuredAlone(t *testing.T) {
	null := exec.CommandContext(t.Context(), filepath.Join(binaries, "null"))
	pipe, err := null.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := null.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Process.Kill(); null.Wait() })
	var address string
	if _, err := fmt.Fscanf(pipe, "listening %s", &address); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	out, err := command(t.Context(), dir, "-scenario", "path,concurrency,streaming", "-duration", "50ms", "-keep-noisy", "-target", "http://"+address+"/mcp",
		"-pid", fmt.Sprint(null.Process.Pid)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows, _ := readRows(t, dir)
	cpu := 0.0
	for _, r := range rows {
		cpu += r.Values["cpu_us"]
		if r.Subject != "target" {
			t.Errorf("a row is of %s, want the target alone", r.Subject)
		}
	}
	if len(rows) == 0 || cpu <= 0 {
		t.Errorf("%d rows with %v us of CPU time in all, want some: %s", len(rows), cpu, out)
	}
}

// descendants are the processes that one started, and those that they did.
func descendants(pid int) (list []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for f := range strings.FieldsSeq(string(text)) {
			var child int
			fmt.Sscan(f, &child)
			list = append(append(list, child), descendants(child)...)
		}
	}
	return list
}

func TestAnInterruptedRunLeavesItsRowsAndNoProcess(t *testing.T) {
	needsNginx(t)
	dir := t.TempDir()
	cmd := command(t.Context(), dir, "-scenario", "path", "-duration", "200ms", "-keep-noisy", "-peer", peerFlag(t, "plain"))
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(progress)
	for lines.Scan() && !strings.Contains(lines.Text(), "plain") { // a row of the last subject: everything runs
	}
	started := descendants(cmd.Process.Pid)
	cmd.Process.Signal(os.Interrupt)
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailed {
		t.Errorf("the run ended with %v, want status 1; it said %q", err, rest)
	}
	if len(started) < 4 {
		t.Errorf("%d processes were started, want null, nginx with its worker, sidecar and peer at least", len(started))
	}
	for _, pid := range started {
		if syscall.Kill(pid, 0) == nil {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d still runs: %q", pid, bytes.ReplaceAll(command, []byte{0}, []byte{' '}))
		}
	}
	if rows, _ := readRows(t, dir); len(rows) < 4 {
		t.Errorf("%d rows are left, want those of the first case", len(rows))
	}
	if page, err := os.ReadFile(filepath.Join(dir, "out", "README.md")); err != nil || !bytes.Contains(page, []byte("This run is not valid: path: ")) {
		t.Errorf("the report (%v) of what was measured does not say that the run is not valid: %s", err, page)
	}
}

func TestGateVerdicts(t *testing.T) {
	verdict := func(ratio float64) report.Verdict {
		v := report.Verdict{Target: record.Target{Figure: "ratio_nginx", Where: map[string]string{"era": "stateless", "answer": "json"}, Most: 1.5, Gate: 2.2}}
		if ratio >= 0 {
			v.Measured = report.Spread{N: 1, Median: ratio}
		}
		return v
	}
	for _, tc := range []struct {
		ratios         []float64 // below 0: not measured
		failedRows     int
		passed, failed int
	}{
		{[]float64{2.2, 1}, 0, 2, 0},
		{[]float64{2.2, 2.21}, 0, 1, 1},
		{[]float64{0}, 0, 0, 1},
		{[]float64{-1, 1}, 0, 1, 1},
		{[]float64{1}, 3, 1, 1},
		{nil, 0, 0, 0},
	} {
		var verdicts []report.Verdict
		for _, r := range tc.ratios {
			verdicts = append(verdicts, verdict(r))
		}
		var out strings.Builder
		passed, failed := judge(&out, verdicts, tc.failedRows)
		if passed != tc.passed || failed != tc.failed || strings.Count(out.String(), ": fail\n") != failed {
			t.Errorf("ratios %v, %d failed rows: %d passed, %d failed, want %d and %d; it said %s", tc.ratios, tc.failedRows, passed, failed,
				tc.passed, tc.failed, &out)
		}
	}
}

func TestAGateIsJudgedByTheLowestOfItsTries(t *testing.T) {
	try := func(ratios ...float64) (list []report.Verdict) {
		for _, r := range ratios {
			list = append(list, report.Verdict{Measured: report.Spread{N: 1, Median: r}})
		}
		return list
	}
	for _, tc := range []struct{ a, b, want []report.Verdict }{
		{nil, try(1, 2), try(1, 2)},
		{try(1, 2), nil, try(1, 2)},
		{try(1.8, 1.4), try(1.5, 1.9), try(1.5, 1.4)},
		{try(0, 1.4), try(1.5, 0), try(1.5, 1.4)}, // 0: not measured
	} {
		text := fmt.Sprint(tc.a, tc.b)
		if got := lower(tc.a, tc.b); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("the lower of %s is %v, want %v", text, got, tc.want)
		}
	}
}

// gateWith runs the gate as briefly as can be.
func gateWith(t *testing.T, limit string) (last string, lines []string, err error) {
	t.Helper()
	cmd := command(t.Context(), t.TempDir(), "-gate", "-duration", "100ms")
	cmd.Env = append(os.Environ(), "GATE_JSON="+limit, "GATE_SSE="+limit)
	out, err := cmd.Output()
	lines = strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], lines, err
}

func TestTheGateAddsUpItsTriesAtTheEnd(t *testing.T) {
	needsNginx(t)
	last, lines, err := gateWith(t, "1000")
	if err != nil || last != "bench-gate: 4 passed, 0 failed" || len(lines)%5 != 0 { // on a busy machine with another try
		t.Errorf("a wide gate ended with %v and said %q, want four verdicts and their sum", err, lines)
	}
	last, lines, err = gateWith(t, "0.001")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || last != "bench-gate: 0 passed, 4 failed" || len(lines) != gateTries*5 {
		t.Errorf("a gate that cannot hold ended with %v and said %q, want status 1, %d tries and their sum", err, lines, gateTries)
	}
}

func TestTheGateHoldsFourRatios(t *testing.T) {
	t.Setenv("GATE_JSON", "3.5")
	t.Setenv("GATE_SSE", "")
	g, err := gatesFromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range scenario.All() {
		if s.Name != "path" {
			continue
		}
		for _, target := range g.describe(s.Scenario).Targets {
			got = append(got, fmt.Sprintf("%s %s %s %v", target.Where["era"], target.Where["answer"], target.Where["conns"], target.Gate))
		}
	}
	want := []string{"stateless json 64 3.5", "stateless sse 64 2.5", "legacy json 64 3.5", "legacy sse 64 2.5"}
	if !slices.Equal(got, want) {
		t.Errorf("gated are %q, want %q", got, want)
	}
	for _, bad := range []string{"x", "0", "-1"} {
		t.Setenv("GATE_SSE", bad)
		if _, err := gatesFromEnvironment(); err == nil {
			t.Errorf("GATE_SSE=%s is taken", bad)
		}
	}
}

func TestARunWithTooMuchNoiseIsInvalid(t *testing.T) {
	for _, tc := range []struct {
		tally   scenario.Tally
		keep    bool
		invalid bool
		failed  bool
	}{
		{scenario.Tally{Counted: 80, Noisy: 20}, false, false, false},
		{scenario.Tally{Counted: 79, Noisy: 21}, false, true, false},
		{scenario.Tally{Counted: 100, Noisy: 100}, true, false, false},
		{scenario.Tally{Counted: 100, Failed: 1}, true, false, true},
	} {
		err := verdict(tc.tally, tc.keep)
		if errors.Is(err, errInvalid) != tc.invalid || (err != nil) != (tc.invalid || tc.failed) {
			t.Errorf("verdict(%+v, keep %v) = %v", tc.tally, tc.keep, err)
		}
		o := outcome(tc.tally, tc.keep, nil).Outcome
		if says := strings.Contains(o.Problem, "of 10"); says != (err != nil) || o.Noisy != tc.tally.Noisy || o.Failed != tc.tally.Failed {
			t.Errorf("the outcome of %+v is %+v, want its counts, and a problem only when the verdict is one: %v", tc.tally, o, err)
		}
	}
	if got := status(fmt.Errorf("x: %w", errInvalid), io.Discard); got != exitInvalid {
		t.Errorf("an invalid run exits with %d, want %d", got, exitInvalid)
	}
}

func TestBadFlagsAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"-scenario nothing":               `"nothing" is none of path`,
		"-peer x":                         "NAME=COMMAND",
		"-peer x=y":                       "{PORT}",
		"-peer nginx=y{PORT}":             "own name",
		"-peer a={PORT} -peer a={PORT}":   "two peers",
		"-pid 1":                          "go with -target",
		"-era old":                        "neither stateless nor legacy",
		"-target http://x -pid x":         "not a process id",
		"-target http://x -scenario boot": "cannot be measured",
		"-target http://x -tool t -scenario streaming": "cannot be measured",
		"extra":     "unexpected argument",
		"-no-such":  "no-such",
		"report":    "usage",
		"compare a": "usage",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || status(err, io.Discard) != exitUsage {
			t.Errorf("run %s: %v, want a usage error with %q", args, err, want)
		}
	}
}

func TestATargetWithAToolIsMeasuredByWhatNeedsNoMore(t *testing.T) {
	o, err := parseOptions(strings.Fields("-target http://x/mcp -tool echo -expect hi"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := scenarioNames(o.scenarios), []string{"path", "latency"}; !slices.Equal(got, want) {
		t.Errorf("scenarios %q, want %q", got, want)
	}
	if got, want := o.target.Args, []string{"-tool", "echo", "-expect", "hi"}; !slices.Equal(got, want) {
		t.Errorf("the load generator is told %q, want %q", got, want)
	}
}

func TestResultsNeverOverwriteOthers(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "results")
	for _, want := range []string{"d", "d-2", "d-3"} {
		if got, err := freshFolder(parent, "d"); err != nil || filepath.Base(got) != want {
			t.Errorf("freshFolder = %s, %v, want %s", got, err, want)
		}
	}
}

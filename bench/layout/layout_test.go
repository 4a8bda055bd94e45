package layout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// programs are the bench's own, built once for all tests.
var programs Programs

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "spin" {
		fmt.Println(os.Getpid())
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		}
		return
	}
	dir, err := os.MkdirTemp("", "layout")
	if err != nil {
		log.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", dir, "../load", "../null")
	if out, err := build.CombinedOutput(); err != nil {
		log.Fatalf("%v: %s", err, out)
	}
	programs = Programs{Load: filepath.Join(dir, "load"), Null: filepath.Join(dir, "null")}
	code := m.Run()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			log.Print(err)
			code = 1
		}
	}
	os.Exit(code)
}

// newLayout is a layout that is closed at the test's end.
func newLayout(t *testing.T) *Layout {
	t.Helper()
	l, err := New(t.TempDir(), programs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return l
}

// needs skips a test on a machine without a program. Where CI is set everything was installed, and it fails.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestProxiesHaveTheLastCoreToThemselves(t *testing.T) {
	for _, tc := range []struct {
		cores int
		want  Pins
	}{
		{1, Pins{}}, {2, Pins{Proxy: "1", Rest: "0"}}, {3, Pins{Proxy: "2", Rest: "0-1"}}, {64, Pins{Proxy: "63", Rest: "0-62"}},
	} {
		if got := pinsFor(tc.cores); got != tc.want {
			t.Errorf("pins for %d cores = %+v, want %+v", tc.cores, got, tc.want)
		}
	}
}

func TestPinnedIsTheCommandItselfWithoutCores(t *testing.T) {
	for _, tc := range []struct {
		cores, want string
	}{{"", "nginx -v"}, {"0-2", "taskset -c 0-2 nginx -v"}} {
		if got := strings.Join(pinned(tc.cores, []string{"nginx", "-v"}), " "); got != tc.want {
			t.Errorf("pinned(%q) = %q, want %q", tc.cores, got, tc.want)
		}
	}
}

func TestARunningProcessStaysOnItsCores(t *testing.T) {
	l := newLayout(t)
	if l.pins == (Pins{}) {
		t.Skip("nothing is pinned here")
	}
	p, err := l.launch(spec{name: "sleeper", cores: l.pins.Proxy, command: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for end := time.Now().Add(5 * time.Second); got != l.pins.Proxy && time.Now().Before(end); { // taskset has yet to set it
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:\t")
		got, _, _ = strings.Cut(rest, "\n")
	}
	if got != l.pins.Proxy {
		t.Errorf("the process may run on cores %s, want %s", got, l.pins.Proxy)
	}
}

func TestNoiseIsWhatOthersAndTheHypervisorTake(t *testing.T) {
	for _, tc := range []struct {
		host  record.Host
		noisy string // part of the reason; empty: quiet
	}{
		{record.Host{}, ""},
		{record.Host{Others: 0.05, Steal: 0.05, Load1: 99}, ""},
		{record.Host{Others: 0.051}, "other processes used 5.1 %"},
		{record.Host{Steal: 0.2}, "the hypervisor took 20.0 %"},
	} {
		got := Noise(tc.host, 0.05)
		if (got == "") != (tc.noisy == "") || !strings.Contains(got, tc.noisy) {
			t.Errorf("Noise(%+v) = %q, want %q", tc.host, got, tc.noisy)
		}
	}
}

func TestAWindowBeginsBetweenSamples(t *testing.T) {
	p := &Process{Name: "proxy"}
	began := time.Unix(1000, 0)
	when := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	make := func(s, cpu float64) sample {
		return sample{at: when(s), busy: 2 * cpu, ours: cpu, steal: s, process: map[*Process]record.Usage{p: {
			Process: "proxy", UserSeconds: cpu, SystemSeconds: 2 * cpu, VoluntarySwitches: int64(100 * cpu), RSSMiB: cpu}}}
	}
	samples := []sample{make(0, 0), make(1, 10), make(2, 30)}
	for _, tc := range []struct {
		load record.Load
		cpu  float64 // in the window
	}{
		{record.Load{}, 30},
		{record.Load{Seconds: 3}, 30}, // longer than all samples
		{record.Load{Seconds: 1.5}, 25},
		{record.Load{Seconds: 1}, 20},
		{record.Load{Seconds: 0.75}, 15},
		{record.Load{Began: when(0.5), Seconds: 1}, 15},
		{record.Load{Began: when(0.5), Seconds: 9}, 25}, // beyond the last sample
		{record.Load{Began: when(-1), Seconds: 2}, 10},
	} {
		from, to := window(samples, tc.load)
		got := between(from, to)
		want := record.Usage{Process: "proxy", UserSeconds: tc.cpu, SystemSeconds: 2 * tc.cpu, VoluntarySwitches: int64(100 * tc.cpu), RSSMiB: 30}
		if len(got) == 1 {
			got[0].RSSMiB = 30 // it is not what this is about
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("a load of %v s from %v on: used %+v, want %+v", tc.load.Seconds, tc.load.Began, got, want)
		}
	}
	h := host(samples[1], samples[2], 2)
	if h.Others != 10 || h.Steal != 0.5 { // 20 seconds, and 1 second, of 2 cores for a second
		t.Errorf("others %v, steal %v, want 10 and 0.5", h.Others, h.Steal)
	}
}

func TestLoadsThatHaveEndedAreOneOfTheirName(t *testing.T) {
	proxy, one, two, early := &Process{Name: "proxy"}, &Process{Name: "load"}, &Process{Name: "load"}, &Process{Name: "load"}
	use := func(cpu, rss float64) record.Usage { return record.Usage{UserSeconds: cpu, RSSMiB: rss} }
	s := &sampler{samples: []sample{{process: map[*Process]record.Usage{proxy: use(1, 9), early: use(50, 50)}, ended: map[*Process]record.Usage{}}}}
	s.append(sample{process: map[*Process]record.Usage{proxy: use(2, 9)}}) // the window begins here
	s.append(sample{process: map[*Process]record.Usage{proxy: use(3, 9), one: use(4, 7)}})
	s.append(sample{process: map[*Process]record.Usage{proxy: use(4, 9), two: use(5, 6)}})
	s.append(sample{process: map[*Process]record.Usage{proxy: use(6, 8)}})
	got := between(s.samples[1], s.samples[4])
	want := []record.Usage{{Process: "load", UserSeconds: 9, RSSMiB: 7}, {UserSeconds: 4, RSSMiB: 8}}
	slices.SortFunc(got, func(a, b record.Usage) int { return strings.Compare(b.Process, a.Process) })
	if !slices.Equal(got, want) {
		t.Errorf("used %+v, want the loads as one and the proxy: %+v", got, want)
	}
}

// spin is a command that uses all of a core: this test itself.
func spin(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "spin"}
}

// awaitCPU waits until a process has used so many seconds of CPU time, for a while, and returns what it used.
func awaitCPU(t *testing.T, p *Process, seconds float64) (u record.Usage) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); u.UserSeconds < seconds && time.Now().Before(end); time.Sleep(sampleEvery) {
		var err error
		if u, err = p.Usage(); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

func TestUsageCountsAProcessAndItsChildren(t *testing.T) {
	l := newLayout(t)
	line := strings.Join(spin(t), " ")
	p, err := l.launch(spec{name: "parent", command: []string{"bash", "-c", line + " & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	got := awaitCPU(t, p, 0.2)
	if got.UserSeconds < 0.2 || got.Threads < 3 || got.RSSMiB < 1 || got.PeakRSSMiB < got.RSSMiB-1 || got.InvoluntarySwitches+got.VoluntarySwitches == 0 {
		t.Errorf("a shell with a child that spins used %+v, want CPU time, the child's threads, memory and switches", got)
	}
}

func TestCPUOfAnEndedChildStaysItsParents(t *testing.T) {
	before, err := cpuSeconds(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	used := (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	after, err := cpuSeconds(os.Getpid())
	if err != nil || after-before < used-0.03 { // two roundings to a tick
		t.Errorf("CPU seconds went from %.2f to %.2f (%v), want %.2f more for a child that ended", before, after, err, used)
	}
}

// measureFor measures a load that does nothing but wait.
func measureFor(t *testing.T, l *Layout, d time.Duration) record.Row {
	t.Helper()
	row, err := l.Measure(t.Context(), record.Row{}, func(context.Context) (record.Load, error) {
		time.Sleep(d)
		return record.Load{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func TestOursAreNotNoiseAndStrangersAre(t *testing.T) {
	l := newLayout(t)
	ours, err := l.launch(spec{name: "ours", command: spin(t)})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	row, err := l.Measure(t.Context(), record.Row{}, func(context.Context) (record.Load, error) { awaitCPU(t, ours, 0.5); return record.Load{}, nil })
	if err != nil {
		t.Fatal(err)
	}
	used := row.Usage[0].UserSeconds / time.Since(began).Seconds() / float64(runtime.NumCPU())
	if row.Usage[0].Process != "ours" || used == 0 || row.Host.Others > 1.05-used {
		t.Errorf("ours used %.2f of the machine and others %.2f, which is more than all of it", used, row.Host.Others)
	}
	ours.Stop()
	strangerForTest(t)
	if row = measureFor(t, l, time.Second); row.Host.Others < 0.05 || row.Discarded == "" || len(row.Usage) != 0 {
		t.Errorf("with a stranger that spins the row is %+v, want it discarded", row)
	}
}

// strangerForTest runs a process that is no child of this one, until the test's end.
func strangerForTest(t *testing.T) {
	t.Helper()
	cmd := exec.Command("setsid", append([]string{"--fork"}, spin(t)...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(pid, syscall.SIGKILL)
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
}

func TestWithATargetOnThisMachineOthersAreNotJudged(t *testing.T) {
	l := newLayout(t)
	if _, err := l.Running("target", "http://127.0.0.1:1/mcp", 0); err != nil {
		t.Fatal(err)
	}
	strangerForTest(t)
	if row := measureFor(t, l, 500*time.Millisecond); strings.Contains(row.Discarded, "other processes") {
		t.Errorf("the row is discarded: %s", row.Discarded)
	}
}

func TestAWrongAnswerFailsTheRow(t *testing.T) {
	l := newLayout(t)
	for _, found := range []record.Load{{Calls: 9, Wrong: 1, FirstFailure: "why"}, {Calls: 9, Failures: 1, FirstFailure: "why"}} {
		row, err := l.Measure(t.Context(), record.Row{}, func(context.Context) (record.Load, error) { return found, nil })
		if err != nil || !strings.Contains(row.Discarded, "why") {
			t.Errorf("with %+v the row is discarded because %q (%v), want the first failure", found, row.Discarded, err)
		}
	}
}

func TestTheLoadIsCheckedAndMeasured(t *testing.T) {
	l := newLayout(t)
	up, err := l.Null(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	row, err := l.Measure(t.Context(), record.Row{Subject: "direct"}, func(ctx context.Context) (record.Load, error) {
		return l.Load(ctx, "-conns", "2", "-warm", "50ms", "-duration", "300ms", up.URL)
	})
	if err != nil {
		t.Fatal(err)
	}
	if row.Load.Calls == 0 || row.Load.Wrong+row.Load.Failures > 0 || len(row.Usage) != 2 || row.Usage[0].Process != "load" || row.Usage[1].Process != "upstream" {
		t.Errorf("a load on the null server gave %+v with usage %+v, want right calls and the usage of load and upstream", row.Load, row.Usage)
	}
	if used := row.Usage[0].UserSeconds + row.Usage[0].SystemSeconds; math.Abs(used-row.Load.CPUSeconds) > 0.06 { // some ticks
		t.Errorf("the load used %.3f s in the window, and says %.3f s itself", used, row.Load.CPUSeconds)
	}
}

func TestALoadThatCannotRunSaysWhy(t *testing.T) {
	l := newLayout(t)
	if found, err := l.Load(t.Context(), "-no-such-flag"); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("Load with a bad flag = %+v, %v, want an error that names it", found, err)
	}
	found, err := l.Load(t.Context(), "-duration", "1h", "http://127.0.0.1:1/mcp")
	if err != nil || found.Failures != 1 || !strings.Contains(found.FirstFailure, "127.0.0.1:1") {
		t.Errorf("Load at a closed port = %+v, %v, want a failure that names it", found, err)
	}
	up, err := l.Null(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	row, err := l.Measure(ctx, record.Row{}, func(ctx context.Context) (record.Load, error) { return l.Load(ctx, "-duration", "1h", up.URL) })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a measurement that was interrupted = %+v, %v, want that as its error", row.Load, err)
	}
}

func TestHeldSessionsStayOpenUntilStopped(t *testing.T) {
	l := newLayout(t)
	up, err := l.Null(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.Hold(t.Context(), "-era", "legacy", "-op", "session", "-conns", "3", "-duration", "1m", up.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Process().Usage(); err != nil || h.Holding != 3 {
		t.Errorf("it holds %d sessions and its usage is known but for %v, want 3", h.Holding, err)
	}
	if found, err := h.Stop(); err != nil || found.Failures > 0 {
		t.Errorf("Stop = %+v, %v", found, err)
	}
}

func TestStopEndsWhatAProcessHasStarted(t *testing.T) {
	l := newLayout(t)
	file := filepath.Join(t.TempDir(), "pid")
	p, err := l.start(t.Context(), spec{name: "parent",
		command: []string{"bash", "-c", "trap '' TERM; sleep 300 & trap 'exit 0' TERM; echo $! >" + file + ".new; mv " + file + ".new " + file + "; wait"},
		ready:   func(context.Context) error { _, err := os.Stat(file); return err }})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	fmt.Sscan(string(text), &child)
	if err := p.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if !gone(child) {
		t.Errorf("process %d, that the stopped one had started and that ignores SIGTERM, still runs", child)
	}
}

// gone waits until a process has ended, for a while. A zombie has.
func gone(pid int) bool {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return true
		}
	}
	return false
}

func TestAProcessThatDoesNotBecomeReadyIsNamedWithItsLog(t *testing.T) {
	l := newLayout(t)
	_, err := l.Peer(t.Context(), "broken", "sh -c 'echo no such upstream; exit 3' # {PORT}", "http://127.0.0.1:1/mcp")
	if err == nil || !strings.Contains(err.Error(), "broken is not ready: it ended: exit status 3") || !strings.Contains(err.Error(), "broken.log") {
		t.Errorf("error %v, want one that says how it ended and where its log is", err)
	}
}

func TestNginxPassesCallsOn(t *testing.T) {
	l := newLayout(t)
	needs(t, l.programs.Nginx)
	up, err := l.Null(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Nginx(t.Context(), up)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{p.URL}, {"-era", "legacy", p.URL}, {"-streamed", "1", "-events", "3", "http://" + p.Address + StreamPath}} {
		found, err := l.Load(t.Context(), append([]string{"-conns", "2", "-calls", "20"}, args...)...)
		if err != nil || found.Calls < 20 || found.Failures+found.Wrong > 0 {
			t.Errorf("load %q through nginx = %+v, %v, want right answers", args, found, err)
		}
	}
}

func TestALongLogIsEmptiedBeforeAMeasurement(t *testing.T) {
	l := newLayout(t)
	p, err := l.launch(spec{name: "talker", command: []string{"sh", "-c", "read line; echo still here"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p.Log, maxLog+1); err != nil {
		t.Fatal(err)
	}
	p.trim()
	if info, err := os.Stat(p.Log); err != nil || info.Size() > 100 {
		t.Errorf("after trim the log has %v bytes (%v), want next to none", info.Size(), err)
	}
}

func TestAClosedLayoutStartsNothing(t *testing.T) {
	l := newLayout(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Null(t.Context()); err == nil {
		t.Error("a closed layout started a process")
	}
}

func TestRedisServes(t *testing.T) {
	l := newLayout(t)
	needs(t, l.programs.Redis)
	p, err := l.Redis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", p.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer := make([]byte, 7)
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "+PONG\r\n" {
		t.Errorf("PING is answered with %q, %v", answer, err)
	}
}

func TestTheEnvironmentNamesMachineAndPrograms(t *testing.T) {
	e := Environment(t.Context(), "run -short", programs)
	if e.Machine == "" || e.Cores < 1 || e.MemoryMiB < 1 || e.Kernel == "" || e.Go != runtime.Version() || e.Command != "run -short" {
		t.Errorf("environment %+v lacks something of the machine", e)
	}
	if len(e.Builds["load"]) != 64 || len(e.Builds["upstream"]) != 64 || e.Builds["sidecar"] != "" {
		t.Errorf("builds %v, want those of load and upstream, the programs that are there", e.Builds)
	}
	if !strings.Contains(e.Config["nginx"], "worker_processes 1") || !strings.Contains(e.Config["sidecar"], "{UPSTREAM}") {
		t.Errorf("configurations %q", e.Config)
	}
}

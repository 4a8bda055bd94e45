package scenario

import (
	"bytes"
	"math"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

func TestASymbolsPackage(t *testing.T) {
	for symbol, want := range map[string]string{
		"github.com/outrigger-mesh/outrigger/sidecar/mcp.(*EventReader).Next":              "sidecar/mcp",
		"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable.(*pool).get":      "sidecar/upstream/streamable",
		"github.com/outrigger-mesh/outrigger/sidecar/http1.(*conn).serve.func1":            "sidecar/http1",
		"slices.Clone[go.shape.[]uint8,github.com/outrigger-mesh/outrigger/sidecar/mcp.T]": "slices",
		"github.com/prometheus/client_golang/prometheus.(*histogram).Observe":              "github.com/prometheus/client_golang/prometheus",
		"gopkg.in/yaml%2ev3.Unmarshal":                                                     "gopkg.in/yaml.v3",
		"vendor/golang.org/x/net/http/httpguts.Token":                                      "golang.org/x/net/http/httpguts",
		"internal/runtime/syscall.Syscall6":                                                "internal/runtime/syscall",
		"runtime.mallocgc":                                                                 "runtime",
		"main.run":                                                                         "main",
		"[kernel.kallsyms]":                                                                noPackage,
		"aeshashbody":                                                                      noPackage,
		"":                                                                                 noPackage,
	} {
		if got := packageOf(symbol); got != want {
			t.Errorf("packageOf(%q) = %q, want %q", symbol, got, want)
		}
	}
}

func TestAPackagesKind(t *testing.T) {
	for name, want := range map[string]string{
		"sidecar/http1": kindPath, "sidecar/upstream": kindPath, "sidecar/upstream/streamable": kindPath,
		"sidecar/telemetry": kindOurs, "sidecar/http1x": kindOurs, "main": kindOurs, "proto/resource": kindOurs,
		"runtime": kindRuntime, "internal/runtime/syscall": kindRuntime, "syscall": kindRuntime, noPackage: kindRuntime,
		"runtime/pprof": kindRuntime, "internal/poll": kindStandard, "net/http": kindStandard, "sync": kindStandard,
		"github.com/prometheus/client_golang/prometheus": kindLibraries, "golang.org/x/sync/errgroup": kindLibraries,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", name, got, want)
		}
	}
}

// made is a CPU profile with one sample for each stack; a stack's functions are innermost first.
func made(stacks map[string]int64) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for stack, ns := range stacks {
		s := &profile.Sample{Value: []int64{1, ns}}
		for _, name := range strings.Fields(stack) {
			s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func TestSharesAreOfTheFunctionThatRan(t *testing.T) {
	list, err := shares(made(map[string]int64{
		"runtime.mallocgc " + module + "sidecar/proxy.serve main.main":        50,
		module + "sidecar/proxy.serve main.main":                              20,
		module + "sidecar/proxy.relay main.main":                              10,
		module + "sidecar/telemetry.appendLine " + module + "sidecar/proxy.x": 15,
		module + "sidecar/admin.f":                                            5,
	}))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	sum := 0.0
	for _, s := range list {
		got[s.Package] = s.Percent
		sum += s.Percent
	}
	for name, want := range map[string]float64{"runtime": 50, "sidecar/proxy": 30, "sidecar/telemetry": 15, "sidecar/admin": 5} {
		if got[name] != want {
			t.Errorf("%s has %v %%, want %v", name, got[name], want)
		}
	}
	if math.Abs(sum-100) > 1e-9 || list[0].Package != "runtime" {
		t.Errorf("the sum is %v %% and the first %s; want 100 and runtime", sum, list[0].Package)
	}
	if got := largestOutside(list); got.Package != "sidecar/telemetry" || got.Percent != 15 {
		t.Errorf("largest outside the path: %+v, want sidecar/telemetry's 15 %%", got)
	}
}

func TestAProfileWithoutCPUTimeIsAnError(t *testing.T) {
	for name, p := range map[string]*profile.Profile{
		"of the heap": {SampleType: []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}},
		"empty":       made(nil),
	} {
		if list, err := shares(p); err == nil {
			t.Errorf("%s: got %v, want an error", name, list)
		}
	}
}

func TestSharesOfARealProfile(t *testing.T) {
	var out bytes.Buffer
	spun := uint64(0)
	if err := pprof.StartCPUProfile(&out); err != nil {
		t.Fatal(err)
	}
	for end, enough := time.Now().Add(time.Minute), cpuTime(t)+500*time.Millisecond; cpuTime(t) < enough && time.Now().Before(end); {
		spun += spin()
	}
	pprof.StopCPUProfile()
	runtime.KeepAlive(spun)
	p, err := profile.Parse(&out)
	if err != nil {
		t.Fatal(err)
	}
	list, err := shares(p)
	if err != nil {
		t.Fatal(err)
	}
	if list[0].Package != "bench/scenario" || list[0].Kind != kindOurs {
		t.Errorf("most time was spent in %+v, want this package; all: %+v", list[0], list)
	}
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spin uses CPU time in no other function, nor in the race detector's: it writes no shared memory in its loop.
func spin() uint64 {
	x := uint64(1)
	for i := range uint64(1 << 22) {
		x = x*6364136223846793005 + i
	}
	return x
}

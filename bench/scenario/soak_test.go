package scenario

import (
	"math"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestASoaksFiguresAreOfItsFirstAndLastScrapes(t *testing.T) {
	s := &soak{subject: &Subject{Name: "sidecar"}, load: 60e9, shares: []share{{"sidecar/telemetry", kindOurs, 9}},
		scrapes: []metrics{
			{"process_resident_memory_bytes": 10 << 20, "go_gc_duration_seconds_count": 5, "go_goroutines": 20},
			{"process_resident_memory_bytes": 50 << 20, "go_gc_duration_seconds_count": 6, "go_goroutines": 40},
			{"process_resident_memory_bytes": 30 << 20, "go_gc_duration_seconds_count": 13, "go_goroutines": 21},
		}}
	row := record.Row{Load: &record.Load{Calls: 1000, CallsPerS: 100},
		Usage: []record.Usage{{Process: "sidecar", UserSeconds: 0.02, SystemSeconds: 0.03, RSSMiB: 1}}}
	got := s.figures(row, metrics{"go_goroutines": 10, "go_memstats_heap_alloc_bytes": 1 << 20},
		metrics{"go_goroutines": 11, "go_memstats_heap_alloc_bytes": 3 << 20})
	for name, want := range map[string]float64{
		"calls_s": 100, "cpu_us": 50, "gc_s": 2, "rss_begin_mib": 10, "rss_end_mib": 30, "goroutines": 40,
		"goroutines_left": 1, "live_left_mib": 2, "outside_share": 9, "minutes": 1,
	} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}

func TestPackagesOfASoakAddUpToTheProcess(t *testing.T) {
	s := &soak{shares: []share{
		{"runtime", kindRuntime, 60}, {"sidecar/mcp", kindPath, 20}, {"sidecar/telemetry", kindOurs, 0.5}, {"sidecar/admin", kindOurs, 0.05},
		{"net/http", kindStandard, 18.5}, {"bytes", kindStandard, 0.95},
	}}
	kinds, packages := 0.0, 0.0
	named := map[string]float64{}
	for _, r := range s.packages(record.Row{Scenario: "soak", Subject: "sidecar", Discarded: "why"}) {
		if r.Discarded != "why" {
			t.Errorf("%v counts, though the soak does not", r.Case)
		}
		if name := r.Case["package"]; name == wholeKind {
			kinds += r.Values["cpu_share"]
		} else {
			packages += r.Values["cpu_share"]
			named[name+", "+r.Case["kind"]] = r.Values["cpu_share"]
		}
	}
	if math.Abs(kinds-100) > 1e-9 || math.Abs(packages-100) > 1e-9 {
		t.Errorf("kinds add up to %v %% and packages to %v, want 100 each", kinds, packages)
	}
	for name, want := range map[string]float64{"sidecar/telemetry, " + kindOurs: 0.5, "(others), " + kindOurs: 0.05, "(others), " + kindStandard: 0.95} {
		if named[name] != want {
			t.Errorf("%s has %v %%, want %v", name, named[name], want)
		}
	}
}

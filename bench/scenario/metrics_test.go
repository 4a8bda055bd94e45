package scenario

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outrigger-mesh/outrigger/bench/layout"
)

func TestMetricsOfOneNameAreAddedUp(t *testing.T) {
	m, err := parseMetrics(strings.NewReader(`# TYPE outrigger_open_streams gauge
outrigger_open_streams{binding="a",era="legacy"} 2
outrigger_open_streams{binding="a",era="stateless"} 3
# TYPE calls histogram
calls_bucket{m="a",le="1"} 1
calls_bucket{m="a",le="+Inf"} 4
calls_sum{m="a"} 2.5
calls_count{m="a"} 4
calls_bucket{m="b",le="+Inf"} 1
calls_sum{m="b"} 0.5
calls_count{m="b"} 1
# TYPE go_gc_duration_seconds summary
go_gc_duration_seconds{quantile="0"} 0.1
go_gc_duration_seconds_sum 0.7
go_gc_duration_seconds_count 7
# TYPE go_memstats_heap_alloc_bytes gauge
go_memstats_heap_alloc_bytes 1e+06
untyped 9
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{
		"outrigger_open_streams": 5, "calls_count": 5, "calls_sum": 3, "go_gc_duration_seconds_count": 7,
		"go_gc_duration_seconds_sum": 0.7, "go_memstats_heap_alloc_bytes": 1e6, "untyped": 9, "absent": 0,
	} {
		if m[name] != want {
			t.Errorf("%s = %v, want %v", name, m[name], want)
		}
	}
}

func TestWhatIsNotMetricsIsAnError(t *testing.T) {
	if m, err := parseMetrics(strings.NewReader("<html>")); err == nil {
		t.Errorf("got %v, want an error", m)
	}
}

// admin is a process with an admin port such as a sidecar's, which is this very process.
func admin(t *testing.T) *layout.Process {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return &layout.Process{Name: "test", Admin: strings.TrimPrefix(srv.URL, "http://")}
}

func TestAnAdminPortIsAsked(t *testing.T) {
	p := admin(t)
	before, err := readMetrics(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if before.liveBytes() <= 0 || before["go_goroutines"] < 1 {
		t.Errorf("%v live bytes and %v goroutines, want some", before.liveBytes(), before["go_goroutines"])
	}
	if err := collect(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	after, err := readMetrics(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if n := after["go_gc_duration_seconds_count"] - before["go_gc_duration_seconds_count"]; n < 2 {
		t.Errorf("%v collections, want 2 at least", n)
	}
}

func TestAskingInVainSaysWhy(t *testing.T) {
	p := admin(t)
	if err := askAdmin(t.Context(), p, "/nowhere", adminTimeout, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a page that is not there: %v, want its status", err)
	}
	if _, err := readMetrics(t.Context(), &layout.Process{Name: "nginx"}); !errors.Is(err, errNoAdmin) {
		t.Errorf("no admin port: %v, want %v", err, errNoAdmin)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := collect(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ended: %v, want its error", err)
	}
}

package scenario

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestMemoryHasSettledWhenItKeptStillForASecond(t *testing.T) {
	still := slices.Repeat([]float64{100}, 11)
	for name, tt := range map[string]struct {
		seen []float64
		want bool
	}{
		"too short":             {still[1:], false},
		"still":                 {still, true},
		"within half a percent": {append(slices.Clone(still[1:]), 100.4), true},
		"moving":                {append(slices.Clone(still[1:]), 101), false},
		"moved before":          {append([]float64{50, 200}, still...), true},
	} {
		if got := settled(tt.seen, time.Second); got != tt.want {
			t.Errorf("%s: settled(%v, 1s) = %v, want %v", name, tt.seen, got, tt.want)
		}
	}
}

func TestSettlingEndsWithItsTimeOrItsContext(t *testing.T) {
	l, err := layout.New(t.TempDir(), layout.Programs{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := l.Running("self", "http://127.0.0.1:1/mcp", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if mib, err := settle(t.Context(), self, 0); err != nil || mib <= 0 {
		t.Errorf("with no time: %v MiB, %v; want this process's, at once", mib, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := settle(ctx, self, time.Hour); err != context.Canceled {
		t.Errorf("a context that ended: %v, want its error", err)
	}
}

func TestDrainingWaitsForSessionsAndStreams(t *testing.T) {
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := max(0, 2-asked.Add(1))
		fmt.Fprintf(w, "outrigger_sessions{binding=\"a\"} %d\noutrigger_open_streams{binding=\"a\"} %d\n", n, n)
	}))
	defer srv.Close()
	p := &layout.Process{Name: "sidecar", Admin: strings.TrimPrefix(srv.URL, "http://")}
	left, err := drained(t.Context(), p)
	if err != nil || left != 0 || asked.Load() != 2 {
		t.Errorf("%v left after %d questions, %v; want none after the second", left, asked.Load(), err)
	}
}

func TestNoMoreIsOpenedThanFilesAllow(t *testing.T) {
	if n := openable(3, 2); n != 3 {
		t.Errorf("openable(3, 2) = %d, want 3", n)
	}
	if n := openable(1<<30, 1<<20); n >= 1<<30 || n < 1 {
		t.Errorf("openable(2^30, 2^20) = %d, want what the limit on files allows", n)
	}
}

func TestHeldCountsAreDistinctAndWithinTheMost(t *testing.T) {
	for most, want := range map[string]string{"10000": "1,1000,10000", "9900": "1,1000,9900", "1000": "1,1000", "412": "1,412"} {
		if got := heldCounts(most); got != want {
			t.Errorf("heldCounts(%s) = %s, want %s", most, got, want)
		}
	}
}

func TestLoadsOfTheSameTimeAreAddedUp(t *testing.T) {
	got := sum([]record.Load{
		{Calls: 1, Failures: 2, Wrong: 3, Connections: 8, Events: 4, CallsPerS: 10, CPUSeconds: 1, Seconds: 5},
		{Calls: 10, Failures: 20, Wrong: 30, Connections: 8, Events: 40, CallsPerS: 100, CPUSeconds: 2, Seconds: 4, FirstFailure: "x"},
	})
	want := record.Load{Calls: 11, Failures: 22, Wrong: 33, Connections: 16, Events: 44, CallsPerS: 110, CPUSeconds: 3, Seconds: 5, FirstFailure: "x"}
	if got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if text := wrongs(&got); !strings.Contains(text, "33 wrong") || !strings.Contains(text, "22 failures") {
		t.Errorf("wrongs: %q, want both numbers", text)
	}
	if text := wrongs(&record.Load{Calls: 1}); text != "" {
		t.Errorf("wrongs of a clean load: %q, want none", text)
	}
}

package telemetry

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestObserveDoesNotAllocate(t *testing.T) {
	b := NewMetrics(prometheus.NewRegistry(), "test").Binding("demo")
	if n := testing.AllocsPerRun(100, func() { b.Observe(mcp.Stateless, "tools/call", OK, time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations for a call, want 0", n)
	}
}

func TestStrangersCannotMakeSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := NewMetrics(reg, "test").Binding("demo")
	for _, method := range []string{"acme/a", "acme/b", "tools/call\n", "TOOLS/CALL", ""} {
		b.Observe(mcp.Legacy, method, RPCError, time.Second)
	}
	if n, err := testutil.GatherAndCount(reg, "outrigger_call_duration_seconds"); n != 1 || err != nil {
		t.Errorf("%d series, %v; want 1: method=other", n, err)
	}
}

func TestACallOfNoWireIsCountedAsThat(t *testing.T) {
	reg := prometheus.NewRegistry()
	b := NewMetrics(reg, "test").Binding("demo")
	for _, era := range []mcp.Era{0, mcp.Legacy, mcp.Stateless} {
		b.Observe(era, "tools/call", Refused, time.Second)
	}
	if n, err := testutil.GatherAndCount(reg, "outrigger_call_duration_seconds"); n != 3 || err != nil {
		t.Errorf("%d series, %v; want one for each of none, legacy and stateless", n, err)
	}
}

func TestABudgetShowsWhatItHasAndWhatItRefused(t *testing.T) {
	answers := budget.New(10_000)
	answers.Take(7_000)
	answers.Take(5_000) // no room
	reg := prometheus.NewRegistry()
	reg.MustRegister(Budgets{"answers": answers})
	const want = `# HELP outrigger_budget_bytes Memory taken of a budget of the process, by what it bounds.
# TYPE outrigger_budget_bytes gauge
outrigger_budget_bytes{budget="answers"} 7000
# HELP outrigger_budget_limit_bytes How much a budget of the process has, by what it bounds.
# TYPE outrigger_budget_limit_bytes gauge
outrigger_budget_limit_bytes{budget="answers"} 10000
# HELP outrigger_budget_refused_total How often a budget of the process had no room, by what it bounds.
# TYPE outrigger_budget_refused_total counter
outrigger_budget_refused_total{budget="answers"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestABindingThatIsGoneLeavesNoSeries(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, "test")
	b := m.Binding("demo")
	b.Observe(mcp.Legacy, "ping", OK, time.Second)
	b.Refusal("body_too_large")
	m.Forget("demo")
	for _, name := range []string{"outrigger_call_duration_seconds", "outrigger_refusals_total", "outrigger_open_streams", "outrigger_sessions"} {
		if n, err := testutil.GatherAndCount(reg, name); n != 0 || err != nil {
			t.Errorf("%s: %d series, %v; want 0", name, n, err)
		}
	}
}

var line = Line{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Binding: "demo", Upstream: "files", Era: "stateless", Method: "tools/call",
	Name: []byte("a\"\\\x01é"), ID: []byte(`"7"`), Remote: "127.0.0.1:5", Status: 200, Outcome: OK, Took: 1500 * time.Microsecond,
	BytesIn: 350, BytesOut: 250,
}

func TestAnAccessLineIsJSON(t *testing.T) {
	var got map[string]any
	raw := new(clock).appendLine(nil, &line)
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	for key, want := range map[string]any{
		"time": "2026-01-02T03:04:05.000006Z", "name": "a\"\\\x01é", "id": "7", "duration_us": 1500.0, "outcome": "ok", "bytes_in": 350.0,
	} {
		if got[key] != want {
			t.Errorf("%s: got %v, want %v", key, got[key], want)
		}
	}
	if _, there := got["reason"]; there {
		t.Error("an empty reason is written")
	}
}

func TestALongNameIsCutBetweenCharacters(t *testing.T) {
	for pad := range 4 {
		l := line
		l.Name = []byte(strings.Repeat("x", pad) + strings.Repeat("語", 200))
		var got map[string]any
		if raw := new(clock).appendLine(nil, &l); json.Unmarshal(raw, &got) != nil || strings.ContainsRune(string(raw), '�') {
			t.Errorf("pad %d: not clean JSON: %s", pad, raw)
		}
	}
}

func TestAccessLineDoesNotAllocate(t *testing.T) {
	buf, c := make([]byte, 0, 4096), new(clock)
	if n := testing.AllocsPerRun(100, func() { buf = c.appendLine(buf[:0], &line) }); n != 0 {
		t.Errorf("%v allocations for a line, want 0", n)
	}
}

func TestTimesAreWrittenAsPackageTimeWritesThem(t *testing.T) {
	c := new(clock)
	at := time.Date(2026, 12, 31, 23, 59, 59, 999_998_999, time.FixedZone("", 3600))
	for _, step := range []time.Duration{0, time.Microsecond, time.Microsecond, 0, -time.Second, time.Hour, time.Nanosecond, 1e12} {
		at = at.Add(step)
		if got, want := string(c.append(nil, at)), at.UTC().Format("2006-01-02T15:04:05.000000Z"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := string(new(clock).append(nil, time.Unix(0, 0))); got != "1970-01-01T00:00:00.000000Z" {
		t.Errorf("the first second: got %s", got)
	}
}

func TestLinesAreWrittenSoonAndAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := NewAccessLog(&out)
		l.Write(&line)
		time.Sleep(accessDelay + time.Millisecond)
		synctest.Wait()
		if n := bytes.Count(out.Bytes(), []byte("\n")); n != 1 {
			t.Errorf("%d lines after the delay, want 1", n)
		}
		l.Write(&line)
		l.Close()
		if n := bytes.Count(out.Bytes(), []byte("\n")); n != 2 {
			t.Errorf("%d lines after Close, want 2", n)
		}
	})
}

// stuck is a log file on a disk that does not answer until told to.
type stuck struct {
	io.Writer
	free chan struct{}
}

func (s stuck) Write(b []byte) (int, error) { <-s.free; return s.Writer.Write(b) }

func TestASlowWriterHoldsUpNoCallAndDropsAreCounted(t *testing.T) {
	var out bytes.Buffer
	w := stuck{&out, make(chan struct{})}
	l := NewAccessLog(w)
	for range 100_000 {
		l.Write(&line)
	}
	l.mu.Lock()
	dropped := l.dropped
	l.mu.Unlock()
	if dropped == 0 || len(l.buf) > 2*accessBuffer {
		t.Errorf("%d dropped with %d bytes waiting", dropped, len(l.buf))
	}
	close(w.free)
	l.Close()
	if !strings.Contains(out.String(), `"access lines dropped"`) {
		t.Error("the log does not say that lines were dropped")
	}
}

func BenchmarkObserve(b *testing.B) {
	m := NewMetrics(prometheus.NewRegistry(), "test").Binding("demo")
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(mcp.Stateless, "tools/call", OK, time.Millisecond)
	}
}

func BenchmarkAccessLine(b *testing.B) {
	buf, c := make([]byte, 0, 4096), new(clock)
	b.ReportAllocs()
	for b.Loop() {
		buf = c.appendLine(buf[:0], &line)
	}
}

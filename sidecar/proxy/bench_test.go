package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// discard is an answer's writer that costs nothing.
type discard struct {
	h      http.Header
	status int
	n      int // bytes written
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { d.n += len(b); return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Flush()                      {}

func (d *discard) reset() {
	clear(d.h)
	d.status, d.n = 0, 0
}

// benchBody is a body that is read again and again.
type benchBody struct{ bytes.Reader }

func (b *benchBody) Close() error { return nil }

// repeated is a stream of notifications and a response, for ever the same.
type repeated struct {
	note, response []byte
	left           int // messages, the response included
}

func (e *repeated) Next() (mcp.Event, error) {
	e.left--
	switch {
	case e.left < 0:
		return mcp.Event{}, io.EOF
	case e.left == 0:
		return mcp.Event{Data: e.response}, nil
	}
	return mcp.Event{Data: e.note}, nil
}
func (e *repeated) Ready() bool  { return true } // it has come whole
func (e *repeated) Close() error { return nil }

// stub is the path alone: what calls cost between an HTTP server and an upstream that cost nothing. Metrics and access
// lines are on, as by default.
type stub struct {
	proxy *Proxy
	req   *http.Request
	body  []byte
	in    benchBody
	out   discard
	size  int // bytes of an answer at least
}

// newStub makes calls of one era whose answers have so many bytes, as one JSON body, or as so many events.
func newStub(tb testing.TB, era mcp.Era, size, events int) *stub {
	f := &fake{}
	answer := []byte(response("1", strings.Repeat("x", size)))
	if events == 0 {
		whole, reader := &upstream.Answer{Status: 200, Length: int64(len(answer))}, &benchBody{}
		f.call = func(ctx, *upstream.Call) (*upstream.Answer, error) {
			reader.Reset(answer)
			whole.Body = reader
			return whole, nil
		}
	} else {
		note := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", size) + `"}}`)
		whole, stream := &upstream.Answer{Status: 200, Length: -1}, &repeated{note: note, response: answer}
		f.call = func(ctx, *upstream.Call) (*upstream.Answer, error) {
			stream.left = events
			whole.Events = stream
			return whole, nil
		}
	}
	s := &stub{proxy: benchProxy(tb, f, 1), size: size * max(1, events), out: discard{h: http.Header{}}}
	h := modern("tools/call", "echo")
	arguments := `{"text":"` + strings.Repeat("y", 120) + `"}`
	s.body = []byte(modernCall("1", "echo", arguments))
	if era == mcp.Legacy {
		h = head{mcp.HeaderSessionID: s.initialize(), mcp.HeaderVersion: mcp.Version20251125}
		s.body = []byte(toolCall("1", "echo", arguments))
	}
	s.prepare(tb, h)
	return s
}

// benchProxy serves n bindings, of which the first is at /mcp.
func benchProxy(tb testing.TB, f *fake, n int) *Proxy {
	access := telemetry.NewAccessLog(io.Discard)
	p := New(Options{Log: slog.New(slog.DiscardHandler), Metrics: telemetry.NewMetrics(prometheus.NewRegistry(), "test"), Access: access,
		Dial: func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error) { return f, nil }})
	c := &config.Config{Generation: "1", Upstreams: []*outriggerv1.Upstream{{Name: "up"}}, Bindings: []*bindingSpec{binding()}}
	for i := 1; i < n; i++ {
		c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) { b.Name, b.Path = fmt.Sprintf("b%d", i), fmt.Sprintf("/b%d", i) }))
	}
	if refused := p.Apply(c); len(refused) > 0 {
		tb.Fatalf("refused: %v", refused)
	}
	tb.Cleanup(func() {
		p.Close(context.Background())
		access.Close()
	})
	return p
}

// initialize opens a legacy session.
func (s *stub) initialize() (id string) {
	req := httptest.NewRequest("POST", "/mcp", strings.NewReader(initialize))
	req.Host = "localhost"
	w := httptest.NewRecorder()
	s.proxy.ServeHTTP(w, req)
	return w.Header().Get(mcp.HeaderSessionID)
}

// prepare makes the request that call sends.
func (s *stub) prepare(tb testing.TB, h head) {
	s.req = httptest.NewRequest("POST", "/mcp", nil)
	s.req.Host = "localhost"
	for k, v := range h {
		s.req.Header[k] = []string{v}
	}
	s.req.Header["Content-Type"] = []string{"application/json"}
	s.req.Header["Accept"] = []string{"application/json, text/event-stream"}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(local)))
	tb.Cleanup(cancel)
	s.req = s.req.WithContext(ctx)
	s.req.Body, s.req.ContentLength = &s.in, int64(len(s.body))
}

// call makes one call and checks that it was answered.
func (s *stub) call(tb testing.TB) {
	s.in.Reset(s.body)
	s.out.reset()
	s.proxy.ServeHTTP(&s.out, s.req)
	if s.out.status != http.StatusOK || s.out.n < s.size {
		tb.Fatalf("answered %d with %d bytes, want 200 with %d", s.out.status, s.out.n, s.size)
	}
}

var benchEras = []mcp.Era{mcp.Stateless, mcp.Legacy}

func BenchmarkServe(b *testing.B) {
	run := func(name string, era mcp.Era, size, events int) {
		b.Run(fmt.Sprintf("era=%v/%s", era, name), func(b *testing.B) {
			s := newStub(b, era, size, events)
			b.SetBytes(int64(s.size))
			b.ReportAllocs()
			for b.Loop() {
				s.call(b)
			}
		})
	}
	for _, era := range benchEras {
		for _, size := range []int{250, 1 << 10, 64 << 10, 1 << 20} {
			run(fmt.Sprintf("json/%dB", size), era, size, 0)
		}
		for _, events := range []int{1, 10, 100} {
			run(fmt.Sprintf("events/%dx250B", events), era, 250, events)
		}
	}
}

// guard puts a key, a tenant and a hundred rules in front of the stub's calls.
func (s *stub) guard(tb testing.TB, era mcp.Era) {
	c := newCallers(map[string]string{"ci": "groups: [staff], labels: {team: blue}"})
	var policies strings.Builder
	policies.WriteString(keyed + "  rules:\n")
	for i := range 99 {
		fmt.Fprintf(&policies, "    - {name: r%d, action: allow, tools: [\"get_%d_*\"], groups: [staff]}\n", i, i)
	}
	policies.WriteString("    - {name: this, action: allow, tools: [echo], groups: [staff], tenants: [acme]}\n" +
		"---\n{kind: Tenant, name: acme, spec: {selectors: [{keyLabels: {team: blue}}]}}\n")
	s.proxy.Callers = authn.New(authn.Options{})
	running := s.proxy.Running()
	guarded := &config.Config{Generation: "2", Upstreams: running.Upstreams, Bindings: running.Bindings}
	policed(tb, policies.String()+c.yaml.String())(guarded)
	if refused := s.proxy.Apply(guarded); len(refused) > 0 {
		tb.Fatalf("refused: %v", refused)
	}
	s.req.Header["Authorization"] = []string{"Bearer " + c.text["ci"]}
	if era == mcp.Legacy {
		req := httptest.NewRequest("POST", "/mcp", strings.NewReader(initialize))
		req.Host, req.Header["Authorization"] = "localhost", s.req.Header["Authorization"]
		w := httptest.NewRecorder()
		s.proxy.ServeHTTP(w, req)
		s.req.Header[mcp.HeaderSessionID] = []string{w.Header().Get(mcp.HeaderSessionID)}
	}
}

// BenchmarkServeGuarded is BenchmarkServe with a caller that is known and rules that allow the call.
func BenchmarkServeGuarded(b *testing.B) {
	for _, era := range benchEras {
		for _, guarded := range []bool{false, true} {
			b.Run(fmt.Sprintf("era=%v/guarded=%v", era, guarded), func(b *testing.B) {
				s := newStub(b, era, 250, 0)
				if guarded {
					s.guard(b, era)
				}
				b.ReportAllocs()
				for b.Loop() {
					s.call(b)
				}
			})
		}
	}
}

// TestAllocGuardedCall holds that identity and rules add no allocation to a call of a caller and a name that were seen.
func TestAllocGuardedCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	for _, era := range benchEras {
		var counts [2]float64
		for i := range counts {
			s := newStub(t, era, 250, 0)
			if i == 1 {
				s.guard(t, era)
			}
			for range 200 {
				s.call(t)
			}
			counts[i] = testing.AllocsPerRun(500, func() { s.call(t) })
		}
		if counts[1] > counts[0] {
			t.Errorf("%v: %v allocations with a guard, want those without: %v", era, counts[1], counts[0])
		}
	}
}

// TestACallAllocatesNoMoreThanItDid holds whole calls to their counts of today: lower them with the counts. The number of
// events must not matter on the stateless wire; on the legacy one each is kept for clients that resume.
func TestACallAllocatesNoMoreThanItDid(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	for _, row := range []struct {
		era          mcp.Era
		size, events int
		most         float64
	}{
		{mcp.Stateless, 250, 0, 4},
		{mcp.Stateless, 64 << 10, 0, 6},
		{mcp.Stateless, 250, 1, 4},
		{mcp.Stateless, 250, 100, 4},
		{mcp.Legacy, 250, 0, 6},
		{mcp.Legacy, 250, 1, 12},
		{mcp.Legacy, 250, 100, 120},
	} {
		s := newStub(t, row.era, row.size, row.events)
		for range 200 { // pools fill, and streams that ended are forgotten
			s.call(t)
		}
		if n := testing.AllocsPerRun(500, func() { s.call(t) }); n > row.most {
			t.Errorf("%v, %d bytes, %d events: %v allocations, want at most %v", row.era, row.size, row.events, n, row.most)
		}
	}
}

// enterAndAdmit are the steps before a call's body is read.
func (s *stub) enterAndAdmit(tb testing.TB) {
	ep, err := s.proxy.enter(s.req.URL.Path)
	if err != nil {
		tb.Fatal(err)
	}
	defer ep.use.end()
	if err := ep.admit(s.req); err != nil {
		tb.Fatal(err)
	}
	if err := checkMedia(s.req.Header); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkEnterAndAdmit(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("bindings=%d", n), func(b *testing.B) {
			s := &stub{proxy: benchProxy(b, &fake{}, n)}
			s.prepare(b, nil)
			b.ReportAllocs()
			for b.Loop() {
				s.enterAndAdmit(b)
			}
		})
	}
}

func TestEnteringDoesNotAllocate(t *testing.T) {
	s := &stub{proxy: benchProxy(t, &fake{}, 10)}
	s.prepare(t, nil)
	if n := testing.AllocsPerRun(100, func() { s.enterAndAdmit(t) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// answered is an exchange whose call was answered.
func answered(tb testing.TB) *exchange {
	s := newStub(tb, mcp.Stateless, 250, 0)
	m, err := mcp.Scan(s.body, mcp.Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	return &exchange{p: s.proxy, r: s.req, ep: s.proxy.table.Load().endpoints["/mcp"], msg: m, era: mcp.Stateless,
		label: m.Method, outcome: telemetry.OK, status: 200, out: 250}
}

func BenchmarkRecord(b *testing.B) {
	x := answered(b)
	b.ReportAllocs()
	for b.Loop() {
		x.p.record(x)
	}
}

// TestRecordingACallDoesNotAllocate holds metrics and the access line to nothing, together and as calls make them.
func TestRecordingACallDoesNotAllocate(t *testing.T) {
	x := answered(t)
	if n := testing.AllocsPerRun(100, func() { x.p.record(x) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

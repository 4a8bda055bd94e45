package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/http1"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) {
	if peer := os.Getenv(peerEnv); peer != "" {
		servePeer(peer)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what should take milliseconds.
const patience = 10 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// syncBuffer is a writer that is read while written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// rig is a Proxy behind a real server on the network, with one binding, main, at /mcp.
type rig struct {
	*Proxy
	t      testing.TB
	url    string // of the binding
	addr   string
	reg    *prometheus.Registry
	log    *syncBuffer
	access *syncBuffer
	server carrier
	client *http.Client
	config *config.Config
	once   sync.Once
}

// newRig serves upstream up through a binding, as changed. Up may be a spec or an upstream.Server.
func newRig(t testing.TB, up any, change ...func(*outriggerv1.Binding)) *rig {
	t.Helper()
	return newRigWith(t, func(*Options) {}, up, change...)
}

// newRigWith is newRig with other options.
func newRigWith(t testing.TB, options func(*Options), up any, change ...func(*outriggerv1.Binding)) *rig {
	t.Helper()
	r := &rig{t: t, reg: prometheus.NewRegistry(), log: &syncBuffer{}, access: &syncBuffer{}}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	dial := Dialer{Log: log, Credentials: credential.New(credential.Options{Dir: t.TempDir()}), Version: "test"}.Dial
	spec := &outriggerv1.Upstream{Name: "up"}
	switch up := up.(type) {
	case *outriggerv1.Upstream:
		spec = up
	case upstream.Server:
		dial = func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error) { return up, nil }
	case func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error):
		dial = up
	}
	access := telemetry.NewAccessLog(r.access)
	o := Options{Log: log, Metrics: telemetry.NewMetrics(r.reg, "test"), Access: access, Dial: dial}
	options(&o)
	r.Proxy = New(o)
	r.config = &config.Config{Generation: "1", Upstreams: []*outriggerv1.Upstream{spec}, Bindings: []*outriggerv1.Binding{binding(change...)}}
	if refused := r.Apply(r.config); len(refused) > 0 {
		t.Fatalf("Apply refused %v", refused)
	}
	r.serve()
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			text := r.log.String()
			t.Logf("log:\n%s", text[max(0, len(text)-3000):])
		}
	})
	return r
}

func binding(change ...func(*outriggerv1.Binding)) *outriggerv1.Binding {
	b := &outriggerv1.Binding{
		Name: "main", Selector: &outriggerv1.Selector{}, Path: "/mcp",
		Upstreams: []*outriggerv1.UpstreamReference{{Name: "up"}},
	}
	for _, f := range change {
		f(b)
	}
	return b
}

// carrier is a server of HTTP.
type carrier interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

// plain makes tests run on net/http's server alone. Without it they run on what the sidecar has in front of that; tests on
// a bubble's clock and TestEveryCarrierOfHTTPWorks are on net/http's either way.
var plain = flag.Bool("nethttp", false, "serve by net/http alone")

func (r *rig) serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = NewServer(r.Proxy, nil, r.Log)
	if !*plain {
		r.server = http1.New(r.Proxy, NewServer(r.Proxy, nil, r.Log), http1.Options{Log: r.Log})
	}
	r.addr = l.Addr().String()
	r.url = "http://" + r.addr + "/mcp"
	go r.server.Serve(l)
	r.client = &http.Client{Transport: &http.Transport{}}
}

// stop ends everything, once.
func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.stopWithin(ctx)
}

func (r *rig) stopWithin(ctx context.Context) {
	r.once.Do(func() {
		r.Drain()
		r.client.CloseIdleConnections()
		r.server.Close()
		r.Close(ctx)
		if r.Access != nil {
			r.Access.Close()
		}
	})
}

// apply changes the configuration and applies it.
func (r *rig) apply(change func(*config.Config)) []config.Refusal {
	r.t.Helper()
	next := &config.Config{Generation: r.config.Generation + "+"}
	for _, u := range r.config.Upstreams {
		next.Upstreams = append(next.Upstreams, proto.CloneOf(u))
	}
	for _, b := range r.config.Bindings {
		next.Bindings = append(next.Bindings, proto.CloneOf(b))
	}
	next.Policies, next.Tenants, next.Keys = r.config.Policies, r.config.Tenants, r.config.Keys
	change(next)
	r.config = next
	return r.Apply(next)
}

// reply is an HTTP answer, read whole.
type reply struct {
	status int
	header http.Header
	body   string
}

type rpcReply struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// rpc is the answer's JSON-RPC message: its body, or its last event.
func (p reply) rpc(t testing.TB) (m rpcReply) {
	t.Helper()
	text := p.body
	if strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream") {
		events := parseEvents(p.body)
		if len(events) == 0 {
			t.Fatalf("no events in %q", p.body)
		}
		text = events[len(events)-1].data
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("status %d, body %q: %v", p.status, p.body, err)
	}
	return m
}

// wantError checks an answer's status, error code and id; an empty id means that there must be none.
func (p reply) wantError(t testing.TB, status, code int, id string) rpcReply {
	t.Helper()
	m := p.rpc(t)
	if p.status != status || m.Error == nil || m.Error.Code != code || string(m.ID) != id {
		t.Errorf("got %d %s; want status %d, code %d, id %s", p.status, p.body, status, code, id)
	}
	return m
}

type head map[string]string

func (r *rig) request(ctx context.Context, method string, h head, body string) *http.Request {
	r.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url, reader)
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	for k, v := range h {
		req.Header.Set(k, v)
		if k == "Host" {
			req.Host = v
		}
	}
	return req
}

// do sends one request and reads the answer whole.
func (r *rig) do(method string, h head, body string) reply {
	r.t.Helper()
	return r.send(r.request(testContext(r.t), method, h, body))
}

func (r *rig) send(req *http.Request) reply {
	r.t.Helper()
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatalf("%s: %v", req.Method, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatalf("%s: after %d bytes: %v", req.Method, len(b), err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

// stream is an open SSE answer.
type stream struct {
	t      testing.TB
	res    *http.Response
	r      *bufio.Reader
	cancel context.CancelFunc
}

func (r *rig) open(method string, h head, body string) *stream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(testContext(r.t))
	res, err := r.client.Do(r.request(ctx, method, h, body))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cancel(); res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		r.t.Fatalf("%s: %d %s, want a stream", method, res.StatusCode, b)
	}
	return &stream{t: r.t, res: res, r: bufio.NewReader(res.Body), cancel: cancel}
}

// leave breaks the connection off.
func (s *stream) leave() { s.cancel(); s.res.Body.Close() }

type event struct{ id, data, comment string }

// next reads one block: an event, or a comment.
func (s *stream) next() (event, error) {
	var block strings.Builder
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		block.WriteString(line)
		if line == "\n" {
			return parseEvent(block.String()), nil
		}
	}
}

// event reads the next event, passing over comments.
func (s *stream) event() event {
	s.t.Helper()
	for {
		e, err := s.next()
		if err != nil {
			s.t.Fatalf("the stream ended: %v", err)
		}
		if e.comment == "" {
			return e
		}
	}
}

// end reads to the stream's end and returns the events left.
func (s *stream) end() (left []event, err error) {
	for {
		e, err := s.next()
		if err == io.EOF {
			return left, nil
		}
		if err != nil {
			return left, err
		}
		if e.comment == "" {
			left = append(left, e)
		}
	}
}

func parseEvent(block string) (e event) {
	for line := range strings.Lines(block) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, ":"):
			e.comment += line
		case strings.HasPrefix(line, "id:"):
			e.id = strings.TrimSpace(line[3:])
		case strings.HasPrefix(line, "data:"):
			e.data += strings.TrimPrefix(line[5:], " ")
		}
	}
	return e
}

func parseEvents(text string) (all []event) {
	for block := range strings.SplitSeq(text, "\n\n") {
		if e := parseEvent(block); e.data != "" {
			all = append(all, e)
		}
	}
	return all
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("never: %s", what)
		}
	}
}

// metric is a counter's or gauge's value, or a histogram's count, summed over the children with these labels.
func (r *rig) metric(name string, labels ...string) (sum float64) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			have := map[string]string{}
			for _, l := range m.Label {
				have[l.GetName()] = l.GetValue()
			}
			match := true
			for i := 0; i < len(labels); i += 2 {
				match = match && have[labels[i]] == labels[i+1]
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

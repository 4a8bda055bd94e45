//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package tostateless_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tostateless"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// patience is how long a test waits for what must happen soon.
const patience = 10 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(stop)
	return ctx
}

type textInput struct {
	Text string `json:"text"`
}

// realServer is a server of the SDK that knows no sessions.
type realServer struct {
	*sdk.Server
	url          string
	begun, ended chan string // of wait
	subscribed   atomic.Int32
}

func (r *realServer) tool(name string, f func(context.Context, *sdk.CallToolRequest, string) *sdk.CallToolResult) {
	sdk.AddTool(r.Server, &sdk.Tool{Name: name}, func(ctx context.Context, q *sdk.CallToolRequest, in textInput) (*sdk.CallToolResult, any, error) {
		return f(ctx, q, in.Text), nil, nil
	})
}

func said(format string, args ...any) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

// newReal serves it over HTTP until the test ends.
func newReal(t testing.TB, inJSON bool) *realServer {
	t.Helper()
	r := &realServer{begun: make(chan string, 8), ended: make(chan string, 8)}
	r.Server = sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, &sdk.ServerOptions{
		SupportedProtocolVersions: sdk.SupportedProtocolVersions()[:1], Instructions: "Use it well.",
		SubscribeHandler: func(_ context.Context, q *sdk.SubscribeRequest) error {
			if strings.Contains(q.Params.URI, "none") {
				return sdk.ResourceNotFoundError(q.Params.URI)
			}
			r.subscribed.Add(1)
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { r.subscribed.Add(-1); return nil },
	})
	r.addTools()
	r.AddResource(&sdk.Resource{URI: "file:///a", Name: "a"}, func(_ context.Context, q *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: q.Params.URI, Text: "A"}}}, nil
	})
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return r.Server },
		&sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, JSONResponse: inJSON})
	server := httptest.NewServer(handler)
	r.url = server.URL
	t.Cleanup(func() {
		for session := range r.Sessions() {
			session.Close()
		}
		server.CloseClientConnections()
		server.Close()
	})
	return r
}

func (r *realServer) addTools() {
	r.tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		return said("%s", text)
	})
	r.tool("repeat", func(_ context.Context, _ *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		return said("%s", strings.Repeat(text, 512<<10))
	})
	r.tool("report", func(ctx context.Context, q *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		for _, level := range []sdk.LoggingLevel{"debug", "error"} {
			_ = q.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: string(level) + " of " + text})
		}
		_ = q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: q.Params.GetProgressToken(), Progress: 1, Message: text})
		return said("%s", text)
	})
	r.tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		r.begun <- text
		<-ctx.Done()
		r.ended <- text
		return said("")
	})
	r.tool("ask", func(_ context.Context, q *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		answer, ok := q.Params.InputResponses["name"].(*sdk.ElicitResult)
		if !ok {
			return &sdk.CallToolResult{RequestState: "state of " + text, InputRequests: sdk.InputRequestMap{
				"name": &sdk.ElicitParams{Message: "who is " + text},
			}}
		}
		return said("%s:%s:%v", q.Params.RequestState, answer.Action, answer.Content["owner"])
	})
	r.tool("askAll", func(_ context.Context, q *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		roots, ok := q.Params.InputResponses["roots"].(*sdk.ListRootsResult)
		if !ok {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{
				"roots":  &sdk.ListRootsParams{},
				"sample": &sdk.CreateMessageParams{MaxTokens: 5, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}},
			}}
		}
		return said("%s and %v", roots.Roots[0].URI, q.Params.InputResponses["sample"] != nil)
	})
	r.tool("openURL", func(_ context.Context, q *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		answer, ok := q.Params.InputResponses["url"].(*sdk.ElicitResult)
		if !ok {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{
				"url": &sdk.ElicitParams{Mode: "url", URL: "https://example.com/" + text, Message: "open"},
			}}
		}
		return said("url:%s", answer.Action)
	})
	r.tool("grow", func(_ context.Context, _ *sdk.CallToolRequest, text string) *sdk.CallToolResult {
		r.tool("grown"+text, func(context.Context, *sdk.CallToolRequest, string) *sdk.CallToolResult { return said("") })
		return said("%s", text)
	})
}

// endpoint is a sidecar in front of the server, with the bridge.
func (r *realServer) endpoint(t testing.TB) (url string) {
	t.Helper()
	return serve(t, proxy.Options{Dial: func(u *outriggerv1.Upstream, _ credential.Secrets) (upstream.Server, error) {
		inner, err := streamable.New(u.GetName(), u, streamable.Options{})
		if err != nil {
			return nil, err
		}
		return tostateless.New(inner, tostateless.Options{Upstream: u.GetName()}), nil
	}}, r)
}

// federation is a sidecar that offers several servers as one.
func federation(t testing.TB, servers ...*realServer) (url string) {
	t.Helper()
	d := proxy.Dialer{Log: slog.New(slog.DiscardHandler), Version: "test"}
	return serve(t, proxy.Options{Dial: d.Dial, Federate: d.Federate}, servers...)
}

// serve is a sidecar with one binding for all servers.
func serve(t testing.TB, o proxy.Options, servers ...*realServer) (url string) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	o.Metrics = telemetry.NewMetrics(prometheus.NewRegistry(), "test")
	p := proxy.New(o)
	c := &config.Config{Generation: "1", Bindings: []*outriggerv1.Binding{{Name: "main", Selector: &outriggerv1.Selector{}, Path: "/mcp"}}}
	for i, r := range servers {
		name := fmt.Sprintf("real%d", i)
		c.Upstreams = append(c.Upstreams, &outriggerv1.Upstream{
			Name: name, Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: r.url}},
		})
		c.Bindings[0].Upstreams = append(c.Bindings[0].Upstreams, &outriggerv1.UpstreamReference{Name: name})
	}
	if refused := p.Apply(c); len(refused) > 0 {
		t.Fatalf("Apply refused %v", refused)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := proxy.NewServer(p, nil, o.Log)
	go server.Serve(l)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		p.Drain()
		server.Close()
		p.Close(ctx)
	})
	return "http://" + l.Addr().String() + "/mcp"
}

// heard is what a real client was told, and what it answers.
type heard struct {
	mu        sync.Mutex
	progress  []string
	logged    []string
	asked     []string
	tools     int
	resources []string
}

func (h *heard) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *heard) options() *sdk.ClientOptions {
	return &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{
			RootsV2: &sdk.RootCapabilities{ListChanged: true},
			Elicitation: &sdk.ElicitationCapabilities{
				Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{},
			},
		},
		ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			h.note(func() { h.asked = append(h.asked, q.Params.Mode+" "+q.Params.ElicitationID) })
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"owner": q.Params.Message}}, nil
		},
		CreateMessageHandler: func(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: "sampled"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
			h.note(func() { h.progress = append(h.progress, fmt.Sprint(n.Params.ProgressToken, n.Params.Message)) })
		},
		LoggingMessageHandler: func(_ context.Context, n *sdk.LoggingMessageRequest) {
			h.note(func() { h.logged = append(h.logged, fmt.Sprint(n.Params.Data)) })
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { h.note(func() { h.tools++ }) },
		ResourceUpdatedHandler: func(_ context.Context, n *sdk.ResourceUpdatedNotificationRequest) {
			h.note(func() { h.resources = append(h.resources, n.Params.URI) })
		},
	}
}

// connect makes a real client of a legacy version.
func connect(t testing.TB, url, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "old", Version: "1"}, o)
	client.AddRoots(&sdk.Root{URI: "file:///root"})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := client.Connect(testContext(t), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: transport}},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func call(t testing.TB, s *sdk.ClientSession, tool, text string) string {
	t.Helper()
	params := &sdk.CallToolParams{Name: tool, Arguments: textInput{text}}
	params.SetProgressToken("token of " + text)
	res, err := s.CallTool(testContext(t), params)
	if err != nil {
		return "error: " + err.Error()
	}
	b, _ := json.Marshal(res.Content)
	var all []struct{ Text string }
	_ = json.Unmarshal(b, &all)
	if len(all) != 1 {
		return string(b)
	}
	return all[0].Text
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// versions are those of legacy clients, with whether they know elicitation, and of URLs.
var versions = []struct {
	date       string
	forms, url bool
}{{mcp.Version20251125, true, true}, {mcp.Version20250618, true, false}, {mcp.Version20250326, false, false}}

func TestRealLegacyClientsUseARealStatelessServer(t *testing.T) {
	for _, inJSON := range []bool{false, true} {
		for _, v := range versions {
			t.Run(fmt.Sprintf("%s, in JSON: %v", v.date, inJSON), func(t *testing.T) {
				h := new(heard)
				s := connect(t, newReal(t, inJSON).endpoint(t), v.date, h.options())
				if got := s.InitializeResult(); got.ProtocolVersion != v.date || got.ServerInfo.Name != "real" || got.Instructions != "Use it well." {
					t.Errorf("initialize gave %+v", got)
				}
				var wait sync.WaitGroup
				for i := range 8 {
					wait.Go(func() {
						if got, want := call(t, s, "echo", fmt.Sprint("hello ", i)), fmt.Sprint("hello ", i); got != want {
							t.Errorf("echo: %q, want %q", got, want)
						}
					})
				}
				wait.Wait()
				if err := s.Ping(testContext(t), nil); err != nil {
					t.Errorf("ping: %v", err)
				}
				if tools, err := s.ListTools(testContext(t), nil); err != nil || len(tools.Tools) != 8 {
					t.Errorf("tools/list: %v, %v", tools, err)
				}
				if r, err := s.ReadResource(testContext(t), &sdk.ReadResourceParams{URI: "file:///a"}); err != nil || r.Contents[0].Text != "A" {
					t.Errorf("resources/read: %v, %v", r, err)
				}
				if got, want := call(t, s, "askAll", "x"), "file:///root and true"; got != want {
					t.Errorf("askAll: %q, want %q", got, want)
				}
				if got, want := call(t, s, "ask", "bob"), "state of bob:accept:who is bob"; (got == want) != v.forms {
					t.Errorf("ask: %q", got)
				}
				if got := call(t, s, "openURL", "x"); (got == "url:accept") != v.url {
					t.Errorf("openURL: %q", got)
				}
				if got := call(t, s, "none", "x"); !strings.HasPrefix(got, "error: ") {
					t.Errorf("an unknown tool: %q", got)
				}
				h.note(func() {
					if v.url && (len(h.asked) != 2 || len(h.asked[1]) < len("url x")) {
						t.Errorf("asked for %q, want a URL with an id", h.asked)
					}
				})
				if !v.url {
					return // as long an answer takes a while
				}
				if got := call(t, s, "repeat", "0123456789"); got != strings.Repeat("0123456789", 512<<10) {
					t.Errorf("repeat: %d bytes", len(got))
				}
			})
		}
	}
}

func TestProgressAndLogsComeOnTheCallsOwnStream(t *testing.T) {
	h, other := new(heard), new(heard)
	url := newReal(t, false).endpoint(t)
	s, quiet := connect(t, url, mcp.Version20251125, h.options()), connect(t, url, mcp.Version20251125, other.options())
	if err := s.SetLoggingLevel(testContext(t), &sdk.SetLoggingLevelParams{Level: "warning"}); err != nil {
		t.Fatal(err)
	}
	if call(t, s, "report", "a") != "a" || call(t, quiet, "report", "b") != "b" {
		t.Error("report failed")
	}
	hears := func(h *heard, want string) {
		t.Helper()
		got := ""
		eventually(t, "everybody has heard all", func() bool {
			h.note(func() { got = strings.Join(append(h.progress[:len(h.progress):len(h.progress)], h.logged...), ", ") })
			return len(got) >= len(want)
		})
		if got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	hears(h, "token of aa, error of a")
	hears(other, "token of bb")
}

func TestARealClientsCancelReachesTheServer(t *testing.T) {
	r := newReal(t, false)
	s := connect(t, r.endpoint(t), mcp.Version20251125, new(heard).options())
	ctx, cancel := context.WithCancel(testContext(t))
	failed := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "wait", Arguments: textInput{"a"}})
		failed <- err
	}()
	<-r.begun
	cancel()
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Error("the tool goes on")
	}
	if err := <-failed; err == nil {
		t.Error("the call went well")
	}
	if got := call(t, s, "echo", "still here"); got != "still here" {
		t.Errorf("after that: %q", got)
	}
}

func TestChangesReachARealClient(t *testing.T) {
	r, h := newReal(t, false), new(heard)
	s := connect(t, r.endpoint(t), mcp.Version20251125, h.options())
	h.hearsOfATool(t, s)
	if err := s.Subscribe(testContext(t), &sdk.SubscribeParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Subscribe(testContext(t), &sdk.SubscribeParams{URI: "file:///none"}); err == nil {
		t.Error("subscribed to what the server has not")
	}
	if err := r.ResourceUpdated(testContext(t), &sdk.ResourceUpdatedNotificationParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client hears of the resource", func() (yes bool) {
		h.note(func() { yes = len(h.resources) == 1 && h.resources[0] == "file:///a" })
		return yes
	})
	if err := s.Unsubscribe(testContext(t), &sdk.UnsubscribeParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server hears that nobody listens", func() bool { return r.subscribed.Load() == 0 })
	h.hearsOfATool(t, s)
}

// hearsOfATool adds tools until the client is told: its GET stream may not be open yet. The server waits a moment with
// the notification, and begins to wait anew with each change.
func (h *heard) hearsOfATool(t testing.TB, s *sdk.ClientSession) {
	t.Helper()
	before, now := 0, 0
	h.note(func() { before = h.tools })
	grown := time.Time{}
	eventually(t, "the client hears of a new tool", func() bool {
		if time.Since(grown) > 200*time.Millisecond {
			grown = time.Now()
			call(t, s, "grow", fmt.Sprint(grown.UnixNano()))
		}
		h.note(func() { now = h.tools })
		return now > before
	})
}

func TestALegacyClientUsesSeveralStatelessServersAsOne(t *testing.T) {
	h, a, b := new(heard), newReal(t, false), newReal(t, true)
	s := connect(t, federation(t, a, b), mcp.Version20251125, h.options())
	if tools, err := s.ListTools(testContext(t), nil); err != nil || len(tools.Tools) != 16 {
		t.Errorf("tools/list: %v, %v; want those of both", tools, err)
	}
	for _, server := range []string{"real0_", "real1_"} {
		if got, want := call(t, s, server+"ask", "bob"), "state of bob:accept:who is bob"; got != want {
			t.Errorf("ask of %s: %q, want %q", server, got, want)
		}
	}
	if err := s.Subscribe(testContext(t), &sdk.SubscribeParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	if err := a.ResourceUpdated(testContext(t), &sdk.ResourceUpdatedNotificationParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client hears of the resource", func() (yes bool) {
		h.note(func() { yes = len(h.resources) > 0 && h.resources[0] == "file:///a" })
		return yes
	})
}

// A batch's members are translated like any call (2025-03-26, basic, "Batching").
func TestABatchOfAnOldClientIsTranslated(t *testing.T) {
	url := newReal(t, false).endpoint(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	session := ""
	post := func(body string) string {
		q, err := http.NewRequestWithContext(testContext(t), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		if session != "" {
			q.Header.Set("Mcp-Session-Id", session)
		}
		res, err := transport.RoundTrip(q)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		session = cmp.Or(session, res.Header.Get("Mcp-Session-Id"))
		return string(b)
	}
	post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`)
	got := post(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"one"}}},` +
		`{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"2","method":"ping"}]`)
	for _, want := range []string{`"id":1,`, `"text":"one"`, `{"jsonrpc":"2.0","id":"2","result":{}}`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s in it", got, want)
		}
	}
	if strings.Contains(got, "resultType") {
		t.Errorf("got %s, with what only the stateless wire has", got)
	}
}

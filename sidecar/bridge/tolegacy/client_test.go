//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package tolegacy_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

type input struct {
	Text string `json:"text"`
}

// serveOld serves a server with sessions: its tools ask for everything a client may be asked for.
func serveOld(t *testing.T) (*sdk.Server, string) {
	t.Helper()
	s := sdk.NewServer(&sdk.Implementation{Name: "old", Version: "1"}, nil)
	tool := func(name string, f func(context.Context, *sdk.CallToolRequest, string) (string, error)) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(
			ctx context.Context, q *sdk.CallToolRequest, in input,
		) (*sdk.CallToolResult, any, error) {
			text, err := f(ctx, q, in.Text)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, err
		})
	}
	tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) { return text, nil })
	tool("everything", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		_ = q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: q.Params.GetProgressToken(), Progress: 1})
		e, err := q.Session.Elicit(ctx, &sdk.ElicitParams{Message: text, RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}},
		}})
		if err != nil {
			return "", err
		}
		m, err := q.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 9, Messages: []*sdk.SamplingMessage{
			{Role: "user", Content: &sdk.TextContent{Text: text}},
		}})
		if err != nil {
			return "", err
		}
		r, err := q.Session.ListRoots(ctx, nil)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s %v %s %s", e.Action, e.Content["name"], m.Content.(*sdk.TextContent).Text, r.Roots[0].URI), nil
	})
	server := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(func() {
		for session := range s.Sessions() {
			session.Close()
		}
		server.CloseClientConnections()
		server.Close()
	})
	return s, server.URL
}

// serveSidecar serves a proxy in front of the server at a URL.
func serveSidecar(t *testing.T, url string) string {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dial := func(u *outriggerv1.Upstream, _ credential.Secrets) (upstream.Server, error) {
		inner, err := streamable.New(u.GetName(), u, streamable.Options{Log: log})
		return tolegacy.New(inner, tolegacy.Options{Log: log, Upstream: u}), err
	}
	p := proxy.New(proxy.Options{Log: log, Metrics: telemetry.NewMetrics(prometheus.NewRegistry(), "test"), Dial: dial})
	refused := p.Apply(&config.Config{
		Generation: "1",
		Upstreams: []*outriggerv1.Upstream{{
			Name: "old", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}},
		}},
		Bindings: []*outriggerv1.Binding{{
			Name: "main", Selector: &outriggerv1.Selector{}, Path: "/mcp", Upstreams: []*outriggerv1.UpstreamReference{{Name: "old"}},
		}},
	})
	if len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		p.Close(ctx)
	})
	return server.URL + "/mcp"
}

// A real client of the new wire, a sidecar, and a real server of the old one.
func TestARealStatelessClientUsesARealLegacyServer(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	old, url := serveOld(t)
	var progressed atomic.Int32
	changed := make(chan struct{}, 16)
	client := sdk.NewClient(&sdk.Implementation{Name: "new", Version: "1"}, &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": q.Params.Message}}, nil
		},
		CreateMessageHandler: func(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			return &sdk.CreateMessageResult{Model: "m", Role: "assistant", Content: &sdk.TextContent{Text: "sampled"}}, nil
		},
		ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { progressed.Add(1) },
		ToolListChangedHandler:      func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
	})
	client.AddRoots(&sdk.Root{URI: "file:///home"})
	s, err := client.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: serveSidecar(t, url)},
		&sdk.ClientSessionOptions{ProtocolVersion: mcp.Version20260728})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.InitializeResult().ProtocolVersion; got != mcp.Version20260728 {
		t.Fatalf("the client speaks %s", got)
	}
	if r, err := s.ListTools(ctx, nil); err != nil || len(r.Tools) != 2 {
		t.Fatalf("tools/list: %+v, %v", r, err)
	}
	params := &sdk.CallToolParams{Name: "everything", Arguments: map[string]any{"text": "ann"}}
	params.SetProgressToken("mine")
	r, err := s.CallTool(ctx, params)
	if err != nil || r.IsError {
		t.Fatalf("everything: %+v, %v", r, err)
	}
	const want = "accept ann sampled file:///home"
	if got := r.Content[0].(*sdk.TextContent).Text; got != want || progressed.Load() != 1 {
		t.Errorf("got %q and %d progress messages, want %q and one", got, progressed.Load(), want)
	}
	old.AddTool(&sdk.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	select {
	case <-changed:
	case <-ctx.Done():
		t.Error("the client did not hear that the tools changed")
	}
}

package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// peerEnv makes the test binary be a stdio server instead; the value says which.
const peerEnv = "PROXY_TEST_PEER"

type echoInput struct {
	Text string `json:"text"`
}

// peer is a real server and what its tools tell the test.
type peer struct {
	*sdk.Server
	begun, ended chan string // of wait, by its text
}

// repeats is how often repeat says its text.
const repeats = 512 << 10

// newPeer has the tools echo, repeat, delay (text is a duration), progress (one notification first), wait (until cancelled),
// ask (an elicitation) and grow (one tool more).
func newPeer(versions ...string) *peer {
	p := &peer{
		Server: sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, &sdk.ServerOptions{SupportedProtocolVersions: versions}),
		begun:  make(chan string, 64), ended: make(chan string, 64),
	}
	p.tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) string { return text })
	p.tool("repeat", func(_ context.Context, _ *sdk.CallToolRequest, text string) string {
		return strings.Repeat(text, repeats)
	})
	p.tool("delay", func(ctx context.Context, _ *sdk.CallToolRequest, text string) string {
		d, _ := time.ParseDuration(text)
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return text
	})
	p.tool("progress", func(ctx context.Context, r *sdk.CallToolRequest, text string) string {
		token := r.Params.GetProgressToken()
		if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
			return err.Error()
		}
		return text
	})
	p.tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, text string) string {
		p.begun <- text
		<-ctx.Done()
		p.ended <- text
		return ""
	})
	p.tool("ask", func(ctx context.Context, r *sdk.CallToolRequest, text string) string {
		a, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: text})
		if err != nil {
			return err.Error()
		}
		return a.Action
	})
	p.tool("grow", func(_ context.Context, _ *sdk.CallToolRequest, text string) string {
		p.tool("grown"+text, func(context.Context, *sdk.CallToolRequest, string) string { return "" })
		return text
	})
	return p
}

func (p *peer) tool(name string, f func(context.Context, *sdk.CallToolRequest, string) string) {
	sdk.AddTool(p.Server, &sdk.Tool{Name: name}, func(
		ctx context.Context, r *sdk.CallToolRequest, in echoInput,
	) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: f(ctx, r, in.Text)}}}, nil, nil
	})
}

// serveHTTP serves the peer and returns its resource.
func (p *peer) serveHTTP(t testing.TB, o *sdk.StreamableHTTPOptions) *outriggerv1.Upstream {
	t.Helper()
	srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return p.Server }, o))
	t.Cleanup(func() {
		for s := range p.Sessions() {
			s.Close()
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	return atURL(srv.URL)
}

func atURL(url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: "up", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}}}
}

var (
	inEvents = &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}
	inJSON   = &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true, JSONResponse: true}
)

// overStdio is a resource whose process is this test binary as a peer.
func overStdio(t testing.TB, peer string, env ...string) *outriggerv1.Upstream {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &outriggerv1.StdioTransport{Command: []string{self, "-test.run=^$"}, Env: map[string]string{
		peerEnv: peer, "GORACE": "atexit_sleep_ms=0",
	}}
	for i := 0; i < len(env); i += 2 {
		s.Env[env[i]] = env[i+1]
	}
	return &outriggerv1.Upstream{Name: "up", Transport: &outriggerv1.Upstream_Stdio{Stdio: s}}
}

// servePeer is the test binary as a stdio server.
func servePeer(mode string) {
	var p *peer
	switch mode {
	case "legacy":
		p = newPeer(sdk.SupportedProtocolVersions()[1:]...)
	case "stateless":
		p = newPeer(sdk.SupportedProtocolVersions()[:1]...)
	default:
		p = newPeer()
	}
	if err := p.Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
	}
}

// connect makes a real client of a rig.
func (r *rig) connect(version string, o *sdk.ClientOptions) *sdk.ClientSession {
	r.t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "client", Version: "1"}, o)
	s, err := client.Connect(testContext(r.t), &sdk.StreamableClientTransport{Endpoint: r.url, HTTPClient: r.client},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

// textOf is the text of a tool's result.
func textOf(res *sdk.CallToolResult, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	var all []string
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, " ")
}

func arguments(text string) json.RawMessage {
	b, _ := json.Marshal(echoInput{text})
	return b
}

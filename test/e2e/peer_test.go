package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Paths of the peer's endpoints.
const (
	legacyPath    = "/legacy"
	statelessPath = "/stateless"
	workshopPath  = "/workshop" // before the other two, in a process: a workshop of each era
)

// input is the arguments of every tool of the peer's.
type input struct {
	Text string `json:"text,omitempty"`
}

// peer is a real MCP server of both eras, at a path each.
type peer struct {
	name    string
	held    chan string   // the text of each call of hold and stream that begins
	release chan struct{} // closed by let, so that they end
	let     func()

	mu    sync.Mutex // guards below
	calls map[string]int
}

func newPeer(name string) *peer {
	p := &peer{name: name, held: make(chan string, 256), release: make(chan struct{}), calls: map[string]int{}}
	p.let = sync.OnceFunc(func() { close(p.release) })
	return p
}

// begun notes that a call reached a tool.
func (p *peer) begun(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[text]++
}

// times is how often a call reached a tool.
func (p *peer) times(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[text]
}

// server has these tools: echo; name, of the peer and its process; credential, as it arrived; hold, until released;
// stream, a progress notification and then as hold.
func (p *peer) server() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: p.name, Version: "1"}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: true}},
	})
	tool := func(name string, f func(context.Context, *sdk.CallToolRequest, string) (string, error)) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(ctx context.Context, r *sdk.CallToolRequest, in input) (*sdk.CallToolResult, any, error) {
			p.begun(in.Text)
			text, err := f(ctx, r, in.Text)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, err
		})
	}
	tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) { return text, nil })
	tool("name", func(context.Context, *sdk.CallToolRequest, string) (string, error) {
		return fmt.Sprintf("%s %d", p.name, os.Getpid()), nil
	})
	tool("credential", func(_ context.Context, r *sdk.CallToolRequest, _ string) (string, error) {
		return r.Extra.Header.Get("Authorization"), nil
	})
	tool("hold", func(ctx context.Context, _ *sdk.CallToolRequest, text string) (string, error) {
		return text, p.hold(ctx, text)
	})
	tool("stream", func(ctx context.Context, r *sdk.CallToolRequest, text string) (string, error) {
		err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Progress: 1, Message: text,
		})
		if err != nil {
			return "", err
		}
		return text, p.hold(ctx, text)
	})
	return s
}

func (p *peer) hold(ctx context.Context, text string) error {
	select {
	case p.held <- text:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-p.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handler serves both eras. The server of the first has sessions.
func (p *peer) handler() (http.Handler, *sdk.Server) {
	legacy, stateless := p.server(), p.server()
	mux := http.NewServeMux()
	mux.Handle(legacyPath, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return legacy }, nil))
	mux.Handle(statelessPath, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return stateless },
		&sdk.StreamableHTTPOptions{Stateless: true}))
	return mux, legacy
}

// serve runs the peer within the test and returns its URL.
func (p *peer) serve(t testing.TB) string {
	handler, legacy := p.handler()
	s := httptest.NewServer(handler)
	t.Cleanup(func() {
		p.let()
		for session := range legacy.Sessions() {
			session.Close()
		}
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// servePeer is the test binary as a peer. It says where it listens.
func servePeer(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening on", l.Addr())
	both, _ := newPeer("process").handler()
	mux := http.NewServeMux()
	mux.Handle("/", both)
	for _, era := range eras {
		mux.Handle(workshopPath+era.path, newWorkshop(era.name, era.version).handler())
	}
	fmt.Println(http.Serve(l, mux))
}

// startPeer runs the peer as a process of its own, on an address with port 0 at first.
func startPeer(t testing.TB, address string) (p *process, at string) {
	t.Helper()
	p = start(t, []string{peerEnv + "=" + address}, os.Args[0])
	return p, strings.TrimSpace(strings.TrimPrefix(p.says("listening on"), "listening on "))
}

// both are the resources that expose a peer's two endpoints at their own paths, on the sidecars with a label.
func both(url, label string) []string {
	return []string{
		httpUpstream("legacy", url+legacyPath), httpUpstream("stateless", url+statelessPath),
		binding("legacy", legacyPath, "legacy", label), binding("stateless", statelessPath, "stateless", label),
	}
}

// Protocol versions of the two eras.
const (
	versionLegacy    = "2025-11-25"
	versionStateless = "2026-07-28"
)

// eras are the peer's two endpoints.
var eras = []struct{ name, path, version string }{
	{"legacy", legacyPath, versionLegacy}, {"stateless", statelessPath, versionStateless},
}

// connectSDK connects a client of the go-sdk to an endpoint, in a protocol version.
func connectSDK(t testing.TB, url, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	s, err := tryConnectSDK(t, url, version, o)
	if err != nil {
		t.Fatalf("connect to %s with %s: %v", url, version, err)
	}
	return s
}

func tryConnectSDK(t testing.TB, url, version string, o *sdk.ClientOptions) (*sdk.ClientSession, error) {
	c := sdk.NewClient(&sdk.Implementation{Name: "e2e", Version: "1"}, o)
	s, err := c.Connect(within(t), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: httpClient(t, "")},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() }) // what it says of a server that is gone is no matter
	if got := s.InitializeResult().ProtocolVersion; got != version {
		return nil, fmt.Errorf("version %s, want %s", got, version)
	}
	return s, nil
}

// callSDK calls a tool and returns the text of its result.
func callSDK(t testing.TB, s *sdk.ClientSession, tool string, arguments any) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := s.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, c := range res.Content {
		if c, ok := c.(*sdk.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	if res.IsError {
		return "", fmt.Errorf("the tool failed: %s", text.String())
	}
	return text.String(), nil
}

// wantText calls a tool and checks the text of its result.
func wantText(t testing.TB, s *sdk.ClientSession, tool string, arguments any, want string) {
	t.Helper()
	if got, err := callSDK(t, s, tool, arguments); err != nil || got != want {
		t.Errorf("%s %v answered %q (%v), want %q", tool, arguments, got, err, want)
	}
}

// soon is when a recovery has to be over, on a machine that does other things too.
const soon = 5 * time.Second

package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// serveSSE serves the peer over HTTP+SSE and returns its resource, and what breaks every connection that is open.
func (p *peer) serveSSE(t testing.TB) (u *outriggerv1.Upstream, sever func()) {
	t.Helper()
	srv := httptest.NewServer(sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return p.Server }, nil))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	transport := &outriggerv1.Upstream_Sse{Sse: &outriggerv1.SSETransport{Url: srv.URL + "/sse"}}
	return &outriggerv1.Upstream{Name: "up", Transport: transport}, srv.CloseClientConnections
}

// What a real server of HTTP+SSE does for real clients, each of a version of its own.
func TestAServerOfHTTPAndSSEServesEveryClient(t *testing.T) {
	for _, version := range []string{mcp.Version20250326, mcp.Version20251125, mcp.Version20260728} {
		t.Run(version, func(t *testing.T) {
			u, _ := newPeer().serveSSE(t)
			r := newRig(t, u)
			if problems := r.Ready(testContext(t)); len(problems) > 0 {
				t.Errorf("not ready: %v", problems)
			}
			progressed := make(chan struct{}, 1)
			s := r.connect(version, &sdk.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
					if n.Params.ProgressToken == "mine" {
						progressed <- struct{}{}
					}
				},
				ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
					return &sdk.ElicitResult{Action: "decline"}, nil
				},
			})
			if tools, err := s.ListTools(testContext(t), nil); err != nil || len(tools.Tools) != 7 {
				t.Errorf("tools/list: %v, %v; want 7 tools", tools, err)
			}
			params := &sdk.CallToolParams{Name: "progress", Arguments: arguments("done")}
			params.SetProgressToken("mine")
			if got := textOf(s.CallTool(testContext(t), params)); got != "done" {
				t.Errorf("got %q", got)
			}
			select {
			case <-progressed:
			case <-time.After(patience):
				t.Error("no progress came")
			}
			if got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "ask", Arguments: arguments("sure?")})); got != "decline" {
				t.Errorf("got %q, want what the client answered", got)
			}
		})
	}
}

// Clients are only given versions with sessions that the sidecar speaks, and 2024-11-05 is none.
func TestAServerOf20241105ServesAClientOf20251125(t *testing.T) {
	p := newPeer("2024-11-05")
	u, _ := p.serveSSE(t)
	s := newRig(t, u).connect(mcp.Version20251125, nil)
	if got := s.InitializeResult().ProtocolVersion; got != mcp.Version20250326 {
		t.Errorf("version %s, want %s", got, mcp.Version20250326)
	}
	if got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "echo", Arguments: arguments("old")})); got != "old" {
		t.Errorf("got %q", got)
	}
}

func TestACancellationReachesAServerOfHTTPAndSSE(t *testing.T) {
	p := newPeer()
	u, _ := p.serveSSE(t)
	r := newRig(t, u)
	h := r.initialize()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.Do(r.request(testContext(t), http.MethodPost, h, toolCall("5", "wait", `{"text":"a"}`)))
	}()
	<-p.begun
	if a := r.do(http.MethodPost, h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`); a.status != 202 {
		t.Errorf("cancelled: %d %s", a.status, a.body)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Error("the call was not cancelled at the server")
	}
	r.do(http.MethodDelete, h, "")
	<-done
}

func TestAChangedListOfAServerOfHTTPAndSSEComesOnTheGETStream(t *testing.T) {
	changed := make(chan struct{}, 1)
	u, _ := newPeer().serveSSE(t)
	r := newRig(t, u)
	s := r.connect(mcp.Version20251125, &sdk.ClientOptions{ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	eventually(t, "the client's GET stream is open", func() bool { return r.metric("outrigger_open_streams", "era", "legacy") == 1 })
	s.CallTool(testContext(t), &sdk.CallToolParams{Name: "grow", Arguments: arguments("1")})
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the client was not told that the tools changed")
	}
}

// The event stream is the session: without it the server has forgotten everything, and the client need not know.
func TestAClientOutlivesTheEventStreamOfItsServer(t *testing.T) {
	u, sever := newPeer().serveSSE(t)
	r := newRig(t, u)
	s := r.connect(mcp.Version20251125, nil)
	for range 3 {
		sever()
		// Until the sidecar has seen the end, a call may meet it.
		eventually(t, "a call is answered after the break", func() bool {
			return textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "echo", Arguments: arguments("back")})) == "back"
		})
	}
	if !strings.Contains(r.log.String(), "opened a session again") {
		t.Error("the sidecar never opened the session again")
	}
}

package sse

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

type input struct {
	Text string `json:"text"`
}

// sdkServer is a real server with tools: echo, progress (one notification first), wait (until cancelled; it tells the
// channel when it begins and when it ends), ask (an elicitation), sample, grow (one tool more).
func sdkServer(waits chan<- string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, nil)
	tool := func(name string, f func(context.Context, *sdk.CallToolRequest, string) (string, error)) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(
			ctx context.Context, r *sdk.CallToolRequest, in input,
		) (*sdk.CallToolResult, any, error) {
			text, err := f(ctx, r, in.Text)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, err
		})
	}
	tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) { return text, nil })
	tool("progress", func(ctx context.Context, r *sdk.CallToolRequest, text string) (string, error) {
		return text, r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Progress: 1,
		})
	})
	tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, _ string) (string, error) {
		waits <- "begun"
		<-ctx.Done()
		waits <- "cancelled"
		return "", nil
	})
	tool("ask", func(ctx context.Context, r *sdk.CallToolRequest, text string) (string, error) {
		a, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: text})
		if err != nil {
			return "", err
		}
		return a.Action, nil
	})
	tool("grow", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) {
		sdk.AddTool(s, &sdk.Tool{Name: text}, func(
			context.Context, *sdk.CallToolRequest, input,
		) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{}, nil, nil
		})
		return text, nil
	})
	return s
}

// serveSDK serves a real server until the test ends.
func serveSDK(t testing.TB, s *sdk.Server) (url string) {
	t.Helper()
	srv := httptest.NewServer(sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv.URL + "/sse"
}

func TestARealServer(t *testing.T) {
	s := newServer(t, serveSDK(t, sdkServer(nil)))
	if eras, err := s.Eras(testContext(t)); err != nil || eras != mcp.EraSet(mcp.Legacy) {
		t.Errorf("Eras: %v, %v; want legacy only", eras, err)
	}
	session := open(t, s)
	for _, id := range []string{"7", `"7"`} {
		a, err := session.Call(testContext(t), message(t, toolCall(id, "echo", "hello")))
		if got, _ := responseOf(t, a, err); !strings.Contains(got, `"id":`+id) || !strings.Contains(got, "hello") {
			t.Errorf("id %s: answer %s", id, got)
		}
	}
	for range 3 {
		if err := s.Check(testContext(t)); err != nil {
			t.Errorf("Check: %v", err)
		}
	}
	if err := session.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	_, err := session.Call(testContext(t), message(t, toolCall("1", "echo", "hello")))
	wantKind(t, err, upstream.SessionGone)
	_, err = s.Call(testContext(t), message(t, toolCall("1", "echo", "hello")))
	wantKind(t, err, upstream.WrongEra)
}

func TestProgressComesBeforeTheResponse(t *testing.T) {
	session := open(t, newServer(t, serveSDK(t, sdkServer(nil))))
	a, err := session.Call(testContext(t), message(t, toolCall("1", "progress", "done")))
	got, before := responseOf(t, a, err)
	if len(before) != 1 || !strings.Contains(before[0], "notifications/progress") || !strings.Contains(got, "done") {
		t.Errorf("messages %q, then %s; want one progress first", before, got)
	}
}

func TestAnElicitationIsAnsweredDuringTheCall(t *testing.T) {
	session := open(t, newServer(t, serveSDK(t, sdkServer(nil))))
	a, err := session.Call(testContext(t), message(t, toolCall("1", "ask", "sure?")))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	text, m := next(t, a.Events)
	if m.Method != mcp.MethodElicit {
		t.Fatalf("first message %s, want an elicitation", text)
	}
	tell(t, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, m.ID.Of(m.Raw)))
	if text, _ = next(t, a.Events); !strings.Contains(text, "decline") {
		t.Errorf("response %s, want what the client answered", text)
	}
}

func TestACancelledCallIsCancelledAtTheServer(t *testing.T) {
	waits := make(chan string, 2)
	session := open(t, newServer(t, serveSDK(t, sdkServer(waits))))
	ctx, cancel := context.WithCancel(testContext(t))
	done := start(t, ctx, session, toolCall(`"w"`, "wait", ""))
	if got := <-waits; got != "begun" {
		t.Fatal(got)
	}
	cancel()
	_, err := wait(t, done)
	wantKind(t, err, upstream.Lost)
	if got := <-waits; got != "cancelled" {
		t.Errorf("the server says %s, want cancelled", got)
	}
	a, err := session.Call(testContext(t), message(t, toolCall("2", "echo", "still here")))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "still here") {
		t.Errorf("answer %s", got)
	}
}

func TestAChangedListComesOnTheSessionsOwnStream(t *testing.T) {
	session := open(t, newServer(t, serveSDK(t, sdkServer(nil))))
	events, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	a, err := session.Call(testContext(t), message(t, toolCall("1", "grow", "more")))
	if _, before := responseOf(t, a, err); len(before) != 0 {
		t.Errorf("the call has %q, want the response alone", before)
	}
	if text, m := next(t, events); m.Method != mcp.NotificationToolsChanged {
		t.Errorf("%s came, want %s", text, mcp.NotificationToolsChanged)
	}
}

func TestManyCallsOfOneSessionMeetTheirOwnAnswers(t *testing.T) {
	session := open(t, newServer(t, serveSDK(t, sdkServer(nil))))
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			text := fmt.Sprint("for ", i)
			a, err := session.Call(testContext(t), message(t, toolCall(fmt.Sprint(i+1), "progress", text)))
			if err != nil {
				t.Error(err)
				return
			}
			if got, before := responseOf(t, a, nil); !strings.Contains(got, fmt.Sprintf("%q", text)) || len(before) != 1 ||
				!strings.Contains(before[0], fmt.Sprintf(`"progressToken":%d`, i+1)) {
				t.Errorf("%s got %q, %s", text, before, got)
			}
		})
	}
	all.Wait()
}

func TestARestartedServerIsServedAgainByTheNextCall(t *testing.T) {
	waits, release := make(chan string, 1), make(chan struct{})
	defer close(release) // the server's session does not end before its handlers
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	begin := func(l net.Listener) func() {
		server := sdkServer(nil)
		sdk.AddTool(server, &sdk.Tool{Name: "hold"}, func(
			context.Context, *sdk.CallToolRequest, input,
		) (*sdk.CallToolResult, any, error) {
			waits <- "begun"
			<-release
			return &sdk.CallToolResult{}, nil, nil
		})
		srv := &http.Server{Handler: sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return server }, nil)}
		go srv.Serve(l)
		return func() { srv.Close() }
	}
	stop := begin(l)
	session := open(t, newServer(t, "http://"+address+"/sse"))
	done := start(t, testContext(t), session, toolCall("1", "hold", ""))
	<-waits
	stop()
	_, err = wait(t, done)
	wantKind(t, err, upstream.Lost)
	_, err = session.Call(testContext(t), message(t, toolCall("2", "echo", "down")))
	wantKind(t, err, upstream.Unreachable)
	if l, err = net.Listen("tcp", address); err != nil {
		t.Skipf("the port is taken: %v", err)
	}
	stop = begin(l)
	defer stop()
	a, err := session.Call(testContext(t), message(t, toolCall("3", "echo", "up")))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "up") {
		t.Errorf("answer %s", got)
	}
}

package streamable

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

type echoInput struct {
	Text string `json:"text"`
}

// sdkServer is a real server with tools: echo, progress (one notification first), poll (ends its stream before the
// answer), wait (until cancelled; it tells the channel when it begins and when it ends), ask (an elicitation).
func sdkServer(waits chan<- string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, nil)
	tool := func(name string, f func(context.Context, *sdk.CallToolRequest, string) string) {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(
			ctx context.Context, r *sdk.CallToolRequest, in echoInput,
		) (*sdk.CallToolResult, any, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: f(ctx, r, in.Text)}}}, nil, nil
		})
	}
	tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) string { return text })
	tool("progress", func(ctx context.Context, r *sdk.CallToolRequest, text string) string {
		err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: "p", Progress: 1})
		if err != nil {
			return err.Error()
		}
		return text
	})
	tool("poll", func(_ context.Context, r *sdk.CallToolRequest, text string) string {
		r.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 50 * time.Millisecond})
		return text
	})
	tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, _ string) string {
		waits <- "begun"
		<-ctx.Done()
		waits <- "cancelled"
		return ""
	})
	tool("ask", func(ctx context.Context, r *sdk.CallToolRequest, text string) string {
		a, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: text})
		if err != nil {
			return err.Error()
		}
		return a.Action
	})
	return s
}

// serveSDK serves the real server over TCP, or over a unix socket when path is not empty.
func serveSDK(t *testing.T, o *sdk.StreamableHTTPOptions, path string, waits chan<- string) (url string) {
	t.Helper()
	s := sdkServer(waits)
	srv := httptest.NewUnstartedServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, o))
	if path != "" {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv.Listener.Close()
		srv.Listener = l
	}
	srv.Start()
	t.Cleanup(func() {
		for session := range s.Sessions() {
			session.Close()
		}
		srv.Close()
	})
	if path != "" {
		return "http://localhost/mcp"
	}
	return srv.URL
}

func onSocket(path string) func(*outriggerv1.Upstream) {
	return func(u *outriggerv1.Upstream) { u.GetHttp().UnixSocket = path }
}

// open opens a legacy session the way a client does.
func open(t testing.TB, s *Server, initialize string) upstream.Session {
	t.Helper()
	session, a, err := s.Open(testContext(t), call(t, initialize))
	got, _ := responseOf(t, a, err)
	if session == nil || !strings.Contains(got, `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("initialize answered %s, want a session of 2025-11-25", got)
	}
	if a, err := session.Call(testContext(t), call(t, initialized)); a != nil || err != nil {
		t.Fatalf("initialized: %v, %v; want nil, nil", a, err)
	}
	return session
}

func toolCall(id, tool, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{"text":%q},"_meta":{"progressToken":"p"}}}`, id, tool, text)
}

func TestARealStatelessServer(t *testing.T) {
	for name, options := range map[string]*sdk.StreamableHTTPOptions{
		"in events": {Stateless: true}, "in JSON": {Stateless: true, JSONResponse: true},
	} {
		for _, path := range []string{"", unixSocket(t)} {
			t.Run(name+" "+path, func(t *testing.T) {
				s := newServer(t, serveSDK(t, options, path, nil), onSocket(path))
				eras, err := s.Eras(testContext(t))
				if err != nil || !eras.Has(mcp.Stateless) {
					t.Errorf("Eras: %v, %v; want stateless among them", eras, err)
				}
				if err := s.Check(testContext(t)); err != nil {
					t.Errorf("Check: %v", err)
				}
				a, err := s.Call(testContext(t), stateless(t, `"7"`, "echo", `{"text":"hello"}`))
				if got, _ := responseOf(t, a, err); !strings.Contains(got, `"id":"7"`) || !strings.Contains(got, "hello") {
					t.Errorf("answer %s", got)
				}
				c := stateless(t, "7", "echo", `{"text":"hello"}`)
				// This server does not decode the form that the specification has for names that are not plain.
				c.Header.Set(mcp.HeaderName, "=?base64?ZWNobw==?=")
				a, err = s.Call(testContext(t), c)
				if got, _ := responseOf(t, a, err); a.Status != 200 || !strings.Contains(got, "hello") {
					t.Errorf("an encoded name: %d %s, want it written plain and a result", a.Status, got)
				}
			})
		}
	}
}

func TestARealLegacyServer(t *testing.T) {
	for name, options := range map[string]*sdk.StreamableHTTPOptions{
		"in events": {EventStore: sdk.NewMemoryEventStore(nil)}, "in JSON": {JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := unixSocket(t)
			s := newServer(t, serveSDK(t, options, path, nil), onSocket(path))
			if eras, err := s.Eras(testContext(t)); err != nil || eras != mcp.EraSet(mcp.Legacy) {
				t.Errorf("Eras: %v, %v; want legacy only", eras, err)
			}
			session := open(t, s, initialize)
			a, err := session.Call(testContext(t), call(t, toolCall(`"7"`, "echo", "hello")))
			if got, _ := responseOf(t, a, err); !strings.Contains(got, `"id":"7"`) || !strings.Contains(got, "hello") {
				t.Errorf("answer %s", got)
			}
			for range 3 {
				if err := s.Check(testContext(t)); err != nil {
					t.Errorf("Check: %v", err)
				}
			}
			if err := session.Close(testContext(t)); err != nil {
				t.Error(err)
			}
			_, err = session.Call(testContext(t), call(t, toolCall("1", "echo", "hello")))
			wantKind(t, err, upstream.SessionGone)
		})
	}
}

func TestProgressComesBeforeTheResponse(t *testing.T) {
	s := newServer(t, serveSDK(t, nil, "", nil))
	a, err := open(t, s, initialize).Call(testContext(t), call(t, toolCall("1", "progress", "done")))
	got, before := responseOf(t, a, err)
	if len(before) != 1 || !strings.Contains(before[0], "notifications/progress") || !strings.Contains(got, "done") {
		t.Errorf("messages %q, then %s; want one progress first", before, got)
	}
}

func TestAServerMayEndTheStreamAndBePolled(t *testing.T) {
	s := newServer(t, serveSDK(t, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)}, "", nil))
	a, err := open(t, s, initialize).Call(testContext(t), call(t, toolCall("1", "poll", "done")))
	if got, before := responseOf(t, a, err); len(before) != 0 || !strings.Contains(got, "done") {
		t.Errorf("messages %q, then %s; want the response alone", before, got)
	}
}

func TestAnElicitationIsAnsweredDuringTheCall(t *testing.T) {
	const able = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"old","version":"1"}}}`
	s := newServer(t, serveSDK(t, nil, "", nil))
	session := open(t, s, able)
	a, err := session.Call(testContext(t), call(t, toolCall("1", "ask", "sure?")))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	e, err := a.Events.Next()
	if err != nil {
		t.Fatal(err)
	}
	m, err := mcp.Scan(e.Data, mcp.Limits{})
	if err != nil || m.Method != mcp.MethodElicit {
		t.Fatalf("first message %s, want an elicitation", e.Data)
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"decline"}}`, m.ID.Of(m.Raw))
	if a, err := session.Call(testContext(t), call(t, answer)); a != nil || err != nil {
		t.Fatalf("response: %v, %v; want nil, nil", a, err)
	}
	if e, err = a.Events.Next(); err != nil || !strings.Contains(string(e.Data), "decline") {
		t.Errorf("last message %s, %v; want what was answered", e.Data, err)
	}
}

func TestCancellingALegacyCallTellsTheServer(t *testing.T) {
	waits := make(chan string, 2)
	s := newServer(t, serveSDK(t, nil, "", waits))
	session := open(t, s, initialize)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		<-waits
		cancel()
	}()
	if err := failureOf(session.Call(ctx, call(t, toolCall(`"slow"`, "wait", "")))); err != io.EOF { // the server was quick to answer
		wantKind(t, err, upstream.Lost)
	}
	select {
	case <-waits:
	case <-time.After(patience):
		t.Fatal("the tool was not cancelled")
	}
}

func TestTheListenStreamCarriesWhatBelongsToNoCall(t *testing.T) {
	server := sdkServer(nil)
	srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer srv.Close()
	s := newServer(t, srv.URL)
	session := open(t, s, initialize)
	stream, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	sdk.AddTool(server, &sdk.Tool{Name: "more"}, func(
		context.Context, *sdk.CallToolRequest, echoInput,
	) (*sdk.CallToolResult, any, error) {
		return nil, nil, nil
	})
	if e, err := stream.Next(); err != nil || !strings.Contains(string(e.Data), mcp.NotificationToolsChanged) {
		t.Errorf("message %s, %v; want that the tools changed", e.Data, err)
	}
	done := make(chan error)
	go func() { _, err := stream.Next(); done <- err }()
	session.Close(testContext(t))
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("the stream outlived its session")
	}
	stream.Close()
}

func TestIdsOfBothTypesInFlightAtOnce(t *testing.T) {
	s := newServer(t, serveSDK(t, nil, "", nil))
	session := open(t, s, initialize)
	var wg sync.WaitGroup
	for _, id := range []string{`"7"`, `7`} {
		wg.Go(func() {
			for range 20 {
				a, err := session.Call(testContext(t), call(t, toolCall(id, "progress", "for "+id)))
				if err != nil {
					t.Error(err)
					return
				}
				var last string
				for {
					e, err := a.Events.Next()
					if err != nil {
						break
					}
					last = string(e.Data)
				}
				a.Close()
				m, err := mcp.Scan([]byte(last), mcp.Limits{})
				if err != nil || string(m.ID.Of(m.Raw)) != id || !strings.Contains(last, fmt.Sprintf("%q", "for "+id)) {
					t.Errorf("id %s got %s", id, last)
				}
			}
		})
	}
	wg.Wait()
}

func TestARestartedServerIsServedAgainByTheNextCall(t *testing.T) {
	path := unixSocket(t)
	start := func() func() {
		server := sdkServer(nil)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)}
		go srv.Serve(l)
		return func() {
			for session := range server.Sessions() {
				session.Close()
			}
			srv.Close()
		}
	}
	stop := start()
	s := newServer(t, "http://localhost/", onSocket(path))
	session := open(t, s, initialize)
	stop()
	begun := time.Now()
	_, err := session.Call(testContext(t), call(t, toolCall("1", "echo", "down")))
	wantKind(t, err, upstream.Unreachable)
	stop = start()
	a, err := session.Call(testContext(t), call(t, toolCall("2", "echo", "up")))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "up") {
		t.Errorf("answer %s", got)
	}
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("it took %v, want less than %v", took, patience/2)
	}
	ctx := testContext(t)
	s.Close(ctx)
	stop()
}

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package tolegacy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// realServer is a server of the SDK with sessions.
type realServer struct {
	*sdk.Server
	url string

	mu        sync.Mutex
	runs      map[string]int // of tools, by name and text
	cancelled map[string]int
	counts    map[string]int // calls of count, by session
	inits     []string       // capabilities that sessions were opened with
	subs      []string       // subscribe and unsubscribe, with the URI
	deleted   int
	levels    int // logging/setLevel
}

type textInput struct {
	Text string `json:"text"`
}

func (r *realServer) note(m map[string]int, key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	m[key]++
	return m[key]
}

func (r *realServer) read(m map[string]int, key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m[key]
}

// newReal serves the server over HTTP until the test ends.
func newReal(t testing.TB, options *sdk.StreamableHTTPOptions) *realServer {
	t.Helper()
	r := &realServer{runs: map[string]int{}, cancelled: map[string]int{}, counts: map[string]int{}}
	r.Server = sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, &sdk.ServerOptions{
		Instructions: "Use it well.",
		SubscribeHandler: func(_ context.Context, q *sdk.SubscribeRequest) error {
			return r.subscribed("+" + q.Params.URI)
		},
		UnsubscribeHandler: func(_ context.Context, q *sdk.UnsubscribeRequest) error {
			return r.subscribed("-" + q.Params.URI)
		},
	})
	r.AddReceivingMiddleware(r.watch)
	r.addSayers()
	r.addAskers()
	r.AddResource(&sdk.Resource{URI: "file:///a", Name: "a"}, func(
		_ context.Context, q *sdk.ReadResourceRequest,
	) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: q.Params.URI, Text: "A"}}}, nil
	})
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return r.Server }, options)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodDelete {
			r.mu.Lock()
			r.deleted++
			r.mu.Unlock()
		}
		handler.ServeHTTP(w, q)
	}))
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

// watch notes how sessions begin, and the levels they are told.
func (r *realServer) watch(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, q sdk.Request) (sdk.Result, error) {
		r.mu.Lock()
		switch method {
		case mcp.MethodSetLevel:
			r.levels++
		case mcp.MethodInitialize:
			b, _ := json.Marshal(q.GetParams().(*sdk.InitializeParams).Capabilities)
			r.inits = append(r.inits, string(b))
		}
		r.mu.Unlock()
		return next(ctx, method, q)
	}
}

func (r *realServer) subscribed(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subs = append(r.subs, what)
	if strings.Contains(what, "forbidden") {
		return errors.New("no")
	}
	return nil
}

// tool adds one that answers with text. Every tool counts its runs by its argument.
func (r *realServer) tool(name string, f func(context.Context, *sdk.CallToolRequest, string) (string, error)) {
	sdk.AddTool(r.Server, &sdk.Tool{Name: name}, func(
		ctx context.Context, q *sdk.CallToolRequest, in textInput,
	) (*sdk.CallToolResult, any, error) {
		r.note(r.runs, name+" "+in.Text)
		text, err := f(ctx, q, in.Text)
		if err != nil {
			return nil, nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
	})
}

// addSayers adds tools that answer without asking.
func (r *realServer) addSayers() {
	r.tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) { return text, nil })
	r.tool("count", func(_ context.Context, q *sdk.CallToolRequest, _ string) (string, error) {
		return fmt.Sprintf("count=%d", r.note(r.counts, q.Session.ID())), nil
	})
	r.tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, text string) (string, error) {
		<-ctx.Done()
		r.note(r.cancelled, text)
		return "", ctx.Err()
	})
	r.tool("report", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		for _, level := range []sdk.LoggingLevel{"debug", "info", "error"} {
			_ = q.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: string(level) + " of " + text})
		}
		if token := q.Params.GetProgressToken(); token != nil {
			_ = q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: text})
		}
		return text, nil
	})
}

// ask asks for the owner of a text.
func (r *realServer) ask(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
	a, err := q.Session.Elicit(ctx, &sdk.ElicitParams{Message: "question of " + text})
	if err != nil {
		if ctx.Err() != nil {
			r.note(r.cancelled, text)
		}
		return "", err
	}
	return fmt.Sprintf("%s:%s:%v", text, a.Action, a.Content["owner"]), nil
}

// addAskers adds tools that ask their client.
func (r *realServer) addAskers() {
	r.addStories()
	r.tool("ask", r.ask)
	r.tool("ask3", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		var all []string
		for i := range 3 {
			one, err := r.ask(ctx, q, fmt.Sprint(text, i))
			if err != nil {
				return "", err
			}
			all = append(all, one)
		}
		return strings.Join(all, ";"), nil
	})
	r.tool("openURL", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		a, err := q.Session.Elicit(ctx, &sdk.ElicitParams{
			Mode: "url", URL: "https://example.com/" + text, Message: "open", ElicitationID: "e1",
		})
		if err != nil {
			return "", err
		}
		return "url:" + a.Action, nil
	})
	r.tool("needURL", func(_ context.Context, _ *sdk.CallToolRequest, text string) (string, error) {
		if r.read(r.runs, "needURL "+text) > 1 {
			return "allowed", nil
		}
		return "", sdk.URLElicitationRequiredError([]*sdk.ElicitParams{{
			Mode: "url", URL: "https://example.com/" + text, Message: "log in", ElicitationID: "e2",
		}})
	})
	r.tool("sample", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		a, err := q.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 10, Messages: []*sdk.SamplingMessage{
			{Role: "user", Content: &sdk.TextContent{Text: text}},
		}})
		if err != nil {
			return "", err
		}
		return "sampled:" + a.Content.(*sdk.TextContent).Text, nil
	})
	r.tool("roots", func(ctx context.Context, q *sdk.CallToolRequest, _ string) (string, error) {
		a, err := q.Session.ListRoots(ctx, nil)
		if err != nil {
			return "", err
		}
		return "root:" + a.Roots[0].URI, nil
	})
}

// addStories adds a tool that asks several times, and says how far it is.
func (r *realServer) addStories() {
	r.tool("story", func(ctx context.Context, q *sdk.CallToolRequest, text string) (string, error) {
		said := text
		for i := range 3 {
			_ = q.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: "log of " + text})
			_ = q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
				ProgressToken: q.Params.GetProgressToken(), Progress: float64(i + 1), Message: "progress of " + text,
			})
			one, err := r.ask(ctx, q, text)
			if err != nil {
				return "", err
			}
			said += ";" + one
		}
		return said, nil
	})
}

// realBridge is a Server around the real one, over HTTP.
func realBridge(t testing.TB, r *realServer, tune ...func(*Options)) *Server {
	t.Helper()
	inner, err := streamable.New("old", &outriggerv1.Upstream{
		Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: r.url}},
		Timeouts: &outriggerv1.Timeouts{
			Connect: durationpb.New(patience), Handshake: durationpb.New(patience), Call: durationpb.New(6 * patience),
		},
	}, streamable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return newBridge(t, inner, tune...)
}

const everything = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

func TestACallOfAStatelessClientIsAnswered(t *testing.T) {
	for name, options := range map[string]*sdk.StreamableHTTPOptions{
		"in events": nil, "resumable": {EventStore: sdk.NewMemoryEventStore(nil)}, "in JSON": {JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := realBridge(t, newReal(t, options))
			if eras, err := s.Eras(testContext(t)); err != nil || !eras.Has(mcp.Stateless) || !eras.Has(mcp.Legacy) {
				t.Errorf("Eras: %v, %v; want both", eras, err)
			}
			c := newClient(t, s, "", `{}`)
			c.do(c.tool(`"7"`, "echo", "hello", "")).want(t, 200, `"id":"7"`, `"resultType":"complete"`, `hello`)
			c.do(c.tool(`7`, "echo", "hello", "")).want(t, 200, `"id":7,`, `hello`)
			c.do(c.call(`1`, mcp.MethodToolsList, "")).want(t, 200, `"ttlMs":0`, `"cacheScope":"private"`, `"needURL"`)
			c.do(c.call(`1`, mcp.MethodResourcesRead, `"uri":"file:///a",`)).want(t, 200, `"cacheScope":"private"`, `"A"`)
			c.do(c.call(`1`, mcp.MethodResourcesRead, `"uri":"file:///none",`)).want(t, 200, `-32602`, `file:///none`)
			c.do(c.call(`1`, mcp.MethodPromptsGet, `"name":"none",`)).want(t, 200, `"error"`)
			for _, method := range []string{
				"ping", "logging/setLevel", "resources/subscribe", "tasks/get", "tasks/list", "acme/unknown", "initialize",
			} {
				c.do(c.call(`"x"`, method, "")).want(t, 404, `"id":"x"`, `-32601`)
			}
			nothingInUse(t, s)
			if n := s.sessionsForTest(); n != 1 {
				t.Errorf("%d sessions, want 1", n)
			}
		})
	}
}

func TestDiscoverIsAnsweredFromInitialize(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", `{"roots":{}}`)
	for range 3 {
		c.do(c.call(`"d"`, mcp.MethodDiscover, "")).want(t, 200, `"id":"d"`, `"resultType":"complete"`,
			`"supportedVersions":["2026-07-28",`, `"tools":{"listChanged":true}`, `"subscribe":true`,
			`"instructions":"Use it well."`, `"ttlMs":60000`, `"cacheScope":"private"`,
			`"io.modelcontextprotocol/serverInfo":{"name":"real","version":"1"}`)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.inits) != 1 || strings.Contains(r.inits[0], "roots\":{\"") {
		t.Errorf("sessions were opened with %s, want one without capabilities", r.inits)
	}
}

func TestAnElicitationGoesThroughTwoRequests(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", everything)
	c.meta = `"progressToken":"p",`
	q := questions(t, c.do(c.tool(`1`, "ask", "a", "")))
	if string(q.ID) != "1" || len(q.Result.InputRequests) != 1 {
		t.Fatalf("asked %+v", q)
	}
	if one := q.Result.InputRequests["q1"]; one.Method != mcp.MethodElicit || !strings.Contains(string(one.Params), "question of a") ||
		strings.Contains(string(one.Params), "progressToken") {
		t.Errorf("asked %s %s", one.Method, one.Params)
	}
	if n := s.heldForTest(); n != 1 {
		t.Errorf("%d held calls, want 1", n)
	}
	c.do(c.tool(`2`, "ask", "a", q.retry(`{"q1":{"action":"accept","content":{"owner":"ann"}},"other":{}}`))).
		want(t, 200, `"id":2`, `a:accept:ann`, `"resultType":"complete"`)
	if n := r.read(r.runs, "ask a"); n != 1 {
		t.Errorf("the tool ran %d times, want once", n)
	}
	nothingInUse(t, s)
}

func TestACallMayAskSeveralTimes(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", everything)
	answer := c.do(c.tool(`0`, "ask3", "a", ""))
	for i := range 3 {
		q := questions(t, answer)
		responses := fmt.Sprintf(`{"q%d":{"action":"accept","content":{"owner":"o%d"}}}`, i+1, i)
		answer = c.do(c.tool(fmt.Sprint(i+1), "ask3", "a", q.retry(responses)))
	}
	answer.want(t, 200, `"id":3`, `a0:accept:o0;a1:accept:o1;a2:accept:o2`)
	nothingInUse(t, s)
}

func TestEveryKindOfQuestionIsAsked(t *testing.T) {
	for _, c := range []struct{ tool, method, response, want string }{
		{"openURL", mcp.MethodElicit, `{"action":"accept"}`, `url:accept`},
		{"sample", mcp.MethodCreateMessage, `{"role":"assistant","content":{"type":"text","text":"yes"},"model":"m"}`, `sampled:yes`},
		{"roots", mcp.MethodRootsList, `{"roots":[{"uri":"file:///home"}]}`, `root:file:///home`},
	} {
		t.Run(c.tool, func(t *testing.T) {
			s := realBridge(t, newReal(t, nil))
			ann := newClient(t, s, "ann", everything)
			answer := ann.do(ann.tool(`1`, c.tool, "x", ""))
			q := questions(t, answer)
			if q.Result.InputRequests["q1"].Method != c.method || strings.Contains(answer.last, "elicitationId") {
				t.Errorf("asked %s, want %s without an elicitationId", answer.last, c.method)
			}
			ann.do(ann.tool(`2`, c.tool, "x", q.retry(`{"q1":`+c.response+`}`))).want(t, 200, c.want)
		})
	}
}

func TestWhatTheClientDidNotDeclareIsNotAsked(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", `{"elicitation":{}}`)
	c.do(c.tool(`1`, "sample", "x", "")).want(t, 400, `-32021`, `{"requiredCapabilities":{"sampling":{}}}`, `"id":1`)
	c.do(c.tool(`1`, "needURL", "x", "")).want(t, 400, `-32021`, `{"requiredCapabilities":{"elicitation":{"url":{}}}}`, `"id":1`)
	nothingInUse(t, s)
}

func TestAURLThatIsRequiredFirstIsAskedForAndTheCallMadeAgain(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", everything)
	answer := c.do(c.tool(`1`, "needURL", "x", ""))
	q := questions(t, answer)
	if p := string(q.Result.InputRequests["q1"].Params); !strings.Contains(p, `"mode":"url"`) ||
		!strings.Contains(p, "https://example.com/x") || strings.Contains(answer.last, "elicitationId") {
		t.Errorf("asked %s", answer.last)
	}
	if s.heldForTest() != 0 {
		t.Error("the call is held, though the server has refused it")
	}
	c.do(c.tool(`2`, "needURL", "x", q.retry(`{"q1":{"action":"accept"}}`))).want(t, 200, `allowed`, `"id":2`)
	c.do(c.tool(`2`, "needURL", "y", q.retry(`{"q1":{"action":"accept"}}`))).want(t, 200, `-32602`, notThisCall)
}

func TestProgressKeepsItsTokenAndLogsTheirLevel(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	for _, c := range []struct {
		meta string
		want []string
	}{
		{`"progressToken":41,`, []string{`"progressToken":41`}},
		{`"progressToken":"41",`, []string{`"progressToken":"41"`}},
		{`"io.modelcontextprotocol/logLevel":"info",`, []string{"info of x", "error of x"}},
		{`"io.modelcontextprotocol/logLevel":"info",`, []string{"info of x", "error of x"}},
		{`"io.modelcontextprotocol/logLevel":"debug",`, []string{"debug of x", "info of x", "error of x"}},
		{`"io.modelcontextprotocol/logLevel":"error",`, []string{"error of x"}},
		{``, nil},
	} {
		ann := newClient(t, s, "ann", `{}`)
		ann.meta = c.meta
		answer := ann.do(ann.tool(`1`, "report", "x", ""))
		if len(answer.before) != len(c.want) {
			t.Errorf("%s: got %q, want messages with %q", c.meta, answer.before, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(answer.before[i], want) {
				t.Errorf("%s: message %s, want %s", c.meta, answer.before[i], want)
			}
		}
	}
	r.mu.Lock()
	if r.levels != 3 {
		t.Errorf("the server was told a level %d times, want 3", r.levels)
	}
	r.mu.Unlock()
	ann := newClient(t, s, "ann", `{}`)
	ann.meta = `"io.modelcontextprotocol/logLevel":"loud",`
	ann.do(ann.tool(`1`, "report", "x", "")).want(t, 400, "-32602")
}

func TestALeavingClientCancelsItsCall(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", everything)
	ctx, leave := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, c.tool(`1`, "wait", "x", ""))
		done <- err
	}()
	eventually(t, "the tool runs", func() bool { return r.read(r.runs, "wait x") == 1 })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	eventually(t, "the tool is cancelled", func() bool { return r.read(r.cancelled, "x") == 1 })
	nothingInUse(t, s)
}

func TestAQuestionIsNoLeaving(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", everything)
	ctx, leave := context.WithCancel(testContext(t))
	a, err := s.Call(ctx, c.tool(`1`, "ask", "a", ""))
	q := questions(t, got(t, a, err))
	leave() // as a server does whose handler has returned
	c.do(c.tool(`2`, "ask", "a", q.retry(`{"q1":{"action":"decline"}}`))).want(t, 200, `a:decline`)
	eventually(t, "the call that was answered is held no more", func() bool { return s.heldForTest() == 0 })
	q = questions(t, c.do(c.tool(`3`, "ask3", "b", "")))
	ctx, leave = context.WithCancel(testContext(t))
	a, err = s.Call(ctx, c.tool(`4`, "ask3", "b", q.retry(`{"q1":{"action":"decline"}}`)))
	questions(t, got(t, a, err))
	leave()
	if n := s.heldForTest(); n != 1 {
		t.Errorf("%d held calls, want the one that asked again", n)
	}
}

func TestPrincipalsAndDeclarationsHaveSessionsOfTheirOwn(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	for i, c := range []struct {
		principal, capabilities, want string
	}{
		{"ann", `{}`, "count=1"},
		{"ann", `{}`, "count=2"},
		{"bob", `{}`, "count=1"},
		{"", `{}`, "count=1"},
		{"ann", `{"roots":{},"elicitation":{}}`, "count=1"},
		{"ann", ` {"elicitation" : { } , "roots":{}}`, "count=2"},
		{"ann", `{"tasks":{"list":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`, "count=1"},
		{"ann", `{"extensions":{},"tasks":{}}`, "count=2"},
		{"ann", `{}`, "count=3"},
		{"bob", `{}`, "count=2"},
	} {
		client := newClient(t, s, c.principal, c.capabilities)
		a := client.do(client.tool("1", "count", "", ""))
		if !strings.Contains(a.last, c.want) {
			t.Errorf("call %d, of %q with %s: %s, want %s", i, c.principal, c.capabilities, a.last, c.want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := strings.Join(r.inits, " "); strings.Contains(all, "tasks") {
		t.Errorf("tasks were declared to the server: %s", all)
	}
}

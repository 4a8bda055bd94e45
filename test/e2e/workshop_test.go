//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package e2e

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
)

const (
	workshopNote = "workshop://note" // a resource that can be subscribed to
	workshopPage = 5                 // entries on a page of a list
	bigText      = 5 << 20           // bytes of big's answer
)

// workshop is a real server of one era that does all that MCP has. What it answers, asks and says names the text of the
// call that it is for.
type workshop struct {
	*sdk.Server
	name  string
	url   string // with its path, when served over HTTP
	asks  bool   // it asks by requests of its own, as servers with sessions do
	begun chan string
	open  context.Context // ends its tools
	close func()

	mu        sync.Mutex     // guards below
	runs      map[string]int // of a tool with a text
	ended     map[string]int // likewise, those that have ended
	cancelled map[string]int // likewise
	counts    map[string]int // calls of count, by session
	watched   int            // subscriptions now
}

// newWorkshop makes a server that speaks one era alone.
func newWorkshop(name, version string) *workshop {
	w := &workshop{
		name: name, asks: version != versionStateless, begun: make(chan string, 1024),
		runs: map[string]int{}, ended: map[string]int{}, cancelled: map[string]int{}, counts: map[string]int{},
	}
	w.open, w.close = context.WithCancel(context.Background())
	versions := sdk.SupportedProtocolVersions()
	if versions[0] != versionStateless {
		panic("the SDK speaks " + versions[0])
	}
	versions = versions[:1]
	if w.asks {
		versions = sdk.SupportedProtocolVersions()[1:]
	}
	watch := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.watched += n
	}
	w.Server = sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, &sdk.ServerOptions{
		Instructions: "Mind your head.", PageSize: workshopPage, SupportedProtocolVersions: versions,
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { watch(1); return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { watch(-1); return nil },
		CompletionHandler: func(_ context.Context, q *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{q.Params.Argument.Value + "!"}}}, nil
		},
	})
	w.addSayers()
	w.addAskers()
	w.AddResource(&sdk.Resource{URI: workshopNote, Name: "note"}, w.readResource)
	w.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "workshop://part/{id}", Name: "part"}, w.readResource)
	w.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "who"}}},
		func(_ context.Context, q *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			text := &sdk.TextContent{Text: "hello " + q.Params.Arguments["who"]}
			return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: text}}}, nil
		})
	return w
}

func (w *workshop) readResource(_ context.Context, q *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: q.Params.URI, Text: w.name + " about " + q.Params.URI}}}, nil
}

// note counts in one of the maps.
func (w *workshop) note(m map[string]int, key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	m[key]++
	return m[key]
}

// times is how often a tool ran with a text.
func (w *workshop) times(tool, text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[tool+" "+text]
}

// atWork is how many runs of a tool with a text have not ended.
func (w *workshop) atWork(tool, text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs[tool+" "+text] - w.ended[tool+" "+text]
}

// cancels is how often a call with a text was cancelled at the tool.
func (w *workshop) cancels(text string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cancelled[text]
}

// subscriptions are those that it has now.
func (w *workshop) subscriptions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched
}

// sessions are those that it has now.
func (w *workshop) sessions() (n int) {
	for range w.Sessions() {
		n++
	}
	return n
}

type toolFunc func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error)

// tool adds one. Its runs are counted.
func (w *workshop) tool(name string, f toolFunc) {
	sdk.AddTool(w.Server, &sdk.Tool{Name: name}, func(
		ctx context.Context, q *sdk.CallToolRequest, in input,
	) (*sdk.CallToolResult, any, error) {
		w.note(w.runs, name+" "+in.Text)
		defer w.note(w.ended, name+" "+in.Text)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(w.open, stop)()
		res, err := f(ctx, q, in.Text)
		return res, nil, err
	})
}

func said(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// addSayers adds tools that answer without asking: echo; fail, with isError; count, of this session's; report, which
// says and logs first; wait, until it is cancelled; big; and raw, whose structured content is its arguments.
func (w *workshop) addSayers() {
	w.tool("echo", func(_ context.Context, _ *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return said(text), nil
	})
	w.tool("fail", func(_ context.Context, _ *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return nil, errors.New("no " + text)
	})
	w.tool("count", func(_ context.Context, q *sdk.CallToolRequest, _ string) (*sdk.CallToolResult, error) {
		return said(fmt.Sprint(w.note(w.counts, q.Session.ID()))), nil
	})
	w.tool("report", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return said(text), say(ctx, q, text)
	})
	w.tool("wait", func(ctx context.Context, _ *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return nil, w.wait(ctx, text)
	})
	w.tool("big", func(_ context.Context, _ *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return said(strings.Repeat(text, bigText/len(text))), nil
	})
	w.AddTool(&sdk.Tool{Name: "raw", InputSchema: json.RawMessage(`{"type":"object"}`), OutputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, q *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			res := said(string(q.Params.Arguments))
			res.StructuredContent = q.Params.Arguments
			return res, nil
		})
}

// say reports progress, where it is wanted, and logs at three levels.
func say(ctx context.Context, q *sdk.CallToolRequest, text string) error {
	for _, level := range []sdk.LoggingLevel{"debug", "warning", "error"} {
		if err := q.Session.Log(ctx, &sdk.LoggingMessageParams{Level: level, Data: string(level) + " of " + text}); err != nil {
			return err
		}
	}
	token := q.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return q.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1, Message: text})
}

func (w *workshop) wait(ctx context.Context, text string) error {
	w.begun <- text
	<-ctx.Done()
	w.note(w.cancelled, text)
	return ctx.Err()
}

// askedFor asks one thing, by the means of the era. Where res is not nil it is the tool's answer, for now.
func (w *workshop) askedFor(ctx context.Context, q *sdk.CallToolRequest, text, key string, what sdk.InputRequest) (_ sdk.InputResponse, res *sdk.CallToolResult, err error) {
	if !w.asks {
		if answer := q.Params.InputResponses[key]; answer != nil {
			return answer, nil, nil
		}
		return nil, &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{key: what}, RequestState: "state of " + text}, nil
	}
	var answer sdk.InputResponse
	switch what := what.(type) {
	case *sdk.ElicitParams:
		answer, err = q.Session.Elicit(ctx, what)
	case *sdk.CreateMessageParams:
		answer, err = q.Session.CreateMessage(ctx, what)
	case *sdk.ListRootsParams:
		answer, err = q.Session.ListRoots(ctx, what)
	}
	if err != nil && ctx.Err() != nil {
		w.note(w.cancelled, text)
	}
	return answer, nil, err
}

// ask asks who owns a text, and answers with the text, what the client did, and the owner that it named.
func (w *workshop) ask(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
	a, res, err := w.askedFor(ctx, q, text, "owner", &sdk.ElicitParams{Message: "who owns " + text})
	if err != nil || res != nil {
		return res, err
	}
	answer := a.(*sdk.ElicitResult)
	return said(fmt.Sprintf("%s:%s:%v", text, answer.Action, answer.Content["owner"])), nil
}

// addAskers adds tools that ask their client: ask; ask3, three times; quiz, twice, and says something in between;
// askWait, which then waits until it is cancelled; sample and roots. Those of several questions are for servers that ask
// by requests.
func (w *workshop) addAskers() {
	w.tool("ask", w.ask)
	w.tool("ask3", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return w.askOften(ctx, q, text, 3)
	})
	w.tool("quiz", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		return w.askOften(ctx, q, text, 2)
	})
	w.tool("askWait", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		if res, err := w.ask(ctx, q, text); err != nil || res.InputRequests != nil {
			return res, err
		}
		return nil, w.wait(ctx, text)
	})
	w.tool("sample", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		message := &sdk.SamplingMessage{Role: "user", Content: &sdk.TextContent{Text: text}}
		a, res, err := w.askedFor(ctx, q, text, "sample", &sdk.CreateMessageParams{MaxTokens: 5, Messages: []*sdk.SamplingMessage{message}})
		if err != nil || res != nil {
			return res, err
		}
		b, err := json.Marshal(a)
		return said(string(b)), err
	})
	w.tool("roots", func(ctx context.Context, q *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
		a, res, err := w.askedFor(ctx, q, text, "roots", &sdk.ListRootsParams{})
		if err != nil || res != nil {
			return res, err
		}
		b, err := json.Marshal(a)
		return said(string(b)), err
	})
}

// askOften says something before and after each question, and answers with all the answers.
func (w *workshop) askOften(ctx context.Context, q *sdk.CallToolRequest, text string, n int) (*sdk.CallToolResult, error) {
	var all []string
	for i := range n {
		if err := say(ctx, q, text); err != nil {
			return nil, err
		}
		res, err := w.ask(ctx, q, text)
		if err != nil || res.InputRequests != nil {
			return res, err
		}
		all = append(all, fmt.Sprint(i, " ", res.Content[0].(*sdk.TextContent).Text))
	}
	return said(strings.Join(all, ";")), say(ctx, q, text)
}

// handler serves the workshop over HTTP.
func (w *workshop) handler() http.Handler {
	var o *sdk.StreamableHTTPOptions
	if !w.asks {
		o = &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}
	}
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return w.Server }, o)
}

// serve runs the workshop within the test.
func (w *workshop) serve(t testing.TB) *workshop {
	s := httptest.NewServer(w.handler())
	w.url = s.URL
	t.Cleanup(func() {
		w.close()
		for session := range w.Sessions() {
			session.Close()
		}
		s.CloseClientConnections()
		s.Close()
	})
	return w
}

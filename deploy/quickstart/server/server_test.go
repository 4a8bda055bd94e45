package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

const patience = 20 * time.Second // for anything that should be prompt

var versions = []string{"2026-07-28", "2025-11-25"}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reports are the steps that the server reported.
type reports struct {
	mu    sync.Mutex
	steps []float64
	more  chan struct{} // capacity 1
}

func (r *reports) add(_ context.Context, n *mcp.ProgressNotificationClientRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, n.Params.Progress)
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// visit connects a client on a version's wire; action is what its user does when asked.
func visit(t *testing.T, version, action string) (*mcp.ClientSession, *reports) {
	t.Helper()
	s := httptest.NewServer(newHandler(slog.New(slog.DiscardHandler)))
	t.Cleanup(s.Close)
	r := &reports{more: make(chan struct{}, 1)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			res := &mcp.ElicitResult{Action: action}
			if action == "accept" {
				res.Content = map[string]any{"name": "Ada"}
			}
			return res, nil
		},
		ProgressNotificationHandler: r.add,
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: s.Client()},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	if got := session.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("negotiated %s, want %s", got, version)
	}
	return session, r
}

func call(t *testing.T, s *mcp.ClientSession, tool string, arguments map[string]any) *mcp.CallToolResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	p.SetProgressToken("token")
	res, err := s.CallTool(ctx, p)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return res
}

func TestEveryToolWorksOnBothWires(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			session, _ := visit(t, version, "accept")
			for _, c := range []struct {
				tool      string
				arguments map[string]any
				want      string
				isError   bool
			}{
				{tool: "echo", arguments: map[string]any{"text": "ẞ\n"}, want: "ẞ\n"},
				{tool: "add", arguments: map[string]any{"a": 0.5, "b": -2}, want: `{"sum":-1.5}`},
				{tool: "sleep", arguments: map[string]any{"milliseconds": 1}, want: "slept 1 ms"},
				{tool: "sleep", arguments: map[string]any{"milliseconds": -1}, want: "milliseconds is -1, expected 0 to 60000", isError: true},
				{tool: "progress", arguments: map[string]any{"steps": 2}, want: "did 2 steps"},
				{tool: "progress", arguments: map[string]any{"steps": 101}, want: "expected 1 to 100 steps and 0 to 1000 milliseconds", isError: true},
				{tool: "ask", want: "Hello, Ada!"},
			} {
				res := call(t, session, c.tool, c.arguments)
				got, _ := res.Content[0].(*mcp.TextContent)
				if got == nil || got.Text != c.want || res.IsError != c.isError {
					t.Errorf("%s(%v): got %+v, error %t, want %q, error %t", c.tool, c.arguments, got, res.IsError, c.want, c.isError)
				}
			}
		})
	}
}

func TestADeclinedQuestionIsNoError(t *testing.T) {
	for _, version := range versions {
		session, _ := visit(t, version, "decline")
		res := call(t, session, "ask", nil)
		if got := fmt.Sprint(res.Content[0].(*mcp.TextContent).Text); got != "No name, no greeting." || res.IsError {
			t.Errorf("%s: got %q, error %t", version, got, res.IsError)
		}
	}
}

func TestProgressIsReportedInOrder(t *testing.T) {
	for _, version := range versions {
		session, r := visit(t, version, "accept")
		call(t, session, "progress", map[string]any{"steps": 3})
		deadline := time.After(patience)
		for done := false; !done; { // a report may be handled after the answer that came behind it
			r.mu.Lock()
			got := fmt.Sprint(r.steps)
			r.mu.Unlock()
			if done = got == "[1 2 3]"; done {
				continue
			}
			select {
			case <-r.more:
			case <-deadline:
				t.Fatalf("%s: steps %s, want [1 2 3]", version, got)
			}
		}
	}
}

// On the newer wire a client cancels by leaving. The server's close awaits the handler, so one that goes on shows as a
// slow subtest. On the older wire the SDK's client sends its cancellation behind its own back, and may close before.
func TestASleepEndsWhenItsCallerLeaves(t *testing.T) {
	began := time.Now()
	t.Run("sleep", func(t *testing.T) {
		session, _ := visit(t, "2026-07-28", "accept")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "sleep", Arguments: map[string]any{"milliseconds": maxSleep}})
		if err == nil {
			t.Error("the cancelled call succeeded")
		}
	})
	if took := time.Since(began); took > patience {
		t.Errorf("the call went on for %v after its caller had left", took)
	}
}

func TestResourcesAndPrompts(t *testing.T) {
	for _, version := range versions {
		session, _ := visit(t, version, "accept")
		for uri, want := range map[string]string{
			"example://about":        documents["example://about"],
			"example://parts":        documents["example://parts"],
			"example://greeting/Ada": "Hello, Ada!",
		} {
			res, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil {
				t.Fatalf("%s: %s: %v", version, uri, err)
			}
			if got := res.Contents[0].Text; got != want {
				t.Errorf("%s: %s is %q, want %q", version, uri, got, want)
			}
		}
		if _, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "example://none"}); err == nil {
			t.Errorf("%s: a resource that does not exist was read", version)
		}
		prompt, err := session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "explain", Arguments: map[string]string{"topic": "canoes"}})
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if got := prompt.Messages[0].Content.(*mcp.TextContent).Text; got != "Explain canoes in three sentences." {
			t.Errorf("%s: prompt is %q", version, got)
		}
	}
}

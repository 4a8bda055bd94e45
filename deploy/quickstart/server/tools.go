package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds on what a caller may ask for.
const (
	maxSleep = 60_000 // milliseconds
	maxSteps = 100
)

// newServer has everything that the example offers.
func newServer(log *slog.Logger) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "outrigger-example", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions: "An example server. Its tools show what MCP can carry through a proxy.",
		Logger:       log,
	})
	mcp.AddTool(s, &mcp.Tool{Name: "echo", Description: "Answer with the text that it is given."}, echo)
	mcp.AddTool(s, &mcp.Tool{Name: "add", Description: "Add two numbers."}, add)
	mcp.AddTool(s, &mcp.Tool{Name: "sleep", Description: "Answer after a while, or end when the call is cancelled."}, sleep)
	mcp.AddTool(s, &mcp.Tool{Name: "progress", Description: "Report progress a few times, then answer."}, progress)
	mcp.AddTool(s, &mcp.Tool{Name: "ask", Description: "Ask the user for a name, then greet."}, ask)
	addResources(s)
	return s
}

type echoInput struct {
	Text string `json:"text"`
}

func echo(_ context.Context, _ *mcp.CallToolRequest, in echoInput) (*mcp.CallToolResult, any, error) {
	return text(in.Text), nil, nil
}

type addInput struct {
	A float64 `json:"a"`
	B float64 `json:"b"`
}

type addOutput struct {
	Sum float64 `json:"sum"`
}

// add answers with structured content; the SDK adds the same as text.
func add(_ context.Context, _ *mcp.CallToolRequest, in addInput) (*mcp.CallToolResult, addOutput, error) {
	return nil, addOutput{Sum: in.A + in.B}, nil
}

type sleepInput struct {
	Milliseconds int `json:"milliseconds" jsonschema:"at most 60000"`
}

func sleep(ctx context.Context, _ *mcp.CallToolRequest, in sleepInput) (*mcp.CallToolResult, any, error) {
	if in.Milliseconds < 0 || in.Milliseconds > maxSleep {
		return nil, nil, fmt.Errorf("milliseconds is %d, expected 0 to %d", in.Milliseconds, maxSleep)
	}
	if err := pause(ctx, time.Duration(in.Milliseconds)*time.Millisecond); err != nil {
		return nil, nil, err
	}
	return text(fmt.Sprintf("slept %d ms", in.Milliseconds)), nil, nil
}

type progressInput struct {
	Steps        int `json:"steps" jsonschema:"1 to 100"`
	Milliseconds int `json:"milliseconds,omitempty" jsonschema:"from one step to the next, at most 1000"`
}

// progress reports each step, if the caller gave a token to report under.
func progress(ctx context.Context, req *mcp.CallToolRequest, in progressInput) (*mcp.CallToolResult, any, error) {
	if in.Steps < 1 || in.Steps > maxSteps || in.Milliseconds < 0 || in.Milliseconds > 1000 {
		return nil, nil, fmt.Errorf("expected 1 to %d steps and 0 to 1000 milliseconds", maxSteps)
	}
	token := req.Params.GetProgressToken()
	for step := 1; step <= in.Steps; step++ {
		if err := pause(ctx, time.Duration(in.Milliseconds)*time.Millisecond); err != nil {
			return nil, nil, err
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(step), Total: float64(in.Steps),
			Message: fmt.Sprintf("step %d of %d", step, in.Steps),
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return text(fmt.Sprintf("did %d steps", in.Steps)), nil, nil
}

// ask says what it needs to know and is called again with the answer. On the older wire the SDK asks the client in the
// middle of the call instead, so that this one form serves both.
func ask(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	answer, ok := req.Params.InputResponses["who"]
	if !ok {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"who": question()}}, nil, nil
	}
	result, ok := answer.(*mcp.ElicitResult)
	if !ok {
		return nil, nil, fmt.Errorf("the answer is a %T, expected an elicitation's", answer)
	}
	if result.Action != "accept" {
		return text("No name, no greeting."), nil, nil
	}
	name, ok := result.Content["name"].(string)
	if name = strings.TrimSpace(name); !ok || name == "" {
		return nil, nil, errors.New("the answer has no name")
	}
	return text("Hello, " + name + "!"), nil, nil
}

func question() *mcp.ElicitParams {
	return &mcp.ElicitParams{
		Message: "What is your name?",
		RequestedSchema: &jsonschema.Schema{
			Type:       "object",
			Properties: map[string]*jsonschema.Schema{"name": {Type: "string", Description: "as you like to be called"}},
			Required:   []string{"name"},
		},
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// pause returns after d, or with ctx's error when that ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

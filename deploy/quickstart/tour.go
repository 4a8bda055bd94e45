package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The two wires: the newest version of each era.
const (
	stateless = "2026-07-28"
	legacy    = "2025-11-25"
)

// progressSteps is how often the tool progress is told to report.
const progressSteps = 3

// visitor is a client on one wire, and what it was told.
type visitor struct {
	session  *mcp.ClientSession
	progress chan float64 // capacity progressSteps; what does not fit is dropped
	asked    chan string  // the server's questions, capacity 1
}

// tour visits all that the server offers with the official SDK's client, on the wire of a version, and says what came.
func tour(ctx context.Context, endpoint, version string) (said string, err error) {
	connections := &http.Transport{}
	defer connections.CloseIdleConnections()
	v, err := connect(ctx, endpoint, version, connections)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, v.session.Close()) }()
	var parts []string
	for _, visit := range []func(context.Context) (string, error){v.visitAdd, v.visitProgress, v.visitAsk, v.visitResources, v.visitPrompt} {
		part, err := visit(ctx)
		if err != nil {
			return "", err
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "; "), nil
}

func connect(ctx context.Context, endpoint, version string, connections http.RoundTripper) (*visitor, error) {
	v := &visitor{progress: make(chan float64, progressSteps), asked: make(chan string, 1)}
	client := mcp.NewClient(&mcp.Implementation{Name: "outrigger-quickstart", Version: "1.0.0"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			offer(v.asked, r.Params.Message)
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			offer(v.progress, r.Params.Progress)
		},
	})
	transport := &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: connections}}
	var err error
	v.session, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, err
	}
	if got := v.session.InitializeResult().ProtocolVersion; got != version {
		return nil, errors.Join(fmt.Errorf("negotiated version %s, want %s", got, version), v.session.Close())
	}
	return v, nil
}

// offer puts x into c if there is room.
func offer[T any](c chan T, x T) {
	select {
	case c <- x:
	default:
	}
}

// call calls a tool, and wants its answer to be this text.
func (v *visitor) call(ctx context.Context, p *mcp.CallToolParams, want string) error {
	res, err := v.session.CallTool(ctx, p)
	if err != nil {
		return fmt.Errorf("tool %s: %w", p.Name, err)
	}
	if res.IsError || len(res.Content) != 1 {
		return fmt.Errorf("tool %s: error %t, %d contents, want one", p.Name, res.IsError, len(res.Content))
	}
	if got, ok := res.Content[0].(*mcp.TextContent); !ok || got.Text != want {
		return fmt.Errorf("tool %s: got %+v, want the text %q", p.Name, res.Content[0], want)
	}
	return nil
}

func (v *visitor) visitAdd(ctx context.Context) (string, error) {
	err := v.call(ctx, &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"a": 2, "b": 40}}, `{"sum":42}`)
	return "add(2, 40) = 42", err
}

// visitProgress wants every report, in order. A report may be handled after the answer that came behind it.
func (v *visitor) visitProgress(ctx context.Context) (string, error) {
	p := &mcp.CallToolParams{Name: "progress", Arguments: map[string]any{"steps": progressSteps, "milliseconds": 10}}
	p.SetProgressToken("quickstart")
	if err := v.call(ctx, p, fmt.Sprintf("did %d steps", progressSteps)); err != nil {
		return "", err
	}
	for want := 1.0; want <= progressSteps; want++ {
		select {
		case got := <-v.progress:
			if got != want {
				return "", fmt.Errorf("tool progress: reported step %v, want %v", got, want)
			}
		case <-ctx.Done():
			return "", fmt.Errorf("tool progress: step %v was not reported: %w", want, ctx.Err())
		}
	}
	return fmt.Sprintf("progress 1 to %d", progressSteps), nil
}

// visitAsk is answered by the handler in connect: on the older wire in the middle of the call, on the newer one
// between two calls.
func (v *visitor) visitAsk(ctx context.Context) (string, error) {
	if err := v.call(ctx, &mcp.CallToolParams{Name: "ask"}, "Hello, Ada!"); err != nil {
		return "", err
	}
	select {
	case question := <-v.asked:
		return fmt.Sprintf("asked %q", question), nil
	default:
		return "", errors.New("tool ask: the server did not ask")
	}
}

// visitResources reads one resource as listed and one by the template.
func (v *visitor) visitResources(ctx context.Context) (string, error) {
	list, err := v.session.ListResources(ctx, nil)
	if err != nil {
		return "", fmt.Errorf("resources/list: %w", err)
	}
	if len(list.Resources) != 2 {
		return "", fmt.Errorf("resources/list: %d resources, want 2", len(list.Resources))
	}
	for uri, want := range map[string]string{list.Resources[0].URI: "outrigger", "example://greeting/Ada": "Hello, Ada!"} {
		res, err := v.session.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return "", fmt.Errorf("resource %s: %w", uri, err)
		}
		if len(res.Contents) != 1 || !strings.Contains(res.Contents[0].Text, want) {
			return "", fmt.Errorf("resource %s: got %d contents, want one with %q", uri, len(res.Contents), want)
		}
	}
	return "read 2 resources", nil
}

func (v *visitor) visitPrompt(ctx context.Context) (string, error) {
	res, err := v.session.GetPrompt(ctx, &mcp.GetPromptParams{Name: "explain", Arguments: map[string]string{"topic": "canoes"}})
	if err != nil {
		return "", fmt.Errorf("prompt explain: %w", err)
	}
	if len(res.Messages) != 1 {
		return "", fmt.Errorf("prompt explain: %d messages, want 1", len(res.Messages))
	}
	return "1 prompt", nil
}

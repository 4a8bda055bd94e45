// gosdk-client drives an endpoint with the official Go SDK client. Upstream: the go-sdk conformance server
// (stateless for the default 2026-07-28 run, -stateless=false with -2025).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/test/interop/go/check"
)

func text(v any) string { b, _ := json.Marshal(v); return string(b) }

// driver is one client session and what it was told beside its answers.
type driver struct {
	s *mcp.ClientSession

	mu       sync.Mutex // guards below
	progress []float64
	updated  []string
	logs     int
}

func main() {
	d := &driver{}
	if !d.connect(check.URL(), check.Legacy()) {
		check.Done()
	}
	d.calls()
	if check.Legacy() {
		d.legacyFeatures()
	} else {
		d.statelessFeatures()
	}
	d.data()
	check.Run("close", func(ctx context.Context) (string, error) { return "", d.s.Close() })
	check.Done()
}

// connect reports whether the session was opened at the version of its era.
func (d *driver) connect(url string, legacy bool) bool {
	want := "2026-07-28"
	if legacy {
		want = "2025-11-25"
	}
	c := d.client()
	c.AddRoots(&mcp.Root{URI: "file:///interop/gosdk", Name: "gosdk"})
	return check.Run("initialize", func(ctx context.Context) (string, error) {
		s, err := c.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: url},
			&mcp.ClientSessionOptions{ProtocolVersion: want})
		if err != nil {
			return "", err
		}
		d.s = s
		if v := s.InitializeResult().ProtocolVersion; v != want {
			return "", fmt.Errorf("negotiated %s, want %s", v, want)
		}
		return "version=" + want, nil
	})
}

// client has a handler for everything that a server may send.
func (d *driver) client() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "interop-gosdk", Version: "1.0.0"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "stub", StopReason: "endTurn", Content: &mcp.TextContent{Text: "sampled-by-gosdk"}}, nil
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada", "username": "ada", "email": "ada@example.com", "color": "red", "confirm": true}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			d.mu.Lock()
			d.progress = append(d.progress, r.Params.Progress)
			d.mu.Unlock()
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			d.mu.Lock()
			d.updated = append(d.updated, r.Params.URI)
			d.mu.Unlock()
		},
		LoggingMessageHandler: func(context.Context, *mcp.LoggingMessageRequest) { d.mu.Lock(); d.logs++; d.mu.Unlock() },
	})
}

// wait reports whether f, which is called with the lock held, came true within a time.
func (d *driver) wait(limit time.Duration, f func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		d.mu.Lock()
		ok := f()
		d.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

func (d *driver) call(ctx context.Context, name string, args map[string]any) (*mcp.CallToolResult, error) {
	return d.s.CallTool(ctx, &mcp.CallToolParams{Name: check.Prefix + name, Arguments: args})
}

// expect is a check that a tool's answer holds a text.
func (d *driver) expect(tool, sub string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, tool, map[string]any{})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), sub)
	}
}

// calls checks tools: each kind of answer, progress, cancellation.
func (d *driver) calls() {
	check.Run("tools-list", func(ctx context.Context) (string, error) {
		n := 0
		for _, err := range d.s.Tools(ctx, nil) {
			if err != nil {
				return "", err
			}
			n++
		}
		return fmt.Sprintf("%d tools", n), nil
	})
	check.Run("call-text", d.expect("test_simple_text", "simple text response"))
	check.Run("call-mixed", d.expect("test_multiple_content_types", `"type":"image"`))
	check.Run("call-error", d.expect("test_error_handling", `"isError":true`))
	check.Run("progress", func(ctx context.Context) (string, error) {
		p := &mcp.CallToolParams{Name: check.Prefix + "test_tool_with_progress", Arguments: map[string]any{}}
		p.SetProgressToken("gosdk-7")
		if _, err := d.s.CallTool(ctx, p); err != nil {
			return "", err
		}
		if !d.wait(2*time.Second, func() bool { return len(d.progress) >= 3 }) {
			return "", fmt.Errorf("progress %v", d.progress)
		}
		for i := 1; i < len(d.progress); i++ {
			if d.progress[i] <= d.progress[i-1] {
				return "", fmt.Errorf("progress out of order: %v", d.progress)
			}
		}
		return fmt.Sprint(d.progress), nil
	})
	check.Run("cancel", func(ctx context.Context) (string, error) {
		cctx, cancel := context.WithTimeout(ctx, 60*time.Millisecond)
		defer cancel()
		if _, err := d.call(cctx, "test_tool_with_progress", map[string]any{}); err == nil {
			return "", fmt.Errorf("the cancelled call returned")
		}
		return d.expect("test_simple_text", "simple text response")(ctx)
	})
}

// legacyFeatures checks what only sessions have.
func (d *driver) legacyFeatures() {
	check.Run("ping", func(ctx context.Context) (string, error) { return "", d.s.Ping(ctx, nil) })
	check.Run("sampling", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_sampling", map[string]any{"prompt": "hello"})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "sampled-by-gosdk")
	})
	check.Run("elicitation", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_elicitation", map[string]any{"message": "who?"})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "ada")
	})
	check.Run("logging", func(ctx context.Context) (string, error) {
		if err := d.s.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
			return "", err
		}
		if _, err := d.call(ctx, "test_tool_with_logging", map[string]any{}); err != nil {
			return "", err
		}
		if !d.wait(2*time.Second, func() bool { return d.logs > 0 }) {
			return "", fmt.Errorf("no log message")
		}
		return "", nil
	})
}

// statelessFeatures checks what only 2026-07-28 has.
func (d *driver) statelessFeatures() {
	for _, x := range [][2]string{{"elicitation", "Ada"}, {"sampling", "sampled-by-gosdk"}, {"list_roots", "gosdk"}, {"multiple_inputs", "Ada"}, {"multi_round", "Ada"}} {
		check.Run("mrtr-"+x[0], d.expect("test_input_required_result_"+x[0], x[1]))
	}
	check.Run("mcp-param-header", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_x_mcp_header", map[string]any{"region": "Hello, 世界", "level": 3})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "世界")
	})
}

// data checks resources, prompts and completion.
func (d *driver) data() {
	check.Run("resource-subscribe", func(ctx context.Context) (string, error) { // the fixture updates it every 3 s
		if err := d.s.Subscribe(ctx, &mcp.SubscribeParams{URI: "test://watched-resource"}); err != nil {
			return "", err
		}
		if !d.wait(9*time.Second, func() bool { return len(d.updated) > 0 }) {
			return "", fmt.Errorf("no resources/updated within 9 s")
		}
		return d.updated[0], d.s.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: "test://watched-resource"})
	})
	check.Run("resources", func(ctx context.Context) (string, error) {
		b, err := d.s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://static-binary"})
		if err != nil {
			return "", err
		}
		if err := check.Want(text(b), `"blob":"iVBOR`); err != nil {
			return "", err
		}
		t, err := d.s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://template/42/data"})
		if err != nil {
			return "", err
		}
		if _, err := d.s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://no-such"}); err == nil {
			return "", fmt.Errorf("reading an unknown resource succeeded")
		}
		return "", check.Want(text(t), "42")
	})
	check.Run("prompts", func(ctx context.Context) (string, error) {
		g, err := d.s.GetPrompt(ctx, &mcp.GetPromptParams{Name: check.Prefix + "test_prompt_with_arguments", Arguments: map[string]string{"arg1": "один", "arg2": "two"}})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(g), "один")
	})
	check.Run("completion", func(ctx context.Context) (string, error) {
		r, err := d.s.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: check.Prefix + "test_prompt_with_arguments"}, Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "par"}})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d values", len(r.Completion.Values)), nil
	})
}

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

func main() {
	url, legacy := check.URL(), check.Legacy()
	var mu sync.Mutex
	var progress []float64
	var updated []string
	var logs, toolsChanged int
	c := mcp.NewClient(&mcp.Implementation{Name: "interop-gosdk", Version: "1.0.0"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "stub", StopReason: "endTurn", Content: &mcp.TextContent{Text: "sampled-by-gosdk"}}, nil
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada", "username": "ada", "email": "ada@example.com", "color": "red", "confirm": true}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			progress = append(progress, r.Params.Progress)
			mu.Unlock()
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			mu.Lock()
			updated = append(updated, r.Params.URI)
			mu.Unlock()
		},
		LoggingMessageHandler:  func(context.Context, *mcp.LoggingMessageRequest) { mu.Lock(); logs++; mu.Unlock() },
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { mu.Lock(); toolsChanged++; mu.Unlock() },
	})
	c.AddRoots(&mcp.Root{URI: "file:///interop/gosdk", Name: "gosdk"})
	wait := func(d time.Duration, f func() bool) bool {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			mu.Lock()
			ok := f()
			mu.Unlock()
			if ok {
				return true
			}
		}
		return false
	}
	want := "2026-07-28"
	if legacy {
		want = "2025-11-25"
	}
	var s *mcp.ClientSession
	ok := check.Run("initialize", func(ctx context.Context) (string, error) {
		var err error
		s, err = c.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: want})
		if err != nil {
			return "", err
		}
		if v := s.InitializeResult().ProtocolVersion; v != want {
			return "", fmt.Errorf("negotiated %s, want %s", v, want)
		}
		return "version=" + want, nil
	})
	if !ok {
		check.Done()
	}
	call := func(ctx context.Context, name string, args map[string]any) (*mcp.CallToolResult, error) {
		return s.CallTool(ctx, &mcp.CallToolParams{Name: check.Prefix + name, Arguments: args})
	}
	expect := func(tool, sub string) func(ctx context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			r, err := call(ctx, tool, map[string]any{})
			if err != nil {
				return "", err
			}
			return "", check.Want(text(r), sub)
		}
	}
	check.Run("tools-list", func(ctx context.Context) (string, error) {
		n := 0
		for _, err := range s.Tools(ctx, nil) {
			if err != nil {
				return "", err
			}
			n++
		}
		return fmt.Sprintf("%d tools", n), nil
	})
	check.Run("call-text", expect("test_simple_text", "simple text response"))
	check.Run("call-mixed", expect("test_multiple_content_types", `"type":"image"`))
	check.Run("call-error", expect("test_error_handling", `"isError":true`))
	check.Run("progress", func(ctx context.Context) (string, error) {
		p := &mcp.CallToolParams{Name: check.Prefix + "test_tool_with_progress", Arguments: map[string]any{}}
		p.SetProgressToken("gosdk-7")
		if _, err := s.CallTool(ctx, p); err != nil {
			return "", err
		}
		if !wait(2*time.Second, func() bool { return len(progress) >= 3 }) {
			return "", fmt.Errorf("progress %v", progress)
		}
		for i := 1; i < len(progress); i++ {
			if progress[i] <= progress[i-1] {
				return "", fmt.Errorf("progress out of order: %v", progress)
			}
		}
		return fmt.Sprint(progress), nil
	})
	check.Run("cancel", func(ctx context.Context) (string, error) {
		cctx, cancel := context.WithTimeout(ctx, 60*time.Millisecond)
		defer cancel()
		if _, err := call(cctx, "test_tool_with_progress", map[string]any{}); err == nil {
			return "", fmt.Errorf("the cancelled call returned")
		}
		return expect("test_simple_text", "simple text response")(ctx)
	})
	if legacy {
		check.Run("ping", func(ctx context.Context) (string, error) { return "", s.Ping(ctx, nil) })
		check.Run("sampling", func(ctx context.Context) (string, error) {
			r, err := call(ctx, "test_sampling", map[string]any{"prompt": "hello"})
			if err != nil {
				return "", err
			}
			return "", check.Want(text(r), "sampled-by-gosdk")
		})
		check.Run("elicitation", func(ctx context.Context) (string, error) {
			r, err := call(ctx, "test_elicitation", map[string]any{"message": "who?"})
			if err != nil {
				return "", err
			}
			return "", check.Want(text(r), "ada")
		})
		check.Run("logging", func(ctx context.Context) (string, error) {
			if err := s.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
				return "", err
			}
			if _, err := call(ctx, "test_tool_with_logging", map[string]any{}); err != nil {
				return "", err
			}
			if !wait(2*time.Second, func() bool { return logs > 0 }) {
				return "", fmt.Errorf("no log message")
			}
			return "", nil
		})
	} else {
		for _, x := range [][2]string{{"elicitation", "Ada"}, {"sampling", "sampled-by-gosdk"}, {"list_roots", "gosdk"}, {"multiple_inputs", "Ada"}, {"multi_round", "Ada"}} {
			check.Run("mrtr-"+x[0], expect("test_input_required_result_"+x[0], x[1]))
		}
		check.Run("mcp-param-header", func(ctx context.Context) (string, error) {
			r, err := call(ctx, "test_x_mcp_header", map[string]any{"region": "Hello, 世界", "level": 3})
			if err != nil {
				return "", err
			}
			return "", check.Want(text(r), "世界")
		})
	}
	check.Run("resource-subscribe", func(ctx context.Context) (string, error) { // the fixture updates it every 3 s
		if err := s.Subscribe(ctx, &mcp.SubscribeParams{URI: "test://watched-resource"}); err != nil {
			return "", err
		}
		if !wait(9*time.Second, func() bool { return len(updated) > 0 }) {
			return "", fmt.Errorf("no resources/updated within 9 s")
		}
		return updated[0], s.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: "test://watched-resource"})
	})
	check.Run("resources", func(ctx context.Context) (string, error) {
		b, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://static-binary"})
		if err != nil {
			return "", err
		}
		if err := check.Want(text(b), `"blob":"iVBOR`); err != nil {
			return "", err
		}
		t, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://template/42/data"})
		if err != nil {
			return "", err
		}
		if _, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "test://no-such"}); err == nil {
			return "", fmt.Errorf("reading an unknown resource succeeded")
		}
		return "", check.Want(text(t), "42")
	})
	check.Run("prompts", func(ctx context.Context) (string, error) {
		g, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: check.Prefix + "test_prompt_with_arguments", Arguments: map[string]string{"arg1": "один", "arg2": "two"}})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(g), "один")
	})
	check.Run("completion", func(ctx context.Context) (string, error) {
		r, err := s.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: check.Prefix + "test_prompt_with_arguments"}, Argument: mcp.CompleteParamsArgument{Name: "arg1", Value: "par"}})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d values", len(r.Completion.Values)), nil
	})
	check.Run("close", func(ctx context.Context) (string, error) { return "", s.Close() })
	check.Done()
}

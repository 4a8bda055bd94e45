// mcpgo-client drives an endpoint with the mark3labs/mcp-go client. Upstream: the go-sdk conformance server
// (stateless for the default 2026-07-28 run, -stateless=false with -2025).
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/outrigger-mesh/outrigger/test/interop/go/check"
)

type handlers struct {
	mu                      sync.Mutex
	sampling, elicit, roots int
}

func (h *handlers) CreateMessage(_ context.Context, r mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	h.mu.Lock()
	h.sampling++
	h.mu.Unlock()
	return &mcp.CreateMessageResult{SamplingMessage: mcp.SamplingMessage{Role: mcp.RoleAssistant, Content: mcp.TextContent{Type: "text", Text: "sampled-by-mcpgo"}}, Model: "stub", StopReason: "endTurn"}, nil
}
func (h *handlers) Elicit(_ context.Context, r mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	h.mu.Lock()
	h.elicit++
	h.mu.Unlock()
	return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{Action: mcp.ElicitationResponseActionAccept, Content: map[string]any{"name": "Ada", "username": "ada", "email": "ada@example.com", "color": "red", "confirm": true}}}, nil
}
func (h *handlers) ListRoots(_ context.Context, r mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	h.mu.Lock()
	h.roots++
	h.mu.Unlock()
	return &mcp.ListRootsResult{Roots: []mcp.Root{{URI: "file:///interop/mcpgo", Name: "mcpgo"}}}, nil
}

func text(v any) string { b, _ := json.Marshal(v); return string(b) }

// driver is one client and the notifications it was sent.
type driver struct {
	c *client.Client

	mu    sync.Mutex // guards below
	notes []mcp.JSONRPCNotification
}

func main() {
	d := newDriver(check.URL(), check.Legacy())
	if !d.connect(check.Legacy()) {
		check.Done()
	}
	d.calls()
	d.interruptions()
	if check.Legacy() {
		d.legacyFeatures()
	} else {
		d.statelessFeatures()
	}
	d.data()
	check.Run("close", func(ctx context.Context) (string, error) { return "", d.c.Close() })
	check.Done()
}

// newDriver makes a client that has a handler for everything a server may send.
func newDriver(url string, legacy bool) *driver {
	h := &handlers{}
	opts := []client.ClientOption{client.WithSamplingHandler(h), client.WithElicitationHandler(h), client.WithRootsHandler(h)}
	topts := []transport.StreamableHTTPCOption{}
	if legacy {
		opts = append(opts, client.WithLegacyProtocolOnly())
		topts = append(topts, transport.WithContinuousListening())
	}
	tr, err := transport.NewStreamableHTTP(url, topts...)
	if err != nil {
		panic(err)
	}
	d := &driver{c: client.NewClient(tr, opts...)}
	d.c.OnNotification(func(n mcp.JSONRPCNotification) {
		d.mu.Lock()
		d.notes = append(d.notes, n)
		d.mu.Unlock()
	})
	return d
}

// count is how many notifications of a method have come.
func (d *driver) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := 0
	for _, n := range d.notes {
		if n.Method == method {
			k++
		}
	}
	return k
}

// connect reports whether the handshake ended at the version of its era.
func (d *driver) connect(legacy bool) bool {
	return check.Run("initialize", func(ctx context.Context) (string, error) {
		if err := d.c.Start(context.Background()); err != nil {
			return "", err
		}
		req := mcp.InitializeRequest{}
		req.Params.ClientInfo = mcp.Implementation{Name: "interop-mcpgo", Version: "1.0.0"}
		req.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
		if legacy {
			req.Params.ProtocolVersion = "2025-11-25"
		}
		if _, err := d.c.Initialize(ctx, req); err != nil {
			return "", err
		}
		want := "2026-07-28"
		if legacy {
			want = "2025-11-25"
		}
		if v := d.c.ProtocolVersion(); v != want {
			return "", fmt.Errorf("negotiated %s, want %s", v, want)
		}
		return "version=" + d.c.ProtocolVersion(), nil
	})
}

func (d *driver) call(ctx context.Context, name string, args map[string]any) (*mcp.CallToolResult, error) {
	r := mcp.CallToolRequest{}
	r.Params.Name, r.Params.Arguments = check.Prefix+name, args
	return d.c.CallTool(ctx, r)
}

// expect is a check that a tool's answer holds a text.
func (d *driver) expect(tool, sub string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, tool, nil)
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), sub)
	}
}

// calls checks tools: each kind of answer, and progress.
func (d *driver) calls() {
	check.Run("tools-list", func(ctx context.Context) (string, error) {
		r, err := d.c.ListTools(ctx, mcp.ListToolsRequest{})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d tools", len(r.Tools)), check.Want(text(r.Tools), "test_simple_text")
	})
	check.Run("call-text", d.expect("test_simple_text", "simple text response"))
	check.Run("call-image", d.expect("test_image_content", `"type":"image"`))
	check.Run("call-audio", d.expect("test_audio_content", `"type":"audio"`))
	check.Run("call-embedded", d.expect("test_embedded_resource", `"type":"resource"`))
	check.Run("call-mixed", d.expect("test_multiple_content_types", `"type":"image"`))
	check.Run("call-error", d.expect("test_error_handling", `"isError":true`))
	check.Run("progress", func(ctx context.Context) (string, error) {
		n := d.count("notifications/progress")
		r := mcp.CallToolRequest{}
		r.Params.Name = check.Prefix + "test_tool_with_progress"
		r.Params.Meta = &mcp.Meta{ProgressToken: "mcpgo-1"}
		if _, err := d.c.CallTool(ctx, r); err != nil {
			return "", err
		}
		for i := 0; i < 50 && d.count("notifications/progress") < n+3; i++ {
			time.Sleep(20 * time.Millisecond)
		}
		got := d.count("notifications/progress") - n
		if got < 3 {
			return "", fmt.Errorf("%d progress notifications, want 3", got)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return fmt.Sprintf("%d notifications", got), check.Want(text(d.notes), "mcpgo-1")
	})
}

// interruptions checks calls side by side and calls given up.
func (d *driver) interruptions() {
	check.Run("concurrent-calls", func(ctx context.Context) (string, error) {
		errs := make(chan error, 40)
		for range 40 {
			go func() {
				r, err := d.call(ctx, "test_simple_text", nil)
				if err == nil {
					err = check.Want(text(r), "simple text response")
				}
				errs <- err
			}()
		}
		for range 40 {
			if err := <-errs; err != nil {
				return "", err
			}
		}
		return "40 calls", nil
	})
	check.Run("cancel", func(ctx context.Context) (string, error) {
		cctx, cancel := context.WithTimeout(ctx, 60*time.Millisecond)
		defer cancel()
		_, err := d.call(cctx, "test_tool_with_progress", nil)
		if err == nil {
			return "", fmt.Errorf("the cancelled call returned")
		}
		r, err := d.call(ctx, "test_simple_text", nil)
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "simple text response")
	})
}

// legacyFeatures checks what only sessions have.
func (d *driver) legacyFeatures() {
	check.Run("ping", func(ctx context.Context) (string, error) { return "", d.c.Ping(ctx) })
	check.Run("sampling", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_sampling", map[string]any{"prompt": "hello"})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "sampled-by-mcpgo")
	})
	check.Run("elicitation", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_elicitation", map[string]any{"message": "who?"})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "ada")
	})
	check.Run("logging", func(ctx context.Context) (string, error) {
		n := d.count("notifications/message")
		lr := mcp.SetLevelRequest{}
		lr.Params.Level = mcp.LoggingLevelDebug
		if err := d.c.SetLevel(ctx, lr); err != nil {
			return "", err
		}
		if _, err := d.call(ctx, "test_tool_with_logging", nil); err != nil {
			return "", err
		}
		for i := 0; i < 50 && d.count("notifications/message") == n; i++ {
			time.Sleep(20 * time.Millisecond)
		}
		if d.count("notifications/message") == n {
			return "", fmt.Errorf("no notifications/message")
		}
		return "", nil
	})
}

// statelessFeatures checks what only 2026-07-28 has.
func (d *driver) statelessFeatures() {
	for name, want := range map[string]string{"elicitation": "Ada", "sampling": "sampled-by-mcpgo", "list_roots": "mcpgo", "multiple_inputs": "Ada"} {
		check.Run("mrtr-"+strings.ReplaceAll(name, "_", "-"), func(ctx context.Context) (string, error) {
			r, err := d.call(ctx, "test_input_required_result_"+name, nil)
			if err != nil {
				return "", err
			}
			return "", check.Want(text(r), want)
		})
	}
	check.Run("mrtr-multi-round", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_input_required_result_multi_round", nil)
		if err != nil {
			return "", err
		}
		return text(r.Content), check.Want(text(r), "Ada")
	})
	check.Run("mcp-param-header", func(ctx context.Context) (string, error) {
		r, err := d.call(ctx, "test_x_mcp_header", map[string]any{"region": "Hello, 世界", "level": 3})
		if err != nil {
			return "", err
		}
		return "", check.Want(text(r), "世界")
	})
}

// data checks resources and prompts.
func (d *driver) data() {
	check.Run("resources", func(ctx context.Context) (string, error) {
		l, err := d.c.ListResources(ctx, mcp.ListResourcesRequest{})
		if err != nil {
			return "", err
		}
		if err := check.Want(text(l), "test://static-text"); err != nil {
			return "", err
		}
		rr := mcp.ReadResourceRequest{}
		rr.Params.URI = "test://static-binary"
		b, err := d.c.ReadResource(ctx, rr)
		if err != nil {
			return "", err
		}
		if err := check.Want(text(b), `"blob":"iVBOR`); err != nil {
			return "", err
		}
		rr.Params.URI = "test://template/42/data"
		tr, err := d.c.ReadResource(ctx, rr)
		if err != nil {
			return "", err
		}
		return "", check.Want(text(tr), "42")
	})
	check.Run("prompts", func(ctx context.Context) (string, error) {
		l, err := d.c.ListPrompts(ctx, mcp.ListPromptsRequest{})
		if err != nil {
			return "", err
		}
		if err := check.Want(text(l), "test_prompt_with_arguments"); err != nil {
			return "", err
		}
		gr := mcp.GetPromptRequest{}
		gr.Params.Name = check.Prefix + "test_prompt_with_arguments"
		gr.Params.Arguments = map[string]string{"arg1": "один", "arg2": "two"}
		g, err := d.c.GetPrompt(ctx, gr)
		if err != nil {
			return "", err
		}
		return "", check.Want(text(g), "один")
	})
}

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// heard is what a client was told. Of what it is asked it answers everything.
type heard struct {
	mu       sync.Mutex // guards below
	progress []string
	logs     []string
	tools    int // notifications of changed tools
	updates  []string
}

func (h *heard) note(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *heard) options() *sdk.ClientOptions {
	return &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"owner": "asked " + q.Params.Message}}, nil
		},
		CreateMessageHandler: func(_ context.Context, q *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			text := q.Params.Messages[0].Content.(*sdk.TextContent).Text
			return &sdk.CreateMessageResult{Role: "assistant", Model: "m", Content: &sdk.TextContent{Text: "sampled " + text}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
			h.note(func() { h.progress = append(h.progress, fmt.Sprint(n.Params.ProgressToken, ": ", n.Params.Message)) })
		},
		LoggingMessageHandler: func(_ context.Context, n *sdk.LoggingMessageRequest) {
			h.note(func() { h.logs = append(h.logs, fmt.Sprint(n.Params.Data)) })
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { h.note(func() { h.tools++ }) },
		ResourceUpdatedHandler: func(_ context.Context, n *sdk.ResourceUpdatedNotificationRequest) {
			h.note(func() { h.updates = append(h.updates, n.Params.URI) })
		},
	}
}

// cell is a client at a server, each of an era.
type cell struct {
	*testing.T
	name     string // the client's era and the server's
	version  string // the client's
	client   *sdk.ClientSession
	raw      *wire // another client of the same version, by hand
	heard    *heard
	workshop *workshop
}

func TestEveryPairOfErasUnderstandsEachOther(t *testing.T) {
	t.Parallel()
	var cells []*cell
	var resources []string
	for _, client := range eras {
		for _, server := range eras {
			w := newWorkshop("workshop", server.version).serve(t)
			name := client.name + "-" + server.name
			resources = append(resources, httpUpstream(name, w.url), binding(name, "/"+name, name, ""))
			cells = append(cells, &cell{name: name, version: client.version, heard: new(heard), workshop: w})
		}
	}
	s, _ := fileSidecar(t, nil, resources...)
	for _, c := range cells {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.T = t
			c.raw = dialWire(t, s.url+"/"+c.name, c.version)
			c.client = connectSDK(t, s.url+"/"+c.name, c.version, c.heard.options())
			c.lists()
			c.calls()
			c.saysOnTheWay()
			c.asks()
			c.cancels()
			c.subscribes()
			c.hearsOfChanges()
			c.keepsBytes()
		})
	}
}

// says calls a tool of the workshop and returns its text.
func (c *cell) says(tool, text string) string {
	c.Helper()
	got, err := callSDK(c, c.client, tool, input{text})
	if err != nil {
		return "error: " + err.Error()
	}
	return got
}

func (c *cell) lists() {
	about := c.client.InitializeResult()
	if about.ServerInfo == nil || about.ServerInfo.Name != "workshop" || about.Instructions != "Mind your head." {
		c.Errorf("it introduced itself with %+v", about)
	}
	if about.Capabilities == nil || about.Capabilities.Tools == nil || about.Capabilities.Resources == nil || !about.Capabilities.Resources.Subscribe {
		c.Errorf("its capabilities are %+v, want tools and resources to subscribe to", about.Capabilities)
	}
	tools := allTools(c, c.client)
	for _, want := range []string{"echo", "fail", "count", "report", "wait", "big", "raw", "ask", "sample", "roots"} {
		if !slices.Contains(tools, want) {
			c.Errorf("tools are %q, want %s among them", tools, want)
		}
	}
	if r, err := c.client.ListResources(within(c), nil); err != nil || len(r.Resources) != 1 || r.Resources[0].URI != workshopNote {
		c.Errorf("resources are %+v (%v)", r, err)
	}
	if r, err := c.client.ListResourceTemplates(within(c), nil); err != nil || len(r.ResourceTemplates) != 1 {
		c.Errorf("templates are %+v (%v), want one", r, err)
	}
	if r, err := c.client.ListPrompts(within(c), nil); err != nil || len(r.Prompts) != 1 || r.Prompts[0].Name != "greet" {
		c.Errorf("prompts are %+v (%v)", r, err)
	}
}

// allTools are the names on every page.
func allTools(t testing.TB, c *sdk.ClientSession) (names []string) {
	t.Helper()
	for tool, err := range c.Tools(within(t), nil) {
		if err != nil {
			t.Fatalf("tools/list: %v", err)
		}
		names = append(names, tool.Name)
	}
	return names
}

func (c *cell) calls() {
	if got := c.says("echo", "hello"); got != "hello" {
		c.Errorf("echo said %q, want hello", got)
	}
	if got := c.says("fail", "milk"); got != "error: the tool failed: no milk" {
		c.Errorf("fail said %q, want the tool's own failure", got)
	}
	var e *jsonrpc.Error
	if _, err := c.client.CallTool(within(c), &sdk.CallToolParams{Name: "nothing"}); !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams {
		c.Errorf("a tool that is not there: %v, want the server's -32602", err)
	}
	for _, uri := range []string{workshopNote, "workshop://part/7"} {
		r, err := c.client.ReadResource(within(c), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(r.Contents) != 1 || r.Contents[0].Text != "workshop about "+uri {
			c.Errorf("reading %s gave %+v (%v)", uri, r, err)
		}
	}
	p, err := c.client.GetPrompt(within(c), &sdk.GetPromptParams{Name: "greet", Arguments: map[string]string{"who": "you"}})
	if err != nil || len(p.Messages) != 1 || p.Messages[0].Content.(*sdk.TextContent).Text != "hello you" {
		c.Errorf("the prompt is %+v (%v)", p, err)
	}
	r, err := c.client.Complete(within(c), &sdk.CompleteParams{
		Ref:      &sdk.CompleteReference{Type: "ref/prompt", Name: "greet"},
		Argument: sdk.CompleteParamsArgument{Name: "who", Value: "wor"},
	})
	if err != nil || len(r.Completion.Values) != 1 || r.Completion.Values[0] != "wor!" {
		c.Errorf("completion gave %+v (%v)", r, err)
	}
}

// saysOnTheWay checks that a call's progress and logs come, those that are wanted only.
func (c *cell) saysOnTheWay() {
	p := &sdk.CallToolParams{Name: "report", Arguments: input{"tale"}}
	if c.version == versionStateless {
		p.SetMeta(map[string]any{sdk.MetaKeyLogLevel: "warning"})
	} else if err := c.client.SetLoggingLevel(within(c), &sdk.SetLoggingLevelParams{Level: "warning"}); err != nil {
		c.Errorf("logging/setLevel: %v", err)
	}
	p.SetProgressToken("token")
	if _, err := c.client.CallTool(within(c), p); err != nil {
		c.Errorf("report: %v", err)
	}
	eventually(c, "progress and logs arrive", func() (err error) {
		c.heard.note(func() {
			if fmt.Sprint(c.heard.progress) != "[token: tale]" || fmt.Sprint(c.heard.logs) != "[warning of tale error of tale]" {
				err = fmt.Errorf("progress %q, logs %q", c.heard.progress, c.heard.logs)
			}
		})
		return err
	})
}

func (c *cell) asks() {
	for range 2 { // what a server remembers of the first must not help the second
		if got, want := c.says("ask", "x"), "x:accept:asked who owns x"; got != want {
			c.Errorf("ask said %q, want %q", got, want)
		}
	}
	if got := c.says("sample", "y"); !strings.Contains(got, `"sampled y"`) {
		c.Errorf("sample said %q, want what the client sampled", got)
	}
	if got := c.says("roots", "z"); !strings.Contains(got, `"roots":[`) {
		c.Errorf("roots said %q, want the client's roots", got)
	}
}

func (c *cell) cancels() {
	const text = "given up"
	ctx, cancel := context.WithCancel(within(c))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := c.client.CallTool(ctx, &sdk.CallToolParams{Name: "wait", Arguments: input{text}})
		ended <- err
	}()
	c.workshop.waits(c, text)
	cancel()
	if err := <-ended; err == nil {
		c.Error("a cancelled call went well")
	}
	eventually(c, "the server sees the cancel", func() error {
		if n := c.workshop.cancels(text); n != 1 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	if got := c.says("echo", "still here"); got != "still here" {
		c.Errorf("after a cancel, echo said %q", got)
	}
}

// waits waits until a call with a text is in a tool that waits.
func (w *workshop) waits(t testing.TB, text string) {
	t.Helper()
	select {
	case got := <-w.begun:
		if got != text {
			t.Fatalf("the call of %q arrived, want %q", got, text)
		}
	case <-within(t).Done():
		t.Fatalf("the call of %q did not arrive", text)
	}
}

func (c *cell) subscribes() {
	before := c.workshop.subscriptions()
	if err := c.client.Subscribe(within(c), &sdk.SubscribeParams{URI: workshopNote}); err != nil {
		c.Fatalf("subscribe: %v", err)
	}
	eventually(c, "an update arrives", func() (err error) {
		if err := c.workshop.ResourceUpdated(within(c), &sdk.ResourceUpdatedNotificationParams{URI: workshopNote}); err != nil {
			return err
		}
		c.heard.note(func() {
			if len(c.heard.updates) == 0 {
				err = errors.New("none")
			}
			for _, uri := range c.heard.updates {
				if uri != workshopNote {
					c.Errorf("an update of %s", uri)
				}
			}
		})
		return err
	})
	if err := c.client.Unsubscribe(within(c), &sdk.UnsubscribeParams{URI: workshopNote}); err != nil {
		c.Errorf("unsubscribe: %v", err)
	}
	eventually(c, "the server has no subscription", func() error {
		if n := c.workshop.subscriptions(); n != before {
			return fmt.Errorf("it has %d, want %d", n, before)
		}
		return nil
	})
}

func (c *cell) hearsOfChanges() {
	const name = "grown"
	defer c.workshop.RemoveTools(name)
	eventually(c, "the client hears of changed tools", func() (err error) {
		c.workshop.RemoveTools(name) // its stream may not be open at first
		c.workshop.tool(name, func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error) {
			return said("grown"), nil
		})
		c.heard.note(func() {
			if c.heard.tools == 0 {
				err = errors.New("it has not")
			}
		})
		return err
	})
	if tools := allTools(c, c.client); !slices.Contains(tools, name) {
		c.Errorf("tools are %q, want the new one among them", tools)
	}
	if got := c.says(name, ""); got != name {
		c.Errorf("the new tool said %q", got)
	}
}

// keepsBytes checks what is easily lost on the way: the length of what is long, and numbers as they were written.
func (c *cell) keepsBytes() {
	if got, want := c.says("big", "0123456789abcdef"), strings.Repeat("0123456789abcdef", bigText/16); got != want {
		c.Errorf("big said %d bytes, beginning with %.60q, want %d", len(got), got, len(want))
	}
	const arguments = `{"n":9007199254740993,"big":123456789012345678901234567890,"f":1.0,"e":1E2,"none":null,"z":{},"a":[]}`
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"raw","arguments":%s,%s}}`, arguments, meta)
	res, err := c.raw.post(within(c), body, "tools/call", "raw")
	if err != nil {
		c.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(b), `"structuredContent":`+arguments) {
		c.Errorf("raw answered %s (%v), want structuredContent %s", b, err, arguments)
	}
}

// Clients of older dates are served by servers of either era, too.
func TestOlderClientsAtServersOfBothEras(t *testing.T) {
	t.Parallel()
	var resources []string
	for _, era := range eras {
		w := newWorkshop("workshop", era.version).serve(t)
		resources = append(resources, httpUpstream(era.name, w.url), binding(era.name, era.path, era.name, ""))
	}
	s, _ := fileSidecar(t, nil, append(resources, federation("all", "/all", ", names: {prefix: never}", "stateless", "legacy"))...)
	for _, version := range []string{"2025-06-18", "2025-03-26"} {
		for _, path := range []string{legacyPath, statelessPath, "/all"} {
			h := new(heard)
			c := connectSDK(t, s.url+path, version, h.options())
			wantText(t, c, "echo", input{version}, version)
			if got, err := callSDK(t, c, "sample", input{"it"}); err != nil || !strings.Contains(got, "sampled it") {
				t.Errorf("%s at %s: sample said %q (%v)", version, path, got, err)
			}
			if version == "2025-03-26" && path != legacyPath { // which has no elicitation; who has both ends of a session may not care
				if got, err := callSDK(t, c, "ask", input{"it"}); err == nil {
					t.Errorf("%s at %s: ask said %q, want an error", version, path, got)
				}
			} else {
				wantText(t, c, "ask", input{"it"}, "it:accept:asked who owns it")
			}
			if tools := allTools(t, c); len(tools) < 10 {
				t.Errorf("%s at %s: tools are %q", version, path, tools)
			}
		}
	}
}

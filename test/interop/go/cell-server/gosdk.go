//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

// gosdkServer is the bazaar with the official Go SDK.
type gosdkServer struct {
	*bazaar
	*mcp.Server
	legacy bool // it asks by requests of its own
}

// gosdkCall is a call of a tool.
type gosdkCall struct {
	*mcp.CallToolRequest
	args struct{ Text, Key, How, What string }
}

type gosdkTool func(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error)

func gosdk(legacy bool) http.Handler {
	s := &gosdkServer{bazaar: newBazaar(), legacy: legacy}
	versions := mcp.SupportedProtocolVersions()[:1]
	if legacy {
		versions = mcp.SupportedProtocolVersions()[1:]
	}
	s.Server = mcp.NewServer(&mcp.Implementation{Name: offer.Name, Version: offer.Version}, &mcp.ServerOptions{
		Instructions: offer.Instructions, PageSize: offer.PageSize, SupportedProtocolVersions: versions,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, q *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{q.Params.Argument.Value + "!"}, Total: 1}}, nil
		},
	})
	tools := s.tools()
	for _, t := range offer.Tools {
		tool := &mcp.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.InputSchema, Meta: t.Meta}
		if t.OutputSchema != nil {
			tool.OutputSchema = t.OutputSchema
		}
		s.add(tool, tools[t.Name])
	}
	for _, r := range offer.Resources {
		s.AddResource(&mcp.Resource{URI: r.URI, Name: r.Name, MIMEType: r.MIMEType}, readGoSDK)
	}
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: offer.Template.URITemplate, Name: offer.Template.Name}, readGoSDK)
	who := []*mcp.PromptArgument{{Name: "who", Required: true}}
	s.AddPrompt(&mcp.Prompt{Name: offer.Prompt.Name, Description: offer.Prompt.Description, Arguments: who}, greetGoSDK)
	var o *mcp.StreamableHTTPOptions
	if !legacy {
		o = &mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}
	}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.Server }, o)
}

func (s *gosdkServer) add(t *mcp.Tool, f gosdkTool) {
	s.AddTool(t, func(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		c := &gosdkCall{CallToolRequest: q}
		if err := json.Unmarshal(q.Params.Arguments, &c.args); len(q.Params.Arguments) > 0 && err != nil {
			return nil, err
		}
		return f(ctx, c)
	})
}

func greetGoSDK(_ context.Context, q *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	text := &mcp.TextContent{Text: "hello " + q.Params.Arguments["who"]}
	return &mcp.GetPromptResult{Description: "a greeting", Messages: []*mcp.PromptMessage{{Role: "user", Content: text}}}, nil
}

func readGoSDK(_ context.Context, q *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	text, blob, ok := content(q.Params.URI)
	if !ok {
		return nil, mcp.ResourceNotFoundError(q.Params.URI)
	}
	c := &mcp.ResourceContents{URI: q.Params.URI, MIMEType: "text/plain", Text: text}
	if blob != "" {
		b, err := base64.StdEncoding.DecodeString(blob)
		if err != nil {
			return nil, err
		}
		c = &mcp.ResourceContents{URI: q.Params.URI, MIMEType: "application/octet-stream", Blob: b}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

func (s *gosdkServer) tools() map[string]gosdkTool {
	return map[string]gosdkTool{
		"echo": func(_ context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
			res := said(c.args.Text)
			res.StructuredContent = map[string]any{"text": c.args.Text}
			return res, nil
		},
		"digits": func(context.Context, *gosdkCall) (*mcp.CallToolResult, error) {
			n := digits()
			res := said(string(n))
			res.StructuredContent = map[string]any{"n": n}
			return res, nil
		},
		"steps": func(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
			for i := range 4 {
				if err := c.report(ctx, i+1); err != nil {
					return nil, err
				}
			}
			return said("done"), nil
		},
		"wait": func(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
			if err := c.report(ctx, 1); err != nil {
				return nil, err
			}
			return said(s.wait(ctx, c.args.Key)), nil
		},
		"cancelled": func(_ context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
			return said(s.wasCancelled(c.args.Key)), nil
		},
		"ask": s.ask, "visit": s.visit, "sample": s.sample, "roots": s.roots, "interview": s.interview,
		"log": s.log, "change": s.change, "touch": s.touch,
		"fail": func(context.Context, *gosdkCall) (*mcp.CallToolResult, error) {
			res := said(offer.Texts.Failure)
			res.IsError = true
			return res, nil
		},
		"refuse": func(context.Context, *gosdkCall) (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: int64(offer.Refusal.Code), Message: offer.Texts.Refusal, Data: offer.Refusal.Data}
		},
	}
}

func (c *gosdkCall) report(ctx context.Context, progress int) error {
	token := c.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return c.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: token, Progress: float64(progress), Total: 4, Message: fmt.Sprintf("step %d ✓", progress),
	})
}

// asked asks one thing, by the means of the era. Where res is not nil it is the tool's answer, for now.
func (s *gosdkServer) asked(ctx context.Context, c *gosdkCall, key, state string, what mcp.InputRequest) (answer mcp.InputResponse, res *mcp.CallToolResult, err error) {
	if !s.legacy {
		if answer := c.Params.InputResponses[key]; answer != nil {
			return answer, nil, nil
		}
		return nil, &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{key: what}, RequestState: state}, nil
	}
	switch what := what.(type) {
	case *mcp.ElicitParams:
		answer, err = c.Session.Elicit(ctx, what)
	case *mcp.CreateMessageParams:
		var r *mcp.CreateMessageResult
		if r, err = c.Session.CreateMessage(ctx, what); err == nil {
			answer = &mcp.CreateMessageWithToolsResult{Content: []mcp.Content{r.Content}}
		}
	case *mcp.ListRootsParams:
		answer, err = c.Session.ListRoots(ctx, what)
	}
	return answer, nil, err
}

func (c *gosdkCall) owner() *mcp.ElicitParams {
	return &mcp.ElicitParams{Mode: "form", Message: offer.Texts.Owner + "? " + c.args.How, RequestedSchema: cells.OwnerSchema}
}

func answeredGoSDK(a mcp.InputResponse) string {
	r := a.(*mcp.ElicitResult)
	owner, _ := r.Content["owner"].(string)
	return strings.TrimSpace(r.Action + " " + owner)
}

func (s *gosdkServer) ask(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	a, res, err := s.asked(ctx, c, "owner", "", c.owner())
	if err != nil || res != nil {
		return res, err
	}
	return said(answeredGoSDK(a)), nil
}

func (s *gosdkServer) visit(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	params := &mcp.ElicitParams{Mode: "url", Message: offer.Texts.Visit, URL: offer.Texts.URL}
	if s.legacy {
		params.ElicitationID = "visit-1"
	}
	a, res, err := s.asked(ctx, c, "visit", "", params)
	if err != nil || res != nil {
		return res, err
	}
	return said(a.(*mcp.ElicitResult).Action), nil
}

func message() *mcp.CreateMessageParams {
	text := &mcp.TextContent{Text: offer.Texts.Sample}
	return &mcp.CreateMessageParams{MaxTokens: 9, Messages: []*mcp.SamplingMessage{{Role: "user", Content: text}}}
}

func sampledGoSDK(a mcp.InputResponse) string {
	return a.(*mcp.CreateMessageWithToolsResult).Content[0].(*mcp.TextContent).Text
}

func (s *gosdkServer) sample(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	a, res, err := s.asked(ctx, c, "sample", "", message())
	if err != nil || res != nil {
		return res, err
	}
	return said(sampledGoSDK(a)), nil
}

func (s *gosdkServer) roots(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	a, res, err := s.asked(ctx, c, "roots", "", &mcp.ListRootsParams{})
	if err != nil || res != nil {
		return res, err
	}
	var all []string
	for _, root := range a.(*mcp.ListRootsResult).Roots {
		all = append(all, root.URI+" "+root.Name)
	}
	return said(strings.Join(all, ",")), nil
}

// interview asks twice; without a session, what was answered first is its state.
func (s *gosdkServer) interview(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	owner := c.Params.RequestState
	if owner == "" {
		a, res, err := s.asked(ctx, c, "owner", "", c.owner())
		if err != nil || res != nil {
			return res, err
		}
		owner = answeredGoSDK(a)
	}
	a, res, err := s.asked(ctx, c, "sample", owner, message())
	if err != nil || res != nil {
		return res, err
	}
	return said(owner + " / " + sampledGoSDK(a)), nil
}

func (s *gosdkServer) log(ctx context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	for level, data := range map[mcp.LoggingLevel]string{"debug": offer.Texts.Quiet, "warning": offer.Texts.Loud} {
		if err := c.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Data: data}); err != nil {
			return nil, err
		}
	}
	return said("logged"), nil
}

func (s *gosdkServer) change(_ context.Context, c *gosdkCall) (*mcp.CallToolResult, error) {
	more := s.toggle(c.args.What)
	switch {
	case c.args.What == "tools" && more:
		s.add(&mcp.Tool{Name: offer.Grown, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *gosdkCall) (*mcp.CallToolResult, error) {
			return said(offer.Grown), nil
		})
	case c.args.What == "tools":
		s.RemoveTools(offer.Grown)
	case c.args.What == "prompts" && more:
		s.AddPrompt(&mcp.Prompt{Name: offer.Grown}, greetGoSDK)
	case c.args.What == "prompts":
		s.RemovePrompts(offer.Grown)
	case more:
		s.AddResource(&mcp.Resource{URI: cells.GrownURI, Name: offer.Grown}, readGoSDK)
	default:
		s.RemoveResources(cells.GrownURI)
	}
	return said("changed"), nil
}

func (s *gosdkServer) touch(ctx context.Context, _ *gosdkCall) (*mcp.CallToolResult, error) {
	return said("touched"), s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: cells.NoteURI})
}

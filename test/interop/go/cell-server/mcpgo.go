package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

// mcpgoServer is the bazaar with mark3labs/mcp-go. Its questions are input requests, which the SDK makes into requests of
// its own where the client has a session.
type mcpgoServer struct {
	*bazaar
	*server.MCPServer
}

const grace = 50 * time.Millisecond

func mcpgo(legacy bool) http.Handler {
	s := &mcpgoServer{bazaar: newBazaar()}
	s.MCPServer = server.NewMCPServer(offer.Name, offer.Version,
		server.WithInstructions(offer.Instructions), server.WithPaginationLimit(offer.PageSize),
		server.WithToolCapabilities(true), server.WithPromptCapabilities(true), server.WithResourceCapabilities(true, true),
		server.WithLogging(), server.WithElicitation(), server.WithRoots(), server.WithCompletions(),
		server.WithPromptCompletionProvider(s), server.WithResourceCompletionProvider(s))
	s.EnableSampling()
	tools := s.tools()
	for _, t := range offer.Tools {
		tool := mcp.NewToolWithRawSchema(t.Name, t.Description, t.InputSchema)
		tool.Title, tool.RawOutputSchema, tool.Annotations.ReadOnlyHint = t.Title, t.OutputSchema, t.Annotations.ReadOnlyHint
		if t.Meta != nil {
			tool.Meta = mcp.NewMetaFromMap(t.Meta)
		}
		s.AddTool(tool, tools[t.Name])
	}
	for _, r := range offer.Resources {
		s.AddResource(mcp.NewResource(r.URI, r.Name, mcp.WithMIMEType(r.MIMEType)), s.read)
	}
	t := offer.Template
	s.AddResourceTemplate(mcp.NewResourceTemplate(t.URITemplate, t.Name, mcp.WithTemplateMIMEType(t.MIMEType)), s.read)
	s.AddPrompt(mcp.NewPrompt(offer.Prompt.Name, mcp.WithPromptDescription(offer.Prompt.Description), mcp.WithArgument("who")), greetMCPGo)
	versions := []string{"2026-07-28"}
	if legacy {
		versions = []string{"2025-11-25", "2025-06-18", "2025-03-26"}
	}
	return server.NewStreamableHTTPServer(s.MCPServer, server.WithStreamableHTTPProtocolVersions(versions...),
		server.WithStateLess(!legacy))
}

func greetMCPGo(_ context.Context, r mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	text := mcp.NewTextContent("hello " + r.Params.Arguments["who"])
	return mcp.NewGetPromptResult("a greeting", []mcp.PromptMessage{mcp.NewPromptMessage(mcp.RoleUser, text)}), nil
}

func (s *mcpgoServer) read(_ context.Context, r mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
	text, blob, ok := content(r.Params.URI)
	switch {
	case !ok:
		return nil, errors.New("no such resource")
	case blob != "":
		return []mcp.ResourceContents{mcp.BlobResourceContents{URI: r.Params.URI, MIMEType: "application/octet-stream", Blob: blob}}, nil
	}
	return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.Params.URI, MIMEType: "text/plain", Text: text}}, nil
}

// CompletePromptArgument completes with an exclamation mark.
func (s *mcpgoServer) CompletePromptArgument(_ context.Context, _ string, a mcp.CompleteArgument, _ mcp.CompleteContext) (*mcp.Completion, error) {
	return &mcp.Completion{Values: []string{a.Value + "!"}, Total: 1}, nil
}

// CompleteResourceArgument does likewise.
func (s *mcpgoServer) CompleteResourceArgument(_ context.Context, _ string, a mcp.CompleteArgument, _ mcp.CompleteContext) (*mcp.Completion, error) {
	return &mcp.Completion{Values: []string{a.Value + "!"}, Total: 1}, nil
}

func (s *mcpgoServer) tools() map[string]server.ToolHandlerFunc {
	return map[string]server.ToolHandlerFunc{
		"echo": func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			text := r.GetString("text", "")
			return mcp.NewToolResultStructured(map[string]any{"text": text}, text), nil
		},
		"digits": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			n := digits()
			return mcp.NewToolResultStructured(map[string]any{"n": n}, string(n)), nil
		},
		"steps": func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := 1; i <= 4; i++ {
				if err := s.report(ctx, r, i); err != nil {
					return nil, err
				}
			}
			return mcp.NewToolResultText("done"), nil
		},
		"wait": func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if err := s.report(ctx, r, 1); err != nil {
				return nil, err
			}
			return mcp.NewToolResultText(s.wait(ctx, r.GetString("key", ""))), nil
		},
		"cancelled": func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(s.wasCancelled(r.GetString("key", ""))), nil
		},
		"ask": s.ask, "visit": s.visit, "sample": s.sample, "roots": s.roots, "interview": s.interview,
		"log": s.log, "change": s.change, "touch": s.touch,
		"fail": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultError(offer.Texts.Failure), nil
		},
		"refuse": func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errors.New(offer.Texts.Refusal)
		},
	}
}

// report gives the SDK time to send: what is on its way when the call ends, it drops.
func (s *mcpgoServer) report(ctx context.Context, r mcp.CallToolRequest, progress int) error {
	if r.Params.Meta == nil || r.Params.Meta.ProgressToken == nil {
		return nil
	}
	defer time.Sleep(grace)
	return s.SendNotificationToClient(ctx, "notifications/progress", map[string]any{
		"progressToken": r.Params.Meta.ProgressToken, "progress": progress, "total": 4, "message": fmt.Sprintf("step %d ✓", progress),
	})
}

func ownerMCPGo(r mcp.CallToolRequest) mcp.ElicitationParams {
	return mcp.ElicitationParams{Message: offer.Texts.Owner + "? " + r.GetString("how", ""), RequestedSchema: cells.OwnerSchema}
}

func answeredMCPGo(a *mcp.ElicitationResult) string {
	content, _ := a.Content.(map[string]any)
	owner, _ := content["owner"].(string)
	return strings.TrimSpace(string(a.Action) + " " + owner)
}

func (s *mcpgoServer) ask(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if a := server.ElicitationResponse(r.Params.InputResponses, "owner"); a != nil {
		return mcp.NewToolResultText(answeredMCPGo(a)), nil
	}
	return server.NewInputRequestBuilder("").Elicit("owner", ownerMCPGo(r)).ToolResult(), nil
}

func (s *mcpgoServer) visit(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if a := server.ElicitationResponse(r.Params.InputResponses, "visit"); a != nil {
		return mcp.NewToolResultText(string(a.Action)), nil
	}
	params := mcp.ElicitationParams{Mode: mcp.ElicitationModeURL, Message: offer.Texts.Visit, URL: offer.Texts.URL, ElicitationID: "visit-1"}
	return server.NewInputRequestBuilder("").Elicit("visit", params).ToolResult(), nil
}

func messageMCPGo() mcp.CreateMessageParams {
	text := mcp.NewTextContent(offer.Texts.Sample)
	return mcp.CreateMessageParams{MaxTokens: 9, Messages: []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: text}}}
}

func sampledMCPGo(r *mcp.CreateMessageResult) string {
	switch c := r.Content.(type) {
	case mcp.TextContent:
		return c.Text
	case map[string]any:
		return fmt.Sprint(c["text"])
	}
	return fmt.Sprintf("content of type %T", r.Content)
}

func (s *mcpgoServer) sample(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if a := server.SamplingResponse(r.Params.InputResponses, "sample"); a != nil {
		return mcp.NewToolResultText(sampledMCPGo(a)), nil
	}
	return server.NewInputRequestBuilder("").Sample("sample", messageMCPGo()).ToolResult(), nil
}

func (s *mcpgoServer) roots(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	a := server.RootsResponse(r.Params.InputResponses, "roots")
	if a == nil {
		return server.NewInputRequestBuilder("").Roots("roots").ToolResult(), nil
	}
	var all []string
	for _, root := range a.Roots {
		all = append(all, root.URI+" "+root.Name)
	}
	return mcp.NewToolResultText(strings.Join(all, ",")), nil
}

// interview asks twice; what was answered first is its state.
func (s *mcpgoServer) interview(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if a := server.SamplingResponse(r.Params.InputResponses, "sample"); a != nil && r.Params.RequestState != "" {
		return mcp.NewToolResultText(r.Params.RequestState + " / " + sampledMCPGo(a)), nil
	}
	if a := server.ElicitationResponse(r.Params.InputResponses, "owner"); a != nil {
		return server.NewInputRequestBuilder(answeredMCPGo(a)).Sample("sample", messageMCPGo()).ToolResult(), nil
	}
	return server.NewInputRequestBuilder("").Elicit("owner", ownerMCPGo(r)).ToolResult(), nil
}

func (s *mcpgoServer) log(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	for level, data := range map[mcp.LoggingLevel]string{mcp.LoggingLevelDebug: offer.Texts.Quiet, mcp.LoggingLevelWarning: offer.Texts.Loud} {
		if err := s.SendLogMessageToClient(ctx, mcp.NewLoggingMessageNotification(level, "bazaar", data)); err != nil {
			return nil, err
		}
	}
	time.Sleep(grace)
	return mcp.NewToolResultText("logged"), nil
}

func (s *mcpgoServer) change(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	what := r.GetString("what", "")
	more := s.toggle(what)
	switch {
	case what == "tools" && more:
		s.AddTool(mcp.NewToolWithRawSchema(offer.Grown, "", []byte(`{"type":"object"}`)), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(offer.Grown), nil
		})
	case what == "tools":
		s.DeleteTools(offer.Grown)
	case what == "prompts" && more:
		s.AddPrompt(mcp.NewPrompt(offer.Grown), greetMCPGo)
	case what == "prompts":
		s.DeletePrompts(offer.Grown)
	case more:
		s.AddResource(mcp.NewResource(cells.GrownURI, offer.Grown), s.read)
	default:
		s.DeleteResources(cells.GrownURI)
	}
	return mcp.NewToolResultText("changed"), nil
}

func (s *mcpgoServer) touch(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	s.SendNotificationToAllClients("notifications/resources/updated", map[string]any{"uri": cells.NoteURI})
	return mcp.NewToolResultText("touched"), nil
}

//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

// mcpGo is mark3labs/mcp-go's client.
type mcpGo struct {
	*client.Client
	stateless bool
	heard     *cells.Heard
	tap       *cells.Tap
	token     atomic.Int64
	stop      func() // ends what it listens to
}

func newMCPGo(stateless bool, h *cells.Heard, t *cells.Tap) cells.Client {
	return &mcpGo{stateless: stateless, heard: h, tap: t, stop: func() {}}
}

// ListRoots implements client.RootsHandler.
func (c *mcpGo) ListRoots(context.Context, mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	return &mcp.ListRootsResult{Roots: []mcp.Root{{URI: cells.RootURI, Name: cells.RootName}}}, nil
}

// CreateMessage implements client.SamplingHandler.
func (c *mcpGo) CreateMessage(context.Context, mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	message := mcp.SamplingMessage{Role: mcp.RoleAssistant, Content: mcp.NewTextContent(cells.Sampled)}
	return &mcp.CreateMessageResult{SamplingMessage: message, Model: "stub", StopReason: "endTurn"}, nil
}

// Elicit implements client.ElicitationHandler.
func (c *mcpGo) Elicit(_ context.Context, q mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	action, content := c.heard.Elicited(q.Params.Mode, q.Params.Message, q.Params.URL)
	r := mcp.ElicitationResponse{Action: mcp.ElicitationResponseAction(action)}
	if content != nil {
		r.Content = content
	}
	return &mcp.ElicitationResult{ElicitationResponse: r}, nil
}

func (c *mcpGo) Open(ctx context.Context, url string) (about cells.About, err error) {
	options := []transport.StreamableHTTPCOption{transport.WithHTTPBasicClient(&http.Client{Transport: c.tap})}
	if !c.stateless {
		options = append(options, transport.WithContinuousListening())
	}
	tr, err := transport.NewStreamableHTTP(url, options...)
	if err != nil {
		return about, err
	}
	elicitation := &mcp.ElicitationCapability{Form: &struct{}{}, URL: &struct{}{}}
	c.Client = client.NewClient(tr, client.WithProtocolVersion(version(c.stateless)), client.WithSamplingHandler(c),
		client.WithElicitationHandler(c), client.WithRootsHandler(c),
		client.WithClientCapabilities(mcp.ClientCapabilities{Elicitation: elicitation}))
	c.OnNotification(c.hear)
	if err := c.Start(context.Background()); err != nil {
		return about, err
	}
	q := mcp.InitializeRequest{}
	q.Params.ClientInfo = mcp.Implementation{Name: "cells", Version: "1.0.0"}
	q.Params.ProtocolVersion = version(c.stateless)
	r, err := c.Initialize(ctx, q)
	if err != nil {
		return about, err
	}
	if c.stateless {
		if err := c.listen(); err != nil {
			return about, err
		}
	}
	about = cells.About{Version: c.ProtocolVersion(), Name: r.ServerInfo.Name, Instructions: r.Instructions}
	about.Capabilities, err = json.Marshal(r.Capabilities)
	return about, err
}

func (c *mcpGo) hear(n mcp.JSONRPCNotification) {
	switch n.Method {
	case mcp.MethodNotificationToolsListChanged:
		c.heard.Changed("tools")
	case mcp.MethodNotificationPromptsListChanged:
		c.heard.Changed("prompts")
	case mcp.MethodNotificationResourcesListChanged:
		c.heard.Changed("resources")
	case mcp.MethodNotificationResourceUpdated:
		c.heard.Updated()
	case "notifications/message":
		c.heard.Log(fmt.Sprint(n.Params.AdditionalFields["data"]))
	}
}

// listen listens to changed lists, and updates of resources, in place of what it listened to before.
func (c *mcpGo) listen(uris ...string) error {
	c.stop()
	filter := mcp.SubscriptionFilter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true, ResourceSubscriptions: uris}
	stop, err := c.ListenAsync(context.Background(), filter, nil)
	if err == nil {
		c.stop = stop
	}
	return err
}

func (c *mcpGo) Close() error {
	c.stop()
	return c.Client.Close()
}

func (c *mcpGo) Tools(ctx context.Context, cursor string) (page []cells.Tool, next string, err error) {
	q := mcp.ListToolsRequest{}
	q.Params.Cursor = mcp.Cursor(cursor)
	r, err := c.ListToolsByPage(ctx, q)
	if err != nil {
		return nil, "", err
	}
	for _, t := range r.Tools {
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return nil, "", err
		}
		tool := cells.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: schema}
		if t.Meta != nil {
			tool.Meta = t.Meta.AdditionalFields
		}
		page = append(page, tool)
	}
	return page, string(r.NextCursor), nil
}

func (c *mcpGo) Prompts(ctx context.Context) (names []string, err error) {
	r, err := c.ListPrompts(ctx, mcp.ListPromptsRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range r.Prompts {
		names = append(names, p.Name)
	}
	return names, nil
}

func (c *mcpGo) Resources(ctx context.Context) (uris []string, err error) {
	r, err := c.ListResources(ctx, mcp.ListResourcesRequest{})
	if err != nil {
		return nil, err
	}
	for _, x := range r.Resources {
		uris = append(uris, x.URI)
	}
	return uris, nil
}

func (c *mcpGo) Templates(ctx context.Context) (uris []string, err error) {
	r, err := c.ListResourceTemplates(ctx, mcp.ListResourceTemplatesRequest{})
	if err != nil {
		return nil, err
	}
	for _, t := range r.ResourceTemplates {
		uris = append(uris, t.URITemplate.Raw())
	}
	return uris, nil
}

func (c *mcpGo) Call(ctx context.Context, tool string, arguments any) (cells.Result, error) {
	q := mcp.CallToolRequest{}
	q.Params.Name, q.Params.Arguments = tool, arguments
	q.Params.Meta = &mcp.Meta{ProgressToken: fmt.Sprint("token ", c.token.Add(1))}
	r, err := c.CallTool(ctx, q)
	if err != nil {
		return cells.Result{}, err
	}
	var text string
	for _, content := range r.Content {
		text += content.(mcp.TextContent).Text
	}
	structured, err := json.Marshal(r.StructuredContent)
	return cells.Result{Text: text, Structured: structured, IsError: r.IsError}, err
}

func (c *mcpGo) Read(ctx context.Context, uri string) (string, error) {
	q := mcp.ReadResourceRequest{}
	q.Params.URI = uri
	r, err := c.ReadResource(ctx, q)
	if err != nil {
		return "", err
	}
	switch content := r.Contents[0].(type) {
	case mcp.BlobResourceContents:
		return content.Blob, nil
	case mcp.TextResourceContents:
		return content.Text, nil
	}
	return "", fmt.Errorf("contents of type %T", r.Contents[0])
}

func (c *mcpGo) Prompt(ctx context.Context, name string, arguments map[string]string) (string, error) {
	q := mcp.GetPromptRequest{}
	q.Params.Name, q.Params.Arguments = name, arguments
	r, err := c.GetPrompt(ctx, q)
	if err != nil {
		return "", err
	}
	return r.Messages[0].Content.(mcp.TextContent).Text, nil
}

func (c *mcpGo) Complete(ctx context.Context, r cells.Reference, argument, value string) ([]string, error) {
	q := mcp.CompleteRequest{}
	q.Params.Argument = mcp.CompleteArgument{Name: argument, Value: value}
	q.Params.Ref = mcp.PromptReference{Type: "ref/prompt", Name: r.Prompt}
	if r.Template != "" {
		q.Params.Ref = mcp.ResourceReference{Type: "ref/resource", URI: r.Template}
	}
	res, err := c.Client.Complete(ctx, q)
	if err != nil {
		return nil, err
	}
	return res.Completion.Values, nil
}

func (c *mcpGo) Subscribe(ctx context.Context, uri string) error {
	if c.stateless {
		return c.listen(uri)
	}
	q := mcp.SubscribeRequest{}
	q.Params.URI = uri
	return c.Client.Subscribe(ctx, q)
}

func (c *mcpGo) Unsubscribe(ctx context.Context, uri string) error {
	if c.stateless {
		return c.listen()
	}
	q := mcp.UnsubscribeRequest{}
	q.Params.URI = uri
	return c.Client.Unsubscribe(ctx, q)
}

func (c *mcpGo) SetLevel(ctx context.Context, level string) error {
	q := mcp.SetLevelRequest{}
	q.Params.Level = mcp.LoggingLevel(level)
	return c.Client.SetLevel(ctx, q)
}

// Code implements cells.Client.
func (c *mcpGo) Code(err error) int {
	switch {
	case errors.Is(err, mcp.ErrInvalidParams):
		return mcp.INVALID_PARAMS
	case errors.Is(err, mcp.ErrResourceNotFound):
		return mcp.RESOURCE_NOT_FOUND
	}
	return 0
}

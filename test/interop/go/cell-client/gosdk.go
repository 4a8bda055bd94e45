//lint:file-ignore SA1019 what 2026-07-28 deprecates is what the wire before it has

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/test/interop/go/cells"
)

// goSDK is the official Go SDK's client.
type goSDK struct {
	*mcp.ClientSession
	stateless bool
	heard     *cells.Heard
	tap       *cells.Tap
	token     atomic.Int64
	level     string // of log messages; without a session each call carries it
}

func newGoSDK(stateless bool, h *cells.Heard, t *cells.Tap) cells.Client {
	return &goSDK{stateless: stateless, heard: h, tap: t}
}

func (c *goSDK) Open(ctx context.Context, url string) (about cells.About, err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "cells", Version: "1.0.0"}, c.options())
	client.AddRoots(&mcp.Root{URI: cells.RootURI, Name: cells.RootName})
	c.ClientSession, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: c.tap}},
		&mcp.ClientSessionOptions{ProtocolVersion: version(c.stateless)})
	if err != nil {
		return about, err
	}
	r := c.InitializeResult()
	about = cells.About{Version: r.ProtocolVersion, Name: r.ServerInfo.Name, Instructions: r.Instructions}
	about.Capabilities, err = json.Marshal(r.Capabilities)
	return about, err
}

func (c *goSDK) options() *mcp.ClientOptions {
	elicitation := &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}, URL: &mcp.URLElicitationCapabilities{}}
	return &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{Elicitation: elicitation, RootsV2: &mcp.RootCapabilities{}},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "stub", StopReason: "endTurn", Content: &mcp.TextContent{Text: cells.Sampled}}, nil
		},
		ElicitationHandler: func(_ context.Context, q *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			action, content := c.heard.Elicited(q.Params.Mode, q.Params.Message, q.Params.URL)
			return &mcp.ElicitResult{Action: action, Content: content}, nil
		},
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) {},
		ResourceUpdatedHandler:      func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { c.heard.Updated() },
		LoggingMessageHandler:       func(_ context.Context, n *mcp.LoggingMessageRequest) { c.heard.Log(fmt.Sprint(n.Params.Data)) },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { c.heard.Changed("tools") },
		PromptListChangedHandler:    func(context.Context, *mcp.PromptListChangedRequest) { c.heard.Changed("prompts") },
		ResourceListChangedHandler:  func(context.Context, *mcp.ResourceListChangedRequest) { c.heard.Changed("resources") },
	}
}

func (c *goSDK) Ping(ctx context.Context) error { return c.ClientSession.Ping(ctx, nil) }

func (c *goSDK) Tools(ctx context.Context, cursor string) (page []cells.Tool, next string, err error) {
	r, err := c.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
	if err != nil {
		return nil, "", err
	}
	for _, t := range r.Tools {
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return nil, "", err
		}
		page = append(page, cells.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: schema, Meta: t.Meta})
	}
	return page, r.NextCursor, nil
}

func (c *goSDK) Prompts(ctx context.Context) (names []string, err error) {
	for p, err := range c.ClientSession.Prompts(ctx, nil) {
		if err != nil {
			return nil, err
		}
		names = append(names, p.Name)
	}
	return names, nil
}

func (c *goSDK) Resources(ctx context.Context) (uris []string, err error) {
	for r, err := range c.ClientSession.Resources(ctx, nil) {
		if err != nil {
			return nil, err
		}
		uris = append(uris, r.URI)
	}
	return uris, nil
}

func (c *goSDK) Templates(ctx context.Context) (uris []string, err error) {
	for t, err := range c.ResourceTemplates(ctx, nil) {
		if err != nil {
			return nil, err
		}
		uris = append(uris, t.URITemplate)
	}
	return uris, nil
}

func (c *goSDK) Call(ctx context.Context, tool string, arguments any) (cells.Result, error) {
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if c.stateless && c.level != "" {
		p.SetMeta(map[string]any{mcp.MetaKeyLogLevel: c.level})
	}
	p.SetProgressToken(fmt.Sprint("token ", c.token.Add(1)))
	r, err := c.CallTool(ctx, p)
	if err != nil {
		return cells.Result{}, err
	}
	var text string
	for _, content := range r.Content {
		text += content.(*mcp.TextContent).Text
	}
	structured, err := json.Marshal(r.StructuredContent)
	return cells.Result{Text: text, Structured: structured, IsError: r.IsError}, err
}

func (c *goSDK) Read(ctx context.Context, uri string) (string, error) {
	r, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	if blob := r.Contents[0].Blob; blob != nil {
		return base64.StdEncoding.EncodeToString(blob), nil
	}
	return r.Contents[0].Text, nil
}

func (c *goSDK) Prompt(ctx context.Context, name string, arguments map[string]string) (string, error) {
	r, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: name, Arguments: arguments})
	if err != nil {
		return "", err
	}
	return r.Messages[0].Content.(*mcp.TextContent).Text, nil
}

func (c *goSDK) Complete(ctx context.Context, r cells.Reference, argument, value string) ([]string, error) {
	ref := &mcp.CompleteReference{Type: "ref/prompt", Name: r.Prompt}
	if r.Template != "" {
		ref = &mcp.CompleteReference{Type: "ref/resource", URI: r.Template}
	}
	res, err := c.ClientSession.Complete(ctx, &mcp.CompleteParams{Ref: ref, Argument: mcp.CompleteParamsArgument{Name: argument, Value: value}})
	if err != nil {
		return nil, err
	}
	return res.Completion.Values, nil
}

func (c *goSDK) Subscribe(ctx context.Context, uri string) error {
	return c.ClientSession.Subscribe(ctx, &mcp.SubscribeParams{URI: uri})
}

func (c *goSDK) Unsubscribe(ctx context.Context, uri string) error {
	return c.ClientSession.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
}

func (c *goSDK) SetLevel(ctx context.Context, level string) error {
	c.level = level
	if c.stateless {
		return nil
	}
	return c.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: mcp.LoggingLevel(level)})
}

// Code implements cells.Client.
func (c *goSDK) Code(err error) int {
	var e *jsonrpc.Error
	if errors.As(err, &e) {
		return int(e.Code)
	}
	return 0
}

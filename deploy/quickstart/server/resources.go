package main

import (
	"context"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// documents are the resources, by URI.
var documents = map[string]string{
	"example://about": "An outrigger is the float lashed beside a canoe: small, always alongside.",
	"example://parts": "A sidecar beside every MCP server, and one control plane for all of them.",
}

// greetingPrefix begins the URIs of the resource template.
const greetingPrefix = "example://greeting/"

func addResources(s *mcp.Server) {
	s.AddResource(&mcp.Resource{URI: "example://about", Name: "about", MIMEType: "text/plain", Description: "What an outrigger is."}, readDocument)
	s.AddResource(&mcp.Resource{URI: "example://parts", Name: "parts", MIMEType: "text/plain", Description: "What this one consists of."}, readDocument)
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: greetingPrefix + "{name}", Name: "greeting", MIMEType: "text/plain", Description: "A greeting for a name.",
	}, readGreeting)
	s.AddPrompt(&mcp.Prompt{
		Name: "explain", Description: "Ask for an explanation.",
		Arguments: []*mcp.PromptArgument{{Name: "topic", Description: "what to explain", Required: true}},
	}, explain)
}

func readDocument(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	content, ok := documents[req.Params.URI]
	if !ok {
		return nil, mcp.ResourceNotFoundError(req.Params.URI)
	}
	return textResource(req.Params.URI, content), nil
}

func readGreeting(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	name := strings.TrimPrefix(req.Params.URI, greetingPrefix)
	return textResource(req.Params.URI, "Hello, "+name+"!"), nil
}

func textResource(uri, content string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: content}}}
}

func explain(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	topic := req.Params.Arguments["topic"]
	if topic == "" {
		return nil, errors.New("the argument topic is required")
	}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
		{Role: "user", Content: &mcp.TextContent{Text: "Explain " + topic + " in three sentences."}},
	}}, nil
}

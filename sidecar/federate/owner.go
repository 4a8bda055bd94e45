package federate

import (
	"context"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Owner implements upstream.Directory by the way that the call itself would take.
func (s *Server) Owner(ctx context.Context, c *upstream.Call, method, name string) string {
	ctx = upstream.WithVia(ctx, c.Header)
	var m *member
	switch method {
	case mcp.MethodToolsCall:
		t, _, _ := s.find(ctx, c, tools, name) // a failure is that nobody is known
		m = t.member
	case mcp.MethodPromptsGet:
		t, _, _ := s.find(ctx, c, prompts, name)
		m = t.member
	case mcp.MethodResourcesRead:
		if m, _ = s.owner(ctx, c, name); m == nil {
			m = s.foundAt(c.Principal, name)
		}
	}
	if m == nil {
		return ""
	}
	return m.Name
}

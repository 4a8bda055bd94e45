// Package mirror remembers which arguments of which tools clients repeat in Mcp-Param-* headers (MCP 2026-07-28,
// server/tools, "x-mcp-header"), as tools/list has told. Whoever is the HTTP server of such tools judges the headers by it,
// and whoever is their client writes them by it.
package mirror

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// maxTools is how many tools with mirrored arguments are remembered; then they are all forgotten.
const maxTools = 10_000

// Tools are what is known of one server's tools. The zero value knows none. It is safe for concurrent use.
type Tools struct {
	some atomic.Bool // any tool has any; most servers have none, and then nothing is looked up
	mu   sync.Mutex  // guards below
	by   map[key][]mcp.ParamHeader
}

// key is a tool as one principal sees it.
type key struct{ principal, tool string }

// Of is a tool's mirrored arguments, as far as they are known.
//
// Hot: a server whose tools mirror nothing costs one load.
func (t *Tools) Of(principal string, tool []byte) []mcp.ParamHeader {
	if !t.some.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.by[key{principal, string(tool)}]
}

// Check holds the headers of a tools/call to its arguments; nil when they agree, or nothing is known.
func (t *Tools) Check(principal string, h http.Header, m *mcp.Message) *mcp.Error {
	if m.Method != mcp.MethodToolsCall {
		return nil
	}
	ps := t.Of(principal, m.Name)
	if len(ps) == 0 {
		return nil
	}
	return mcp.CheckParams(h, m.Arguments.Of(m.Raw), ps)
}

// Learn takes note of the tools in a response to tools/list, and returns their names. A tool whose annotations are
// invalid mirrors nothing: clients drop it.
func (t *Tools) Learn(principal string, response *mcp.Message) (tools []string) {
	list := rawjson.Find(response.Raw, response.Result, "tools")
	if !rawjson.IsArray(list.Of(response.Raw)) {
		return nil
	}
	found := make(map[string][]mcp.ParamHeader)
	for _, tool := range rawjson.Fields(response.Raw, list, "name", "inputSchema") {
		name, ps, err := Read(response.Raw, tool[0], tool[1])
		if name == "" {
			continue
		}
		if err != nil {
			ps = nil
		}
		tools = append(tools, name)
		found[name] = ps
	}
	t.Merge(principal, found)
	return tools
}

// Read is the name and the mirrored arguments of a tool, whose name and inputSchema are there in a list; the name is empty
// when it has none. An error says why clients must not use the tool.
func Read(raw []byte, name, inputSchema mcp.Span) (tool string, ps []mcp.ParamHeader, err error) {
	tool, _ = rawjson.Text(name.Of(raw))
	if !inputSchema.Present() {
		return tool, nil, nil
	}
	ps, err = mcp.ParamHeaders(inputSchema.Of(raw))
	return tool, ps, err
}

// Some reports whether any tool is known to mirror arguments: as long as none is, there is nothing to forget.
func (t *Tools) Some() bool { return t.some.Load() }

// Merge takes note of tools: a tool without mirrored arguments is forgotten. As long as no tool has any there is nothing to
// forget.
func (t *Tools) Merge(principal string, found map[string][]mcp.ParamHeader) {
	if !t.some.Load() && !anyMirrors(found) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, ps := range found {
		k := key{principal, name}
		switch {
		case len(ps) == 0:
			delete(t.by, k)
			continue
		case t.by == nil || len(t.by) >= maxTools:
			t.by = make(map[key][]mcp.ParamHeader)
		}
		t.by[k] = ps
		t.some.Store(true)
	}
}

func anyMirrors(tools map[string][]mcp.ParamHeader) bool {
	for _, ps := range tools {
		if len(ps) > 0 {
			return true
		}
	}
	return false
}

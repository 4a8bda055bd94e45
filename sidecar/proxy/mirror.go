package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxMirroring is how many tools with mirrored arguments are remembered.
	maxMirroring = 10_000
	// maxToolsPage is the longest page of tools/list that is looked into.
	maxToolsPage = 16 << 20
)

// mirrors is what a server's tools/list said of arguments that clients repeat in Mcp-Param-* headers (server/tools,
// "x-mcp-header"). A server over HTTP judges those headers itself, by the same bytes; for a process behind stdio the
// sidecar is the HTTP server, so it has to. It knows the tools that were listed through it.
type mirrors struct {
	known atomic.Pointer[map[string][]mcp.ParamHeader] // by tool; nil until one has any
	mu    sync.Mutex                                   // held while known is replaced
}

// check holds a call's headers to its arguments.
//
// Hot: a server whose tools mirror nothing costs one load.
func (m *mirrors) check(x *exchange) error {
	if m == nil || x.msg.Method != mcp.MethodToolsCall {
		return nil
	}
	known := m.known.Load()
	if known == nil {
		return nil
	}
	e := mcp.CheckParams(x.r.Header, x.msg.Arguments.Of(x.msg.Raw), (*known)[string(x.msg.Name)])
	if e == nil {
		return nil
	}
	return e
}

// learn looks into an answer to tools/list and hands it on unchanged.
func (m *mirrors) learn(x *exchange, a *upstream.Answer) error {
	if m == nil || x.msg.Method != mcp.MethodToolsList || a.Body == nil || a.Length > maxToolsPage {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, maxToolsPage+1))
	if err != nil {
		return err
	}
	a.Body = readAhead{io.MultiReader(bytes.NewReader(body), a.Body), a.Body}
	if len(body) > maxToolsPage {
		return nil
	}
	var list struct {
		Result struct {
			Tools []struct {
				Name        string          `json:"name"`
				InputSchema json.RawMessage `json:"inputSchema"`
			} `json:"tools"`
		} `json:"result"`
	}
	if json.Unmarshal(body, &list) != nil {
		return nil // the client will see for itself
	}
	found := make(map[string][]mcp.ParamHeader)
	for _, t := range list.Result.Tools {
		ps, err := mcp.ParamHeaders(t.InputSchema)
		if err != nil {
			ps = nil // an invalid tool: clients drop it, so none mirrors for it
		}
		found[t.Name] = ps
	}
	m.merge(found)
	return nil
}

// readAhead is a body of which some was read, from its beginning.
type readAhead struct {
	io.Reader
	io.Closer
}

// merge replaces what is known of the tools found.
func (m *mirrors) merge(found map[string][]mcp.ParamHeader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string][]mcp.ParamHeader)
	if known := m.known.Load(); known != nil {
		next = maps.Clone(*known)
	}
	for name, ps := range found {
		if len(ps) == 0 {
			delete(next, name)
		} else if len(next) < maxMirroring {
			next[name] = ps
		}
	}
	if len(next) == 0 {
		m.known.Store(nil)
		return
	}
	m.known.Store(&next)
}

package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxHinted is how many tools' hints an endpoint remembers; beyond it they are learnt anew.
const maxHinted = 1 << 16

const (
	// hintsFresh is how long a server is not asked again for tools that it did not list.
	hintsFresh = 10 * time.Second
	// hintsTimeout bounds asking for them, and maxHintPages how many pages are read.
	hintsTimeout = 5 * time.Second
	maxHintPages = 64
)

// hints are what tools say of themselves, as the lists had it that passed here last. A tool that is not listed is what MCP
// takes a tool for that says nothing, the most dangerous kind.
type hints struct {
	asking chan struct{} // capacity 1: a place for who asks the server

	mu    sync.RWMutex // guards below
	said  map[string]*policy.Hints
	asked time.Time // when the server was last asked
}

// of is what a tool said; nil where that is not known.
func (h *hints) of(name []byte) *policy.Hints {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.said[string(name)]
}

// hintsOf is what a tool says of itself, for which its server is asked if need be; nil when it does not say.
func (x *exchange) hintsOf(to callee, tool []byte) *policy.Hints {
	h := &x.ep.hints
	said := h.of(tool)
	if said != nil || to == nil {
		return said
	}
	ctx, cancel := context.WithTimeout(x.ctx, hintsTimeout)
	defer cancel()
	select {
	case h.asking <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-h.asking }()
	if said = h.of(tool); said == nil && h.due() {
		if err := x.askHints(ctx, to); err != nil {
			x.p.Log.Debug("a server did not list its tools, of which rules ask what they say of themselves", "binding", x.ep.name, "error", err)
		}
		said = h.of(tool)
	}
	return said
}

// due reports whether the server may be asked again, and notes that it is.
func (h *hints) due() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) < hintsFresh {
		return false
	}
	h.asked = time.Now()
	return true
}

// askHints lists the tools, on the caller's behalf.
func (x *exchange) askHints(ctx context.Context, to callee) error {
	cursor := ""
	for range maxHintPages {
		m, err := mcp.ScanAnswer(x.listTools(cursor))
		if err != nil {
			return err
		}
		header := http.Header{}
		for _, name := range []string{"Via", mcp.HeaderVersion} {
			if values, ok := x.r.Header[name]; ok {
				header[name] = values
			}
		}
		a, err := to.Call(ctx, &upstream.Call{Message: &m, Header: header, Principal: x.caller(), Caller: x.who, Binding: x.ep.name})
		if err != nil {
			return err
		}
		response, _, err := upstream.ReadResponse(x.ep.server.name, a, nil, maxListPage)
		if err != nil {
			return err
		}
		raw := response.Raw
		if tools := rawjson.Find(raw, response.Result, "tools"); rawjson.IsArray(tools.Of(raw)) {
			for _, fields := range rawjson.Fields(raw, tools, "name", "annotations") {
				if name := fields[0].Of(raw); rawjson.IsString(name) {
					x.ep.hints.learn(rawjson.Decoded(name), raw, fields[1])
				}
			}
		}
		next := rawjson.Find(raw, response.Result, "nextCursor").Of(raw)
		if !rawjson.IsString(next) {
			return nil
		}
		cursor = string(next)
	}
	return nil
}

// listTools is a tools/list like the call's own request: of its wire and for its client. cursor is a token, or empty.
func (x *exchange) listTools(cursor string) []byte {
	b := []byte(`{"jsonrpc":"2.0","id":"outrigger-hints","method":"` + mcp.MethodToolsList + `","params":{`)
	if cursor != "" {
		b = append(append(b, `"cursor":`...), cursor...)
	}
	if x.era == mcp.Stateless {
		if cursor != "" {
			b = append(b, ',')
		}
		b = append(b, `"_meta":`...)
		b, _ = rawjson.Rewrite(b, x.msg.Raw, x.msg.Meta, func(m rawjson.Member) ([]byte, bool) {
			return nil, string(m.Name) != "progressToken"
		})
	}
	return append(b, `}}`...)
}

// learn notes the annotations of a list's entry.
func (h *hints) learn(name, raw []byte, annotations mcp.Span) *policy.Hints {
	said := hintsIn(raw, annotations)
	if known := h.of(name); known != nil && *known == said {
		return known
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.said == nil || len(h.said) >= maxHinted {
		h.said = make(map[string]*policy.Hints)
	}
	h.said[string(name)] = &said
	return &said
}

// hintsIn reads ToolAnnotations (schema: ToolAnnotations). What is not a bool says nothing.
func hintsIn(raw []byte, annotations mcp.Span) policy.Hints {
	h := policy.Hints{Destructive: true, OpenWorld: true}
	if !rawjson.IsObject(annotations.Of(raw)) {
		return h
	}
	for m := range rawjson.Members(raw, annotations) {
		value := string(m.Value.Of(raw))
		if value != "true" && value != "false" {
			continue
		}
		switch string(m.Name) {
		case "readOnlyHint":
			h.ReadOnly = value == "true"
		case "destructiveHint":
			h.Destructive = value == "true"
		case "idempotentHint":
			h.Idempotent = value == "true"
		case "openWorldHint":
			h.OpenWorld = value == "true"
		}
	}
	return h
}

package proxy

import (
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// maxHinted is how many tools' hints an endpoint remembers; beyond it they are learnt anew.
const maxHinted = 1 << 16

// hints are what tools say of themselves, as the lists had it that passed here last. A tool that was not listed is what MCP
// takes a tool for that says nothing, the most dangerous kind. The zero hints are ready.
type hints struct {
	mu   sync.RWMutex // guards below
	said map[string]*policy.Hints
}

// of is what a tool said; nil where that is not known.
func (h *hints) of(name []byte) *policy.Hints {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.said[string(name)]
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

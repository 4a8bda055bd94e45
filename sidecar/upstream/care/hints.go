package care

import (
	"io"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxList  = 4 << 20 // bytes of a tools/list that is looked at
	maxTools = 10_000  // that are remembered
)

// hints are the tools that declared in a tools/list that a call of them may happen twice: annotations.readOnlyHint or
// annotations.idempotentHint. The last list that named a tool counts.
type hints struct {
	mu    sync.RWMutex // guards below
	tools map[string]struct{}
}

func (h *hints) repeatable(tool string) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	_, ok := h.tools[tool]
	return ok
}

// learn reads a response to tools/list. What is none teaches nothing.
func (h *hints) learn(response []byte) {
	m, err := mcp.ScanAnswer(response)
	if err != nil || m.Kind != mcp.Response {
		return
	}
	tools := rawjson.Find(m.Raw, m.Result, "tools")
	if !rawjson.IsArray(tools.Of(m.Raw)) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for tool := range rawjson.Elements(m.Raw, tools) {
		if name, ok := rawjson.Text(rawjson.Find(m.Raw, tool, "name").Of(m.Raw)); ok {
			h.setLocked(name, declaresRepeatable(m.Raw, tool))
		}
	}
}

func (h *hints) setLocked(tool string, repeatable bool) {
	switch {
	case !repeatable:
		delete(h.tools, tool)
	case len(h.tools) < maxTools:
		if h.tools == nil {
			h.tools = make(map[string]struct{})
		}
		h.tools[tool] = struct{}{}
	}
}

func declaresRepeatable(raw []byte, tool mcp.Span) bool {
	for _, hint := range []string{"readOnlyHint", "idempotentHint"} {
		if string(rawjson.Find(raw, tool, "annotations", hint).Of(raw)) == "true" {
			return true
		}
	}
	return false
}

// learnFrom lets an answer to tools/list be read as it goes by, where that is of use.
func (s *Server) learnFrom(m *mcp.Message, a *upstream.Answer) {
	switch {
	case s.retries == nil || m.Method != mcp.MethodToolsList || a == nil:
	case a.Body != nil && a.Length <= maxList:
		a.Body = &listBody{ReadCloser: a.Body, hints: &s.retries.hints}
	case a.Events != nil:
		a.Events = listEvents{EventStream: a.Events, hints: &s.retries.hints}
	}
}

// listBody keeps what is read of a body, and learns from it at the end.
type listBody struct {
	io.ReadCloser
	hints *hints
	read  []byte
}

func (b *listBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.hints == nil {
		return n, err
	}
	b.read = append(b.read, p[:n]...)
	if err == io.EOF {
		b.hints.learn(b.read)
	}
	if err != nil || len(b.read) > maxList {
		b.hints, b.read = nil, nil
	}
	return n, err
}

// listEvents learns from the response among events.
type listEvents struct {
	upstream.EventStream
	hints *hints
}

func (e listEvents) Next() (mcp.Event, error) {
	event, err := e.EventStream.Next()
	if err == nil && len(event.Data) <= maxList {
		e.hints.learn(event.Data)
	}
	return event, err
}

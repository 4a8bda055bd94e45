package tostateless

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxMirroring is how many tools with mirrored arguments are remembered; then they are all forgotten.
	maxMirroring = 10_000
	// maxToolPages is how far tools/list is followed for one tool.
	maxToolPages = 20
)

// mirrored is which arguments of which tools a stateless client repeats in Mcp-Param-* headers (server/tools,
// "x-mcp-header"), as far as tools/list has told here.
type mirrored struct {
	some atomic.Bool // any tool has any; most servers have none, and then nothing is looked up
	mu   sync.Mutex  // guards below
	by   map[toolKey][]mcp.ParamHeader
}

// toolKey is a tool as one principal sees it.
type toolKey struct{ principal, name string }

func (m *mirrored) of(k toolKey) []mcp.ParamHeader {
	if !m.some.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.by[k]
}

// learn takes note of the tools that a list named.
func (m *mirrored) learn(principal string, found map[string][]mcp.ParamHeader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, ps := range found {
		k := toolKey{principal, name}
		switch {
		case len(ps) == 0:
			delete(m.by, k)
			continue
		case m.by == nil || len(m.by) >= maxMirroring:
			m.by = make(map[toolKey][]mcp.ParamHeader)
		}
		m.by[k] = ps
		m.some.Store(true)
	}
}

// setParams adds the headers of a tools/call, and reports whether they differ from those that were there.
func setParams(h http.Header, m *mcp.Message, ps []mcp.ParamHeader) (changed bool) {
	for name := range h {
		if strings.HasPrefix(name, mcp.HeaderParamPrefix) && !has(ps, name) {
			delete(h, name)
			changed = true
		}
	}
	for _, p := range ps {
		value, ok := paramValue(rawjson.Find(m.Raw, m.Arguments, p.Path...).Of(m.Raw))
		old := h[p.Header]
		switch {
		case !ok && len(old) > 0:
			delete(h, p.Header)
			changed = true
		case ok && (len(old) == 0 || old[0] != value):
			h[p.Header] = []string{value}
			changed = true
		}
	}
	return changed
}

func has(ps []mcp.ParamHeader, header string) bool {
	for _, p := range ps {
		if p.Header == header {
			return true
		}
	}
	return false
}

// paramValue is an argument in its header's form. There is none for what is absent or null, and for what is no string,
// number or boolean.
func paramValue(value []byte) (_ string, ok bool) {
	text := string(value)
	switch {
	case len(value) == 0, text == "null", rawjson.IsObject(value), rawjson.IsArray(value):
		return "", false
	case rawjson.IsString(value):
		return mcp.EncodeHeaderValue(string(rawjson.Decoded(value))), true
	case text == "true", text == "false", !strings.ContainsAny(text, ".eE"):
		return text, true
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.FormatInt(int64(f), 10), true // 1.0 and 1e2 are integers too
	}
	return text, true
}

// askForTool looks a tool up in tools/list, and learns of all the tools before it. Errors are those of the calls.
func (c *session) askForTool(ctx context.Context, principal, tool string) error {
	s, cursor := c.server, []byte(nil)
	for range maxToolPages {
		m, err := s.request(mcp.MethodToolsList, cursor, c.metaNow())
		if err != nil {
			return err
		}
		a, err := s.inner.Call(ctx, &upstream.Call{Message: &m, Header: headerFor(&m, nil), Principal: principal})
		if err != nil {
			return forLegacy(err)
		}
		r, err := s.readResponse(a)
		if err != nil || !rawjson.IsObject(r.Result.Of(r.Raw)) {
			return err
		}
		found := make(map[string][]mcp.ParamHeader)
		for e := range elementsOf(r.Raw, rawjson.Find(r.Raw, r.Result, "tools")) {
			if name, ps, err := toolHeaders(r.Raw, e); err == nil && name != "" {
				found[name] = ps
			}
		}
		s.mirrored.learn(principal, found)
		next := rawjson.Find(r.Raw, r.Result, "nextCursor").Of(r.Raw)
		if _, here := found[tool]; here || !rawjson.IsString(next) {
			return nil
		}
		cursor = append(append([]byte(`"cursor":`), next...), ',')
	}
	return nil
}

// toolHeaders reads the annotations of a tool in a list. An error says why clients must not use it.
func toolHeaders(raw []byte, tool mcp.Span) (name string, ps []mcp.ParamHeader, err error) {
	name, _ = rawjson.Text(rawjson.Find(raw, tool, "name").Of(raw))
	schema := rawjson.Find(raw, tool, "inputSchema").Of(raw)
	if schema == nil {
		return name, nil, nil
	}
	ps, err = mcp.ParamHeaders(schema)
	return name, ps, err
}

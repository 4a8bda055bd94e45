package tostateless

import (
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxToolPages is how far tools/list is followed for one tool.
const maxToolPages = 20

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
func (k *call) askForTool(tool string) error {
	s, cursor := k.session.server, []byte(nil)
	for range maxToolPages {
		m, err := s.request(mcp.MethodToolsList, cursor, k.session.metaNow())
		if err != nil {
			return err
		}
		a, err := s.inner.Call(k.ctx, &upstream.Call{Message: &m, Header: headerFor(&m, nil), Principal: k.principal, Caller: k.caller})
		if err != nil {
			return forLegacy(err)
		}
		r, err := s.readResponse(a)
		if err != nil || !rawjson.IsObject(r.Result.Of(r.Raw)) {
			return err
		}
		found := make(map[string][]mcp.ParamHeader)
		if list := rawjson.Find(r.Raw, r.Result, "tools"); rawjson.IsArray(list.Of(r.Raw)) {
			for _, at := range rawjson.Fields(r.Raw, list, "name", "inputSchema") {
				if name, ps, err := mirror.Read(r.Raw, at[0], at[1]); err == nil && name != "" {
					found[name] = ps
				}
			}
		}
		s.mirrored.Merge(k.principal, found)
		next := rawjson.Find(r.Raw, r.Result, "nextCursor").Of(r.Raw)
		if _, here := found[tool]; here || !rawjson.IsString(next) {
			return nil
		}
		cursor = append(append([]byte(`"cursor":`), next...), ',')
	}
	return nil
}

package tostateless

import (
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// toStateless writes a client's request as 2026-07-28 has it: with these members in its _meta in place of what the client
// may have put there, and without what has another meaning on that wire. All else keeps its bytes. The result has memory
// of its own.
func toStateless(m *mcp.Message, meta []byte) (mcp.Message, error) {
	raw := m.Raw
	if !m.Params.Present() {
		return mcp.ScanAnswer(rawjson.Insert(raw, rawjson.Whole(raw), `"params":{"_meta":{`+string(meta)+`}}`))
	}
	params := m.Params
	if misread(m) {
		var b []byte
		b, _ = rawjson.Rewrite(nil, raw, params, func(p rawjson.Member) ([]byte, bool) {
			return nil, !isMisread(m.Method, p.Name)
		})
		without, err := mcp.ScanAnswer(rawjson.Splice(raw, mcp.Edit{Span: params, With: b}))
		if err != nil {
			return mcp.Message{}, err
		}
		return toStateless(&without, meta)
	}
	if !m.Meta.Present() {
		return mcp.ScanAnswer(rawjson.Insert(raw, params, `"_meta":{`+string(meta)+`}`))
	}
	b, left := rawjson.Rewrite(nil, raw, m.Meta, func(p rawjson.Member) ([]byte, bool) { return nil, !isOurs(p.Name) })
	b = b[:len(b)-1]
	if left {
		b = append(b, ',')
	}
	b = append(append(b, meta...), '}')
	return mcp.ScanAnswer(rawjson.Splice(raw, mcp.Edit{Span: m.Meta, With: b}))
}

// isMisread reports whether a member of params would mean something else to a stateless server, or nothing: tasks of
// 2025-11-25, and what only a retry has there.
func isMisread(method string, name []byte) bool {
	switch string(name) {
	case "task":
		return method == mcp.MethodToolsCall
	case "inputResponses", "requestState":
		return true
	}
	return false
}

func misread(m *mcp.Message) bool {
	for p := range rawjson.Members(m.Raw, m.Params) {
		if isMisread(m.Method, p.Name) {
			return true
		}
	}
	return false
}

// isOurs reports whether a key of _meta is one that the bridge writes.
func isOurs(key []byte) bool {
	switch string(key) {
	case mcp.MetaKeyVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities, mcp.MetaKeyLogLevel:
		return true
	}
	return false
}

// travelling are the headers of a legacy client that go on to the server: trace context, and by whom the request has passed.
var travelling = []string{"Traceparent", "Tracestate", "Baggage", "Via"}

// headerFor is the header of a stateless request, without Mcp-Param-*.
func headerFor(m *mcp.Message, client http.Header) http.Header {
	h := http.Header{mcp.HeaderVersion: {mcp.Version20260728}, mcp.HeaderMethod: {m.Method}}
	if m.Name != nil {
		h[mcp.HeaderName] = []string{mcp.EncodeHeaderValue(string(m.Name))}
	}
	for _, name := range travelling {
		if values := client[name]; len(values) > 0 {
			h[name] = values
		}
	}
	return h
}

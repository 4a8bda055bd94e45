package tolegacy

import (
	"bytes"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxAnswer is the longest response that is translated, in bytes: it is read whole.
const maxAnswer = 16 << 20

// codeURLElicitation is 2025-11-25's error that wants the client to open URLs first. It is never sent on.
const codeURLElicitation = -32042

// statusOf is the HTTP status of an error on the stateless wire (basic/transports/streamable-http): 200 where that says
// nothing.
func statusOf(code int) int {
	switch code {
	case mcp.CodeMethodNotFound:
		return http.StatusNotFound
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, mcp.CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// fromLegacy writes a server's response for the request with that method and id, and says its HTTP status. It is not ok
// when the result is no object.
func fromLegacy(m *mcp.Message, method string, id []byte) (body []byte, status int, ok bool) {
	edits := []mcp.Edit{{Span: m.ID, With: id}}
	if !m.ID.Present() { // of an error only
		edits[0] = mcp.Edit{Span: mcp.Span{Start: 1, End: 1}, With: append(append([]byte(`"id":`), id...), ',')}
	}
	if m.Error.Present() {
		edit, status := errorEdit(m)
		return rawjson.Splice(m.Raw, append(edits, edit...)...), status, true
	}
	if !rawjson.IsObject(m.Result.Of(m.Raw)) {
		return nil, 0, false
	}
	edits = append(edits, resultEdit(m, method)...)
	if method == mcp.MethodToolsList {
		edits = append(edits, toolEdits(m)...)
	}
	return rawjson.Splice(m.Raw, edits...), http.StatusOK, true
}

// errorEdit replaces the codes that 2026-07-28 must not use.
func errorEdit(m *mcp.Message) ([]mcp.Edit, int) {
	span := rawjson.Find(m.Raw, m.Error, "code")
	code, with := upstream.ErrorCode(m), ""
	switch code {
	case mcp.CodeResourceNotFound:
		code, with = mcp.CodeInvalidParams, "-32602"
	case codeURLElicitation:
		code, with = mcp.CodeInternalError, "-32603"
	}
	if with == "" {
		return nil, statusOf(code)
	}
	return []mcp.Edit{{Span: span, With: []byte(with)}}, statusOf(code)
}

// cacheable reports whether a method's result must say how it can be cached (server/utilities/caching).
func cacheable(method string) bool {
	switch method {
	case mcp.MethodToolsList, mcp.MethodPromptsList, mcp.MethodResourcesList, mcp.MethodResourceTemplatesList,
		mcp.MethodResourcesRead:
		return true
	}
	return false
}

// resultEdit puts in what every result of 2026-07-28 has; what is there already stays. But nobody else may cache a
// session's answer, which may be that session's own, whatever a server says that serves both wires with the same words.
func resultEdit(m *mcp.Message, method string) (edits []mcp.Edit) {
	caches := cacheable(method)
	hasType, hasTTL, hasScope, empty := false, !caches, !caches, true
	for r := range rawjson.Members(m.Raw, m.Result) {
		empty = false
		switch string(r.Name) {
		case "resultType":
			hasType = true
		case "ttlMs":
			hasTTL = true
		case "cacheScope":
			if caches { // each of them, should there be two
				edits = append(edits, mcp.Edit{Span: r.Value, With: []byte(`"private"`)})
			}
			hasScope = true
		}
	}
	with := make([]byte, 0, 64)
	if !hasType {
		with = append(with, `"resultType":"complete",`...)
	}
	if !hasTTL {
		with = append(with, `"ttlMs":0,`...)
	}
	if !hasScope {
		with = append(with, `"cacheScope":"private",`...)
	}
	if empty && len(with) > 0 {
		with = with[:len(with)-1]
	}
	at := m.Result.Start + 1
	return append(edits, mcp.Edit{Span: mcp.Span{Start: at, End: at}, With: with})
}

// toolEdits drop Tool.execution, which speaks of 2025-11-25's tasks.
func toolEdits(m *mcp.Message) (edits []mcp.Edit) {
	tools := rawjson.Find(m.Raw, m.Result, "tools")
	if !rawjson.IsArray(tools.Of(m.Raw)) || !bytes.Contains(tools.Of(m.Raw), []byte("execution")) {
		return nil
	}
	for tool := range rawjson.Elements(m.Raw, tools) {
		if !rawjson.Find(m.Raw, tool, "execution").Present() {
			continue
		}
		without, _ := rawjson.Rewrite(nil, m.Raw, tool, func(t rawjson.Member) ([]byte, bool) {
			return nil, string(t.Name) != "execution"
		})
		edits = append(edits, mcp.Edit{Span: tool, With: without})
	}
	return edits
}

// readResponse reads the answer to a request of the sidecar's own and has use look at the response, which keeps nothing of it.
func (s *Server) readResponse(a *upstream.Answer, use func(*mcp.Message)) error {
	m, taken, err := upstream.ReadResponse(s.name, a, s.budget, maxAnswer)
	defer s.budget.Give(taken)
	if err == nil {
		use(&m)
	}
	return err
}

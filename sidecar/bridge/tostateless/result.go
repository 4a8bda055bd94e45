package tostateless

import (
	"bytes"
	"iter"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// What a result says of itself with resultType (basic, "Responses").
const (
	resultComplete      = "complete"
	resultInputRequired = "input_required"
)

// idEdit gives a response the id of the client's request, with its type.
func idEdit(m *mcp.Message, id []byte) mcp.Edit {
	if m.ID.Present() {
		return mcp.Edit{Span: m.ID, With: id}
	}
	return mcp.Edit{Span: mcp.Span{Start: 1, End: 1}, With: append(append([]byte(`"id":`), id...), ',')} // of an error only
}

// legacyError writes a server's error for the request with that id. Codes that only the stateless wire has speak of what
// the sidecar sent, or of what the client cannot do; the server's text stays.
func legacyError(m *mcp.Message, id []byte) []byte {
	edits := []mcp.Edit{idEdit(m, id)}
	code := upstream.ErrorCode(m)
	switch code {
	case mcp.CodeHeaderMismatch, mcp.CodeUnsupportedVersion:
		code = mcp.CodeInternalError
	case mcp.CodeMissingCapability:
		code = mcp.CodeInvalidParams
	default:
		return rawjson.Splice(m.Raw, edits...)
	}
	with := strconv.AppendInt(nil, int64(code), 10)
	return rawjson.Splice(m.Raw, append(edits, mcp.Edit{Span: rawjson.Find(m.Raw, m.Error, "code"), With: with})...)
}

// rewriting is one result on its way to a client.
type rewriting struct {
	// Set by rewrite, never changed.
	method  string
	version string // the client's
	raw     []byte
	m       *mcp.Message
	members []rawjson.Member // of the result; nil when that is no object

	all      bool                         // mirrored has tools too that repeat nothing
	mirrored map[string][]mcp.ParamHeader // of the tools of a list: what their calls repeat in headers
	dropped  []string                     // tools that the list lost, and why
}

// rewrite begins to rewrite the response to a method for a client. Results may be long, so their members are looked for
// once.
func rewrite(m *mcp.Message, method, version string) *rewriting {
	w := &rewriting{method: method, version: version, raw: m.Raw, m: m}
	if rawjson.IsObject(m.Result.Of(m.Raw)) {
		w.members = slices.AppendSeq(make([]rawjson.Member, 0, 8), rawjson.Members(m.Raw, m.Result))
	}
	return w
}

// find is the value of the result's first member with that name; absent when there is none.
func (w *rewriting) find(name string) mcp.Span {
	for _, r := range w.members {
		if string(r.Name) == name {
			return r.Value
		}
	}
	return mcp.Span{}
}

// resultType is what the result says of itself.
func (w *rewriting) resultType() string {
	if t, ok := rawjson.Text(w.find("resultType").Of(w.raw)); ok {
		return t
	}
	return resultComplete
}

// response writes the response for the request with that id: without what only the stateless wire has, and without what
// the client's version cannot take. What stays keeps its bytes.
func (w *rewriting) response(id []byte) []byte {
	before, after := w.raw[:w.m.Result.Start], w.raw[w.m.Result.End:]
	out, e := make([]byte, 0, len(w.raw)+len(id)), idEdit(w.m, id)
	if e.Span.Start < len(before) {
		out = mcp.Splice(out, before, e)
		return append(w.appendResult(out), after...)
	}
	out = w.appendResult(append(out, before...))
	e.Span.Start, e.Span.End = e.Span.Start-w.m.Result.End, e.Span.End-w.m.Result.End
	return mcp.Splice(out, after, e)
}

func (w *rewriting) appendResult(out []byte) []byte {
	if w.members == nil {
		return append(out, w.m.Result.Of(w.raw)...)
	}
	out = append(out, '{')
	text, first := w.textFor(), true
	for _, r := range w.members {
		with, keep := w.member(r)
		if !keep {
			continue
		}
		if text != nil && string(r.Name) == "content" {
			with = text
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		if with == nil {
			out = append(out, r.Whole.Of(w.raw)...)
			continue
		}
		out = append(append(out, w.raw[r.Whole.Start:r.Value.Start]...), with...)
	}
	return append(out, '}')
}

func (w *rewriting) isOld() bool { return w.version < mcp.Version20250618 }

// member is what becomes of a member of the result.
func (w *rewriting) member(r rawjson.Member) (with []byte, keep bool) {
	name := string(r.Name)
	if name == "resultType" {
		return nil, false
	}
	switch w.method {
	case mcp.MethodToolsCall:
		switch name {
		case "structuredContent":
			return nil, w.takesStructured(r.Value)
		case "content":
			return w.content(r.Value), true
		}
		return nil, true
	case mcp.MethodPromptsGet:
		if name == "messages" {
			return w.messages(r.Value), true
		}
		return nil, true
	case mcp.MethodToolsList:
		if name == "tools" {
			return w.tools(r.Value), true
		}
	case mcp.MethodPromptsList, mcp.MethodResourcesList, mcp.MethodResourceTemplatesList:
		if name == "prompts" || name == "resources" || name == "resourceTemplates" {
			return w.untitled(r.Value), true
		}
	case mcp.MethodResourcesRead:
	default:
		return nil, true
	}
	return nil, name != "ttlMs" && name != "cacheScope" // which these methods have (server/utilities/caching)
}

// takesStructured reports whether a client can take a structuredContent: up to 2025-11-25 it is an object, and before
// 2025-06-18 there is none.
func (w *rewriting) takesStructured(value mcp.Span) bool {
	return rawjson.IsObject(value.Of(w.raw)) && !w.isOld()
}

// textFor is the content for a tool's result whose structuredContent the client cannot take and which has nothing else;
// nil when nothing would be lost.
func (w *rewriting) textFor() []byte {
	if w.method != mcp.MethodToolsCall {
		return nil
	}
	structured, content := w.find("structuredContent"), w.find("content")
	value := structured.Of(w.raw)
	if value == nil || string(value) == "null" || w.takesStructured(structured) || !rawjson.IsArray(content.Of(w.raw)) {
		return nil
	}
	for range rawjson.Elements(w.raw, content) {
		return nil
	}
	return append(rawjson.AppendString([]byte(`[{"type":"text","text":`), string(value)), `}]`...)
}

// content is a list of content blocks; nil when all of it stays.
func (w *rewriting) content(blocks mcp.Span) []byte {
	if !w.isOld() {
		return nil
	}
	return rewriteElements(w.raw, blocks, nil, func(e mcp.Span, _ []mcp.Span) ([]byte, bool) { return w.block(e), true })
}

// messages is a prompt's messages; nil when all of it stays.
func (w *rewriting) messages(messages mcp.Span) []byte {
	if !w.isOld() {
		return nil
	}
	return rewriteElements(w.raw, messages, []string{"content"}, func(e mcp.Span, found []mcp.Span) ([]byte, bool) {
		block := found[0]
		if !block.Present() {
			return nil, true
		}
		with := w.block(block)
		if with == nil {
			return nil, true
		}
		b, _ := rawjson.Rewrite(nil, w.raw, e, func(m rawjson.Member) ([]byte, bool) {
			if m.Value == block {
				return with, true
			}
			return nil, true
		})
		return b, true
	})
}

// block is a content block as text if it is a resource_link, which came with 2025-06-18; nil when it stays.
func (w *rewriting) block(e mcp.Span) []byte {
	text := func(name string) []byte {
		if t, ok := rawjson.Text(rawjson.Find(w.raw, e, name).Of(w.raw)); ok {
			return []byte(t)
		}
		return nil
	}
	if string(text("type")) != "resource_link" {
		return nil
	}
	said := text("uri")
	for _, more := range [][]byte{text("name"), text("description")} {
		if len(more) > 0 {
			said = append(append(said, '\n'), more...)
		}
	}
	return append(rawjson.AppendString([]byte(`{"type":"text","text":`), string(said)), '}')
}

// tools is a list of tools without what the client cannot take, and without tools that clients must not use since their
// annotations are at fault (server/tools, "x-mcp-header").
func (w *rewriting) tools(list mcp.Span) []byte {
	w.mirrored = make(map[string][]mcp.ParamHeader)
	return rewriteElements(w.raw, list, []string{"name", "inputSchema", "outputSchema"}, func(e mcp.Span, found []mcp.Span) ([]byte, bool) {
		ps, err := mcp.ParamHeaders(found[1].Of(w.raw))
		if err == nil && len(ps) == 0 && !w.all {
			return w.tool(e, found[2]), true // most tools, which cost no name
		}
		name, _ := rawjson.Text(found[0].Of(w.raw))
		if err != nil {
			w.dropped = append(w.dropped, name+": "+err.Error())
			return nil, false
		}
		w.mirrored[name] = ps
		return w.tool(e, found[2]), true
	})
}

// tool is a tool without an outputSchema that is not one of objects; before 2025-06-18 without any, and without a title.
func (w *rewriting) tool(e, outputSchema mcp.Span) []byte {
	bad := outputSchema.Present() && (w.isOld() || !isObjectSchema(w.raw, outputSchema))
	if !bad && !w.isOld() || !rawjson.IsObject(e.Of(w.raw)) {
		return nil
	}
	b, _ := rawjson.Rewrite(nil, w.raw, e, func(m rawjson.Member) ([]byte, bool) {
		name := string(m.Name)
		return nil, !(name == "outputSchema" && bad || name == "title" && w.isOld())
	})
	return b
}

func isObjectSchema(raw []byte, schema mcp.Span) bool {
	t, ok := rawjson.Text(rawjson.Find(raw, schema, "type").Of(raw))
	return ok && t == "object"
}

// untitled is a list without its entries' titles, which came with 2025-06-18; nil when all of it stays.
func (w *rewriting) untitled(list mcp.Span) []byte {
	if !w.isOld() {
		return nil
	}
	return rewriteElements(w.raw, list, []string{"title"}, func(e mcp.Span, found []mcp.Span) ([]byte, bool) {
		if !found[0].Present() {
			return nil, true
		}
		b, _ := rawjson.Rewrite(nil, w.raw, e, func(m rawjson.Member) ([]byte, bool) { return nil, string(m.Name) != "title" })
		return b, true
	})
}

// rewriteElements is an array without the elements that f drops, and with those that f gives: nil leaves one as it is. f
// gets each element's members of these names. The result is nil when all of the array stays, as what is no array does;
// nothing is copied until something changes.
func rewriteElements(raw []byte, array mcp.Span, names []string, f func(e mcp.Span, found []mcp.Span) (with []byte, keep bool)) (b []byte) {
	if !rawjson.IsArray(array.Of(raw)) {
		return nil
	}
	same := array.Start + 1 // up to where b would be what the array is
	for e, found := range rawjson.Fields(raw, array, names...) {
		with, keep := f(e, found)
		switch {
		case b == nil && keep && with == nil:
			same = e.End
			continue
		case b == nil:
			b = append(make([]byte, 0, array.End-array.Start+len(with)), raw[array.Start:same]...)
		}
		if !keep {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		if with == nil {
			with = e.Of(raw)
		}
		b = append(b, with...)
	}
	if b == nil {
		return nil
	}
	return append(b, ']')
}

// elementsOf walks a value if it is an array.
func elementsOf(raw []byte, array mcp.Span) iter.Seq[mcp.Span] {
	if !rawjson.IsArray(array.Of(raw)) {
		return func(func(mcp.Span) bool) {}
	}
	return rawjson.Elements(raw, array)
}

// withoutSubscription is a notification of a listen as the legacy wire has it: without the subscription's id.
func withoutSubscription(m *mcp.Message) []byte {
	if !m.SubscriptionID.Present() {
		return bytes.Clone(m.Raw)
	}
	meta, left := rawjson.Rewrite(nil, m.Raw, m.Meta, func(p rawjson.Member) ([]byte, bool) {
		return nil, string(p.Name) != mcp.MetaKeySubscriptionID
	})
	params, left := rawjson.Rewrite(nil, m.Raw, m.Params, func(p rawjson.Member) ([]byte, bool) {
		if string(p.Name) == "_meta" {
			return meta, left
		}
		return nil, true
	})
	if left {
		return rawjson.Splice(m.Raw, mcp.Edit{Span: m.Params, With: params})
	}
	b, _ := rawjson.Rewrite(nil, m.Raw, rawjson.Whole(m.Raw), func(p rawjson.Member) ([]byte, bool) {
		return nil, string(p.Name) != "params"
	})
	return b
}

package proxy

import (
	"bytes"
	"io"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxListPage is the longest page of a list that is filtered, in bytes: it is held whole, and one that is longer is refused.
const maxListPage = 16 << 20

// listing is a method whose result is a list that rules shape.
type listing struct {
	field   string // of the result: the array
	name    string // of an entry: what it is called by
	subject policy.Subject
}

// listings are by method. What the entries of other lists name, as those of tasks, is held to rules when it is asked for.
var listings = map[string]listing{
	mcp.MethodToolsList:             {"tools", "name", policy.Tool},
	mcp.MethodPromptsList:           {"prompts", "name", policy.Prompt},
	mcp.MethodResourcesList:         {"resources", "uri", policy.Resource},
	mcp.MethodResourceTemplatesList: {"resourceTemplates", "uriTemplate", policy.Resource},
}

// filter takes out of a list what the caller may not call. Everything else passes as it came, but for who may keep the
// list: it is this caller's only.
func (x *exchange) filter(a *upstream.Answer) error {
	if x.guard == nil || x.guard.rules == nil || x.msg.Kind != mcp.Request {
		return nil
	}
	l, ok := listings[x.msg.Method]
	switch {
	case !ok:
		return nil
	case a.Events != nil:
		a.Events = filteredEvents{a.Events, x, l}
		return nil
	case a.Body == nil:
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, maxListPage+1))
	if err != nil {
		return err
	}
	if body, err = x.visible(l, body); err != nil {
		return err
	}
	a.Body, a.Length = readAhead{bytes.NewReader(body), a.Body}, int64(len(body))
	return nil
}

// filteredEvents are the events of a list's answer, of which one is the response.
type filteredEvents struct {
	upstream.EventStream
	x *exchange
	l listing
}

func (f filteredEvents) Next() (mcp.Event, error) {
	ev, err := f.EventStream.Next()
	if err != nil || mcp.PeekOutcome(ev.Data) == mcp.OutcomeUnknown {
		return ev, err
	}
	ev.Data, err = f.x.visible(f.l, ev.Data)
	return ev, err
}

// visible is a list's response without what the caller may not call. What is no list is the server's error, or a fault of
// it: nothing passes that cannot be judged.
func (x *exchange) visible(l listing, response []byte) ([]byte, error) {
	if len(response) > maxListPage {
		return nil, x.badList("it is longer than a list may be that rules shape")
	}
	m, err := mcp.Scan(response, mcp.Limits{MaxDepth: mcp.AnswerDepth})
	switch {
	case err != nil || m.Kind != mcp.Response:
		return nil, x.badList("it is not a JSON-RPC response")
	case !m.Result.Present():
		return response, nil
	case !rawjson.IsObject(m.Result.Of(m.Raw)):
		return nil, x.badList("its result is not an object")
	}
	var edits []mcp.Edit
	found := false
	scoped := x.era != mcp.Stateless // the other wire does not say who may keep a list
	for member := range rawjson.Members(m.Raw, m.Result) {
		switch string(member.Name) {
		case l.field:
			if found || !rawjson.IsArray(member.Value.Of(m.Raw)) {
				return nil, x.badList("its " + l.field + " are not one array")
			}
			found = true
			if edit, changed := x.shown(l, m.Raw, member.Value); changed {
				edits = append(edits, edit)
			}
		case "cacheScope":
			scoped = true
			edits = append(edits, mcp.Edit{Span: member.Value, With: []byte(`"private"`)})
		}
	}
	if !scoped {
		edits = append(edits, firstMember(m.Raw, m.Result, `"cacheScope":"private"`))
	}
	return rawjson.Splice(m.Raw, edits...), nil
}

// firstMember puts a member at the beginning of an object.
func firstMember(raw []byte, object mcp.Span, member string) mcp.Edit {
	for range rawjson.Members(raw, object) {
		member += ","
		break
	}
	at := object.Start + 1
	return mcp.Edit{Span: mcp.Span{Start: at, End: at}, With: []byte(member)}
}

// shown is an array with those of its entries that the caller may call; changed is whether that is not all of them.
//
// Hot for long lists: one pass, and nothing is copied of a list that is shown whole.
func (x *exchange) shown(l listing, raw []byte, array mcp.Span) (edit mcp.Edit, changed bool) {
	var kept []byte // from the first entry that is left out
	end := array.Start + 1
	first := true
	q := policy.Request{Principal: x.who, Method: callOf[l.subject], Subject: l.subject, Time: x.start}
	hinted := l.subject == policy.Tool && x.guard.rules.NeedsHints()
	for entry, fields := range rawjson.Fields(raw, array, l.name, "annotations") {
		visible := false
		if name := fields[0].Of(raw); rawjson.IsString(name) { // what has no name cannot be called
			q.Name = rawjson.Decoded(name)
			if hinted {
				q.Hints = x.ep.hints.learn(q.Name, raw, fields[1])
			}
			if x.guard.owners {
				q.Upstream = x.owner(l.subject, q.Name)
			}
			visible = x.guard.rules.List(&q)
		}
		switch {
		case !visible && !changed:
			changed = true
			kept = append(kept, raw[array.Start:end]...)
		case visible && changed:
			if !first {
				kept = append(kept, ',')
			}
			kept = append(kept, entry.Of(raw)...)
		}
		if visible {
			first, end = false, entry.End
		}
	}
	if !changed {
		return mcp.Edit{}, false
	}
	return mcp.Edit{Span: array, With: append(kept, ']')}, true
}

func (x *exchange) badList(detail string) error {
	return &upstream.Error{Kind: upstream.BadAnswer, Upstream: x.ep.server.name, Detail: "its answer to " + x.msg.Method + " cannot be held to the rules: " + detail}
}

// mayHear reports whether a message outside of calls is for a caller: of a resource that changed only who may read it
// hears. Rules may be others than when the stream began.
func (x *exchange) mayHear(data []byte) bool {
	if x.guard == nil || !bytes.Contains(data, updated) {
		return true
	}
	g := x.ep.guard.Load()
	if g == nil || g.rules == nil {
		return true
	}
	m, err := mcp.Scan(data, mcp.Limits{MaxDepth: mcp.AnswerDepth})
	return err == nil && (m.Method != mcp.NotificationResourceUpdated || x.mayWatch(g.rules, m.Name))
}

// updated is in every such message; a method's name with escapes in it is not MCP's.
var updated = []byte(mcp.NotificationResourceUpdated)

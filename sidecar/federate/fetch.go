package federate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxPage = 16 << 20 // bytes of one page of a member's list
	maxList = 16 << 20 // bytes after which no further page is asked for
)

// kind is a kind of list, or what server/discover says.
type kind uint8

const (
	tools kind = iota
	prompts
	resources
	templates
	discovery
	numKinds
)

// kinds are what the protocol calls them: the method, the result's member, and what tells entries apart.
var kinds = [numKinds]struct{ method, field, key string }{
	tools:     {mcp.MethodToolsList, "tools", "name"},
	prompts:   {mcp.MethodPromptsList, "prompts", "name"},
	resources: {mcp.MethodResourcesList, "resources", "uri"},
	templates: {mcp.MethodResourceTemplatesList, "resourceTemplates", "uriTemplate"},
	discovery: {method: mcp.MethodDiscover},
}

// list is what a member answered, whole. It is not changed once made.
type list struct {
	entries []entry         // in the member's order
	result  json.RawMessage // of discovery
	ttl     time.Duration   // as the member has it, 0 when it has none
	public  bool
	cut     string // why it is not whole, "" when it is
	size    int    // bytes
}

// entry is a tool, a prompt, a resource or a template as the member has it.
type entry struct {
	raw  []byte
	key  string   // name or URI; "" for one that cannot be told from others
	span mcp.Span // of its token in raw
	page string   // of a tool, the resource that shows it (MCP Apps)

	// Of a template: what matches it, nil for nothing, and what all of that begins with.
	template *regexp.Regexp
	fixed    string
}

// scope is for whom a list is. Lists of one scope are not shown in another.
type scope struct {
	everybody bool // with any principal
	principal string
	// capabilities as the client declares them: a server may list only what a client can use.
	capabilities string
	way          string // by which sidecars the request came, "" for none
}

// asker is one of a scope, by whose credential a member may tell what it answers.
type asker struct {
	scope
	caller *identity.Principal
}

func askerOf(c *upstream.Call) asker {
	by := asker{scope{principal: c.Principal, capabilities: "{}", way: wayOf(c.Header)}, c.Caller}
	if declared := c.Message.ClientCapabilities.Of(c.Message.Raw); len(declared) > 2 {
		by.capabilities = string(declared)
	}
	return by
}

func (s scope) forEverybody() scope {
	return scope{everybody: true, capabilities: s.capabilities, way: s.way}
}

// fetch asks a member for a whole list.
func (s *Server) fetch(ctx context.Context, m *member, k kind, by asker) (*list, error) {
	l, cursor := &list{public: true, ttl: -1}, ""
	taken := 0
	defer func() { s.o.Answers.Give(taken) }()
	seen := make(map[string]bool)
	for pages := uint32(0); ; pages++ {
		if pages == s.o.Binding.GetLists().GetMaxPages() {
			l.cut = "too_many_pages"
			return l, nil
		}
		raw, result, err := s.ask(ctx, m, k, by, cursor, &taken)
		if err != nil {
			return nil, err
		}
		if raw == nil && pages == 0 {
			return l, nil // it has nothing of the kind
		}
		if !l.add(raw, result, k) {
			return nil, &upstream.Error{Kind: upstream.BadAnswer, Upstream: m.Name, Detail: "answered " + kinds[k].method + " with what is no such list"}
		}
		next := rawjson.Find(raw, result, "nextCursor")
		if k == discovery || !rawjson.IsString(next.Of(raw)) {
			return l, nil
		}
		cursor = string(next.Of(raw))
		switch {
		case seen[cursor]:
			l.cut = "cursor_repeated"
			return l, nil
		case l.size > maxList:
			l.cut = "too_long"
			return l, nil
		}
		seen[cursor] = true
	}
}

// add takes a page's entries and what it says of caching: the shortest time and the narrowest scope of all pages count. It
// reports false for what is not a page of the kind.
func (l *list) add(raw []byte, result mcp.Span, k kind) bool {
	if !rawjson.IsObject(result.Of(raw)) || !complete(raw, result) {
		return false
	}
	if k == discovery {
		l.result = result.Of(raw)
	} else if a := rawjson.Find(raw, result, kinds[k].field); rawjson.IsArray(a.Of(raw)) {
		for span := range rawjson.Elements(raw, a) {
			l.entries = append(l.entries, newEntry(span.Of(raw), k))
		}
	} else if string(a.Of(raw)) != "null" { // as some write an empty one
		return false
	}
	l.size += len(raw)
	ttl, err := strconv.ParseInt(string(rawjson.Find(raw, result, "ttlMs").Of(raw)), 10, 64)
	if err != nil || ttl < 0 {
		ttl = 0
	}
	if t := time.Duration(min(ttl, int64(time.Hour/time.Millisecond))) * time.Millisecond; l.ttl < 0 || t < l.ttl {
		l.ttl = t
	}
	l.public = l.public && string(rawjson.Find(raw, result, "cacheScope").Of(raw)) == `"public"`
	return true
}

// complete reports whether a result is one of the usual kind.
func complete(raw []byte, result mcp.Span) bool {
	kind, ok := rawjson.Text(rawjson.Find(raw, result, "resultType").Of(raw))
	return !ok || kind == "complete"
}

// newEntry looks for what tells an entry from others. One that has it twice, or in another case, is known by nothing:
// readers would differ on which it is, and a rewritten name would stand beside one that is not.
func newEntry(raw []byte, k kind) entry {
	e := entry{raw: raw}
	if !rawjson.IsObject(raw) {
		return e
	}
	for m := range rawjson.Members(raw, rawjson.Whole(raw)) {
		if !strings.EqualFold(string(m.Name), kinds[k].key) {
			continue
		}
		text, ok := rawjson.Text(m.Value.Of(raw))
		if !ok || e.span.Present() || string(m.Name) != kinds[k].key {
			return entry{raw: raw}
		}
		e.key, e.span = text, m.Value
	}
	if k == templates {
		e.compile()
	}
	if k == tools && bytes.Contains(raw, []byte("resourceUri")) {
		e.page = pageOf(raw)
	}
	return e
}

// pageOf is the resource that shows a tool, in the form of today or in the older one (MCP Apps).
func pageOf(raw []byte) string {
	for _, path := range [][]string{{"_meta", "ui", "resourceUri"}, {"_meta", "ui/resourceUri"}} {
		if uri, ok := rawjson.Text(rawjson.Find(raw, rawjson.Whole(raw), path...).Of(raw)); ok {
			return uri
		}
	}
	return ""
}

// errAnswered is a failure that is an answer: to this caller, of a member that works.
var errAnswered = errors.New("it answered with an error")

// ask makes one request. A member that does not know the method has nothing of the kind: then all results are zero. What
// the answer takes of the budget is added to taken.
func (s *Server) ask(
	ctx context.Context, m *member, k kind, by asker, cursor string, taken *int,
) (raw []byte, result mcp.Span, err error) {
	msg, err := mcp.ScanAnswer(s.request(kinds[k].method, cursor, by.scope))
	if err != nil {
		return nil, mcp.Span{}, err
	}
	header := by.header()
	a, err := m.Server.Call(upstream.WithVia(ctx, header), &upstream.Call{Message: &msg, Header: header, Principal: by.principal, Caller: by.caller})
	if err != nil {
		return nil, mcp.Span{}, err
	}
	answer, n, err := upstream.ReadResponse(m.Name, a, s.o.Answers, maxPage)
	*taken += n
	if err != nil {
		return nil, mcp.Span{}, err
	}
	if !answer.Error.Present() {
		return answer.Raw, answer.Result, nil
	}
	code := upstream.ErrorCode(&answer)
	if code == mcp.CodeMethodNotFound && cursor == "" {
		return nil, mcp.Span{}, nil
	}
	cause := errAnswered
	if a.Status == http.StatusLoopDetected {
		cause = errLoop
	}
	return nil, mcp.Span{}, &upstream.Error{
		Kind: upstream.BadAnswer, Upstream: m.Name, Cause: cause,
		Detail: fmt.Sprintf("answered %s with error %d", kinds[k].method, code),
	}
}

// request is a request of the federation's own, with the client's capabilities. The cursor is a token, "" for none.
func (s *Server) request(method, cursor string, sc scope) []byte {
	b := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"%s","params":{`, s.requests.Add(1), method)
	if cursor != "" {
		b = append(append(append(b, `"cursor":`...), cursor...), ',')
	}
	return append(s.appendMeta(b, sc), `}}`...)
}

// appendMeta appends the _meta member that every request has.
func (s *Server) appendMeta(b []byte, sc scope) []byte {
	b = append(b, `"_meta":{"`+mcp.MetaKeyVersion+`":"`+mcp.Version20260728+`","`+mcp.MetaKeyClientInfo+`":{"name":`...)
	b = append(rawjson.AppendString(b, s.o.Name), `,"version":`...)
	b = append(rawjson.AppendString(b, s.o.Version), `},"`+mcp.MetaKeyClientCapabilities+`":`...)
	return append(append(b, sc.capabilities...), '}')
}

// refuse is an error of the federation's own as an answer.
func refuse(c *upstream.Call, status, code int, message string) *upstream.Answer {
	id := c.Message.ID.Of(c.Message.Raw)
	return bodyOf(status, mcp.AppendError(nil, id, &mcp.Error{Code: code, Message: message}))
}

// invalidParams is the answer to a name, a URI or a cursor that is not known here.
func invalidParams(c *upstream.Call, message string) *upstream.Answer {
	return refuse(c, http.StatusOK, mcp.CodeInvalidParams, message)
}

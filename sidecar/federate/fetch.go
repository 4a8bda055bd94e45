package federate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxPage = 16 << 20 // bytes of one page of a member's list
	maxList = 64 << 20 // bytes of all of them
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
}

// entry is a tool, a prompt, a resource or a template as the member has it.
type entry struct {
	raw  []byte
	key  string   // name or URI
	span mcp.Span // of its token in raw
}

// scope is for whom a list is. Lists of one scope are not shown in another.
type scope struct {
	principal string
	// capabilities as the client declares them: a server may list only what a client can use.
	capabilities string
}

func scopeOf(c *upstream.Call) scope {
	return scope{principal: c.Principal, capabilities: string(c.Message.ClientCapabilities.Of(c.Message.Raw))}
}

// public is the scope of what everybody may see.
func (s scope) public() scope { return scope{capabilities: s.capabilities} }

// fetch asks a member for a whole list.
func (s *Server) fetch(ctx context.Context, m *member, k kind, sc scope) (*list, error) {
	l, cursor, size := &list{public: true, ttl: -1}, "", 0
	seen := make(map[string]bool)
	for pages := uint32(0); ; pages++ {
		if pages == s.o.Binding.GetLists().GetMaxPages() {
			l.cut = "too_many_pages"
			return l, nil
		}
		raw, result, err := s.ask(ctx, m, k, sc, cursor)
		if err != nil || !result.Present() {
			return l, err
		}
		if k == discovery {
			l.result = result.Of(raw)
		}
		l.add(raw, result, k)
		next := rawjson.Find(raw, result, "nextCursor")
		if !rawjson.IsString(next.Of(raw)) {
			return l, nil
		}
		size += len(raw)
		cursor = string(next.Of(raw))
		switch {
		case seen[cursor]:
			l.cut = "cursor_repeated"
			return l, nil
		case size > maxList:
			l.cut = "too_long"
			return l, nil
		}
		seen[cursor] = true
	}
}

// add takes a page's entries and what it says of caching: the shortest time and the narrowest scope of all pages count.
func (l *list) add(raw []byte, result mcp.Span, k kind) {
	if a := rawjson.Find(raw, result, kinds[k].field); rawjson.IsArray(a.Of(raw)) {
		for span := range rawjson.Elements(raw, a) {
			e := span.Of(raw)
			at := rawjson.Find(e, rawjson.Whole(e), kinds[k].key)
			if key, ok := rawjson.Text(at.Of(e)); ok {
				l.entries = append(l.entries, entry{raw: e, key: key, span: at})
			}
		}
	}
	ttl, err := strconv.ParseInt(string(rawjson.Find(raw, result, "ttlMs").Of(raw)), 10, 64)
	if err != nil || ttl < 0 {
		ttl = 0
	}
	if t := time.Duration(min(ttl, int64(time.Hour/time.Millisecond))) * time.Millisecond; l.ttl < 0 || t < l.ttl {
		l.ttl = t
	}
	l.public = l.public && string(rawjson.Find(raw, result, "cacheScope").Of(raw)) == `"public"`
}

// ask makes one request. A member that does not know the method has nothing of the kind: then result is absent.
func (s *Server) ask(ctx context.Context, m *member, k kind, sc scope, cursor string) (raw []byte, result mcp.Span, err error) {
	msg, err := mcp.Scan(s.request(kinds[k].method, cursor, sc), mcp.Limits{MaxDepth: mcp.AnswerDepth})
	if err != nil {
		return nil, mcp.Span{}, err
	}
	a, err := m.Server.Call(ctx, &upstream.Call{Message: &msg, Principal: sc.principal})
	if err != nil {
		return nil, mcp.Span{}, err
	}
	answer, err := readAnswer(a, maxPage)
	if err != nil {
		return nil, mcp.Span{}, err
	}
	if !answer.Error.Present() {
		return answer.Raw, answer.Result, nil
	}
	code := string(rawjson.Find(answer.Raw, answer.Error, "code").Of(answer.Raw))
	if code == strconv.Itoa(mcp.CodeMethodNotFound) {
		return nil, mcp.Span{}, nil
	}
	return nil, mcp.Span{}, &upstream.Error{Kind: upstream.BadAnswer, Upstream: m.Name, Detail: fmt.Sprintf("answered %s with error %s", kinds[k].method, code)}
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
	capabilities := sc.capabilities
	if capabilities == "" {
		capabilities = "{}"
	}
	b = append(b, `"_meta":{"`+mcp.MetaKeyVersion+`":"`+mcp.Version20260728+`","`+mcp.MetaKeyClientInfo+`":{"name":`...)
	b = append(rawjson.AppendString(b, s.o.Name), `,"version":`...)
	b = append(rawjson.AppendString(b, s.o.Version), `},"`+mcp.MetaKeyClientCapabilities+`":`...)
	return append(append(b, capabilities...), '}')
}

var errNoAnswer = errors.New("its answer broke off")

// readAnswer reads an answer to its response, which is of at most limit bytes, and closes it.
func readAnswer(a *upstream.Answer, limit int64) (mcp.Message, error) {
	defer a.Close()
	limits := mcp.Limits{MaxDepth: mcp.AnswerDepth}
	if a.Body != nil {
		body, err := io.ReadAll(io.LimitReader(a.Body, limit+1))
		switch {
		case err != nil:
			return mcp.Message{}, err
		case int64(len(body)) > limit:
			return mcp.Message{}, fmt.Errorf("an answer of more than %d bytes", limit)
		}
		return mcp.Scan(body, limits)
	}
	if a.Events == nil {
		return mcp.Message{}, errNoAnswer
	}
	for {
		ev, err := a.Events.Next()
		if err == io.EOF {
			return mcp.Message{}, errNoAnswer
		}
		if err != nil {
			return mcp.Message{}, err
		}
		m, err := mcp.Scan(append([]byte(nil), ev.Data...), limits)
		if err != nil || m.Kind == mcp.Response {
			return m, err
		}
	}
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

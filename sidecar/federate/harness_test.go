package federate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a scripted member.
type peer struct {
	upstream.Server // nil: what is not scripted here is not to be called

	mu      sync.Mutex
	handle  map[string]handler // by method; without one the answer is -32601
	counts  map[string]int
	streams []*peerStream // of open listens
	ready   error         // of Check
}

type handler func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error)

func newPeer() *peer { return &peer{handle: make(map[string]handler), counts: make(map[string]int)} }

// on sets what a method does from now on.
func (p *peer) on(method string, h handler) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle[method] = h
	return p
}

func (p *peer) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[method]
}

func (p *peer) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	p.mu.Lock()
	p.counts[c.Message.Method]++
	h := p.handle[c.Message.Method]
	p.mu.Unlock()
	if h == nil {
		return refusal(c, mcp.CodeMethodNotFound), nil
	}
	return h(ctx, c)
}

func (p *peer) Check(context.Context) error { return p.ready }

// result answers with a result.
func result(c *upstream.Call, text string) *upstream.Answer {
	return bodyOf(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, c.Message.ID.Of(c.Message.Raw), text))
}

func refusal(c *upstream.Call, code int) *upstream.Answer {
	status := map[int]int{mcp.CodeMethodNotFound: 404}[code]
	return bodyOf(max(200, status), mcp.AppendError(nil, c.Message.ID.Of(c.Message.Raw), &mcp.Error{Code: code, Message: "the member's"}))
}

// always answers with the same result.
func always(text string) handler {
	return func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) { return result(c, text), nil }
}

// hang answers when its caller has left.
func hang(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) {
	<-ctx.Done()
	return nil, &upstream.Error{Kind: upstream.TimedOut, Upstream: "hung", Detail: "took too long", Cause: ctx.Err()}
}

func refuseConnection(context.Context, *upstream.Call) (*upstream.Answer, error) {
	return nil, &upstream.Error{Kind: upstream.Unreachable, Upstream: "gone", Detail: "refused the connection"}
}

// named are list entries; each is told by its key, and says whose it is.
func named(k kind, owner string, keys ...string) string {
	var all []string
	for _, key := range keys {
		quoted, _ := json.Marshal(key)
		all = append(all, fmt.Sprintf(`{"owner":%q, %q : %s,"inputSchema":{"type":"object","x":9007199254740993,"null":null}}`, owner, kinds[k].key, quoted))
	}
	return strings.Join(all, ",")
}

// page is a list's result.
func page(k kind, entries, more string) string {
	return `{"resultType":"complete","` + kinds[k].field + `":[` + entries + `]` + more + `}`
}

const forAll, forOne = `,"ttlMs":60000,"cacheScope":"public"`, `,"ttlMs":60000,"cacheScope":"private"`

// lists makes a member have a list for everybody.
func (p *peer) lists(k kind, owner string, keys ...string) *peer {
	return p.on(kinds[k].method, always(page(k, named(k, owner, keys...), forAll)))
}

// echo answers a call with who it reached and under which name.
func (p *peer) echo(owner string) *peer {
	h := func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		name, _ := json.Marshal(string(c.Message.Name))
		return result(c, fmt.Sprintf(`{"content":[],"owner":%q,"called":%s}`, owner, name)), nil
	}
	return p.on(mcp.MethodToolsCall, h).on(mcp.MethodPromptsGet, h).on(mcp.MethodResourcesRead, h)
}

// tooled is a member with tools that can be called.
func tooled(owner string, names ...string) *peer {
	return newPeer().lists(tools, owner, names...).echo(owner)
}

// peerStream is one listen at a peer.
type peerStream struct {
	id     string
	asked  filter
	events chan []byte
	ctx    context.Context
	gone   chan struct{}
	once   sync.Once
}

func (s *peerStream) Next() (mcp.Event, error) {
	select {
	case b, ok := <-s.events:
		if !ok {
			return mcp.Event{}, &upstream.Error{Kind: upstream.Lost, Upstream: "p", Detail: "broke off"}
		}
		return mcp.Event{Data: b}, nil
	case <-s.ctx.Done():
		return mcp.Event{}, s.ctx.Err()
	case <-s.gone:
		return mcp.Event{}, io.EOF
	}
}
func (s *peerStream) Ready() bool  { return len(s.events) > 0 }
func (s *peerStream) Close() error { s.once.Do(func() { close(s.gone) }); return nil }

// notifies makes a member take listens; grant says what it grants of what is asked, nil for all.
func (p *peer) notifies(grant func(filter) filter) *peer {
	return p.on(mcp.MethodListen, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		f := readFilter(c.Message.Raw, c.Message.Params)
		s := &peerStream{id: string(c.Message.ID.Of(c.Message.Raw)), asked: f, events: make(chan []byte, 100), ctx: ctx, gone: make(chan struct{})}
		if grant != nil {
			f = grant(f)
		}
		s.events <- fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":%s,"_meta":{%q:%s}}}`, f.append(nil), mcp.MetaKeySubscriptionID, s.id)
		p.mu.Lock()
		p.streams = append(p.streams, s)
		p.mu.Unlock()
		return &upstream.Answer{Status: 200, Length: -1, Events: s}, nil
	})
}

// tell sends a notification on every stream; params are members without braces.
func (p *peer) tell(method, params string) {
	if params != "" {
		params += ","
	}
	for _, s := range p.open() {
		s.events <- fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{%s"_meta":{"x":1,%q:%s}}}`, method, params, mcp.MetaKeySubscriptionID, s.id)
	}
}

func (p *peer) open() (open []*peerStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		select {
		case <-s.gone:
		default:
			open = append(open, s)
		}
	}
	p.streams = open
	return open
}

// cut breaks every stream off.
func (p *peer) cut() {
	for _, s := range p.open() {
		close(s.events)
	}
	p.mu.Lock()
	p.streams = nil
	p.mu.Unlock()
}

// federation offers members as m0, m1 and so on, which are their prefixes too; spec is the binding's, in YAML.
func federation(t testing.TB, spec string, members ...upstream.Server) *Server {
	t.Helper()
	return sealedFederation(t, seal.New(), spec, members...)
}

func sealedFederation(t testing.TB, sealer *seal.Sealer, spec string, members ...upstream.Server) *Server {
	t.Helper()
	b := testBinding(t, spec)
	var ms []Member
	for i, m := range members {
		name := fmt.Sprintf("m%d", i)
		if i > 0 {
			b.Upstreams = append(b.Upstreams, &outriggerv1.UpstreamReference{Name: name})
		}
		ms = append(ms, Member{Name: name, Prefix: name, Server: m})
	}
	answers, lists := testBudget(t, "answers"), testBudget(t, "lists")
	s := New(ms, Options{
		Binding: resource.WithDefaults(b), Log: slog.New(slog.DiscardHandler), Sealer: sealer, Name: "outrigger", Version: "1",
		Answers: answers, Lists: lists,
	})
	t.Cleanup(func() { shut(t, s) })
	return s
}

// testBinding is the binding b of m0; spec is more of it, in YAML.
func testBinding(t testing.TB, spec string) *outriggerv1.Binding {
	t.Helper()
	objs, errs := resource.Load("test", []byte("kind: Upstream\nname: m0\nspec: {http: {url: 'http://h'}}\n---\nkind: Binding\nname: b\nspec: {selector: {}, upstreams: [{name: m0}], "+spec+"}"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return objs[1].(*outriggerv1.Binding)
}

// testBudget is one that must be whole again at the end of the test.
func testBudget(t testing.TB, what string) *budget.Budget {
	b := budget.New(1 << 30)
	t.Cleanup(func() {
		if n := b.Used(); n != 0 {
			t.Errorf("%d bytes for %s are still taken at the end", n, what)
		}
	})
	return b
}

func shut(t testing.TB, s *Server) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := s.Close(ctx); err != nil {
		t.Error("Close:", err)
	}
}

// client calls a federation, or a lone server.
type client struct {
	t            testing.TB
	s            upstream.Server
	principal    string
	capabilities string
	id           string // of its requests, as a token
}

func newClient(t testing.TB, s upstream.Server) *client {
	return &client{t: t, s: s, capabilities: "{}", id: `"c1"`}
}

// as is the same client as another principal.
func (c client) as(principal string) *client { c.principal = principal; return &c }

// declaring is the same client with other capabilities.
func (c client) declaring(capabilities string) *client { c.capabilities = capabilities; return &c }

// message is a request; params are members without braces.
func (c *client) message(method, params string) *upstream.Call {
	c.t.Helper()
	if params != "" {
		params += ","
	}
	m, err := mcp.Scan(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}}`,
		c.id, method, params, c.capabilities), mcp.Limits{})
	if err != nil {
		c.t.Fatal(err)
	}
	return &upstream.Call{Message: &m, Principal: c.principal}
}

// do makes a request and returns its result, its error as JSON, or the text of a failure.
func (c *client) do(method, params string) string {
	c.t.Helper()
	return c.doCtx(context.Background(), method, params)
}

func (c *client) doCtx(ctx context.Context, method, params string) string {
	c.t.Helper()
	a, err := c.s.Call(ctx, c.message(method, params))
	if err != nil {
		return "failed: " + err.Error()
	}
	defer a.Close()
	if a.Events != nil {
		for {
			ev, err := a.Events.Next()
			if err != nil {
				return "failed: " + err.Error()
			}
			if m, err := mcp.Scan(ev.Data, mcp.Limits{}); err == nil && m.Kind == mcp.Response {
				return string(m.Result.Of(m.Raw)) + string(m.Error.Of(m.Raw))
			}
		}
	}
	body, err := io.ReadAll(a.Body)
	if err != nil || a.Length >= 0 && int64(len(body)) != a.Length || !json.Valid(body) {
		c.t.Errorf("%s: %q (length %d), %v", method, body, a.Length, err)
		return "broken"
	}
	m, err := mcp.Scan(body, mcp.Limits{})
	if err != nil || string(m.ID.Of(m.Raw)) != c.id {
		c.t.Errorf("%s: %q, %v", method, body, err)
		return "broken"
	}
	return string(m.Result.Of(m.Raw)) + string(m.Error.Of(m.Raw))
}

// listed is a list's result, decoded as far as tests look.
type listed struct {
	keys, owners []string
	cursor       string
	ttl          int64
	scope        string
	faults       []fault
	leftOut      []leftOut
	raw          string
}

type fault struct {
	Upstream, Reason string
	Stale            bool
}

type leftOut struct{ Upstream, Name string }

// list asks for one page of a list; the cursor is "" for the first.
func (c *client) list(k kind, cursor string) listed {
	c.t.Helper()
	params := ""
	if cursor != "" {
		params = fmt.Sprintf(`"cursor":%q`, cursor)
	}
	return c.parse(k, c.do(kinds[k].method, params))
}

func (c *client) parse(k kind, raw string) listed {
	c.t.Helper()
	l := listed{raw: raw}
	var r map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &r); err != nil || r[kinds[k].field] == nil {
		return l // not a list
	}
	var entries []map[string]any
	var meta struct {
		Faults  []fault   `json:"dev.outrigger/partialFailure"`
		LeftOut []leftOut `json:"dev.outrigger/leftOut"`
	}
	for field, to := range map[string]any{kinds[k].field: &entries, "nextCursor": &l.cursor, "ttlMs": &l.ttl, "cacheScope": &l.scope, "_meta": &meta} {
		if r[field] == nil {
			continue
		}
		if err := json.Unmarshal(r[field], to); err != nil {
			c.t.Errorf("%s in %s: %v", field, raw, err)
		}
	}
	for _, e := range entries {
		key, _ := e[kinds[k].key].(string)
		owner, _ := e["owner"].(string)
		l.keys, l.owners = append(l.keys, key), append(l.owners, owner)
	}
	l.faults, l.leftOut = meta.Faults, meta.LeftOut
	return l
}

// all follows a list's pages.
func (c *client) all(k kind) (keys []string, pages int) {
	c.t.Helper()
	for cursor := ""; ; {
		l := c.list(k, cursor)
		keys, pages = append(keys, l.keys...), pages+1
		if cursor = l.cursor; cursor == "" || pages > 1000 {
			return keys, pages
		}
	}
}

// calls calls a tool, and says whom that reached and under which name.
func (c *client) calls(name string) (owner, called string) {
	c.t.Helper()
	quoted, _ := json.Marshal(name)
	var r struct{ Owner, Called string }
	raw := c.do(mcp.MethodToolsCall, `"name":`+string(quoted))
	if err := json.Unmarshal([]byte(raw), &r); err != nil || r.Owner == "" {
		return "", raw
	}
	return r.Owner, r.Called
}

func wantList(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

package tostateless

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen soon.
const patience = 10 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}

// sent is a request as a fake server got it.
type sent struct {
	*mcp.Message
	header    http.Header
	principal string
	ctx       context.Context
}

// meta is a member of the request's _meta, as JSON.
func (s sent) meta(key string) string {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(s.Params.Of(s.Raw), &p)
	return string(p.Meta[key])
}

// param is a member of the request's params, as JSON.
func (s sent) param(name string) string {
	var p map[string]json.RawMessage
	_ = json.Unmarshal(s.Params.Of(s.Raw), &p)
	return string(p[name])
}

func (s sent) id() string { return string(s.ID.Of(s.Raw)) }

// result answers with a result.
func (s sent) result(result string) *upstream.Answer {
	return upstream.Whole(200, []byte(`{"jsonrpc":"2.0","id":`+s.id()+`,"result":`+result+`}`))
}

// error answers with an error, with a status that the legacy wire must not see.
func (s sent) error(code int, rest string) *upstream.Answer {
	a := upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"said the server"%s}}`, s.id(), code, rest))
	a.Status = 404
	return a
}

// fake is a stateless server in memory. Its script answers every request but server/discover.
type fake struct {
	upstream.Server
	eras     mcp.Eras
	discover string // DiscoverResult; default: everything there is
	script   func(s sent) (*upstream.Answer, error)

	mu     sync.Mutex
	got    []sent
	closed bool
}

const everything = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"logging":{},"completions":{},` +
	`"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true}},` +
	`"ttlMs":60000,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new","version":"9"}}}`

func (f *fake) Eras(context.Context) (mcp.Eras, error) {
	if f.eras == 0 {
		return mcp.EraSet(mcp.Stateless), nil
	}
	return f.eras, nil
}

func (f *fake) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	m, err := mcp.ScanAnswer(append([]byte(nil), c.Message.Raw...))
	if err != nil {
		return nil, err
	}
	s := sent{&m, c.Header.Clone(), c.Principal, ctx}
	f.mu.Lock()
	f.got = append(f.got, s)
	script := f.script
	f.mu.Unlock()
	if e := mcp.CheckStateless(c.Header, &m); e != nil {
		return upstream.Whole(200, mcp.AppendError(nil, e.ID, e)), nil
	}
	if m.Method == mcp.MethodDiscover && f.discover != "none" {
		if f.discover != "" {
			return s.result(f.discover), nil
		}
		return s.result(everything), nil
	}
	return script(s)
}

// become changes the script.
func (f *fake) become(script func(sent) (*upstream.Answer, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = script
}

func (f *fake) Check(context.Context) error { return nil }

func (f *fake) Close(context.Context) error { f.closed = true; return nil }

// calls are the requests of a method so far.
func (f *fake) calls(method string) (all []sent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.got {
		if s.Method == method {
			all = append(all, s)
		}
	}
	return all
}

// newBridge wraps a server until the test ends.
func newBridge(t testing.TB, inner upstream.Server, tune ...func(*Options)) *Server {
	t.Helper()
	o := Options{Upstream: "new", Name: "outrigger", Version: "test", Budget: budget.New(1 << 30)}
	for _, f := range tune {
		f(&o)
	}
	s := New(inner, o)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if err := s.Close(ctx); err != nil {
			t.Logf("Close: %v", err) // peers of tests may be gone already
		}
		if n := o.Budget.Used(); n != 0 {
			t.Errorf("%d bytes of the budget are still taken after Close", n)
		}
	})
	return s
}

// client is a legacy client with its session.
type client struct {
	t       testing.TB
	session upstream.Session
	opened  string // the answer to initialize
}

const allCapabilities = `{"roots":{"listChanged":true},"sampling":{},"elicitation":{"form":{},"url":{}}}`

func initializeCall(t testing.TB, version, capabilities string) *upstream.Call {
	t.Helper()
	return callOf(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,`+
		`"clientInfo":{"name":"old","version":"1"}}}`, version, capabilities))
}

func connect(t testing.TB, s *Server, version, capabilities string) *client {
	t.Helper()
	session, a, err := s.Open(testContext(t), initializeCall(t, version, capabilities))
	if err != nil || session == nil {
		t.Fatalf("Open: %v, %v", session, err)
	}
	return &client{t, session, got(t, a, nil).last}
}

func callOf(t testing.TB, raw string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{"Mcp-Param-Forged": {"x"}, "Traceparent": {"00-1"}, "Via": {"1.1 a"}, "Authorization": {"Bearer secret"}}, Principal: "me"}
}

// requestCall makes a request; params are an object, or empty.
func requestCall(t testing.TB, id, method, params string) *upstream.Call {
	t.Helper()
	if params != "" {
		params = `,"params":` + params
	}
	return callOf(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q%s}`, id, method, params))
}

// do makes a request and reads its answer whole.
func (c *client) do(id, method, params string) response {
	c.t.Helper()
	a, err := c.session.Call(testContext(c.t), requestCall(c.t, id, method, params))
	return got(c.t, a, err)
}

// tool is do of tools/call.
func (c *client) tool(id, name, arguments string) response {
	c.t.Helper()
	return c.do(id, mcp.MethodToolsCall, fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, arguments))
}

// start makes a request whose answer must be a stream.
func (c *client) start(ctx context.Context, id, method, params string) upstream.EventStream {
	c.t.Helper()
	a, err := c.session.Call(ctx, requestCall(c.t, id, method, params))
	if err != nil || a.Events == nil {
		c.t.Fatalf("%s: %+v, %v; want a stream", method, a, err)
	}
	c.t.Cleanup(func() { a.Close() })
	return a.Events
}

// say sends what has no answer.
func (c *client) say(raw string) {
	c.t.Helper()
	if a, err := c.session.Call(testContext(c.t), callOf(c.t, raw)); a != nil || err != nil {
		c.t.Errorf("%s: %+v, %v; want nil, nil", raw, a, err)
	}
}

// response is what a client got.
type response struct {
	status int
	last   string   // the response
	before []string // messages before it
}

func got(t testing.TB, a *upstream.Answer, err error) (r response) {
	t.Helper()
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer a.Close()
	if r.status = a.Status; a.Body != nil {
		b, err := io.ReadAll(a.Body)
		if err != nil || int64(len(b)) != a.Length {
			t.Fatalf("%d bytes of %d, %v", len(b), a.Length, err)
		}
		r.last = string(b)
	} else {
		all, err := rest(a.Events)
		if err != nil || len(all) == 0 {
			t.Fatalf("a stream broke off after %q: %v", all, err)
		}
		r.last, r.before = all[len(all)-1], all[:len(all)-1]
	}
	if !json.Valid([]byte(r.last)) {
		t.Fatalf("not JSON: %s", r.last)
	}
	return r
}

// rest reads a stream to its end.
func rest(events upstream.EventStream) (all []string, err error) {
	for {
		ready := events.Ready()
		e, err := events.Next()
		if ready && len(all) > 0 && err != nil && err != io.EOF {
			return all, errors.Join(errors.New("Ready was wrong"), err)
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, string(e.Data))
	}
}

// next reads one message.
func next(t testing.TB, events upstream.EventStream) string {
	t.Helper()
	type one struct {
		data string
		err  error
	}
	c := make(chan one, 1)
	go func() {
		e, err := events.Next()
		c <- one{string(e.Data), err}
	}()
	select {
	case o := <-c:
		if o.err != nil {
			t.Fatalf("no message: %v", o.err)
		}
		return o.data
	case <-time.After(patience):
		events.Close()
		t.Fatal("no message in time")
		return ""
	}
}

// is holds that an answer is exactly this.
func (r response) is(t testing.TB, want string) {
	t.Helper()
	if r.status != 200 || r.last != want {
		t.Errorf("got %d %s\nwant 200 %s", r.status, r.last, want)
	}
}

// has holds that an answer has these texts in it.
func (r response) has(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if r.status != 200 || !strings.Contains(r.last, text) {
			t.Errorf("got %d %s\nwant 200 with %s", r.status, r.last, text)
		}
	}
}

// serverRequest is a request of the server to a client, as it reads it.
type serverRequest struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
}

func readAsking(t testing.TB, data string) (a serverRequest) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), &a); err != nil || a.ID == nil || a.Method == "" {
		t.Fatalf("%s is not a request: %v", data, err)
	}
	return a
}

// events is a stream that a test feeds; it ends with ctx, as every server's must.
type events struct {
	ctx  context.Context
	feed chan string // closed: the orderly end
	gone chan struct{}
	once sync.Once
}

func newEvents(ctx context.Context, first ...string) *events {
	e := &events{ctx: ctx, feed: make(chan string, 64), gone: make(chan struct{})}
	for _, data := range first {
		e.feed <- data
	}
	return e
}

func (e *events) answer() *upstream.Answer {
	return &upstream.Answer{Status: 200, Length: -1, Events: e}
}

func (e *events) Next() (mcp.Event, error) {
	select {
	case data, ok := <-e.feed:
		if !ok {
			return mcp.Event{}, io.EOF
		}
		return mcp.Event{Data: []byte(data)}, nil
	default:
	}
	select {
	case data, ok := <-e.feed:
		if !ok {
			return mcp.Event{}, io.EOF
		}
		return mcp.Event{Data: []byte(data)}, nil
	case <-e.ctx.Done():
	case <-e.gone:
	}
	return mcp.Event{}, &upstream.Error{Kind: upstream.Lost, Upstream: "new", Detail: "gone", Cause: context.Canceled}
}

func (e *events) Ready() bool { return len(e.feed) > 0 }

func (e *events) Close() error { e.once.Do(func() { close(e.gone) }); return nil }

func (e *events) isClosed() bool {
	select {
	case <-e.gone:
		return true
	default:
		return e.ctx.Err() != nil
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

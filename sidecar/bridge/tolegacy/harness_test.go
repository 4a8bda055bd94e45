package tolegacy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		serveProcess()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen soon.
const patience = 10 * time.Second

// testContext ends with the test, and after patience.
func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}

// newBridge makes a Server around inner that is closed with the test. tune may change its options.
func newBridge(t testing.TB, inner upstream.Server, tune ...func(*Options)) *Server {
	t.Helper()
	o := Options{
		Upstream: &outriggerv1.Upstream{
			Name: "old", Bridge: &outriggerv1.Bridge{},
			Timeouts: &outriggerv1.Timeouts{
				Connect: durationpb.New(patience), Handshake: durationpb.New(patience), Call: durationpb.New(6 * patience),
			},
		},
		Holder: Holder{ID: "here", Address: "here:1"},
		Budget: budget.New(1 << 30),
	}
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
		if n, bytes := len(s.held.byID), s.held.bytes; n != 0 || bytes != 0 {
			t.Errorf("%d calls and %d bytes are still held after Close", n, bytes)
		}
		if n := o.Budget.Used(); n != 0 {
			t.Errorf("%d bytes of the process's are still taken after Close", n)
		}
	})
	return s
}

// bridge tunes the bridge's settings.
func bridge(f func(*outriggerv1.Bridge)) func(*Options) {
	return func(o *Options) { f(o.Upstream.Bridge) }
}

// client makes the calls of one stateless client.
type client struct {
	t            testing.TB
	server       *Server
	principal    string
	binding      string
	capabilities string // JSON
	meta         string // more members of _meta, each with a comma after it
}

func newClient(t testing.TB, s *Server, principal, capabilities string) *client {
	return &client{t: t, server: s, principal: principal, binding: "main", capabilities: capabilities}
}

// call makes a Call. params are members, with a comma after each.
func (c *client) call(id, method, params string) *upstream.Call {
	c.t.Helper()
	raw := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{%s`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"new","version":"1"},`+
		`"io.modelcontextprotocol/clientCapabilities":%s}}}`, id, method, params, c.meta, c.capabilities)
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		c.t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{}, Principal: c.principal, Binding: c.binding}
}

// tool makes a tools/call of a tool with the argument text. more are members of params.
func (c *client) tool(id, name, text, more string) *upstream.Call {
	c.t.Helper()
	return c.call(id, mcp.MethodToolsCall, fmt.Sprintf(`"name":%q,"arguments":{"text":%q},%s`, name, text, more))
}

// reply is what a client got.
type reply struct {
	status int
	last   string   // the response
	before []string // messages before it
}

// got reads an answer whole.
func got(t testing.TB, a *upstream.Answer, err error) reply {
	t.Helper()
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer a.Close()
	r, err := readReply(a)
	if err != nil {
		t.Fatalf("an answer that broke off: %v", err)
	}
	return r
}

func readReply(a *upstream.Answer) (reply, error) {
	r := reply{status: a.Status}
	if a.Body != nil {
		b, err := io.ReadAll(a.Body)
		r.last = string(b)
		return r, err
	}
	for {
		e, err := a.Events.Next()
		if err == io.EOF && len(r.before) > 0 {
			r.last, r.before = r.before[len(r.before)-1], r.before[:len(r.before)-1]
			return r, nil
		}
		if err != nil {
			return r, err
		}
		r.before = append(r.before, string(e.Data))
	}
}

// do makes a call and reads its answer.
func (c *client) do(call *upstream.Call) reply {
	c.t.Helper()
	a, err := c.server.Call(testContext(c.t), call)
	return got(c.t, a, err)
}

// asked is an input_required.
type asked struct {
	ID     json.RawMessage
	Result struct {
		ResultType    string
		InputRequests map[string]struct {
			Method string
			Params json.RawMessage
		}
		RequestState string
	}
}

// questions reads a reply that has to be input_required.
func questions(t testing.TB, r reply) asked {
	t.Helper()
	var q asked
	if err := json.Unmarshal([]byte(r.last), &q); err != nil || q.Result.ResultType != "input_required" || r.status != 200 {
		t.Fatalf("got %d %s, want input_required with 200", r.status, r.last)
	}
	return q
}

// retry is what a retry adds to params.
func (q asked) retry(responses string) string {
	return fmt.Sprintf(`"inputResponses":%s,"requestState":%q,`, responses, q.Result.RequestState)
}

// want holds that a reply has a status, and texts in its response.
func (r reply) want(t testing.TB, status int, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if r.status != status || !strings.Contains(r.last, text) {
			t.Errorf("got %d %s, want %d with %s", r.status, r.last, status, text)
		}
	}
}

// wantKind holds that err is an *upstream.Error of a kind.
func wantKind(t testing.TB, err error, want upstream.Kind) {
	t.Helper()
	e, ok := err.(*upstream.Error)
	if !ok || e.Kind != want {
		t.Fatalf("error %v (%T), want one of kind %s", err, err, want.Reason())
	}
	if e.Upstream != "old" {
		t.Errorf("error of upstream %q, want old", e.Upstream)
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (s *Server) heldForTest() int {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return len(s.held.byID)
}

func (s *Server) sessionsForTest() int {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return len(s.pool.sessions)
}

// nothingInUse waits until no session has a user and no call is held.
func nothingInUse(t testing.TB, s *Server) {
	t.Helper()
	eventually(t, "no session is in use", func() bool {
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		for _, p := range s.pool.sessions {
			if p.users > 0 {
				return false
			}
		}
		return s.heldForTest() == 0
	})
}

package tolegacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// listening is a listen that was acknowledged.
type listening struct {
	t      testing.TB
	events upstream.EventStream
	leave  context.CancelFunc
}

// listen opens one and holds its acknowledgement to what should be granted.
func (c *client) listen(id, notifications, granted string) *listening {
	c.t.Helper()
	ctx, leave := context.WithCancel(testContext(c.t))
	a, err := c.server.Call(ctx, c.call(id, mcp.MethodListen, `"notifications":`+notifications+`,`))
	if err != nil || a.Events == nil {
		leave()
		c.t.Fatalf("no stream: %+v, %v", a, err)
	}
	l := &listening{c.t, a.Events, leave}
	c.t.Cleanup(func() { leave(); a.Close() })
	want := `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` + granted +
		`,"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`
	if first := l.next(); first != want {
		c.t.Fatalf("the first message is %s, want %s", first, want)
	}
	return l
}

func (l *listening) next() string {
	l.t.Helper()
	e, err := l.events.Next()
	if err != nil {
		l.t.Fatalf("the listen ended: %v", err)
	}
	return string(e.Data)
}

func (l *listening) want(texts ...string) {
	l.t.Helper()
	m := l.next()
	for _, text := range texts {
		if !strings.Contains(m, text) {
			l.t.Errorf("got %s, want %s", m, text)
		}
	}
}

func (r *realServer) subscriptions() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.subs)
}

func TestChangesReachWhoListens(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	ann, bob := newClient(t, s, "ann", `{}`), newClient(t, s, "bob", `{}`)
	const all = `{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["file:///a","file:///forbidden"],"x":1}`
	const granted = `{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`
	number := ann.listen(`7`, all, granted)
	text := ann.listen(`"7"`, `{"resourceSubscriptions":["file:///a"],"toolsListChanged":false}`, `{"resourceSubscriptions":["file:///a"]}`)
	bobs := bob.listen(`7`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)

	if err := r.ResourceUpdated(testContext(t), &sdk.ResourceUpdatedNotificationParams{URI: "file:///a"}); err != nil {
		t.Fatal(err)
	}
	number.want(`"io.modelcontextprotocol/subscriptionId":7`, `notifications/resources/updated`, `"uri":"file:///a"`)
	text.want(`"io.modelcontextprotocol/subscriptionId":"7"`, `notifications/resources/updated`)
	r.AddTool(&sdk.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	number.want(`"io.modelcontextprotocol/subscriptionId":7`, `notifications/tools/list_changed`)
	bobs.want(`"io.modelcontextprotocol/subscriptionId":7`, `notifications/tools/list_changed`) // and nothing before

	if got := r.subscriptions(); !slices.Equal(got, []string{"+file:///a", "+file:///forbidden"}) &&
		!slices.Equal(got, []string{"+file:///forbidden", "+file:///a"}) {
		t.Errorf("the server heard %q, want each URI once", got)
	}
	number.events.Close()
	text.leave()
	text.events.Close()
	eventually(t, "the server is told that nobody listens to it", func() bool {
		return slices.Contains(r.subscriptions(), "-file:///a")
	})
	if got := r.subscriptions(); len(got) != 3+1 && len(got) != 3 {
		t.Errorf("the server heard %q", got)
	}
	bobs.events.Close()
	nothingInUse(t, s)
}

func TestAServerWithoutAStreamIsListenedToInVain(t *testing.T) {
	odd := &upstream.Error{Kind: upstream.BadAnswer, Upstream: "old", Detail: "answered 400 when asked for its stream"}
	for name, err := range map[string]error{"405": upstream.ErrNoStream, "something else": odd} {
		t.Run(name, func(t *testing.T) {
			f := &fake{listen: func(context.Context) (upstream.EventStream, error) { return nil, err }}
			s := newBridge(t, f)
			c := newClient(t, s, "ann", `{}`)
			c.do(c.call("1", mcp.MethodDiscover, "")).want(t, 200, `"tools":{}`, `"resources":{}`, `"logging":{}`)
			l := c.listen(`1`, `{"toolsListChanged":true,"resourceSubscriptions":["a"]}`, `{}`)
			if n := f.count("resources/subscribe"); n != 0 {
				t.Errorf("%d subscriptions whose updates would come nowhere", n)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := l.events.Next()
				ended <- err
			}()
			l.leave()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the listen ended with %v", err)
			}
			l.events.Close()
			nothingInUse(t, s)
		})
	}
}

// streaming is a fake whose sessions have a stream, each the same one.
func streaming(t testing.TB) (*fake, *script) {
	e := newScript(context.Background())
	t.Cleanup(func() { e.Close() })
	return &fake{listen: func(ctx context.Context) (upstream.EventStream, error) {
		context.AfterFunc(ctx, func() { e.Close() })
		return e, nil
	}}, e
}

func TestNotificationsAreTaggedWhereverTheyAre(t *testing.T) {
	f, e := streaming(t)
	c := newClient(t, newBridge(t, f), "ann", `{}`)
	l := c.listen(`"s"`, `{"toolsListChanged":true,"resourceSubscriptions":["file:///d","x:y/"]}`,
		`{"toolsListChanged":true,"resourceSubscriptions":["file:///d","x:y/"]}`)
	const tag = `"io.modelcontextprotocol/subscriptionId":"s"`
	for _, m := range []struct{ sent, want string }{
		{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{` + tag + `}}}`},
		{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{ }}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{ "_meta":{` + tag + `}}}`},
		{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///d","_meta":{"a":1}}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///d","_meta":{"a":1,` + tag + `}}}`},
		{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///d/e"}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///d/e","_meta":{` + tag + `}}}`},
		{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///de"}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}`, ""},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, ""},
		{`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"?"}}`, ""},
		{`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:y/z",` +
			`"_meta":{"io.modelcontextprotocol/subscriptionId":9}}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x:y/z",` +
				`"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}`},
	} {
		e.feed <- m.sent
		if m.want == "" {
			continue
		}
		if got := l.next(); got != m.want {
			t.Errorf("%s\n became %s\n want   %s", m.sent, got, m.want)
		}
	}
	if f.count(`"id":1,"result":{}`) != 1 || f.count(`"id":2,"error":{"code":-32601`) != 1 {
		t.Errorf("the server was told %s", f.said)
	}
}

func TestASlowListenerLosesItsListenAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := streaming(t)
		s := newBridge(t, f)
		c := newClient(t, s, "ann", `{}`)
		slow := c.listen(`1`, `{"resourceSubscriptions":["a"]}`, `{"resourceSubscriptions":["a"]}`)
		quick := c.listen(`2`, `{"resourceSubscriptions":["a"]}`, `{"resourceSubscriptions":["a"]}`)
		for range 2 * queuedChanges { // all alike: told once
			e.feed <- `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a"}}`
		}
		synctest.Wait()
		quick.want(`"uri":"a"`)
		for i := range queuedChanges {
			e.feed <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a/%d"}}`, i)
			synctest.Wait()
			quick.want(fmt.Sprintf(`"uri":"a/%d"`, i))
		}
		_, err := slow.events.Next()
		wantKind(t, err, upstream.Overloaded)
	})
}

func TestListensEndInGoodOrderWithTheServerAndNotWithItsLoss(t *testing.T) {
	f, e := streaming(t)
	s := newBridge(t, f)
	c := newClient(t, s, "ann", `{}`)
	l := c.listen(`"1"`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	close(e.feed)
	_, err := l.events.Next()
	wantKind(t, err, upstream.Lost)
	l.events.Close()

	f.listen = func(ctx context.Context) (upstream.EventStream, error) { return newScript(ctx), nil }
	l = c.listen(`"2"`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	if err := s.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	l.want(`{"jsonrpc":"2.0","id":"2","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"2"}}}`)
	if _, err := l.events.Next(); err != io.EOF {
		t.Errorf("after the result: %v, want EOF", err)
	}
}

func TestListensAreBounded(t *testing.T) {
	f, _ := streaming(t)
	s := newBridge(t, f)
	c := newClient(t, s, "ann", `{}`)
	for range maxListens {
		c.listen(`1`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	}
	_, err := s.Call(testContext(t), c.call(`1`, mcp.MethodListen, `"notifications":{},`))
	wantKind(t, err, upstream.Overloaded)
	for _, bad := range []string{``, `"notifications":[],`, `"notifications":{"toolsListChanged":"yes"},`,
		`"notifications":{"resourceSubscriptions":"a"},`,
		`"notifications":{"resourceSubscriptions":["a"` + strings.Repeat(`,"a"`, maxURIs) + `]},`} {
		c.do(c.call(`1`, mcp.MethodListen, bad)).want(t, 400, "-32602")
	}
}

func TestAChangeSaidDuringACallReachesTheListen(t *testing.T) {
	f, e := streaming(t)
	asks, calls := asking(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	f.call = asks.call
	s := newBridge(t, f)
	ann, bob := newClient(t, s, "ann", `{}`), newClient(t, s, "bob", `{}`)
	l := ann.listen(`1`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	bobs := bob.listen(`1`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	done := make(chan reply, 1)
	go func() { done <- ann.do(ann.tool("1", "t", "x", "")) }()
	(<-calls).result("done")
	l.want("notifications/tools/list_changed")
	if r := <-done; len(r.before) != 0 {
		t.Errorf("the call's stream had %q", r.before)
	}
	go func() { done <- ann.do(ann.tool("2", "t", "x", "")) }()
	second := <-calls
	e.feed <- `{"jsonrpc":"2.0","id":1,"method":"roots/list"}` // which nobody may be asked, and is perhaps not the call's
	eventually(t, "the question is refused", func() bool { return f.count(`"id":1,"error":{"code":-32601`) == 1 })
	second.result("done")
	(<-done).want(t, 200, "done")
	if bobs.events.Ready() {
		t.Error("bob heard of what was said to ann")
	}
}

package tostateless

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// listening is a fake whose listens are streams that a test feeds.
type listening struct {
	*fake
	mu      sync.Mutex
	streams []*events
	grant   func(s sent) string // the notifications that are acknowledged; nil: all that are asked for
}

func newListening() *listening {
	l := &listening{fake: &fake{}}
	l.script = func(s sent) (*upstream.Answer, error) {
		if s.Method != mcp.MethodListen {
			return s.result(`{"resultType":"complete"}`), nil
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		asked := s.param("notifications")
		if l.grant != nil {
			asked = l.grant(s)
		}
		e := newEvents(s.ctx)
		if asked != "" {
			e.feed <- `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` + asked +
				`,"_meta":{"io.modelcontextprotocol/subscriptionId":` + s.id() + `}}}`
		}
		l.streams = append(l.streams, e)
		return e.answer(), nil
	}
	return l
}

func (l *listening) stream(i int) *events {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i >= len(l.streams) {
		return nil
	}
	return l.streams[i]
}

func (l *listening) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// filters are what was asked for so far.
func (l *listening) filters() (all []string) {
	for _, s := range l.calls(mcp.MethodListen) {
		all = append(all, s.param("notifications"))
	}
	return all
}

func changed(what string) string {
	return `{"jsonrpc":"2.0","method":"notifications/` + what + `/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"x"}}}`
}

func updated(uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q,"_meta":{"a":1,"io.modelcontextprotocol/subscriptionId":5}}}`, uri)
}

const lists = `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true`

func (c *client) listen() upstream.EventStream {
	c.t.Helper()
	events, err := c.session.Listen(testContext(c.t))
	if err != nil {
		c.t.Fatalf("Listen: %v", err)
	}
	return events
}

func TestTheStreamOutsideOfCallsIsAListen(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	if n := l.count(); n != 0 {
		t.Errorf("%d listens before the client wants any", n)
	}
	out := c.listen()
	if got := l.filters(); len(got) != 1 || got[0] != lists+"}" {
		t.Fatalf("asked for %q", got)
	}
	if out.Ready() {
		t.Error("ready with nothing to say")
	}
	l.stream(0).feed <- changed("tools")
	if got := next(t, out); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("got %s, want it without the subscription", got)
	}
	l.stream(0).feed <- `{"jsonrpc":"2.0","method":"notifications/acme","params":{}}`
	l.stream(0).feed <- updated("part/of/one")
	if got := next(t, out); got != `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"part/of/one","_meta":{"a":1}}}` {
		t.Errorf("got %s, want all but the subscription", got)
	}
}

func TestASubscriptionIsConfirmedOnceTheServerListensForIt(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	out := c.listen()
	l.mu.Lock()
	l.grant = func(sent) string { return "" } // not yet
	l.mu.Unlock()
	answered := make(chan *upstream.Answer, 1)
	go func() {
		a, _ := c.session.Call(testContext(t), requestCall(t, `3`, mcp.MethodResourcesSubscribe, `{"uri":"a\u0062"}`))
		answered <- a
	}()
	eventually(t, "a wider listen is asked for", func() bool { return l.count() == 2 })
	l.stream(0).feed <- changed("prompts")
	next(t, out) // still there
	select {
	case <-answered:
		t.Fatal("confirmed before the server acknowledged")
	default:
	}
	if l.stream(0).isClosed() {
		t.Error("the old listen was closed before the new one was acknowledged")
	}
	l.stream(1).feed <- `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` + lists + `,"resourceSubscriptions":["ab"]}}}`
	got(t, <-answered, nil).is(t, `{"jsonrpc":"2.0","id":3,"result":{}}`)
	eventually(t, "the old listen is closed", l.stream(0).isClosed)
	l.stream(1).feed <- updated("ab")
	response{200, next(t, out), nil}.has(t, `"uri":"ab"`)
	c.do(`4`, mcp.MethodResourcesSubscribe, `{"uri":"ab"}`).is(t, `{"jsonrpc":"2.0","id":4,"result":{}}`)
	if n := l.count(); n != 2 {
		t.Errorf("%d listens, want no other for the same resource", n)
	}
}

func TestUnsubscribingNarrowsTheListen(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	for i, uri := range []string{"a", "b"} {
		c.do(fmt.Sprint(i), mcp.MethodResourcesSubscribe, fmt.Sprintf(`{"uri":%q}`, uri)).has(t, `"result":{}`)
	}
	c.do(`8`, mcp.MethodResourcesUnsubscribe, `{"uri":"never"}`).has(t, `"result":{}`)
	c.do(`9`, mcp.MethodResourcesUnsubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
	want := []string{lists + `,"resourceSubscriptions":["a"]}`, lists + `,"resourceSubscriptions":["a","b"]}`, lists + `,"resourceSubscriptions":["b"]}`}
	if got := l.filters(); !slices.Equal(got, want) {
		t.Errorf("asked for %q\nwant %q", got, want)
	}
	l.mu.Lock()
	l.grant = func(sent) string { return `{}` }
	l.mu.Unlock()
	c.do(`10`, mcp.MethodResourcesSubscribe, `{"uri":"c"}`).has(t, `"code":-32602`)
	c.do(`11`, mcp.MethodResourcesSubscribe, `{}`).has(t, `"code":-32602`)
	if l.stream(2).isClosed() || !l.stream(3).isClosed() {
		t.Error("a subscription that was not granted changed what is listened to")
	}
	l.stream(2).feed <- updated("b")
	response{200, next(t, c.listen()), nil}.has(t, `"uri":"b"`)
}

func TestWhatAnOldListenSaysOfAnUnsubscribedResourceIsDropped(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	c.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
	inner := l.script
	l.become(func(s sent) (*upstream.Answer, error) { return s.error(-32603, ""), nil })
	c.do(`2`, mcp.MethodResourcesUnsubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
	l.become(inner)
	l.stream(0).feed <- updated("a")
	l.stream(0).feed <- changed("tools")
	if got := next(t, c.listen()); !strings.Contains(got, "tools/list_changed") {
		t.Errorf("got %s, want what is still subscribed to alone", got)
	}
}

func TestAServersRefusalOfASubscriptionIsTheAnswer(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	l.script = func(s sent) (*upstream.Answer, error) { return s.error(-32602, `,"data":{"uri":"a"}`), nil }
	c.do(`"s"`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).is(t, `{"jsonrpc":"2.0","id":"s","error":{"code":-32602,"message":"said the server","data":{"uri":"a"}}}`)
}

func TestChangesWaitForAClientThatReadsNone(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	first := c.listen()
	first.Close()
	if _, err := first.Next(); err == nil {
		t.Error("a closed stream goes on")
	}
	for range 3 {
		for _, data := range []string{changed("tools"), updated("a"), changed("prompts"), updated("b")} {
			l.stream(0).feed <- data
		}
	}
	f := c.session.(*session).feed
	eventually(t, "all was read", func() bool { return len(l.stream(0).feed) == 0 })
	eventually(t, "equal ones are one", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.queue) == 4 })
	out := c.listen()
	if n := l.count(); n != 1 {
		t.Errorf("%d listens, want the one that there was", n)
	}
	for _, want := range []string{"tools/list_changed", `"a"`, "prompts/list_changed", `"b"`} {
		if got := next(t, out); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for i := range 3 * maxUnsent {
		l.stream(0).feed <- updated(fmt.Sprint(i))
	}
	eventually(t, "all was read", func() bool { return len(l.stream(0).feed) == 0 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.queue); n > maxUnsent {
		t.Errorf("%d notifications wait, above the bound", n)
	}
}

func TestAServerThatSaysNothingOutsideOfCallsHasNoStream(t *testing.T) {
	silent := `{"capabilities":{"tools":{},"resources":{}}}`
	tools := `{"capabilities":{"tools":{"listChanged":true}}}`
	tests := []struct {
		name, discover string
		listens        int
		grant          string
	}{
		{"by its capabilities", silent, 0, "{}"},
		{"by what it grants", tools, 1, "{}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newListening()
			l.discover = tt.discover
			l.grant = func(sent) string { return tt.grant }
			c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
			if _, err := c.session.Listen(testContext(t)); !errors.Is(err, upstream.ErrNoStream) {
				t.Errorf("got %v, want ErrNoStream", err)
			}
			if n := l.count(); n != tt.listens {
				t.Errorf("%d listens, want %d", n, tt.listens)
			}
		})
	}
	l := newListening()
	l.discover = tools
	l.script = func(s sent) (*upstream.Answer, error) { return s.error(-32601, ""), nil }
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	if _, err := c.session.Listen(testContext(t)); !errors.Is(err, upstream.ErrNoStream) {
		t.Errorf("without the method: got %v, want ErrNoStream", err)
	}
}

// L7
func TestAListenThatEndedIsOpenedAgainAndTheClientToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListening()
		s := New(l, Options{Upstream: "new"})
		c := connect(t, s, "2025-11-25", `{}`)
		c.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
		out, err := c.session.Listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner := l.script
		var down atomic.Bool
		down.Store(true)
		l.become(func(q sent) (*upstream.Answer, error) {
			if down.Load() {
				return nil, &upstream.Error{Kind: upstream.Unreachable, Upstream: "new", Detail: "down"}
			}
			return inner(q)
		})
		close(l.stream(0).feed) // without the result
		time.Sleep(time.Minute)
		tries := len(l.calls(mcp.MethodListen)) - 1
		if tries < 3 || tries > 20 {
			t.Errorf("%d attempts in a minute of being down, want a few", tries)
		}
		if out.Ready() {
			t.Error("told of changes while the server is down")
		}
		down.Store(false)
		time.Sleep(time.Minute)
		var told []string
		for out.Ready() {
			e, err := out.Next()
			if err != nil {
				t.Fatal(err)
			}
			told = append(told, string(e.Data))
		}
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a"}}`,
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q\nwant %q", told, want)
		}
		if n := l.count(); n != 2 {
			t.Errorf("%d listens, want 2", n)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := out.Next(); err == nil {
			t.Error("the stream outlives the session")
		}
		if !l.stream(1).isClosed() {
			t.Error("the listen outlives the session")
		}
	})
}

func TestAServerThatAcknowledgesLateHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListening()
		l.grant = func(sent) string { return "" }
		s := New(l, Options{Upstream: "new"})
		c := connect(t, s, "2025-11-25", `{}`)
		began := time.Now()
		out, err := c.session.Listen(t.Context())
		if took := time.Since(began); err != nil || took != acknowledgeWithin {
			t.Errorf("took %v, %v; want %v", took, err, acknowledgeWithin)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := c.session.Call(ctx, requestCall(t, `1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`)); err == nil {
			t.Error("a subscription was confirmed by nobody")
		}
		time.Sleep(20 * time.Second) // the first listen is given up
		l.mu.Lock()
		l.grant = nil
		l.mu.Unlock()
		time.Sleep(time.Minute)
		if !out.Ready() {
			t.Error("the client was not told that what it has may be old")
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAClientThatDoesNotAnswerFailsItsCallInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{script: ask(`{"a":{"method":"roots/list"}}`, done)}
		s := New(f, Options{Upstream: "new", AnswerTimeout: time.Hour})
		c := connect(t, s, "2025-11-25", allCapabilities)
		began := time.Now()
		a, err := c.session.Call(t.Context(), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`))
		r := got(t, a, err)
		r.has(t, `"id":1`, `"reason":"client_timeout"`)
		if len(r.before) != 2 || !strings.Contains(r.before[1], mcp.NotificationCancelled) || time.Since(began) != time.Hour {
			t.Errorf("got %q after %v", r.before, time.Since(began))
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestRoundsAreBounded(t *testing.T) {
	tests := []struct {
		name, result string
		calls        int
	}{
		{"with questions", `{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`, 11},
		{"without", `{"resultType":"input_required","requestState":"busy"}`, 4},
		{"with none in it", `{"resultType":"input_required","inputRequests":{},"requestState":"busy"}`, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(tt.result), nil }}
				s := New(f, Options{Upstream: "new"})
				c := connect(t, s, "2025-11-25", allCapabilities)
				began := time.Now()
				a, err := c.session.Call(t.Context(), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`))
				if err != nil {
					t.Fatal(err)
				}
				last := ""
				if a.Body != nil {
					last = got(t, a, nil).last
				} else {
					for {
						e, err := a.Events.Next()
						if err != nil {
							break
						}
						if last = string(e.Data); strings.Contains(last, "roots/list") {
							c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, readAsking(t, last).ID))
						}
					}
					a.Close()
				}
				response{200, last, nil}.has(t, `"reason":"too_many_rounds"`, `"id":1`)
				if n := len(f.calls(mcp.MethodToolsCall)); n != tt.calls {
					t.Errorf("%d calls, want %d", n, tt.calls)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("took %v", took)
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestTheLastSubscriptionsEndIsTheListensEnd(t *testing.T) {
	l := newListening()
	l.discover = `{"capabilities":{"resources":{"subscribe":true}}}`
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	out := c.listen()
	if n := l.count(); n != 0 {
		t.Errorf("%d listens for nothing", n)
	}
	c.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
	if got := l.filters(); len(got) != 1 || got[0] != `{"resourceSubscriptions":["a"]}` {
		t.Errorf("asked for %q", got)
	}
	l.stream(0).feed <- updated("a")
	response{200, next(t, out), nil}.has(t, `"a"`)
	c.do(`2`, mcp.MethodResourcesUnsubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
	if n := l.count(); n != 1 || !l.stream(0).isClosed() {
		t.Errorf("%d listens, the first closed: %v; want it closed and no other", n, l.stream(0).isClosed())
	}
	c.do(`3`, mcp.MethodResourcesSubscribe, `{"uri":"b"}`).has(t, `"result":{}`)
	l.stream(1).feed <- updated("b")
	response{200, next(t, out), nil}.has(t, `"b"`)
}

func TestAResourceThatIsGoneTakesNoListsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListening()
		s := New(l, Options{Upstream: "new"})
		c := connect(t, s, "2025-11-25", `{}`)
		c.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).has(t, `"result":{}`)
		inner := l.script
		l.become(func(q sent) (*upstream.Answer, error) {
			if strings.Contains(q.param("notifications"), "resourceSubscriptions") {
				return q.error(mcp.CodeInvalidParams, ""), nil
			}
			return inner(q)
		})
		l.stream(0).feed <- `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete"}}` // the orderly end
		time.Sleep(time.Minute)
		if got := l.filters(); got[len(got)-1] != lists+"}" {
			t.Errorf("asked for %q, want the lists alone at last", got)
		}
		if l.count() != 2 || l.stream(1).isClosed() {
			t.Errorf("%d listens, want a second that goes on", l.count())
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Whatever comes at once, nothing is left open and nobody waits for ever.
func TestListensSubscriptionsAndTheEndAtOnce(t *testing.T) {
	for range 20 {
		l := newListening()
		s := New(l, Options{Upstream: "new"})
		c := connect(t, s, "2025-11-25", `{}`)
		var wait sync.WaitGroup
		for i := range 4 {
			wait.Go(func() {
				uri := fmt.Sprintf(`{"uri":"%d"}`, i%2)
				for _, method := range []string{mcp.MethodResourcesSubscribe, mcp.MethodResourcesUnsubscribe, mcp.MethodResourcesSubscribe} {
					if a, err := c.session.Call(context.Background(), requestCall(t, `1`, method, uri)); err == nil {
						a.Close()
					}
				}
			})
		}
		wait.Go(func() {
			if out, err := c.session.Listen(context.Background()); err == nil {
				_, _ = rest(out)
				out.Close()
			}
		})
		wait.Go(func() {
			eventually(t, "there is a listen", func() bool { return l.count() > 0 })
			l.stream(0).Close()
		})
		eventually(t, "there are some listens", func() bool { return l.count() > 2 })
		if err := s.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		wait.Wait()
		for i := range l.count() {
			if !l.stream(i).isClosed() {
				t.Errorf("listen %d of %d is left open", i, l.count())
			}
		}
	}
}

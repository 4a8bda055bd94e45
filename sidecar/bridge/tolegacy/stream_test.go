package tolegacy

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// A server asks aside long after its stream was lost, which was not to be had for a while.
func TestAStreamThatWasLostIsOpenedAgainForQuestionsAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var away atomic.Bool
		streams := make(chan *script, 99)
		f.listen = func(ctx context.Context) (upstream.EventStream, error) {
			if away.Load() {
				return nil, &upstream.Error{Kind: upstream.Unreachable, Upstream: "old", Detail: "refused"}
			}
			e := newScript(ctx)
			streams <- e
			return e, nil
		}
		answer := make(chan struct{})
		f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
			if m.Method == mcp.MethodToolsCall {
				<-answer
			}
			return simple(m), nil
		}
		s := newBridge(t, f)
		c := newClient(t, s, "ann", everything)
		c.do(c.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`)
		away.Store(true)
		close((<-streams).feed) // the end
		time.Sleep(10 * time.Second)
		away.Store(false)
		time.Sleep(10 * time.Second)

		done := make(chan reply, 1)
		go func() { done <- c.do(c.tool("2", "t", "x", "")) }()
		synctest.Wait()
		select {
		case e := <-streams:
			e.feed <- elicit("1", "aside")
		default:
			t.Fatal("the stream was not opened again")
		}
		q := questions(t, <-done)
		go func() { done <- c.do(c.tool("3", "t", "x", q.retry(accepted))) }()
		synctest.Wait()
		close(answer)
		(<-done).want(t, 200, `"id":3`)
	})
}

func TestAStreamIsOpenedAgainSoOftenAndOnlyIfThatMayHelp(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		want    int64
	}{
		"unreachable":        {&upstream.Error{Kind: upstream.Unreachable}, 1 + maxReopens},
		"answered 503":       {&upstream.Error{Kind: upstream.BadAnswer, Status: 503}, 1 + maxReopens},
		"no stream":          {upstream.ErrNoStream, 1},
		"no MCP":             {&upstream.Error{Kind: upstream.BadAnswer, Status: 200}, 1},
		"the session's over": {&upstream.Error{Kind: upstream.SessionGone}, 1},
		"not let in":         {&upstream.Error{Kind: upstream.Unauthorized}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tries atomic.Int64
				f := &fake{listen: func(context.Context) (upstream.EventStream, error) {
					tries.Add(1)
					return nil, c.failure
				}}
				s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.SessionIdle = durationpb.New(24 * time.Hour) }))
				ann := newClient(t, s, "ann", everything)
				ann.do(ann.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`)
				time.Sleep(12 * time.Hour)
				if n := tries.Load(); n != c.want {
					t.Errorf("it was tried %d times, want %d", n, c.want)
				}
			})
		})
	}
}

func TestAStreamIsNotOpenedAgainForASessionThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		f := &fake{listen: func(context.Context) (upstream.EventStream, error) {
			tries.Add(1)
			return nil, &upstream.Error{Kind: upstream.Unreachable}
		}}
		s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.SessionIdle = durationpb.New(time.Millisecond) }))
		c := newClient(t, s, "ann", everything)
		c.do(c.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`)
		time.Sleep(time.Hour)
		if _, closed := f.opened(); closed != 1 || tries.Load() != 1 {
			t.Errorf("%d sessions closed after %d tries, want one and one", closed, tries.Load())
		}
	})
}

// The status of such an answer has gone out already, so nothing can be made once more behind the client's back.
func TestACallThatDidNotHappenAndIsKnownLateIsTheClientsToMakeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := streaming(t)
		f.call = func(_ context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
			if m.Method != mcp.MethodToolsCall {
				return simple(m), nil
			}
			time.Sleep(firstMessage + time.Second)
			return nil, &upstream.Error{Kind: upstream.SessionGone, Upstream: "old", Detail: "forgot its session"}
		}
		s := newBridge(t, f)
		c := newClient(t, s, "ann", everything)
		a, err := s.Call(context.Background(), c.tool("1", "t", "x", ""))
		if err != nil || a.Events == nil {
			t.Fatalf("got %+v, %v; want a stream", a, err)
		}
		defer a.Close()
		_, err = a.Events.Next()
		wantKind(t, err, upstream.Unreachable)
		if n := f.count("tools/call"); n != 1 {
			t.Errorf("the call was made %d times, want once", n)
		}
	})
}

// A question that the server takes back while its call is given up changes nothing for the others: each is answered once.
func TestAQuestionTakenBackWhileItsCallIsGivenUp(t *testing.T) {
	f, calls := asking(elicit("1", "one"), elicit("2", "two"), elicit("3", "three"))
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	questions(t, c.do(c.tool("1", "t", "x", "")))
	held := <-calls
	var k *call
	s.held.mu.Lock()
	for _, k = range s.held.byID {
	}
	s.held.mu.Unlock()
	pending := func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.pending)
	}
	f.mu.Lock() // the server hears nothing for now
	k.expire(1)
	held.feed <- `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	eventually(t, "the question is withdrawn", func() bool { return pending() == 2 })
	f.mu.Unlock()
	eventually(t, "the call is cancelled", held.ended)
	for id := 1; id <= 3; id++ {
		if n := f.count(fmt.Sprintf(`"id":%d,"result":{"action":"cancel"}`, id)); n != 1 {
			t.Errorf("question %d was answered %d times, want once: %s", id, n, f.said)
		}
	}
	nothingInUse(t, s)
}

// waiting makes a server's tools answer when end is closed. The ids of their calls come on ids.
func waiting(f *fake) (ids <-chan string, end chan struct{}) {
	begun := make(chan string, 2)
	end = make(chan struct{})
	f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		if m.Method == mcp.MethodToolsCall {
			begun <- string(m.ID.Of(m.Raw))
			select {
			case <-end:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return simple(m), nil
	}
	return begun, end
}

// follow makes a call whose answer is a stream, and returns what gives its messages one by one, then "the end".
func (c *client) follow(call *upstream.Call) (next func() string) {
	heard := make(chan string, 1024)
	go func() {
		defer close(heard)
		a, err := c.server.Call(testContext(c.t), call)
		if err != nil || a.Events == nil {
			c.t.Errorf("got %+v, %v; want a stream", a, err)
			return
		}
		defer a.Close()
		for e, err := a.Events.Next(); err == nil; e, err = a.Events.Next() {
			heard <- string(e.Data)
		}
		heard <- "the end"
	}()
	return func() string { return <-heard }
}

func progressOf(token, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%q}}`, token, message)
}

func logged(level, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":%q,"data":%q}}`, level, text)
}

// Servers exist that say on whichever stream is free what belongs to a call.
func TestWhatIsSaidAsideReachesTheCallItIsOf(t *testing.T) {
	f, e := streaming(t)
	ids, end := waiting(f)
	c := newClient(t, newBridge(t, f), "ann", everything)
	c.meta = `"progressToken":"p","io.modelcontextprotocol/logLevel":"warning",`
	hearsOne := c.follow(c.tool("1", "t", "x", ""))
	one := <-ids
	e.feed <- logged("debug", "not wanted")
	e.feed <- logged("error", "of one")
	if got, want := hearsOne(), logged("error", "of one"); got != want {
		t.Errorf("the only call heard %s, want %s", got, want)
	}
	hearsTwo := c.follow(c.tool("2", "t", "y", ""))
	two := <-ids
	e.feed <- logged("error", "whose?")
	e.feed <- progressOf("999999", "nobody's")
	e.feed <- progressOf(two, "of two")
	e.feed <- progressOf(one, "of one")
	for name, hears := range map[string]func() string{"one": hearsOne, "two": hearsTwo} {
		if got, want := hears(), progressOf(`"p"`, "of "+name); got != want {
			t.Errorf("call %s heard %s, want %s", name, got, want)
		}
	}
	close(end)
	for _, hears := range []func() string{hearsOne, hearsTwo} {
		if got := hears(); !strings.Contains(got, `"result"`) {
			t.Errorf("at the end a call heard %s, want its result", got)
		}
		if got := hears(); got != "the end" {
			t.Errorf("after its result a call heard %s", got)
		}
	}
}

// A slow client costs no other client of the session what is said aside.
func TestWhatIsSaidAsideDoesNotWaitForASlowClient(t *testing.T) {
	f, e := streaming(t)
	ids, end := waiting(f)
	c := newClient(t, newBridge(t, f), "ann", everything)
	c.meta = `"progressToken":1,`
	l := c.listen(`"s"`, `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
	answer := make(chan *upstream.Answer, 1)
	go func() {
		a, err := c.server.Call(testContext(t), c.tool("1", "t", "x", ""))
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	id := <-ids
	for range 2 * queuedMessages {
		e.feed <- progressOf(id, "more")
	}
	e.feed <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	if got := l.next(); !strings.Contains(got, "list_changed") {
		t.Errorf("the listen heard %s, want what changed", got)
	}
	close(end)
	a := <-answer
	if a == nil {
		return
	}
	defer a.Close()
	if r, err := readReply(a); err != nil || len(r.before) != queuedMessages {
		t.Errorf("the slow client got %d reports, then %s (%v), want %d", len(r.before), r.last, err, queuedMessages)
	}
}

// Lists ask nothing, so they do not make it unknown whose a question is: neither one in flight nor one that was given up.
func TestAListTakesNoQuestionFromACall(t *testing.T) {
	f, e := streaming(t)
	begun, end := make(chan string, 3), make(chan struct{})
	f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		begun <- m.Method
		select {
		case <-end:
			return simple(m), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	ctx, leave := context.WithCancel(testContext(t))
	left, done := make(chan struct{}), make(chan reply, 2)
	go func() {
		defer close(left)
		_, _ = s.Call(ctx, c.call("1", mcp.MethodToolsList, ""))
	}()
	<-begun
	leave()
	<-left
	nothingInUse(t, s)
	go func() { done <- c.do(c.call("2", mcp.MethodToolsList, "")) }()
	<-begun
	asked := make(chan reply, 1)
	go func() { asked <- c.do(c.tool("3", "t", "x", "")) }()
	<-begun
	e.feed <- elicit("1", "whose?")
	q := questions(t, <-asked)
	go func() { done <- c.do(c.tool("4", "t", "x", q.retry(accepted))) }()
	eventually(t, "the answer is there", func() bool { return f.count(`"id":1,"result":{"action":"accept"`) == 1 })
	close(end)
	for range 2 {
		(<-done).want(t, 200, `"result":`)
	}
}

// slowToClose is a stream that is closed only when it may be.
type slowToClose struct {
	*script
	may <-chan struct{}
}

func (e *slowToClose) Close() error {
	<-e.may
	return e.script.Close()
}

// The sidecar may not be done with a call yet when its client, which has the answer, makes the next.
func TestACallThatWasAnsweredTakesNoQuestionFromTheNext(t *testing.T) {
	f, e := streaming(t)
	may := make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		if first.Swap(false) {
			answer := newScript(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID.Of(m.Raw)))
			return &upstream.Answer{Status: 200, Length: -1, Events: &slowToClose{answer, may}}, nil
		}
		e.feed <- elicit("1", "aside")
		for ctx.Err() == nil && f.count(`"id":1,"result"`)+f.count(`"id":1,"error"`) == 0 {
			time.Sleep(time.Millisecond)
		}
		return simple(m), nil
	}
	c := newClient(t, newBridge(t, f), "ann", everything)
	c.do(c.tool("1", "t", "x", "")).want(t, 200, `"id":1`)
	q := questions(t, c.do(c.tool("2", "t", "x", "")))
	c.do(c.tool("3", "t", "x", q.retry(accepted))).want(t, 200, `"id":3`)
	close(may)
}

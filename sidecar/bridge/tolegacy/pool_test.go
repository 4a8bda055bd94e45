package tolegacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestManyCallsOpenOneSession(t *testing.T) {
	f := &fake{}
	turn := make(chan struct{})
	f.open = func(context.Context) error { <-turn; return nil }
	s := newBridge(t, f)
	c := newClient(t, s, "ann", `{}`)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { c.do(c.tool("1", "t", "x", "")).want(t, 200, `"id":1`) })
	}
	ctx, leave := context.WithCancel(testContext(t))
	leave()
	if _, err := s.Call(ctx, c.tool("1", "t", "x", "")); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left waits: %v", err)
	}
	close(turn)
	all.Wait()
	if opened, _ := f.opened(); opened != 1 {
		t.Errorf("%d sessions were opened, want 1", opened)
	}
	if f.count("notifications/initialized") != 1 {
		t.Errorf("the server was told %s", f.said)
	}
}

func TestAFailureToOpenIsEverybodysAndNotForever(t *testing.T) {
	f := &fake{}
	refusing := true
	f.open = func(context.Context) error {
		if refusing {
			return &upstream.Error{Kind: upstream.Unreachable, Upstream: "old", Detail: "refused"}
		}
		return nil
	}
	s := newBridge(t, f)
	c := newClient(t, s, "ann", `{}`)
	_, err := s.Call(testContext(t), c.tool("1", "t", "x", ""))
	wantKind(t, err, upstream.Unreachable)
	refusing = false
	c.do(c.tool("1", "t", "x", "")).want(t, 200, `"id":1`)
}

func TestUnusedSessionsEndAndAFullPoolTakesTheLongestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := asking()
		s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) {
			b.MaxSessions, b.SessionIdle = 2, durationpb.New(time.Minute)
		}))
		use := func(principal string) {
			c := newClient(t, s, principal, `{}`)
			c.do(c.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`)
			time.Sleep(time.Second)
		}
		wantOpen := func(opened, closed int) {
			t.Helper()
			synctest.Wait()
			if o, c := f.opened(); o != opened || c != closed {
				t.Errorf("%d opened and %d closed, want %d and %d", o, c, opened, closed)
			}
		}
		use("ann")
		use("bob")
		use("ann")
		wantOpen(2, 0)
		use("eve") // takes bob's
		wantOpen(3, 1)
		use("ann")
		wantOpen(3, 1)
		busy := newClient(t, s, "ann", `{}`)
		done := make(chan reply, 1)
		go func() { done <- busy.do(busy.tool("1", "t", "x", "")) }()
		call := <-calls
		time.Sleep(5 * time.Second)
		go func() {
			eve := newClient(t, s, "eve", `{}`)
			done <- eve.do(eve.tool("2", "t", "x", ""))
		}()
		second := <-calls
		_, err := s.Call(testContext(t), newClient(t, s, "bob", `{}`).tool("1", "t", "x", ""))
		wantKind(t, err, upstream.Overloaded)
		call.result("a")
		second.result("b")
		<-done
		<-done
		time.Sleep(time.Minute)
		wantOpen(3, 3)
	})
}

// However many sets of capabilities a caller declares, the others' sessions stay.
func TestACallerHasAtMostHalfOfTheSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := asking()
		s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.MaxSessions = 4 }))
		list := func(principal, declared string) {
			t.Helper()
			c := newClient(t, s, principal, declared)
			c.do(c.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`)
			time.Sleep(time.Second)
		}
		list("ann", `{}`)
		for i := range 8 {
			list("eve", fmt.Sprintf(`{"experimental":{"n%d":{}}}`, i))
		}
		if opened, closed := f.opened(); opened != 9 || closed != 6 {
			t.Errorf("%d sessions opened and %d closed, want 9 and 6", opened, closed)
		}
		list("ann", `{}`) // has hers still
		if opened, _ := f.opened(); opened != 9 {
			t.Errorf("%d sessions opened, want 9: the other caller's stays", opened)
		}
		done := make(chan reply, 2)
		for i := range 2 {
			c := newClient(t, s, "eve", fmt.Sprintf(`{"experimental":{"n%d":{}}}`, i))
			go func() { done <- c.do(c.tool("1", "t", "x", "")) }()
		}
		first, second := <-calls, <-calls
		c := newClient(t, s, "eve", `{}`)
		_, err := s.Call(testContext(t), c.tool("1", "t", "x", ""))
		if wantKind(t, err, upstream.Overloaded); !strings.Contains(err.Error(), "by this caller") {
			t.Errorf("a third session in use: %v, want one that speaks of this caller", err)
		}
		list("bob", `{}`)
		first.result("a")
		second.result("b")
		<-done
		<-done
	})
}

// A session that could not be opened, and whose place another has by then, takes nothing from that.
func TestASessionThatFailsLateLeavesItsSuccessorAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		turn, first := make(chan struct{}), true
		f.open = func(context.Context) error {
			if !first {
				return nil
			}
			first = false
			<-turn
			return &upstream.Error{Kind: upstream.Unreachable, Upstream: "old", Detail: "refused"}
		}
		s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.MaxSessions = 1 }))
		ann := newClient(t, s, "ann", `{}`)
		list := func(c *client) { c.do(c.call("1", mcp.MethodToolsList, "")).want(t, 200, `"id":1`) }
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			leave()
		}()
		if _, err := s.Call(ctx, ann.call("1", mcp.MethodToolsList, "")); err == nil {
			t.Error("a call over a session that is not open succeeded")
		}
		list(newClient(t, s, "bob", `{}`)) // takes its place
		list(ann)                          // and this bob's
		close(turn)
		synctest.Wait()
		list(ann)
		if opened, _ := f.opened(); opened != 2 {
			t.Errorf("%d sessions were opened, want 2: ann's second stays", opened)
		}
	})
}

func TestASessionThatIsGoneIsReplacedOnceForACallThatDidNotHappen(t *testing.T) {
	f := &fake{}
	gone := &upstream.Error{Kind: upstream.SessionGone, Upstream: "old", Detail: "forgot its session"}
	lost := 1
	f.call = func(_ context.Context, s *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		if s.number < lost {
			return nil, gone
		}
		return simple(m), nil
	}
	s := newBridge(t, f)
	c := newClient(t, s, "ann", `{}`)
	c.do(c.tool("1", "t", "x", "")).want(t, 200, `"id":1`)
	if opened, _ := f.opened(); opened != 2 {
		t.Errorf("%d sessions were opened, want 2", opened)
	}
	lost = 100
	_, err := s.Call(testContext(t), c.tool("1", "t", "x", ""))
	wantKind(t, err, upstream.Unreachable)
	if n := f.count("tools/call"); n != 4 {
		t.Errorf("%d attempts in all, want 4: two for each call", n)
	}
	eventually(t, "the sessions are closed", func() bool { opened, closed := f.opened(); return opened == 3 && closed == 3 })
}

func TestACallWhoseSessionIsLostDuringItIsNotMadeAgain(t *testing.T) {
	for name, declared := range map[string]string{"": `{}`, "that may be asked": everything} {
		t.Run(name, func(t *testing.T) {
			f, _ := streaming(t)
			f.call = func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
				e := newScript(ctx)
				e.lost = &upstream.Error{Kind: upstream.SessionGone, Upstream: "old", Detail: "forgot its session"}
				e.Close()
				return e.answer(), nil
			}
			s := newBridge(t, f)
			_, err := s.Call(testContext(t), newClient(t, s, "ann", declared).tool("1", "t", "x", ""))
			wantKind(t, err, upstream.Lost)
			if n := f.count("tools/call"); n != 1 {
				t.Errorf("the call was made %d times, want once", n)
			}
			if n := s.sessionsForTest(); n != 0 {
				t.Errorf("%d sessions are left, want the lost one forgotten", n)
			}
		})
	}
}

func TestAServerThatForgotItsSessionsIsCalledAgain(t *testing.T) {
	r := newReal(t, nil)
	s := realBridge(t, r)
	c := newClient(t, s, "ann", `{}`)
	c.do(c.tool("1", "count", "", "")).want(t, 200, "count=1")
	for session := range r.Sessions() {
		session.Close()
	}
	c.do(c.tool("1", "count", "", "")).want(t, 200, "count=1")
	if err := s.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deleted != 1 {
		t.Errorf("%d sessions were deleted at the server, want the one that was left", r.deleted)
	}
}

func TestEqualIDsOfManyClientsStayApart(t *testing.T) {
	f, calls := asking()
	s := newBridge(t, f)
	type result struct {
		want string
		got  reply
	}
	results := make(chan result, 10)
	for i := range 10 {
		go func() {
			c := newClient(t, s, "", `{}`)
			c.meta = `"progressToken":1,`
			name := fmt.Sprintf("client-%d", i)
			results <- result{name, c.do(c.tool("1", "t", name, ""))}
		}()
	}
	var all []*askedCall
	ids := map[string]bool{}
	for range 10 {
		call := <-calls
		all = append(all, call)
		ids[call.id] = true
	}
	if len(ids) != 10 {
		t.Errorf("the server saw the ids %v, want ten different ones", ids)
	}
	for _, call := range all {
		name := call.request[strings.Index(call.request, "client-"):][:len("client-0")]
		call.feed <- fmt.Sprintf(
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%q}}`, call.id, name)
		call.result(name)
	}
	for range 10 {
		r := <-results
		r.got.want(t, 200, `"id":1,`, r.want)
		if len(r.got.before) != 1 || !strings.Contains(r.got.before[0], r.want) || !strings.Contains(r.got.before[0], `"progressToken":1,`) {
			t.Errorf("%s got %q", r.want, r.got.before)
		}
	}
}

func TestNonsenseFromTheServerIsAClearError(t *testing.T) {
	for name, f := range map[string]*fake{
		"an error":         {welcome: `{"jsonrpc":"2.0","id":%s,"error":{"code":-32600,"message":"session required"}}`},
		"not JSON":         {welcome: `<html>%s</html>`},
		"nothing":          {welcome: `%.0s`},
		"no version":       {welcome: `{"jsonrpc":"2.0","id":%s,"result":{}}`},
		"a stateless one":  {welcome: `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2026-07-28","capabilities":{}}}`},
		"no object":        {welcome: `{"jsonrpc":"2.0","id":%s,"result":[]}`},
		"odd capabilities": {welcome: `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":7}}`},
		"a request":        {welcome: `{"jsonrpc":"2.0","id":%s,"method":"ping"}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBridge(t, f)
			c := newClient(t, s, "", `{}`)
			for _, method := range []string{mcp.MethodDiscover, mcp.MethodToolsList} {
				_, err := s.Call(testContext(t), c.call("1", method, ""))
				wantKind(t, err, upstream.BadAnswer)
			}
		})
	}
}

func TestAnEndlessWelcomeIsNotReadToItsEnd(t *testing.T) {
	s := newBridge(t, &fake{welcome: `{"jsonrpc":"2.0","id":%s,"result":"` + strings.Repeat("x", maxAnswer) + `"}`})
	_, err := s.Call(testContext(t), newClient(t, s, "", `{}`).call("1", mcp.MethodToolsList, ""))
	wantKind(t, err, upstream.Overloaded)
}

func TestNonsenseInAnswersIsAClearErrorToo(t *testing.T) {
	for body, want := range map[string]upstream.Kind{
		`{"jsonrpc":"2.0","id":%s,"result":[]}`:     upstream.BadAnswer,
		`{"jsonrpc":"2.0","id":%s,"result":null}`:   upstream.BadAnswer,
		`{"jsonrpc":"2.0","id":%s,"method":"ping"}`: upstream.BadAnswer,
		`{`: upstream.BadAnswer,
		`{"jsonrpc":"2.0","id":%s,"result":{"a":"` + strings.Repeat("x", maxAnswer) + `"}}`: upstream.Overloaded,
	} {
		f := &fake{call: func(_ context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
			return upstream.Whole(200, []byte(strings.Replace(body, "%s", string(m.ID.Of(m.Raw)), 1))), nil
		}}
		s := newBridge(t, f)
		_, err := s.Call(testContext(t), newClient(t, s, "", `{}`).call("1", mcp.MethodToolsList, ""))
		wantKind(t, err, want)
		nothingInUse(t, s)
	}
	f := &fake{call: func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		return newScript(ctx, `{"jsonrpc":"2.0","id":1,"result":{}`).answer(), nil
	}}
	s := newBridge(t, f)
	_, err := s.Call(testContext(t), newClient(t, s, "", `{}`).call("1", mcp.MethodToolsList, ""))
	wantKind(t, err, upstream.BadAnswer)
}

func TestDiscoverComesInTimeAndLastsAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := streaming(t)
		var hangs, fails bool
		f.open = func(ctx context.Context) error {
			if hangs {
				<-ctx.Done()
				return &upstream.Error{Kind: upstream.TimedOut, Upstream: "old", Detail: "no answer", Cause: ctx.Err()}
			}
			if fails {
				return &upstream.Error{Kind: upstream.Unreachable, Upstream: "old", Detail: "refused"}
			}
			return nil
		}
		s := newBridge(t, f)
		c := newClient(t, s, "ann", `{}`)
		hangs = true
		start := time.Now()
		ctx := context.Background()
		_, err := s.Call(ctx, c.call("1", mcp.MethodDiscover, ""))
		if wantKind(t, err, upstream.TimedOut); time.Since(start) > 2*patience {
			t.Errorf("it took %v", time.Since(start))
		}
		discover := func(opened int) {
			t.Helper()
			a, err := s.Call(ctx, c.call("1", mcp.MethodDiscover, ""))
			got(t, a, err).want(t, 200, `"name":"fake"`)
			if o, _ := f.opened(); o != opened {
				t.Errorf("%d sessions were opened, want %d", o, opened)
			}
		}
		hangs = false
		discover(1)
		discover(1)
		time.Sleep(discoverTTL)
		discover(2)
		fails = true
		time.Sleep(discoverTTL)
		discover(2) // as it was said before
		fails = false
		discover(3)
		f.listen = func(ctx context.Context) (upstream.EventStream, error) { return newScript(ctx), nil }
		_ = e
		l := c.listen("1", `{"toolsListChanged":true}`, `{"toolsListChanged":true}`)
		discover(4) // with the listen's own
		l.events.Close()
	})
}

func TestAServerThatSpeaksTheWireItselfIsLeftAlone(t *testing.T) {
	for name, s := range map[string]*Server{
		"both wires":   newBridge(t, &fake{eras: mcp.EraSet(mcp.Legacy, mcp.Stateless)}),
		"switched off": newBridge(t, &fake{}, bridge(func(b *outriggerv1.Bridge) { b.Enabled = proto.Bool(false) })),
	} {
		c := newClient(t, s, "", `{}`)
		for _, method := range []string{mcp.MethodDiscover, mcp.MethodToolsCall, "acme/x"} {
			if r := c.do(c.call("1", method, "")); !strings.Contains(r.last, "as it came") {
				t.Errorf("%s: %s was answered %s", name, method, r.last)
			}
		}
	}
	s := newBridge(t, &fake{}, bridge(func(b *outriggerv1.Bridge) { b.Enabled = proto.Bool(false) }))
	if eras, err := s.Eras(testContext(t)); eras != mcp.EraSet(mcp.Legacy) {
		t.Errorf("switched off: Eras %v, %v; want legacy alone", eras, err)
	}
}

func TestAStreamThatIsSilentIsBegunAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := asking()
		s := newBridge(t, f)
		c := newClient(t, s, "ann", `{}`)
		start := time.Now()
		a, err := s.Call(context.Background(), c.tool("1", "t", "x", ""))
		if err != nil || a.Events == nil || time.Since(start) != firstMessage {
			t.Fatalf("got %+v, %v after %v; want a stream after %v", a, err, time.Since(start), firstMessage)
		}
		(<-calls).result("late")
		e, err := a.Events.Next()
		if err != nil || !strings.Contains(string(e.Data), "late") {
			t.Errorf("got %s, %v", e.Data, err)
		}
		if _, err := a.Events.Next(); err != io.EOF {
			t.Errorf("after the response: %v, want EOF", err)
		}
		a.Close()
	})
}

func TestASlowClientHoldsUpItsOwnServerAndKeepsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := asking()
		s := newBridge(t, f)
		c := newClient(t, s, "ann", `{}`)
		c.meta = `"progressToken":1,`
		answers := make(chan *upstream.Answer, 1)
		go func() {
			a, err := s.Call(context.Background(), c.tool("1", "t", "x", ""))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
		call := <-calls
		for range 2 * queuedMessages {
			call.feed <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, call.id)
		}
		synctest.Wait()
		if left := len(call.feed); left < queuedMessages-2 {
			t.Errorf("%d messages are left at the server, want it to wait with %d", left, queuedMessages-1)
		}
		a := <-answers
		a.Close()
		synctest.Wait()
		if !call.ended() {
			t.Error("a client that closes its answer did not cancel its call")
		}
		nothingInUse(t, s)
	})
}

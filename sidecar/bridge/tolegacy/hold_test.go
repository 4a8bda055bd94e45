package tolegacy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const accepted = `{"q1":{"action":"accept","content":{}}}`

func TestARetryThatIsNotTheCallsIsRefused(t *testing.T) {
	f, calls := asking(elicit("1", "sure?"))
	s := newBridge(t, f)
	other := newBridge(t, f, func(o *Options) { o.Upstream.Name = "other"; o.Sealer = s.sealer })
	c := newClient(t, s, "ann", everything)
	call := func(id, more string) *upstream.Call {
		return c.call(id, mcp.MethodToolsCall, `"name":"t","arguments":{"a":1,"b":[2]},`+more)
	}
	q := questions(t, c.do(call("1", "")))
	held := <-calls
	bob := newClient(t, s, "bob", everything)
	theirs := newClient(t, other, "ann", everything)
	aside := newClient(t, s, "ann", everything)
	aside.binding = "aside"
	state := q.Result.RequestState
	for name, r := range map[string]struct {
		got  reply
		want string
	}{
		"another principal": {bob.do(bob.call("2", mcp.MethodToolsCall, `"name":"t","arguments":{"a":1,"b":[2]},`+q.retry(accepted))), notThisOwner},
		"another tool":      {c.do(c.call("2", mcp.MethodToolsCall, `"name":"u","arguments":{"a":1,"b":[2]},`+q.retry(accepted))), notThisCall},
		"other arguments":   {c.do(c.call("2", mcp.MethodToolsCall, `"name":"t","arguments":{"a":1,"b":[3]},`+q.retry(accepted))), notThisCall},
		"another method":    {c.do(c.call("2", mcp.MethodPromptsGet, `"name":"t","arguments":{"a":1,"b":[2]},`+q.retry(accepted))), notThisCall},
		"another upstream":  {theirs.do(theirs.call("2", mcp.MethodToolsCall, `"name":"t","arguments":{"a":1,"b":[2]},`+q.retry(accepted))), notAState},
		"another binding":   {aside.do(aside.call("2", mcp.MethodToolsCall, `"name":"t","arguments":{"a":1,"b":[2]},`+q.retry(accepted))), notAState},
		"an altered state":  {c.do(call("2", fmt.Sprintf(`"inputResponses":{},"requestState":%q,`, state[:len(state)-2]+"AA"))), notAState},
		"no state at all":   {c.do(call("2", `"inputResponses":{},"requestState":"x",`)), notAState},
		"a number":          {c.do(call("2", `"inputResponses":{},"requestState":7,`)), "requestState"},
		"an empty state":    {c.do(call("2", `"inputResponses":{},"requestState":"",`)), "requestState"},
		"answers alone":     {c.do(call("2", `"inputResponses":{},`)), "without the requestState"},
		"answers in a list": {c.do(call("2", fmt.Sprintf(`"inputResponses":[],"requestState":%q,`, state))), "not an object"},
		"an answer of text": {c.do(call("2", fmt.Sprintf(`"inputResponses":{"q1":"yes"},"requestState":%q,`, state))), "not an object"},
		"a foreign fleet's": {c.do(call("2", fmt.Sprintf(`"requestState":%q,`, seal.New().Seal(purpose, []byte("{}"), nil)))), notHeld},
		"another purpose":   {c.do(call("2", fmt.Sprintf(`"requestState":%q,`, s.sealer.Seal("cursor", []byte("{}"), nil)))), notAState},
	} {
		r.got.want(t, 200, `"id":2`, `-32602`, r.want)
		if t.Failed() {
			t.Fatalf("that was %s", name)
		}
	}
	if n := f.count(`"result":{"action"`); n != 0 || held.ended() {
		t.Fatalf("the server got %d answers, and the call is over: %v", n, held.ended())
	}
	// The arguments need not be written as before.
	done := make(chan reply, 1)
	go func() {
		done <- c.do(c.call("3", mcp.MethodToolsCall, `"arguments" : {"b" :[2], "a":1},"name":"\u0074",`+q.retry(accepted)))
	}()
	eventually(t, "the answer is there", func() bool { return f.count(`"id":1,"result":{"action":"accept","content":{}}`) == 1 })
	held.result("yes")
	(<-done).want(t, 200, `"id":3`, "yes")
}

func TestMissingAnswersRepeatTheQuestionAndExtraOnesAreIgnored(t *testing.T) {
	f, calls := asking(elicit(`"a"`, "one"), elicit(`7`, "two"), `{"jsonrpc":"2.0","id":8,"method":"roots/list"}`)
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "t", "x", "")))
	if len(q.Result.InputRequests) != 3 || q.Result.InputRequests["q3"].Method != mcp.MethodRootsList {
		t.Fatalf("asked %+v, want the three that came together", q.Result.InputRequests)
	}
	held := <-calls
	again := questions(t, c.do(c.tool("2", "t", "x", q.retry(`{"q2":{"action":"decline"},"q9":{"action":"accept"}}`))))
	if len(again.Result.InputRequests) != 2 || again.Result.RequestState == q.Result.RequestState {
		t.Fatalf("asked again %+v, want the two that are missing, with a fresh state", again.Result)
	}
	if f.count(`"id":7,"result":{"action":"decline"}`) != 1 || f.count(`"action":"accept"`) != 0 {
		t.Errorf("the server was told %s", f.said)
	}
	third := questions(t, c.do(c.tool("3", "t", "x", again.retry(`{}`))))
	if len(third.Result.InputRequests) != 2 {
		t.Fatalf("asked a third time %+v", third.Result)
	}
	done := make(chan reply, 1)
	go func() {
		done <- c.do(c.tool("4", "t", "x", third.retry(`{"q1":{"action":"accept"},"q3":{"roots":[]}}`)))
	}()
	eventually(t, "all is answered", func() bool {
		return f.count(`"id":"a","result":{"action":"accept"}`) == 1 && f.count(`"id":8,"result":{"roots":[]}`) == 1
	})
	held.result("fine")
	(<-done).want(t, 200, "fine", `"id":4`)
	nothingInUse(t, s)
}

// The states of a call: s1, answered, then s2. Nothing is ever run or answered twice.
func TestAStateWorksOnceAndItsAnswerCanBeAskedForAgain(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	s1 := questions(t, c.do(c.tool("1", "t", "x", "")))
	held := <-calls
	held.feed <- elicit("2", "two")
	s2 := questions(t, c.do(c.tool("2", "t", "x", s1.retry(accepted))))

	// Its answer got lost: the same question again, whatever the answers are now.
	again := questions(t, c.do(c.tool("3", "t", "x", s1.retry(`{"q1":{"action":"decline"},"q2":{"action":"decline"}}`))))
	if _, ok := again.Result.InputRequests["q2"]; !ok || len(again.Result.InputRequests) != 1 {
		t.Fatalf("asked %+v, want the second question", again.Result)
	}
	if f.count("decline") != 0 {
		t.Fatalf("answers of a repeated retry reached the server: %s", f.said)
	}

	// Two retries with one state, at once: the later one gets the result.
	first, second := make(chan reply, 1), make(chan reply, 1)
	go func() { first <- c.do(c.tool("4", "t", "x", s2.retry(`{"q2":{"action":"accept"}}`))) }()
	eventually(t, "the second question is answered", func() bool { return f.count(`"id":2,"result":{"action":"accept"}`) == 1 })
	go func() { second <- c.do(c.tool("5", "t", "x", s2.retry(`{"q2":{"action":"accept"}}`))) }()
	(<-first).want(t, 200, `"id":4`, "-32602", "another request")
	c.do(c.tool("6", "t", "x", s1.retry(accepted))).want(t, 200, "-32602", usedBefore)
	held.result("done")
	(<-second).want(t, 200, `"id":5`, "done")

	c.do(c.tool("7", "t", "x", s2.retry(accepted))).want(t, 200, "-32602", notHeld)
	if n := f.count("tools/call"); n != 1 {
		t.Errorf("the call was made %d times, want once", n)
	}
	nothingInUse(t, s)
}

func TestACallWhoseClientStaysAwayIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, calls := asking(elicit("1", "one"), `{"jsonrpc":"2.0","id":2,"method":"roots/list"}`)
		s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.HeldTimeout = durationpb.New(time.Minute) }))
		c := newClient(t, s, "ann", everything)
		q := questions(t, c.do(c.tool("1", "t", "x", "")))
		held := <-calls
		time.Sleep(time.Minute - time.Millisecond)
		synctest.Wait()
		if held.ended() || s.heldForTest() != 1 {
			t.Fatal("the call was given up too early")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !held.ended() || s.heldForTest() != 0 {
			t.Error("the call was not cancelled")
		}
		if f.count(`"id":1,"result":{"action":"cancel"}`) != 1 || f.count(`"id":2,"error":{`) != 1 {
			t.Errorf("the server was told %s", f.said)
		}
		c.do(c.tool("2", "t", "x", q.retry(accepted))).want(t, 200, "-32602", "start")
		time.Sleep(time.Hour)
		c.do(c.tool("2", "t", "x", q.retry(accepted))).want(t, 200, "-32602", tooLate)
		nothingInUse(t, s)
	})
}

func TestACallCannotAskForever(t *testing.T) {
	f, calls := asking(elicit("1", "again"))
	s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.MaxRounds = 2 }))
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "t", "x", "")))
	held := <-calls
	held.feed <- elicit("2", "again")
	q = questions(t, c.do(c.tool("2", "t", "x", q.retry(accepted))))
	held.feed <- elicit("3", "again")
	_, err := s.Call(testContext(t), c.tool("3", "t", "x", q.retry(`{"q2":{}}`)))
	wantKind(t, err, upstream.Overloaded)
	eventually(t, "the call is cancelled", held.ended)
	nothingInUse(t, s)
}

func TestHeldCallsAreBoundedAndOfOneCallerToHalfOfThat(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.MaxHeldCalls = 4 }))
	var last asked
	for _, c := range []struct{ principal, refused string }{
		{"ann", ""}, {"ann", ""}, {"ann", tooManyOwn}, {"", ""}, {"bob", ""}, {"bob", tooManyHeld},
	} {
		caller := newClient(t, s, c.principal, everything)
		if c.refused == "" {
			last = questions(t, caller.do(caller.tool("1", "t", "x", "")))
			<-calls
			continue
		}
		_, err := s.Call(testContext(t), caller.tool("1", "t", "x", ""))
		if wantKind(t, err, upstream.Overloaded); !strings.Contains(err.Error(), c.refused) {
			t.Errorf("one more call of %q: %v, want %q", c.principal, err, c.refused)
		}
		eventually(t, "that call is cancelled", (<-calls).ended)
	}
	if n := s.heldForTest(); n != 4 {
		t.Errorf("%d held calls, want 4", n)
	}
	// Whoever is done has room again.
	bob := newClient(t, s, "bob", everything)
	ctx, leave := context.WithCancel(testContext(t))
	leave()
	_, _ = s.Call(ctx, bob.tool("2", "t", "x", last.retry(accepted)))
	eventually(t, "the call that was left is over", func() bool { return s.heldForTest() == 3 })
	questions(t, bob.do(bob.tool("1", "t", "x", "")))
}

func TestQuestionsThatAreTooMuchEndTheCall(t *testing.T) {
	big := elicit("1", strings.Repeat("x", maxKept))
	for name, messages := range map[string][]string{
		"many": func() (all []string) {
			for i := range maxQuestions + 1 {
				all = append(all, elicit(fmt.Sprint(i), "q"))
			}
			return all
		}(),
		"large": {big, big, big},
	} {
		t.Run(name, func(t *testing.T) {
			f, calls := asking(messages...)
			s := newBridge(t, f)
			c := newClient(t, s, "ann", everything)
			_, err := s.Call(testContext(t), c.tool("1", "t", "x", ""))
			wantKind(t, err, upstream.Overloaded)
			eventually(t, "the call is cancelled", (<-calls).ended)
			nothingInUse(t, s)
		})
	}
}

func TestAnAnswerThatComesWhileNobodyWaitsIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want string
	}{"a small one": {"early", "early"}, "a large one": {strings.Repeat("x", maxKept), ""}} {
		t.Run(name, func(t *testing.T) {
			f, calls := asking(elicit("1", "one"))
			s := newBridge(t, f)
			ann := newClient(t, s, "ann", everything)
			q := questions(t, ann.do(ann.tool("1", "t", "x", "")))
			held := <-calls
			held.feed <- `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
			held.result(c.text)
			eventually(t, "the answer is known", func() bool { return isSettled(s) })
			a, err := s.Call(testContext(t), ann.tool("2", "t", "x", q.retry(accepted)))
			if c.want == "" {
				wantKind(t, err, upstream.Overloaded)
			} else {
				got(t, a, err).want(t, 200, `"id":2`, c.want)
			}
			if f.count(`"action"`) != 0 {
				t.Error("a question that was taken back was answered")
			}
			nothingInUse(t, s)
		})
	}
}

func TestALostServerEndsTheHeldCall(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "t", "x", "")))
	(<-calls).Close()
	eventually(t, "the loss is known", func() bool { return isSettled(s) })
	_, err := s.Call(testContext(t), c.tool("2", "t", "x", q.retry(accepted)))
	wantKind(t, err, upstream.Lost)
	c.do(c.tool("3", "t", "x", q.retry(accepted))).want(t, 200, "-32602", notHeld)
	if n := f.count("tools/call"); n != 1 {
		t.Errorf("the call was made %d times, want once", n)
	}
}

// isSettled reports whether the server is done with a call that is held.
func isSettled(s *Server) bool {
	s.held.mu.Lock()
	var all []*call
	for _, k := range s.held.byID {
		all = append(all, k)
	}
	s.held.mu.Unlock()
	for _, k := range all {
		k.mu.Lock()
		settled := k.outcome != nil
		k.mu.Unlock()
		if settled {
			return true
		}
	}
	return false
}

func TestALeavingRetryCancelsTheCall(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "t", "x", "")))
	held := <-calls
	ctx, leave := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, c.tool("2", "t", "x", q.retry(accepted)))
		done <- err
	}()
	eventually(t, "the answer is there", func() bool { return f.count(`"action":"accept"`) == 1 })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the retry ended with %v", err)
	}
	eventually(t, "the call is cancelled", held.ended)
	nothingInUse(t, s)
}

func TestWhatNobodyDeclaredIsRefusedInTheMiddleOfACallToo(t *testing.T) {
	for question, lacking := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`:                                         `{"roots":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`:                 `{"sampling":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"mode":"form"}}`:        `{"elicitation":{"form":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"mode":"\u0075rl"}}`:    `{"elicitation":{"url":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"tools":[],"x":1}}`: `{"sampling":{"tools":{}}}`,
	} {
		f, calls := asking(question)
		s := newBridge(t, f)
		c := newClient(t, s, "ann", `{}`)
		c.do(c.tool("1", "t", "x", "")).want(t, 400, `"id":1`, `-32021`, `"requiredCapabilities":`+lacking)
		eventually(t, "the call is cancelled", (<-calls).ended)
		if f.count(`"id":1,"error"`) != 1 {
			t.Errorf("%s: the server was told %s", question, f.said)
		}
		nothingInUse(t, s)
	}
}

func TestPingsAreAnsweredAndWhatIsUnknownIsNot(t *testing.T) {
	f, calls := asking(`{"jsonrpc":"2.0","id":"p","method":"ping"}`, `{"jsonrpc":"2.0","id":"u","method":"acme/do"}`,
		`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"stranger","progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}`)
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	done := make(chan reply, 1)
	go func() { done <- c.do(c.tool("1", "t", "x", "")) }()
	(<-calls).result("done")
	r := <-done
	if r.want(t, 200, "done"); len(r.before) != 0 {
		t.Errorf("the client got %q before the response", r.before)
	}
	if f.count(`"id":"p","result":{}`) != 1 || f.count(`"id":"u","error":{"code":-32601`) != 1 {
		t.Errorf("the server was told %s", f.said)
	}
}

// A server that answers in JSON can say nothing before, except aside.
func TestAQuestionAsideIsTheOneCallsThatIsInFlight(t *testing.T) {
	f, e := streaming(t)
	begun, end := make(chan struct{}, 2), make(chan struct{})
	f.call = func(ctx context.Context, s *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		begun <- struct{}{}
		select {
		case <-end:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"answered":true}}`, m.ID.Of(m.Raw))), nil
	}
	s := newBridge(t, f)
	c := newClient(t, s, "ann", everything)
	done := make(chan reply, 2)
	go func() { done <- c.do(c.tool("1", "t", "x", "")) }()
	<-begun
	e.feed <- elicit("1", "aside")
	q := questions(t, <-done)

	go func() { done <- c.do(c.tool("2", "t", "y", "")) }() // now there are two
	<-begun
	e.feed <- elicit("2", "whose?")
	eventually(t, "the second question is refused", func() bool { return f.count(`"id":2,"error":{"code":-32601`) == 1 })

	go func() { done <- c.do(c.tool("3", "t", "x", q.retry(accepted))) }()
	eventually(t, "the answer is there", func() bool { return f.count(`"id":1,"result":{"action":"accept"`) == 1 })
	close(end)
	for range 2 {
		(<-done).want(t, 200, `"answered":true`)
	}
	nothingInUse(t, s)
	e.feed <- elicit("3", "nobody?")
	eventually(t, "the third question is refused", func() bool { return f.count(`"id":3,"error":{"code":-32601`) == 1 })

	// What comes now may be the question of a call that was just given up.
	end = make(chan struct{})
	ctx, leave := context.WithCancel(testContext(t))
	go func() {
		_, _ = s.Call(ctx, c.tool("4", "t", "left", ""))
		done <- reply{}
	}()
	<-begun
	leave()
	<-done
	nothingInUse(t, s)
	go func() { done <- c.do(c.tool("5", "t", "next", "")) }()
	<-begun
	e.feed <- elicit("4", "of the one that left")
	eventually(t, "the fourth question is refused", func() bool { return f.count(`"id":4,"error":{"code":-32601`) == 1 })
	close(end)
	(<-done).want(t, 200, `"answered":true`)
}

// peers are sidecars by their addresses.
type peers map[string]*Server

func (p peers) Resume(ctx context.Context, h Holder, r *outriggerv1.ResumeRequest) (upstream.EventStream, error) {
	s := p[h.Address]
	if s == nil {
		return nil, errors.New("nobody there")
	}
	a, err := s.Resume(ctx, r)
	if err != nil {
		return nil, err
	}
	if a.Events != nil {
		return a.Events, nil
	}
	defer a.Close()
	answer, err := readReply(a)
	e := newScript(ctx, answer.last)
	close(e.feed)
	return e, err
}

func TestARetryFindsItsCallFromAnotherSidecar(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	sealer, fleet := seal.New(), peers{}
	join := func(id string) *Server {
		s := newBridge(t, f, func(o *Options) {
			o.Sealer, o.Holder, o.Peers = sealer, Holder{ID: id, Address: id + ":1"}, fleet
		})
		fleet[id+":1"] = s
		return s
	}
	a, b := join("a"), join("b")
	ann, annAtB := newClient(t, a, "ann", everything), newClient(t, b, "ann", everything)
	ann.meta = `"progressToken":1,`
	annAtB.meta = `"progressToken":"p",`
	q := questions(t, ann.do(ann.tool("1", "t", "x", "")))
	held := <-calls
	held.feed <- elicit("2", "two")
	q = questions(t, annAtB.do(annAtB.tool(`"2"`, "t", "x", q.retry(accepted))))
	done := make(chan reply, 1)
	go func() { done <- annAtB.do(annAtB.tool(`"3"`, "t", "x", q.retry(`{"q2":{"action":"accept"}}`))) }()
	eventually(t, "the second answer is there", func() bool { return f.count(`"id":2,"result"`) == 1 })
	held.feed <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, held.id)
	held.result("done")
	r := <-done
	if r.want(t, 200, `"id":"3"`, "done"); len(r.before) != 1 || !strings.Contains(r.before[0], `"progressToken":"p"`) {
		t.Errorf("before the response: %q, want progress with the retry's token", r.before)
	}
	bob := newClient(t, b, "bob", everything)
	bob.do(bob.tool("4", "t", "x", q.retry(accepted))).want(t, 200, notThisOwner)
	aside := newClient(t, b, "ann", everything)
	aside.binding = "aside"
	aside.do(aside.tool("4", "t", "x", q.retry(accepted))).want(t, 200, notAState)
	annAtB.do(annAtB.tool("5", "t", "x", q.retry(accepted))).want(t, 200, "-32602", notHeld)

	// The holder dies: nothing is run again.
	q = questions(t, ann.do(ann.tool("6", "t", "y", "")))
	delete(fleet, "a:1")
	annAtB.do(annAtB.tool("7", "t", "y", q.retry(accepted))).want(t, 200, "-32602", heldFarAway)
	restarted := join("a")
	annAtB.do(annAtB.tool("8", "t", "y", q.retry(accepted))).want(t, 200, "-32602", notHeld)
	alone := newBridge(t, f, func(o *Options) { o.Sealer, o.Holder = sealer, Holder{ID: "c"} })
	lonely := newClient(t, alone, "ann", everything)
	lonely.do(lonely.tool("9", "t", "y", q.retry(accepted))).want(t, 200, "-32602", heldFarAway)
	if n := f.count("tools/call"); n != 2 {
		t.Errorf("the two calls were made %d times", n)
	}
	for _, s := range []*Server{b, restarted, alone} {
		nothingInUse(t, s)
	}
}

func TestALeavingRetryCancelsTheCallAtAnotherSidecar(t *testing.T) {
	f, calls := asking(elicit("1", "one"))
	sealer, fleet := seal.New(), peers{}
	a := newBridge(t, f, func(o *Options) { o.Sealer, o.Holder = sealer, Holder{ID: "a", Address: "a"} })
	fleet["a"] = a
	b := newBridge(t, f, func(o *Options) { o.Sealer, o.Holder, o.Peers = sealer, Holder{ID: "b"}, fleet })
	ann, annAtB := newClient(t, a, "ann", everything), newClient(t, b, "ann", everything)
	q := questions(t, ann.do(ann.tool("1", "t", "x", "")))
	held := <-calls
	ctx, leave := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() {
		_, err := b.Call(ctx, annAtB.tool("2", "t", "x", q.retry(accepted)))
		done <- err
	}()
	eventually(t, "the answer is there", func() bool { return f.count(`"action":"accept"`) == 1 })
	leave()
	<-done
	eventually(t, "the call is cancelled", held.ended)
	nothingInUse(t, a)
}

func TestRequiredURLsEndToo(t *testing.T) {
	f := &fake{call: func(_ context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"log in","data":`+
			`{"elicitations":[{"url":"https://a","message":"m","elicitationId":"e"}]}}}`, m.ID.Of(m.Raw))), nil
	}}
	s := newBridge(t, f, bridge(func(b *outriggerv1.Bridge) { b.MaxRounds = 2 }))
	c := newClient(t, s, "ann", everything)
	answer := c.do(c.tool("1", "t", "x", ""))
	for range 1 {
		answer = c.do(c.tool("2", "t", "x", questions(t, answer).retry(accepted)))
	}
	_, err := s.Call(testContext(t), c.tool("3", "t", "x", questions(t, answer).retry(accepted)))
	wantKind(t, err, upstream.Overloaded)
	c.do(c.call("4", mcp.MethodComplete, "")).want(t, 200, "-32603") // which cannot ask
}

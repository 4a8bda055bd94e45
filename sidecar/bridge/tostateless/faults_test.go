package tostateless

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const progressed = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`

func TestAStreamThatBreaksIsAFailureOfTheServer(t *testing.T) {
	lost := &upstream.Error{Kind: upstream.Lost, Upstream: "new", Detail: "the connection broke", Status: 502}
	tests := []struct {
		name  string
		end   func(*events) upstream.EventStream
		kinds upstream.Kind
	}{
		{"ends without its response", func(e *events) upstream.EventStream { close(e.feed); return e }, upstream.Lost},
		{"breaks", func(e *events) upstream.EventStream { close(e.feed); return failing{e, lost} }, upstream.Lost},
		{"answers with no result", func(e *events) upstream.EventStream {
			e.feed <- `{"jsonrpc":"2.0","id":1,"result":{"resultType":"x"}}`
			return e
		}, upstream.BadAnswer},
		{"answers with what is no message", func(e *events) upstream.EventStream { e.feed <- `{"result":`; return e }, upstream.BadAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stream *events
			f := &fake{script: func(s sent) (*upstream.Answer, error) {
				stream = newEvents(s.ctx, progressed)
				return &upstream.Answer{Status: 200, Length: -1, Events: tt.end(stream)}, nil
			}}
			c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
			out := c.start(testContext(t), `1`, mcp.MethodToolsCall, `{"name":"x"}`)
			if got := next(t, out); got != progressed {
				t.Errorf("first came %s", got)
			}
			for range 2 {
				_, err := out.Next()
				var e *upstream.Error
				if !errors.As(err, &e) || e.Kind != tt.kinds || e.Status != 0 {
					t.Errorf("got %v, want %s without a status", err, tt.kinds.Reason())
				}
			}
			out.Close()
			if !stream.isClosed() {
				t.Error("the server's stream is left open")
			}
		})
	}
}

// failing is a stream that ends with an error.
type failing struct {
	*events
	err error
}

func (f failing) Next() (mcp.Event, error) {
	ev, err := f.events.Next()
	if err != nil {
		err = f.err
	}
	return ev, err
}

func TestARefusalForHeadersInAStreamIsCuredToo(t *testing.T) {
	f := &fake{}
	f.script = func(s sent) (*upstream.Answer, error) {
		switch {
		case s.Method == mcp.MethodToolsList:
			return newEvents(s.ctx, progressed, `{"jsonrpc":"2.0","id":`+s.id()+`,"result":{"resultType":"complete","tools":[{"name":"x",`+
				`"inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}}]}}`).answer(), nil
		case s.header.Get("Mcp-Param-A") != "v":
			return newEvents(s.ctx, `{"jsonrpc":"2.0","id":`+s.id()+`,"error":{"code":-32020,"message":"no"}}`).answer(), nil
		}
		return ask(`{"k":{"method":"roots/list"}}`, func(s sent) (*upstream.Answer, error) {
			return s.result(`{"resultType":"complete","headers":"` + s.header.Get("Mcp-Param-A") + `"}`), nil
		})(s)
	}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	out := c.start(testContext(t), `1`, mcp.MethodToolsCall, `{"name":"x","arguments":{"a":"v"}}`)
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, readAsking(t, next(t, out)).ID))
	if got := next(t, out); got != `{"jsonrpc":"2.0","id":1,"result":{"headers":"v"}}` {
		t.Errorf("got %s, want the header on the retry too", got)
	}
}

func TestAnErrorAfterAQuestionIsTheAnswer(t *testing.T) {
	f := &fake{script: ask(`{"k":{"method":"roots/list"}}`, func(s sent) (*upstream.Answer, error) { return s.error(-32021, ""), nil })}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	out := c.start(testContext(t), `"x"`, mcp.MethodToolsCall, `{"name":"x"}`)
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, readAsking(t, next(t, out)).ID))
	if got := next(t, out); got != `{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"said the server"}}` {
		t.Errorf("got %s", got)
	}
}

// Each client's questions, answers and results are its own, whatever runs beside it.
func TestInterleavedQuestionsReachTheirOwners(t *testing.T) {
	f := &fake{}
	f.script = func(s sent) (*upstream.Answer, error) {
		if s.param("inputResponses") != "" {
			return s.result(`{"resultType":"complete","arguments":` + string(s.Arguments.Of(s.Raw)) + `,"said":` + s.param("inputResponses") +
				`,"state":` + s.param("requestState") + `}`), nil
		}
		owner := string(s.Arguments.Of(s.Raw))
		return newEvents(s.ctx, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":`+owner+`}}`,
			`{"jsonrpc":"2.0","id":`+s.id()+`,"result":{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create",`+
				`"params":{"message":`+owner+`}}},"requestState":"state"}}`).answer(), nil
	}
	s := newBridge(t, f)
	var wait sync.WaitGroup
	for i := range 50 {
		c := connect(t, s, "2025-11-25", allCapabilities)
		for j := range 4 {
			wait.Go(func() {
				owner := fmt.Sprintf(`{"owner":"%d/%d"}`, i, j)
				a, err := c.session.Call(testContext(t), requestCall(t, fmt.Sprint(j), mcp.MethodToolsCall, `{"name":"x","arguments":`+owner+`}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer a.Close()
				var all []string
				for {
					e, err := a.Events.Next()
					if err != nil {
						break
					}
					all = append(all, string(e.Data))
					if q := string(e.Data); strings.Contains(q, "elicitation/create") {
						id, _, _ := strings.Cut(q[len(`{"jsonrpc":"2.0","id":`):], ",")
						c.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"action":"accept","content":` + owner + `}}`)
					}
				}
				want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"arguments":%s,"said":{"q":{"action":"accept","content":%[2]s}},"state":"state"}}`, j, owner)
				if len(all) != 3 || all[2] != want || !strings.Contains(all[0], owner) || !strings.Contains(all[1], owner) {
					t.Errorf("%s got %q\nwant at last %s", owner, all, want)
				}
			})
		}
	}
	wait.Wait()
	for session := range s.sessions {
		if n := len(session.calls) + len(session.questions); n > 0 {
			t.Errorf("%d calls and questions are left", n)
		}
	}
}

func TestAnotherSessionsAnswerIsNobodys(t *testing.T) {
	f := &fake{script: ask(`{"k":{"method":"roots/list"}}`, done)}
	s := newBridge(t, f)
	c, other := connect(t, s, "2025-11-25", allCapabilities), connect(t, s, "2025-11-25", allCapabilities)
	out := c.start(testContext(t), `1`, mcp.MethodToolsCall, `{"name":"x"}`)
	id := readAsking(t, next(t, out)).ID
	other.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":["stolen"]}}`, id))
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":["own"]}}`, id))
	response{200, next(t, out), nil}.has(t, `"own"`)
}

func TestMuchAtATimeIsRefused(t *testing.T) {
	var many []string
	for i := range maxQuestions + 1 {
		many = append(many, fmt.Sprintf(`"%d":{"method":"roots/list"}`, i))
	}
	f := &fake{script: ask(`{`+strings.Join(many, ",")+`}`, done)}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	if _, err := c.session.Call(testContext(t), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`)); err == nil {
		t.Error("a client was asked more than the bound at a time")
	}
	l := newListening()
	c = connect(t, newBridge(t, l), "2025-11-25", `{}`)
	session := c.session.(*session)
	for i := range maxSubscriptions {
		session.feed.uris = append(session.feed.uris, fmt.Sprint(i))
	}
	c.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"one more"}`).has(t, `-32603`)
}

func TestAClosedSessionSubscribesToNothing(t *testing.T) {
	l := newListening()
	c := connect(t, newBridge(t, l), "2025-11-25", `{}`)
	out := c.listen()
	if err := c.session.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	if _, err := out.Next(); err == nil {
		t.Error("the stream outlives the session")
	}
	for _, method := range []string{mcp.MethodResourcesSubscribe, mcp.MethodToolsCall} {
		if _, err := c.session.Call(context.Background(), requestCall(t, `1`, method, `{"uri":"a","name":"a"}`)); err == nil {
			t.Errorf("%s works in a closed session", method)
		}
	}
	if _, err := c.session.Listen(context.Background()); err == nil {
		t.Error("a closed session has a stream")
	}
}

// BenchmarkCall is what the bridge costs a call, beside the server's own time.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{200, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			text := strings.Repeat("x", size)
			body := []byte(`{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[{"type":"text","text":"` + text + `"}]}}`)
			s := newBridge(b, fixed(body))
			session := newSession(s, &upstream.Call{}, "2025-11-25", metaMembers([]byte(`{"name":"old","version":"1"}`), []byte(allCapabilities)), declared{}, offered{})
			c := requestCall(b, `7`, mcp.MethodToolsCall, `{"name":"echo","arguments":{"text":"hello"},"_meta":{"progressToken":1}}`)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				a, err := session.Call(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				a.Close()
			}
		})
	}
}

// fixed is a server that answers everything with the same bytes.
type fixed []byte

func (fixed) Eras(context.Context) (mcp.Eras, error) { return mcp.EraSet(mcp.Stateless), nil }
func (f fixed) Call(context.Context, *upstream.Call) (*upstream.Answer, error) {
	return upstream.Whole(200, f), nil
}
func (fixed) Open(context.Context, *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	return nil, nil, upstream.ErrNoStream
}
func (fixed) Check(context.Context) error { return nil }
func (fixed) Close(context.Context) error { return nil }

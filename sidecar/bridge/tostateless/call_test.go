package tostateless

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestInitializeIsAnsweredFromDiscovery(t *testing.T) {
	f := &fake{discover: `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"tasks":{},` +
		`"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{"n":9007199254740993}}},"instructions":"Use \u0069t.",` +
		`"ttlMs":60000,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new","version":"9","x":1},"dev.outrigger/partialFailure":[{"upstream":"a"}]}}`}
	s := newBridge(t, f)
	for range 3 {
		c := connect(t, s, "2025-11-25", allCapabilities)
		want := `{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},` +
			`"extensions":{"io.modelcontextprotocol/ui":{"n":9007199254740993}}},"serverInfo":{"name":"new","version":"9","x":1},` +
			`"instructions":"Use \u0069t.","_meta":{"dev.outrigger/partialFailure":[{"upstream":"a"}]}}}`
		if c.opened != want {
			t.Errorf("got  %s\nwant %s", c.opened, want)
		}
	}
	if n := len(f.calls(mcp.MethodDiscover)); n != 1 {
		t.Errorf("discovery was asked for %d times, want once within its ttl", n)
	}
	connect(t, s, "2025-11-25", `{}`)
	if n := len(f.calls(mcp.MethodDiscover)); n != 2 {
		t.Errorf("discovery was asked for %d times, want once for each set of capabilities", n)
	}
}

func TestAServerWithoutANameGetsOne(t *testing.T) {
	c := connect(t, newBridge(t, &fake{discover: `{"supportedVersions":["2026-07-28"],"capabilities":{}}`}), "2025-06-18", `{}`)
	if want := `"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"outrigger","version":"test"}}`; !strings.Contains(c.opened, want) {
		t.Errorf("got %s, want %s in it", c.opened, want)
	}
}

func TestARequestGetsWhatTheStatelessWireAsksFor(t *testing.T) {
	f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(`{"resultType":"complete","content":[]}`), nil }}
	c := connect(t, newBridge(t, f), "2025-11-25", `{"sampling":{"tools":{}},"tasks":{"list":{}},"experimental":{"a":1}}`)
	tests := []struct{ name, params, want string }{
		{"no params", ``, `{"_meta":{META}}`},
		{"empty params", `{}`, `{"_meta":{META}}`},
		{"no _meta", `{"name":"a", "arguments":{"n":9007199254740993,"n":null}}`, `{"name":"a", "arguments":{"n":9007199254740993,"n":null},"_meta":{META}}`},
		{"empty _meta", `{"_meta":{},"name":"a"}`, `{"_meta":{META},"name":"a"}`},
		{"_meta of its own", `{"_meta":{"progressToken":7, "x/y":{"z":1.0}},"name":"a"}`, `{"_meta":{"progressToken":7,"x/y":{"z":1.0},META},"name":"a"}`},
		{"forged _meta", `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/logLevel":"debug","a":1},"name":"a"}`,
			`{"_meta":{"a":1,META},"name":"a"}`},
		{"a task", `{"task":{"ttl":1},"name":"a","requestState":"x","inputResponses":{},"more":[1 , 2]}`, `{"name":"a","more":[1 , 2],"_meta":{META}}`},
	}
	meta := `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"old","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{"sampling":{"tools":{}},"experimental":{"a":1}}`
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			method := mcp.MethodToolsCall
			if !strings.Contains(tt.params, "name") {
				method = mcp.MethodToolsList
			}
			before := len(f.calls(method))
			c.do(`7`, method, tt.params).is(t, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
			got := f.calls(method)[before]
			if want := strings.ReplaceAll(tt.want, "META", meta); string(got.Params.Of(got.Raw)) != want {
				t.Errorf("got  %s\nwant %s", got.Params.Of(got.Raw), want)
			}
			for name, want := range map[string]string{"Mcp-Method": method, "Mcp-Param-Forged": "", "Authorization": "", "Traceparent": "00-1", "Via": "1.1 a"} {
				if got := got.header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got.principal != "me" {
				t.Errorf("principal %q", got.principal)
			}
		})
	}
}

func TestCapabilitiesAreThoseOfTheClientsVersion(t *testing.T) {
	all := `{"roots":{"listChanged":true},"sampling":{"tools":{},"context":{}},"elicitation":{"url":{}},"tasks":{},` +
		`"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{}},"x":{"y":1}}`
	tests := []struct{ version, declared, want string }{
		{"2025-11-25", all, `{"roots":{},"sampling":{"tools":{},"context":{}},"elicitation":{"url":{}},"extensions":{"a/b":{}},"x":{"y":1}}`},
		{"2025-06-18", all, `{"roots":{},"sampling":{},"elicitation":{"form":{}},"extensions":{"a/b":{}},"x":{"y":1}}`},
		{"2025-03-26", all, `{"roots":{},"sampling":{},"extensions":{"a/b":{}},"x":{"y":1}}`},
		{"2025-11-25", `{"elicitation":{}}`, `{"elicitation":{}}`},
		{"2025-11-25", `{"elicitation":null,"roots":true}`, `{}`},
		{"2025-11-25", `null`, `{}`},
	}
	for _, tt := range tests {
		f := &fake{}
		connect(t, newBridge(t, f), tt.version, tt.declared)
		if got := f.calls(mcp.MethodDiscover)[0].meta(mcp.MetaKeyClientCapabilities); got != tt.want {
			t.Errorf("%s with %s: server was told %s, want %s", tt.version, tt.declared, got, tt.want)
		}
	}
}

func TestWhatASessionAnswersItself(t *testing.T) {
	f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(`{}`), nil }}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	c.do(`"p"`, mcp.MethodPing, ``).is(t, `{"jsonrpc":"2.0","id":"p","result":{}}`)
	for _, method := range []string{
		mcp.MethodInitialize, mcp.MethodDiscover, mcp.MethodListen, mcp.MethodTasksGet, mcp.MethodTasksList, mcp.MethodTasksResult,
		mcp.MethodTasksCancel, mcp.MethodTasksUpdate,
	} {
		c.do(`1`, method, `{"taskId":"t"}`).has(t, `"code":-32601`, `"id":1`)
	}
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`)
	c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
	c.say(`{"jsonrpc":"2.0","id":4,"result":{}}`)
	if n := len(f.got); n != 1 {
		t.Errorf("the server got %d requests, want discovery alone", n)
	}
}

func TestTheLogLevelGoesWithEveryLaterRequest(t *testing.T) {
	f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(`{}`), nil }}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	c.tool(`1`, "a", `{}`)
	c.do(`2`, mcp.MethodSetLevel, `{"level":"loud"}`).has(t, `"code":-32602`)
	c.do(`3`, mcp.MethodSetLevel, ``).has(t, `"code":-32602`)
	c.do(`4`, mcp.MethodSetLevel, `{"level":"warning"}`).is(t, `{"jsonrpc":"2.0","id":4,"result":{}}`)
	c.tool(`5`, "a", `{}`)
	calls := f.calls(mcp.MethodToolsCall)
	if got := calls[0].meta(mcp.MetaKeyLogLevel) + " " + calls[1].meta(mcp.MetaKeyLogLevel); got != ` "warning"` {
		t.Errorf("log levels %q", got)
	}
	silent := connect(t, newBridge(t, &fake{discover: `{"capabilities":{}}`}), "2025-11-25", `{}`)
	silent.do(`1`, mcp.MethodSetLevel, `{"level":"info"}`).has(t, `"code":-32601`)
	silent.do(`1`, mcp.MethodResourcesSubscribe, `{"uri":"a"}`).has(t, `"code":-32601`)
}

func TestErrorsOfTheStatelessWireAreTranslated(t *testing.T) {
	for code, want := range map[int]int{
		-32020: -32603, -32021: -32602, -32022: -32603, -32601: -32601, -32602: -32602, -32603: -32603, 7: 7,
	} {
		f := &fake{script: func(s sent) (*upstream.Answer, error) {
			if s.Method == mcp.MethodToolsList {
				return s.result(`{"tools":[]}`), nil
			}
			return s.error(code, `,"data":{"n":9007199254740993}`), nil
		}}
		c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
		c.tool(`"7"`, "a", `{}`).is(t, fmt.Sprintf(
			`{"jsonrpc":"2.0","id":"7","error":{"code":%d,"message":"said the server","data":{"n":9007199254740993}}}`, want))
	}
}

func TestAFailureHasNoStatusThatMeansAnotherThingToASession(t *testing.T) {
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		return nil, &upstream.Error{Kind: upstream.BadAnswer, Upstream: "new", Detail: "answered 404 without a JSON-RPC error", Status: 404}
	}}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	_, err := c.session.Call(testContext(t), requestCall(t, `1`, mcp.MethodToolsList, ``))
	if e, ok := err.(*upstream.Error); !ok || e.Status != 0 || e.Kind != upstream.BadAnswer {
		t.Errorf("got %#v, want the error without its status", err)
	}
}

// ask answers the first call with input_required, and hands retries to then.
func ask(requests string, then func(sent) (*upstream.Answer, error)) func(sent) (*upstream.Answer, error) {
	return func(s sent) (*upstream.Answer, error) {
		if s.param("inputResponses") == "" && s.param("requestState") == "" {
			return s.result(`{"resultType":"input_required","inputRequests":` + requests + `,"requestState":"st\u0061te"}`), nil
		}
		return then(s)
	}
}

func done(s sent) (*upstream.Answer, error) {
	return s.result(`{"resultType":"complete","content":[],"said":` + s.param("inputResponses") + `,"state":` + s.param("requestState") + `}`), nil
}

func TestQuestionsBecomeRequestsAndTheirAnswersTheRetry(t *testing.T) {
	f := &fake{script: ask(`{"a":{"method":"elicitation/create","params":{"message":"?","n":9007199254740993}},"b":{"method":"roots/list"},`+
		`"c":{"method":"sampling/createMessage","params":{"messages":[]}}}`, done)}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	events := c.start(testContext(t), `"7"`, mcp.MethodToolsCall, `{"name":"x","arguments":{"k":1.0},"_meta":{"progressToken":"p"}}`)
	var requests []serverRequest
	for range 3 {
		requests = append(requests, readAsking(t, next(t, events)))
	}
	if events.Ready() {
		t.Error("ready, though the client was not answered")
	}
	for i, want := range []string{`elicitation/create {"message":"?","n":9007199254740993}`, `roots/list `, `sampling/createMessage {"messages":[]}`} {
		if got := requests[i].Method + " " + string(requests[i].Params); got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"role":"assistant","big":9007199254740993}}`, requests[2].ID))
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, requests[0].ID))
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s","result":{"roots":["not this one"]}}`, requests[1].ID)) // a string, so another id
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, requests[0].ID))          // twice
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, requests[1].ID))
	want := `{"jsonrpc":"2.0","id":"7","result":{"content":[],"said":{"a":{"action":"cancel"},"b":{"roots":[]},` +
		`"c":{"role":"assistant","big":9007199254740993}},"state":"st\u0061te"}}`
	if got, err := rest(events); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("got %q, %v\nwant %s", got, err, want)
	}
	calls := f.calls(mcp.MethodToolsCall)
	if len(calls) != 2 || calls[0].id() == calls[1].id() {
		t.Fatalf("%d calls, want two with different ids", len(calls))
	}
	first, retry := string(calls[0].Params.Of(calls[0].Raw)), string(calls[1].Params.Of(calls[1].Raw))
	if !strings.HasPrefix(retry, strings.TrimSuffix(first, "}")+`,"inputResponses":`) {
		t.Errorf("the retry's params are %s, want those of %s and more", retry, first)
	}
}

func TestAURLHasAnElicitationID(t *testing.T) {
	f := &fake{script: ask(`{"a":{"method":"elicitation/create","params":{"mode":"url","url":"https://x"}}}`, done)}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	events := c.start(testContext(t), `1`, mcp.MethodToolsCall, `{"name":"x"}`)
	if got := string(readAsking(t, next(t, events)).Params); !strings.HasPrefix(got, `{"mode":"url","url":"https://x","elicitationId":"`) {
		t.Errorf("got %s, want an elicitationId", got)
	}
}

func TestAClientIsNeverAskedForWhatItDidNotDeclare(t *testing.T) {
	url := `{"a":{"method":"elicitation/create","params":{"mode":"url","url":"https://x"}}}`
	tests := []struct{ name, version, capabilities, requests string }{
		{"a URL of an older client", "2025-06-18", allCapabilities, url},
		{"a URL of a client of forms", "2025-11-25", `{"elicitation":{}}`, url},
		{"a form of a client of URLs", "2025-11-25", `{"elicitation":{"url":{}}}`, `{"a":{"method":"elicitation/create"}}`},
		{"a form of the oldest", "2025-03-26", allCapabilities, `{"a":{"method":"elicitation/create"}}`},
		{"roots", "2025-11-25", `{}`, `{"a":{"method":"roots/list"}}`},
		{"sampling", "2025-11-25", `{}`, `{"a":{"method":"sampling/createMessage"}}`},
		{"anything else", "2025-11-25", allCapabilities, `{"a":{"method":"tools/call"}}`},
		{"nothing, for nothing", "2025-11-25", allCapabilities, `{},"requestState":5`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{script: func(s sent) (*upstream.Answer, error) {
				return s.result(`{"resultType":"input_required","inputRequests":` + tt.requests + `}`), nil
			}}
			c := connect(t, newBridge(t, f), tt.version, tt.capabilities)
			a, err := c.session.Call(testContext(t), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`))
			if e, ok := err.(*upstream.Error); !ok || e.Kind != upstream.BadAnswer {
				t.Errorf("got %v, %v; want a bad answer", a, err)
			}
		})
	}
}

func TestACallFailsWhenTheClientRefusesWhatItNeeds(t *testing.T) {
	f := &fake{script: ask(`{"a":{"method":"roots/list"},"b":{"method":"elicitation/create"}}`, done)}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	events := c.start(testContext(t), `5`, mcp.MethodToolsCall, `{"name":"x"}`)
	roots, form := readAsking(t, next(t, events)), readAsking(t, next(t, events))
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, roots.ID))
	got, err := rest(events)
	if err != nil || len(got) != 2 {
		t.Fatalf("%q, %v", got, err)
	}
	if want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, form.ID); got[0] != want {
		t.Errorf("got %s, want %s", got[0], want)
	}
	response{200, got[1], nil}.has(t, `"id":5`, `"code":-32603`, `"reason":"client_refused"`, "roots/list")
	if n := len(f.calls(mcp.MethodToolsCall)); n != 1 {
		t.Errorf("%d calls, want no retry", n)
	}
}

func TestMessagesBeforeAQuestionAndAfterPassInOrder(t *testing.T) {
	note := func(n int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d}}`, n)
	}
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		if s.param("inputResponses") == "" {
			return newEvents(s.ctx, note(1), note(2), `{"jsonrpc":"2.0","id":`+s.id()+
				`,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`).answer(), nil
		}
		return newEvents(s.ctx, note(3), `{"jsonrpc":"2.0","id":`+s.id()+`,"result":{"resultType":"complete"}}`).answer(), nil
	}}
	c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
	events := c.start(testContext(t), `5`, mcp.MethodToolsCall, `{"name":"x"}`)
	var all []string
	for range 3 {
		if !events.Ready() {
			t.Error("not ready, though a message is there")
		}
		all = append(all, next(t, events))
	}
	if events.Ready() {
		t.Error("ready, though the client has not answered")
	}
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, readAsking(t, all[2]).ID))
	more, err := rest(events)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all[:2], more...)
	want := []string{note(1), note(2), note(3), `{"jsonrpc":"2.0","id":5,"result":{}}`}
	if strings.Join(all, "\n") != strings.Join(want, "\n") {
		t.Errorf("got  %q\nwant %q", all, want)
	}
	if got := f.calls(mcp.MethodToolsCall)[1]; got.param("requestState") != "" {
		t.Errorf("a state was made up: %s", got.Raw)
	}
}

// L27
func TestACancelledCallEndsAtTheServerAtOnce(t *testing.T) {
	waits := func(s sent) (*upstream.Answer, error) {
		<-s.ctx.Done()
		return nil, &upstream.Error{Kind: upstream.Lost, Upstream: "new", Detail: "cancelled", Cause: s.ctx.Err()}
	}
	scripts := map[string]func(sent) (*upstream.Answer, error){
		"before the answer": waits,
		"while it streams": func(s sent) (*upstream.Answer, error) {
			return newEvents(s.ctx, `{"jsonrpc":"2.0","method":"notifications/message"}`).answer(), nil
		},
		"while it asks": ask(`{"a":{"method":"roots/list"}}`, done),
		"while it is retried": func(s sent) (*upstream.Answer, error) {
			return s.result(`{"resultType":"input_required","requestState":"x"}`), nil
		},
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			f := &fake{script: script}
			c := connect(t, newBridge(t, f), "2025-11-25", allCapabilities)
			failed := make(chan error, 1)
			go func() {
				a, err := c.session.Call(testContext(t), requestCall(t, `"9"`, mcp.MethodToolsCall, `{"name":"x"}`))
				if err == nil {
					_, err = rest(a.Events)
					a.Close()
				}
				failed <- err
			}()
			eventually(t, "the server has the call", func() bool { return len(f.calls(mcp.MethodToolsCall)) > 0 })
			c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`) // another's
			if f.calls(mcp.MethodToolsCall)[0].ctx.Err() != nil {
				t.Error("cancelled by another id")
			}
			c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"9"}}`)
			if err := <-failed; err == nil || !strings.Contains(fmt.Sprint(err), "new") {
				t.Errorf("got %v, want a failure", err)
			}
			if f.calls(mcp.MethodToolsCall)[0].ctx.Err() == nil {
				t.Error("the server's call goes on")
			}
			session := c.session.(*session)
			session.mu.Lock()
			defer session.mu.Unlock()
			if len(session.calls)+len(session.questions) > 0 {
				t.Errorf("%d calls and %d questions are left", len(session.calls), len(session.questions))
			}
		})
	}
}

func TestClosingEndsEveryWait(t *testing.T) {
	f := &fake{script: ask(`{"a":{"method":"roots/list"}}`, done)}
	s := newBridge(t, f)
	c := connect(t, s, "2025-11-25", allCapabilities)
	events := c.start(testContext(t), `1`, mcp.MethodToolsCall, `{"name":"x"}`)
	next(t, events)
	failed := make(chan error, 1)
	go func() { _, err := events.Next(); failed <- err }()
	if err := s.Close(testContext(t)); err != nil || !f.closed {
		t.Errorf("Close: %v, wrapped server closed: %v", err, f.closed)
	}
	if err := <-failed; err == nil {
		t.Error("the call goes on")
	}
	if _, err := c.session.Call(context.Background(), requestCall(t, `2`, mcp.MethodToolsList, ``)); err == nil {
		t.Error("a closed session makes calls")
	}
	if _, _, err := s.Open(testContext(t), initializeCall(t, "2025-11-25", `{}`)); err == nil {
		t.Error("a closed bridge opens sessions")
	}
}

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// urlAble is what a client declares that can send its user to a URL.
const urlAble = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// A server with sessions that wants its client's user to visit a URL first (-32042) asks a stateless client for that, and
// the client's retry makes the call. No call is held meanwhile, so nothing is called twice at once.
func TestARequiredURLIsAQuestionToAStatelessClient(t *testing.T) {
	t.Parallel()
	const visit = `{"elicitationId":"e/1","url":"https://example.com/login?to=cup&n=1","mode":"url","message":"Log in, \u00e9"}`
	var server *script
	server = (&script{version: versionLegacy, capabilities: `{"tools":{}}`, answers: map[string]func(*scripted) string{
		"ping":       always(`"result":{}`),
		"tools/list": always(`"result":{"tools":[{"name":"pay","inputSchema":{"type":"object"}}]}`),
		"tools/call": func(q *scripted) string {
			if server.heardOf(`"tools/call"`) == 1 {
				return `"error":{"code":-32042,"message":"log in first","data":{"elicitations":[` + visit + `]}}`
			}
			return `"result":{"content":[{"type":"text","text":"paid"}]}`
		},
	}}).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("pay", server.url), httpUpstream("other", newWorkshop("other", versionLegacy).serve(t).url),
		binding("alone", "/alone", "pay", ""), federation("all", "/all", "", "other", "pay"))
	for path, tool := range map[string]string{"/alone": "pay", "/all": "pay_pay"} {
		server.forget()
		ann := newAsker(t, s.url+path, "ann").declaring(urlAble)
		q := ann.calls(t, tool, "cup", "", "")
		if q.Result.ResultType != "input_required" || len(q.Result.InputRequests) != 1 {
			t.Fatalf("%s: the call answered %v, want one question", path, q)
		}
		key := slices.Collect(maps.Keys(q.Result.InputRequests))[0]
		want := fmt.Sprintf(`{%q:{"method":"elicitation/create","params":{"mode":"url","url":"https://example.com/login?to=cup&n=1","message":"Log in, \u00e9"}}}`, key)
		if got := q.inputRequests(t); got != want {
			t.Errorf("%s: asked\n%s, want\n%s", path, got, want)
		}

		bob := newAsker(t, s.url+path, "bob").declaring(urlAble)
		bob.isRefused(t, tool, "cup", q)
		if r := ann.calls(t, tool, "cup", q.Result.RequestState, fmt.Sprintf(`%q:{"action":"accept"}`, key)); r.text() != "paid" {
			t.Errorf("%s: the retry answered %v, want that it is paid", path, r)
		}
		if n := server.heardOf(`"tools/call"`, `"name":"pay"`, `"text":"cup"`); n != 2 {
			t.Errorf("%s: the server was called %d times, want once and once again", path, n)
		}
		if n := server.heardOf("requestState") + server.heardOf("inputResponses"); n != 0 {
			t.Errorf("%s: the server heard %d times of what its wire does not have", path, n)
		}

		server.forget() // who cannot go there is told that it must
		if r := ann.declaring(askable).calls(t, tool, "cup", "", ""); r.Error == nil || r.Error.Code != -32021 || !strings.Contains(r.raw, `"url":{}`) {
			t.Errorf("%s: a client without URLs got %v, want -32021 with what is missing", path, r)
		}
	}
}

// The other way round, a stateless server that sends its client's user to a URL asks a client with a session for that, by
// a request with an elicitationId, and has the answer as it wants it.
func TestAURLToVisitIsARequestToAClientWithASession(t *testing.T) {
	t.Parallel()
	server := (&script{version: versionStateless, capabilities: `{"tools":{}}`, answers: map[string]func(*scripted) string{
		"tools/list": always(`"result":{"resultType":"complete","tools":[{"name":"pay","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`),
		"tools/call": func(q *scripted) string {
			if !containsAll(q.raw, []string{`"inputResponses":{"login":{"action":"accept"`, `"requestState":"mine"`}) {
				return `"result":{"resultType":"input_required","requestState":"mine","inputRequests":{"login":` +
					`{"method":"elicitation/create","params":{"mode":"url","url":"https://example.com/login","message":"Log in"}}}}`
			}
			return `"result":{"resultType":"complete","content":[{"type":"text","text":"paid"}]}`
		},
	}}).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("pay", server.url), httpUpstream("other", newWorkshop("other", versionLegacy).serve(t).url),
		binding("alone", "/alone", "pay", ""), federation("all", "/all", "", "other", "pay"))
	for path, tool := range map[string]string{"/alone": "pay", "/all": "pay_pay"} {
		visits := make(chan *sdk.ElicitParams, 8)
		o := &sdk.ClientOptions{
			Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{URL: &sdk.URLElicitationCapabilities{}}},
			ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
				visits <- q.Params
				return &sdk.ElicitResult{Action: "accept"}, nil
			},
		}
		wantText(t, connectSDK(t, s.url+path, versionLegacy, o), tool, input{"cup"}, "paid")
		if len(visits) != 1 {
			t.Fatalf("%s: the client was asked %d times, want once", path, len(visits))
		}
		if v := <-visits; v.Mode != "url" || v.URL != "https://example.com/login" || v.Message != "Log in" || v.ElicitationID == "" {
			t.Errorf("%s: the client was asked %+v, want to visit the URL, with an elicitationId", path, v)
		}
	}
	if n := server.heardOf(`"tools/call"`, `"name":"pay"`); n != 4 {
		t.Errorf("the server was called %d times, want once and once again by each client", n)
	}
}

// forget makes a script begin anew.
func (s *script) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = nil
}

// calls is call where there has to be an answer.
func (a *asker) calls(t testing.TB, tool, text, state, answers string) *answered {
	t.Helper()
	r, err := a.call(within(t), `"call"`, tool, text, state, answers)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inputRequests are the questions, to the byte.
func (a *answered) inputRequests(t testing.TB) string {
	t.Helper()
	var r struct{ InputRequests json.RawMessage }
	if err := json.Unmarshal([]byte(a.result(t)), &r); err != nil {
		t.Fatal(err)
	}
	return string(r.InputRequests)
}

// A retry without the answer, or with another's, gets the question again. The call goes on with the first that answers.
func TestAMissingAnswerRepeatsTheQuestion(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	ann := newAsker(t, a.endpoint(), "ann")
	q := ann.asked(t, "ask", "cup")
	for i, answers := range []string{"", `"nobody-asked":{"action":"accept","content":{"owner":"bob"}}`, ""} {
		here := ann.at([]*kin{a, b}[i%2].endpoint())
		again := here.calls(t, "ask", "cup", q.Result.RequestState, answers)
		if again.Result.ResultType != "input_required" || again.inputRequests(t) != q.inputRequests(t) {
			t.Fatalf("retry %d with answers {%s} got %v, want the question again: %s", i, answers, again, q.inputRequests(t))
		}
		if again.Result.RequestState == q.Result.RequestState {
			t.Errorf("retry %d: the state is the one before, want another", i)
		}
		q = again
	}
	ann.at(b.endpoint()).goesOn(t, "ask", "cup", q, "cup:accept:ann")
	f.ran(t, "ask", "cup", 1)
	for _, k := range []*kin{a, b} {
		k.stop()
	}
}

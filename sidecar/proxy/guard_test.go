package proxy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// policed adds the resources of a YAML text to a configuration.
func policed(t testing.TB, text string) func(*config.Config) {
	t.Helper()
	const around = "\n---\n{kind: Upstream, name: up, spec: {http: {url: 'http://127.0.0.1:1'}}}\n---\n" +
		"{kind: Binding, name: main, spec: {selector: {}, path: /mcp, upstreams: [{name: up}], externalUrl: 'http://127.0.0.1/mcp'}}\n"
	objects, errs := resource.Load("test.yaml", []byte(text+around))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return func(c *config.Config) {
		c.Policies, c.Tenants, c.Keys = nil, nil, nil
		for _, o := range objects {
			switch o := o.(type) {
			case *outriggerv1.Policy:
				c.Policies = append(c.Policies, o)
			case *outriggerv1.Tenant:
				c.Tenants = append(c.Tenants, o)
			case *outriggerv1.Key:
				c.Keys = append(c.Keys, o)
			}
		}
	}
}

// guardedRig is a rig with policies.
func guardedRig(t testing.TB, up any, policies string) *rig {
	t.Helper()
	r := newRig(t, up)
	if refused := r.apply(policed(t, policies)); len(refused) > 0 {
		t.Fatalf("Apply refused %v", refused)
	}
	return r
}

// library has a list for each method that lists, and counts calls by what they are about.
type library struct {
	fake
	mu    sync.Mutex
	calls map[string]int
	sse   bool
}

var shelves = map[string]string{
	mcp.MethodToolsList: `{"tools":[{"name":"get_a","annotations":{"readOnlyHint":true},"n":9007199254740993},` +
		` {"name":"put_a"},{"name":"get_b" , "x":null},{"name":7},{"title":"nameless"},{"name":"\u0070ut_b"}],"ttlMs":5,"cacheScope":"public","nextCursor":"2"}`,
	mcp.MethodPromptsList:           `{"prompts":[{"name":"get_p"},{"name":"put_p"}]}`,
	mcp.MethodResourcesList:         `{"resources":[{"uri":"a://get"},{"uri":"b://get"}],"cacheScope":"private"}`,
	mcp.MethodResourceTemplatesList: `{"resourceTemplates":[{"uriTemplate":"b://{x}"},{"uriTemplate":"a://{x}"}]}`,
}

func newLibrary() *library {
	l := &library{calls: map[string]int{}}
	l.call = func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		m := c.Message
		l.mu.Lock()
		l.calls[m.Method+" "+string(m.Name)]++
		l.mu.Unlock()
		shelf, ok := shelves[m.Method]
		if !ok {
			return answerTo(c), nil
		}
		body := `{"jsonrpc":"2.0","id":` + string(m.ID.Of(m.Raw)) + `,"result":` + shelf + `}`
		if !l.sse {
			return jsonAnswer(body), nil
		}
		e := newEvents(ctx)
		e.feed <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"listing"}}`
		e.feed <- body
		close(e.feed)
		return &upstream.Answer{Status: 200, Events: e}, nil
	}
	return l
}

func (l *library) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[what]
}

const getOnly = `
kind: Policy
name: readers
spec:
  target: {bindings: [main]}
  rules:
    - {name: get, action: allow, tools: ["get_*"], prompts: ["get_*"], resources: ["a://*"]}
    - {name: no-b, action: deny, tools: [get_b]}
`

func modernList(id, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, meta)
}

// On both wires, as JSON and as events, a list shows what may be called, byte for byte as it was; a stateless one is for
// its caller only.
func TestListsShowWhatMayBeCalled(t *testing.T) {
	for _, tt := range []struct{ method, stateless, legacy string }{
		{mcp.MethodToolsList,
			`{"tools":[{"name":"get_a","annotations":{"readOnlyHint":true},"n":9007199254740993}],"ttlMs":5,"cacheScope":"private","nextCursor":"2"}`,
			`{"tools":[{"name":"get_a","annotations":{"readOnlyHint":true},"n":9007199254740993}],"ttlMs":5,"cacheScope":"private","nextCursor":"2"}`},
		{mcp.MethodPromptsList, `{"cacheScope":"private","prompts":[{"name":"get_p"}]}`, `{"prompts":[{"name":"get_p"}]}`},
		{mcp.MethodResourcesList, `{"resources":[{"uri":"a://get"}],"cacheScope":"private"}`, `{"resources":[{"uri":"a://get"}],"cacheScope":"private"}`},
		{mcp.MethodResourceTemplatesList, `{"cacheScope":"private","resourceTemplates":[{"uriTemplate":"a://{x}"}]}`,
			`{"resourceTemplates":[{"uriTemplate":"a://{x}"}]}`},
	} {
		for _, sse := range []bool{false, true} {
			l := newLibrary()
			l.sse = sse
			r := guardedRig(t, l, getOnly)
			got := r.do(http.MethodPost, modern(tt.method, ""), modernList("1", tt.method)).rpc(t)
			if string(got.Result) != tt.stateless {
				t.Errorf("%s, events %v, stateless: %s, want %s", tt.method, sse, got.Result, tt.stateless)
			}
			h := r.initialize()
			got = r.do(http.MethodPost, h, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q}`, tt.method)).rpc(t)
			if string(got.Result) != tt.legacy {
				t.Errorf("%s, events %v, legacy: %s, want %s", tt.method, sse, got.Result, tt.legacy)
			}
		}
	}
}

// What no rule allows does not reach the server, on either wire, alone or in a batch, and each wire is told in its way.
func TestWhatNoRuleAllowsDoesNotReachTheServer(t *testing.T) {
	l := newLibrary()
	r := guardedRig(t, l, getOnly)
	for _, name := range []string{"put_a", "get_b", "Get_a", "\u200bget_a", "ｇet_a"} {
		header := name
		if name[0] >= utf8.RuneSelf {
			header = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(name)) + "?="
		}
		denied := r.do(http.MethodPost, modern("tools/call", header), modernCall("1", name, "{}")).wantError(t, 403, mcp.CodeInvalidRequest, "1")
		if denied.Error != nil && string(denied.Error.Data) != `{"source":"outrigger","reason":"denied"}` {
			t.Errorf("%q: data %s", name, denied.Error.Data)
		}
	}
	r.callModern("1", "get_a", `{"x":1}`).rpc(t)
	legacy := r.initializeAs(mcp.Version20250326)
	r.do(http.MethodPost, legacy, toolCall("2", "put_a", "{}")).wantError(t, 200, mcp.CodeInvalidRequest, "2")
	batch := r.do(http.MethodPost, legacy, "["+toolCall("3", "put_a", "{}")+","+toolCall("4", "get_a", "{}")+"]")
	for _, e := range parseEvents(batch.body) {
		var m rpcReply
		if err := json.Unmarshal([]byte(e.data), &m); err != nil {
			t.Fatal(err)
		}
		if wantError := string(m.ID) == "3"; (m.Error != nil) != wantError {
			t.Errorf("of a batch: %s", e.data)
		}
	}
	for _, call := range []string{"tools/call put_a", "tools/call get_b", "tools/call Get_a"} {
		if n := l.count(call); n != 0 {
			t.Errorf("%s reached the server %d times", call, n)
		}
	}
	if n := l.count("tools/call get_a"); n != 2 {
		t.Errorf("get_a reached the server %d times, want 2", n)
	}
	if n := r.metric("outrigger_policy_denials_total", "policy", "readers", "rule", "no-b", "enforced", "true"); n != 1 {
		t.Errorf("%v denials of readers/no-b are counted, want 1", n)
	}
	r.Access.Close()
	r.Access = nil
	if lines := r.access.String(); !strings.Contains(lines, `"reason":"denied","policy":"readers","rule":"no-b"`) {
		t.Errorf("no access line says which rule refused:\n%s", lines)
	}
}

// A subject is what a method is about: prompts, resources, what is completed and what is watched.
func TestEverySubjectIsHeldToTheRules(t *testing.T) {
	l := newLibrary()
	r := guardedRig(t, l, getOnly)
	call := func(method, name, params string) reply {
		return r.do(http.MethodPost, modern(method, name), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,%s}}`, method, params, meta))
	}
	for _, tt := range []struct {
		method, name, params string
		allowed              bool
	}{
		{mcp.MethodPromptsGet, "get_p", `"name":"get_p"`, true},
		{mcp.MethodPromptsGet, "put_p", `"name":"put_p"`, false},
		{mcp.MethodResourcesRead, "a://get", `"uri":"a://get"`, true},
		{mcp.MethodResourcesRead, "b://get", `"uri":"b://get"`, false},
		{mcp.MethodComplete, "", `"ref":{"type":"ref/prompt","name":"get_p"},"argument":{"name":"x","value":""}`, true},
		{mcp.MethodComplete, "", `"ref":{"type":"ref/prompt","name":"put_p"},"argument":{"name":"x","value":""}`, false},
		{mcp.MethodComplete, "", `"ref":{"type":"ref/resource","uri":"a://{x}"},"argument":{"name":"x","value":""}`, true},
		{mcp.MethodComplete, "", `"ref":{"type":"ref/resource","uri":"b://{x}"},"argument":{"name":"x","value":""}`, false},
		{mcp.MethodComplete, "", `"ref":{"type":"ref/other","uri":"a://{x}"}`, false},
		{mcp.MethodListen, "", `"notifications":{"resourceSubscriptions":["a://1"]}`, true},
		{mcp.MethodListen, "", `"notifications":{"resourceSubscriptions":["a://1","b://1"]}`, false},
		{mcp.MethodListen, "", `"notifications":{"toolsListChanged":true}`, true},
		{"tools/rename", "", `"name":"get_a"`, false},
	} {
		p := call(tt.method, tt.name, tt.params)
		if m := p.rpc(t); (m.Error == nil) != tt.allowed {
			t.Errorf("%s %s: %d %s, want allowed %v", tt.method, tt.params, p.status, p.body, tt.allowed)
		}
	}
	legacy := r.initialize()
	for uri, allowed := range map[string]bool{"a://1": true, "b://1": false} {
		m := r.do(http.MethodPost, legacy, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":%q}}`, uri)).rpc(t)
		if (m.Error == nil) != allowed {
			t.Errorf("subscribe %s: %s, want allowed %v", uri, m.Error.Message, allowed)
		}
	}
}

// A rule about arguments sees those that the server will see: a key that stands twice is refused, where a rule asks.
func TestArgumentsThatTwoReadersReadInTwoWaysAreRefusedWhereARuleAsks(t *testing.T) {
	r := guardedRig(t, newLibrary(), `
kind: Policy
name: args
spec:
  rules:
    - {action: allow, tools: [put], when: "args.path.startsWith('/tmp/')"}
    - {action: allow, tools: [get]}
`)
	for _, tt := range []struct {
		tool, arguments string
		status, code    int
	}{
		{"put", `{"path":"/tmp/a"}`, 200, 0},
		{"put", `{"path":"/etc/a"}`, 403, mcp.CodeInvalidRequest},
		{"put", `{}`, 403, mcp.CodeInvalidRequest},
		{"put", `{"path":"/tmp/a","path":"/etc/a"}`, 400, mcp.CodeInvalidParams},
		{"put", `{"path":"/etc/a","\u0070ath":"/tmp/a"}`, 400, mcp.CodeInvalidParams},
		{"put", `{"path":"/tmp/a","more":{"a":1,"a":2}}`, 400, mcp.CodeInvalidParams},
		{"get", `{"path":1,"path":2}`, 200, 0},
	} {
		p := r.callModern("1", tt.tool, tt.arguments)
		m := p.rpc(t)
		code := 0
		if m.Error != nil {
			code = m.Error.Code
		}
		if p.status != tt.status || code != tt.code {
			t.Errorf("%s %s: %d %s, want %d and code %d", tt.tool, tt.arguments, p.status, p.body, tt.status, tt.code)
		}
	}
}

// What an audit-only policy would have refused goes on, and is counted and logged.
func TestAnAuditOnlyPolicyRefusesNothingAndSaysWhatItWouldHave(t *testing.T) {
	r := guardedRig(t, newLibrary(), strings.Replace(getOnly, "spec:", "spec:\n  auditOnly: true", 1))
	if m := r.callModern("1", "get_b", "{}").rpc(t); m.Error != nil {
		t.Errorf("refused: %s", m.Error.Message)
	}
	if n := r.metric("outrigger_policy_denials_total", "policy", "readers", "rule", "no-b", "enforced", "false"); n != 1 {
		t.Errorf("counted %v times, want once", n)
	}
	r.Access.Close()
	r.Access = nil
	if lines := r.access.String(); !strings.Contains(lines, `"audit_policy":"readers","audit_rule":"no-b"`) {
		t.Errorf("no access line says what would have been refused:\n%s", lines)
	}
}

// A change of rules tells those who listen, ends nothing that may go on, and holds for the next call.
func TestAChangeOfRulesIsToldAndHoldsAtOnce(t *testing.T) {
	listening := make(chan *events, 1)
	l := newLibrary()
	inner := l.call
	l.call = func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		if c.Message.Method != mcp.MethodListen {
			return inner(ctx, c)
		}
		e := newEvents(ctx)
		e.feed <- `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}`
		listening <- e
		return &upstream.Answer{Status: 200, Events: e}, nil
	}
	l.listen = func(ctx context.Context) (upstream.EventStream, error) { return newEvents(ctx), nil }
	r := guardedRig(t, l, getOnly)
	listen := r.open(http.MethodPost, modern(mcp.MethodListen, ""), `{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["a://1"]},`+meta+`}}`)
	listen.event()
	server := <-listening
	session := r.initialize()
	get := r.open(http.MethodGet, session, "")
	get.event() // the priming one
	if refused := r.apply(policed(t, strings.ReplaceAll(getOnly, "get_*", "put_*"))); len(refused) > 0 {
		t.Fatal(refused)
	}
	want := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}`
	if e := listen.event(); e.data != want {
		t.Errorf("the listen hears %s, want %s", e.data, want)
	}
	var heard []string
	for range 3 {
		heard = append(heard, get.event().data)
	}
	if !slices.Contains(heard, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`) {
		t.Errorf("the session hears %v", heard)
	}
	r.callModern("1", "get_a", "{}").wantError(t, 403, mcp.CodeInvalidRequest, "1")
	if m := r.callModern("1", "put_a", "{}").rpc(t); m.Error != nil {
		t.Errorf("put_a: %s", m.Error.Message)
	}
	// What may not be read any more is not heard of, by the same stream.
	if refused := r.apply(policed(t, strings.ReplaceAll(getOnly, "a://*", "b://*"))); len(refused) > 0 {
		t.Fatal(refused)
	}
	listen.event()
	server.feed <- `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://1","_meta":{"io.modelcontextprotocol/subscriptionId":"s"}}}`
	server.feed <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"s"},"n":2}}`
	if e := listen.event(); !strings.Contains(e.data, `"n":2`) {
		t.Errorf("after the change the listen hears %s", e.data)
	}
	if before := r.table.Load().endpoints["/mcp"]; len(before.audience.list()) != 2 {
		t.Errorf("%d answers last, want the listen and the GET", len(before.audience.list()))
	}
	listen.leave()
	get.leave()
	eventually(t, "nothing lasts", func() bool { return len(r.table.Load().endpoints["/mcp"].audience.list()) == 0 })
}

// Where a policy has no form that can run, nothing is allowed, and it is said why; elsewhere everything goes on.
func TestWithoutItsPolicyABindingAllowsNothing(t *testing.T) {
	r := newRig(t, newLibrary())
	for _, tt := range []struct {
		name   string
		target *outriggerv1.PolicyTarget
		closed bool
	}{
		{"of this binding", &outriggerv1.PolicyTarget{Bindings: []string{"main"}}, true},
		{"of all", &outriggerv1.PolicyTarget{}, true},
		{"of nobody knows what", nil, true},
		{"of another", &outriggerv1.PolicyTarget{Bindings: []string{"other"}}, false},
	} {
		r.apply(func(c *config.Config) {
			c.Missing = []config.Missing{{Refusal: config.Refusal{Kind: "Policy", Name: "lost", Reason: "it is written wrong"}, Target: tt.target}}
		})
		p := r.callModern("1", "get_a", "{}")
		if (p.status == http.StatusServiceUnavailable) != tt.closed {
			t.Errorf("%s: %d %s, want closed %v", tt.name, p.status, p.body, tt.closed)
		}
		if ready := fmt.Sprint(r.Ready(testContext(t))); strings.Contains(ready, `Policy "lost" cannot run: it is written wrong`) != tt.closed {
			t.Errorf("%s: ready says %s", tt.name, ready)
		}
	}
}

// A list that cannot be held to the rules is the server's fault, and nothing of it passes.
func TestAListThatCannotBeJudgedDoesNotPass(t *testing.T) {
	for _, result := range []string{`{"tools":[{"name":"put_a"}],"tools":[]}`, `{"tools":{"name":"put_a"}}`, `[{"name":"put_a"}]`} {
		l := &fake{call: func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			return jsonAnswer(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`), nil
		}}
		r := guardedRig(t, l, getOnly)
		p := r.do(http.MethodPost, modern(mcp.MethodToolsList, ""), modernList("1", mcp.MethodToolsList))
		if p.wantError(t, 200, mcp.CodeInternalError, "1"); strings.Contains(p.body, "put_a") {
			t.Errorf("%s: %s", result, p.body)
		}
	}
}

// Rules by what a tool says of itself hold on both wires, also for a tool that no client has listed.
func TestHintsAreAskedForWhereRulesAskForThem(t *testing.T) {
	const readOnly = `
kind: Policy
name: hints
spec:
  rules: [{action: allow, hints: {readOnly: true}}]
`
	l := newLibrary()
	r := guardedRig(t, l, readOnly)
	if m := r.callModern("1", "get_a", "{}").rpc(t); m.Error != nil {
		t.Errorf("get_a: %s", m.Error.Message)
	}
	for range 3 {
		r.callModern("1", "unlisted", "{}").wantError(t, 403, mcp.CodeInvalidRequest, "1")
	}
	if n := l.count("tools/list "); n != maxHintPages {
		t.Errorf("the server was asked for %d pages, want those of one list", n)
	}
	list := r.do(http.MethodPost, modern(mcp.MethodToolsList, ""), modernList("1", mcp.MethodToolsList))
	if !strings.Contains(list.body, `{"tools":[{"name":"get_a"`) || strings.Contains(list.body, "put_a") {
		t.Errorf("listed: %s", list.body)
	}
	r.callModern("1", "put_a", "{}").wantError(t, 403, mcp.CodeInvalidRequest, "1")
	l = newLibrary()
	r = guardedRig(t, l, readOnly)
	if m := r.do(http.MethodPost, r.initialize(), toolCall("1", "get_a", "{}")).rpc(t); m.Error != nil {
		t.Errorf("get_a in a session: %s", m.Error.Message)
	}
}

// callers are Keys with the texts that callers present.
type callers struct {
	text map[string]string
	yaml strings.Builder
}

func newCallers(specs map[string]string) *callers {
	c := &callers{text: map[string]string{}}
	for name, spec := range specs {
		c.text[name] = apikey.New()
		fmt.Fprintf(&c.yaml, "---\nkind: Key\nname: %s\nspec: {hash: %s, %s}\n", name, apikey.Hash(c.text[name], nil), spec)
	}
	return c
}

const keyed = `
kind: Policy
name: callers
spec:
  target: {bindings: [main]}
  identity:
    providers: [{name: machines, keys: {}}]
    authorizationServers: ["https://idp.example"]
    scopes: [tools]
`

// identifiedRig is a rig whose callers have keys.
func identifiedRig(t testing.TB, up any, c *callers, policies string) *rig {
	t.Helper()
	r := newRigWith(t, func(o *Options) { o.Callers = authn.New(authn.Options{}) }, up)
	if refused := r.apply(policed(t, policies+c.yaml.String())); len(refused) > 0 {
		t.Fatalf("Apply refused %v", refused)
	}
	return r
}

func (c *callers) as(name string, h head) head {
	if h == nil {
		h = head{}
	}
	return h.with("Authorization", "Bearer "+c.text[name])
}

// Nobody is let in without a credential, on any verb and either wire; the metadata are open to all.
func TestEveryRequestNeedsACredential(t *testing.T) {
	c := newCallers(map[string]string{"ci": "scopes: [a]"})
	r := identifiedRig(t, newLibrary(), c, keyed)
	const want = `Bearer resource_metadata="http://127.0.0.1/.well-known/oauth-protected-resource/mcp", scope="tools"`
	r.apply(func(cfg *config.Config) { cfg.Bindings[0].ExternalUrl = "http://127.0.0.1/mcp" })
	for _, tt := range []struct{ verb, body string }{
		{http.MethodPost, modernCall("1", "get_a", "{}")}, {http.MethodPost, initialize}, {http.MethodPost, "[]"}, {http.MethodPost, "{"},
		{http.MethodGet, ""}, {http.MethodDelete, ""}, {http.MethodPut, ""},
	} {
		p := r.do(tt.verb, head{mcp.HeaderSessionID: "x"}, tt.body)
		if got := p.header.Get("WWW-Authenticate"); p.status != http.StatusUnauthorized || got != want {
			t.Errorf("%s %s: %d with %s, want 401 with %s", tt.verb, tt.body, p.status, got, want)
		}
	}
	if m := r.do(http.MethodPost, c.as("ci", modern("tools/call", "get_a")), modernCall("1", "get_a", "{}")).rpc(t); m.Error != nil {
		t.Errorf("with a key: %s", m.Error.Message)
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"} {
		res, err := r.client.Get("http://" + r.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if want := `{"resource":"http://127.0.0.1/mcp","authorization_servers":["https://idp.example"],"scopes_supported":["tools"],"bearer_methods_supported":["header"]}`; string(body) != want || res.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %s, want %s", path, body, want)
		}
	}
	if text := r.log.String() + r.access.String(); strings.Contains(text, c.text["ci"]) {
		t.Error("the key is in a log")
	}
}

// A caller that lacks scopes is told all of them; a legacy one too, since its client asks its issuer by the status.
func TestACallerThatLacksScopesIsToldWhich(t *testing.T) {
	c := newCallers(map[string]string{"ci": "scopes: [a]", "full": "scopes: [a, b, c]"})
	r := identifiedRig(t, newLibrary(), c, keyed+`  rules: [{action: allow, tools: ["*"], scopes: [a, b, c]}]`+"\n")
	for _, h := range []head{modern("tools/call", "x"), nil} {
		body := modernCall("1", "x", "{}")
		if h == nil {
			p := r.do(http.MethodPost, c.as("ci", nil), initialize)
			h, body = head{mcp.HeaderSessionID: p.header.Get(mcp.HeaderSessionID)}, toolCall("1", "x", "{}")
		}
		p := r.do(http.MethodPost, c.as("ci", h), body)
		if got := p.header.Get("WWW-Authenticate"); p.status != http.StatusForbidden || !strings.Contains(got, `error="insufficient_scope", scope="`) || !strings.Contains(got, "b c") {
			t.Errorf("%d with %s", p.status, got)
		}
	}
	if m := r.do(http.MethodPost, c.as("full", modern("tools/call", "x")), modernCall("1", "x", "{}")).rpc(t); m.Error != nil {
		t.Errorf("with all: %s", m.Error.Message)
	}
}

// A session is its owner's: its id in another's request is as unknown as any.
func TestASessionBelongsToItsCaller(t *testing.T) {
	c := newCallers(map[string]string{"a": "scopes: []", "b": "scopes: []"})
	r := identifiedRig(t, newLibrary(), c, keyed)
	p := r.do(http.MethodPost, c.as("a", nil), initialize)
	h := head{mcp.HeaderSessionID: p.header.Get(mcp.HeaderSessionID)}
	for _, verb := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		body := ""
		if verb == http.MethodPost {
			body = toolCall("1", "x", "{}")
		}
		if p := r.do(verb, c.as("b", h), body); p.status != http.StatusNotFound {
			t.Errorf("%s of another: %d %s, want 404", verb, p.status, p.body)
		}
	}
	if m := r.do(http.MethodPost, c.as("a", h), toolCall("1", "x", "{}")).rpc(t); m.Error != nil {
		t.Errorf("of its own: %s", m.Error.Message)
	}
}

// A caller that is not let in any more loses what is open, and nobody else does.
func TestARevokedCallersStreamsEnd(t *testing.T) {
	c := newCallers(map[string]string{"a": "scopes: []", "b": "scopes: []"})
	l := newLibrary()
	inner := l.call
	l.call = func(ctx context.Context, k *upstream.Call) (*upstream.Answer, error) {
		if m := k.Message.Method; m == mcp.MethodListen || string(k.Message.Name) == "long" {
			e := newEvents(ctx)
			e.feed <- `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`
			return &upstream.Answer{Status: 200, Events: e}, nil
		}
		return inner(ctx, k)
	}
	l.listen = func(ctx context.Context) (upstream.EventStream, error) { return newEvents(ctx), nil }
	r := identifiedRig(t, l, c, keyed)
	type open struct{ listen, call, get, legacy *stream }
	begin := func(name string) (o open) {
		o.listen = r.open(http.MethodPost, c.as(name, modern(mcp.MethodListen, "")), `{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{"notifications":{},`+meta+`}}`)
		o.call = r.open(http.MethodPost, c.as(name, modern("tools/call", "long")), modernCall("7", "long", "{}"))
		p := r.do(http.MethodPost, c.as(name, nil), initialize)
		h := head{mcp.HeaderSessionID: p.header.Get(mcp.HeaderSessionID), mcp.HeaderVersion: mcp.Version20251125}
		o.get = r.open(http.MethodGet, c.as(name, h), "")
		o.legacy = r.open(http.MethodPost, c.as(name, h), toolCall("8", "long", "{}"))
		for _, s := range []*stream{o.listen, o.call, o.get} {
			s.event()
		}
		o.legacy.event() // the priming one
		o.legacy.event()
		return o
	}
	a, b := begin("a"), begin("b")
	if refused := r.apply(func(cfg *config.Config) {
		cfg.Keys = slices.Clone(cfg.Keys)
		for i, k := range cfg.Keys {
			if k.GetName() == "a" {
				k = proto.CloneOf(k)
				k.Disabled = true
				cfg.Keys[i] = k
			}
		}
	}); len(refused) > 0 {
		t.Fatal(refused)
	}
	for name, s := range map[string]struct {
		*stream
		last string
	}{
		"listen": {a.listen, `"subscriptionId"`}, "call": {a.call, `"reason":"credential_ended"`}, "GET": {a.get, ""},
		"legacy call": {a.legacy, `"reason":"credential_ended"`},
	} {
		left, err := s.end()
		if err != nil || s.last == "" && len(left) > 0 || s.last != "" && (len(left) != 1 || !strings.Contains(strings.ReplaceAll(left[0].data, "io.modelcontextprotocol/", `"`), s.last)) {
			t.Errorf("%s: ended with %v, %v; want %s", name, left, err, s.last)
		}
	}
	if p := r.do(http.MethodPost, c.as("a", modern("tools/call", "x")), modernCall("1", "x", "{}")); p.status != http.StatusUnauthorized {
		t.Errorf("a calls: %d, want 401", p.status)
	}
	if n := len(r.table.Load().endpoints["/mcp"].audience.list()); n != 4 {
		t.Errorf("%d answers last, want b's 4", n)
	}
	for _, s := range []*stream{b.listen, b.call, b.get, b.legacy} {
		s.leave()
	}
}

// A stream ends when its caller's credential does.
func TestAStreamEndsWithItsCredential(t *testing.T) {
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
	c := newCallers(map[string]string{"a": "expires: '" + soon + "'"})
	l := newLibrary()
	l.call = func(ctx context.Context, k *upstream.Call) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Events: newEvents(ctx)}, nil
	}
	r := identifiedRig(t, l, c, keyed)
	s := r.open(http.MethodPost, c.as("a", modern(mcp.MethodListen, "")), `{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{"notifications":{},`+meta+`}}`)
	left, err := s.end()
	if err != nil || len(left) != 1 || !strings.Contains(left[0].data, `"resultType":"complete"`) {
		t.Errorf("ended with %v, %v", left, err)
	}
}

// What no configuration tells of is found out all the same: the callers of open answers are judged again from time to time.
func TestOpenAnswersAreJudgedAgain(t *testing.T) {
	c := newCallers(map[string]string{"a": "scopes: []"})
	r := newRigWith(t, func(o *Options) { o.Callers = authn.New(authn.Options{}) }, newLibrary())
	r.every = time.Millisecond
	if refused := r.apply(policed(t, keyed+c.yaml.String())); len(refused) > 0 {
		t.Fatal(refused)
	}
	ep := r.table.Load().endpoints["/mcp"]
	let, _ := ep.guard.Load().callers.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + c.text["a"]}}, "", nil)
	withdrawn := *let
	withdrawn.Key = "gone"
	stays, end := context.WithCancel(t.Context())
	defer end()
	ends, over := context.WithCancel(t.Context())
	ep.audience.add(&open{of: ep, who: let, end: end})
	ep.audience.add(&open{of: ep, who: &withdrawn, end: over})
	<-ends.Done()
	if stays.Err() != nil {
		t.Error("the answer of a caller that is let in was ended")
	}
}

// An endpoint that begins to ask who calls lets nothing go on that began before.
func TestWhatBeganBeforeAnybodyWasAskedEnds(t *testing.T) {
	l := newLibrary()
	l.call = func(ctx context.Context, k *upstream.Call) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Events: newEvents(ctx)}, nil
	}
	r := newRigWith(t, func(o *Options) { o.Callers = authn.New(authn.Options{}) }, l)
	session := r.initialize()
	s := r.open(http.MethodPost, modern(mcp.MethodListen, ""), `{"jsonrpc":"2.0","id":"s","method":"subscriptions/listen","params":{"notifications":{},`+meta+`}}`)
	c := newCallers(map[string]string{"a": "scopes: []"})
	if refused := r.apply(policed(t, keyed+c.yaml.String())); len(refused) > 0 {
		t.Fatal(refused)
	}
	if left, err := s.end(); err != nil || len(left) != 1 {
		t.Errorf("ended with %v, %v", left, err)
	}
	if p := r.do(http.MethodPost, c.as("a", session), toolCall("1", "x", "{}")); p.status != http.StatusNotFound {
		t.Errorf("a session of before: %d, want 404", p.status)
	}
}

// A configuration holds a Policy as it was written.
func TestATokensProviderNeedsNoMoreThanItsIssuer(t *testing.T) {
	issuers := jwt.New(jwt.Options{})
	t.Cleanup(func() {
		if err := issuers.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c := newCallers(map[string]string{"ci": "scopes: []"})
	r := newRigWith(t, func(o *Options) { o.Callers = authn.New(authn.Options{Issuers: issuers}) }, newLibrary())
	both := strings.Replace(keyed, "keys: {}}", "keys: {}}, {name: staff, jwt: {issuer: 'http://127.0.0.1:1', audiences: [desk]}}", 1)
	if refused := r.apply(policed(t, both+c.yaml.String())); len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	if m := r.do(http.MethodPost, c.as("ci", modern("tools/call", "x")), modernCall("1", "x", "{}")).rpc(t); m.Error != nil {
		t.Errorf("with a key: %s", m.Error.Message)
	}
}

// Without the means to know callers, a binding that asks for them allows nothing.
func TestIdentityThatCannotBeCompiledAllowsNothing(t *testing.T) {
	c := newCallers(map[string]string{"ci": "scopes: []"})
	r := identifiedRig(t, newLibrary(), c, keyed)
	broken := strings.Replace(keyed, "keys: {}", "certificate: {caFile: /does/not/exist}", 1)
	if refused := r.apply(policed(t, broken+c.yaml.String())); len(refused) != 1 || refused[0].Kind != "Policy" || refused[0].Name != "callers" {
		t.Errorf("refused: %v", refused)
	}
	call := func(who string) int {
		h := modern("tools/call", "x")
		if who != "" {
			h = c.as(who, h)
		}
		return r.do(http.MethodPost, h, modernCall("1", "x", "{}")).status
	}
	if with, without := call("ci"), call(""); with != 200 || without != 401 {
		t.Errorf("where a form ran before: %d with a key and %d without, want 200 and 401", with, without)
	}
	fresh := newRigWith(t, func(o *Options) { o.Callers = authn.New(authn.Options{}) }, newLibrary())
	fresh.apply(policed(t, broken))
	if p := fresh.callModern("1", "x", "{}"); p.status != http.StatusServiceUnavailable {
		t.Errorf("where none did: %d %s, want 503", p.status, p.body)
	}
}

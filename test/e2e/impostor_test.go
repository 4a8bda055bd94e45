package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// knock is a request to an endpoint of the stateless wire, written header by header.
type knock struct {
	name    string
	query   string
	headers [][2]string // more than an honest client's; one that the client sends too comes after its own
	without string      // a header that is not sent
	tool    string      // what Mcp-Name says; empty for echo
	params  string      // JSON without braces and _meta
	want    []int       // statuses
	runs    bool        // whether the tool echo may run
}

// knocks makes the request. mark is in every argument.
func (k *knock) knocks(t *testing.T, url, mark string) (status int, body string) {
	t.Helper()
	params := strings.ReplaceAll(k.params, "MARK", mark)
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,%s}}`, params, meta)
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, url+k.query, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range append([][2]string{{"Content-Type", "application/json"}, {"Accept", "application/json, text/event-stream"},
		{"Mcp-Protocol-Version", versionStateless}, {"Mcp-Method", "tools/call"}, {"Mcp-Name", cmp.Or(k.tool, "echo")}}, k.headers...) {
		switch h[0] {
		case k.without:
		case "Host":
			r.Host = h[1]
		default:
			r.Header.Add(h[0], h[1])
		}
	}
	res, err := httpClient(t, "").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// Who may call echo, and name with small arguments, tries to call more, or as somebody else.
func TestNoTrickCallsWhatTheRulesDeny(t *testing.T) {
	t.Parallel()
	p, i := newPeer("peer"), newIssuer(t)
	s, _ := fileSidecar(t, nil, append(both(p.serve(t), ""), i.callers(""),
		rules("rules", fmt.Sprintf(`{name: echo, action: allow, tools: [echo]}, {name: ann, action: allow, principals: ["%s|ann"]},
  {name: small, action: allow, tools: [name], when: 'args.text == "small"'}`, i.url)))...)
	ann, bob := "Bearer "+i.token(t, "ann", nil), "Bearer "+i.token(t, "bob", nil)
	as := func(credential string, more ...[2]string) [][2]string {
		return append([][2]string{{"Authorization", credential}}, more...)
	}
	const echo, name = `"name":"echo","arguments":{"text":"MARK"}`, `"name":"name","arguments":{"text":"MARK"}`
	for n, k := range []knock{
		{name: "honest", headers: as(bob), params: echo, want: []int{200}, runs: true},
		{name: "honest, escaped", headers: as(bob), params: strings.Replace(echo, "echo", `\u0065cho`, 1), want: []int{200}, runs: true},
		{name: "denied", headers: as(bob), tool: "name", params: name, want: []int{403}},
		{name: "denied, escaped", headers: as(bob), tool: "name", params: strings.Replace(name, `"name",`, `"n\u0061me",`, 1), want: []int{403}},
		{name: "two names in headers", headers: as(bob, [2]string{"Mcp-Name", "name"}), params: name, want: []int{400}},
		{name: "a token in the query", query: "?access_token=" + bob[7:], params: echo, want: []int{400}},
		{name: "a token in the query too", query: "?x=1&access_token=" + ann[7:], headers: as(bob), params: echo, want: []int{400}},
		{name: "two Authorization headers", headers: as(bob, [2]string{"Authorization", ann}), params: echo, want: []int{400}},
		{name: "two in one", headers: as(bob + ", " + ann), params: echo, want: []int{400, 401}},
		{name: "a token and a key", headers: as(bob, [2]string{"X-Api-Key", "outrigger_x"}), params: echo, want: []int{400}},
		{name: "another scheme", headers: as("Basic " + bob[7:]), params: echo, want: []int{401}},
		{name: "an empty token", headers: as("Bearer "), params: echo, want: []int{400, 401}},
		{name: "a rebound name", headers: as(bob, [2]string{"Host", "evil.example"}), params: echo, want: []int{403}},
		{name: "a page of elsewhere", headers: as(bob, [2]string{"Origin", "https://evil.example"}), params: echo, want: []int{403}},
		{name: "a name of a header that the body has not", headers: as(bob), params: name, want: []int{400}},
		{name: "no name in a header", headers: as(bob), without: "Mcp-Name", params: name, want: []int{400}},
		{name: "a name twice", headers: as(bob), params: `"name":"echo",` + name, want: []int{400}},
		{name: "a name twice, the other way", headers: as(bob), params: name + `,"name":"echo"`, want: []int{400}},
		{name: "a name twice, one escaped", headers: as(bob), params: `"n\u0061me":"name",` + echo, want: []int{400}},
		{name: "params twice", headers: as(bob), params: echo + `,"_meta":{}},"params":{` + name, want: []int{400}},
		{name: "arguments twice", headers: as(bob), params: echo + `,"arguments":{"text":"MARK"}`, want: []int{400}},
		{name: "a method twice", headers: as(bob), params: echo + `,"_meta":{}},"method":"tools/list","x":{"a":1`, want: []int{400}},
	} {
		status, body := k.knocks(t, s.url+statelessPath, fmt.Sprint("knock ", n))
		k.holds(t, p, fmt.Sprint("knock ", n), status, body)
	}
}

// holds checks what a request came to, and that nothing denied ran for it.
func (k *knock) holds(t *testing.T, p *peer, mark string, status int, body string) {
	t.Helper()
	ok := false
	for _, want := range k.want {
		ok = ok || status == want
	}
	if !ok {
		t.Errorf("%s: %d %.300s, want one of %v", k.name, status, body, k.want)
	}
	if want := map[bool]int{true: 1}[k.runs]; p.times(mark) != want {
		t.Errorf("%s: tools ran %d times, want %d", k.name, p.times(mark), want)
	}
	if strings.Contains(body, fmt.Sprintf("peer %d", os.Getpid())) {
		t.Errorf("%s: the tool name answered: %.300s", k.name, body)
	}
}

// Names that look like an allowed one, or are its other spelling, are other names.
func TestNamesThatLookAlikeAreOthers(t *testing.T) {
	t.Parallel()
	p, i := newPeer("peer"), newIssuer(t)
	s, _ := fileSidecar(t, nil, append(both(p.serve(t), ""), i.callers(""), rules("rules", `{name: echo, action: allow, tools: [echo, "caf\u00e9"]}`))...)
	a := newAsker(t, s.url+statelessPath, i.token(t, "bob", nil))
	for n, name := range []string{"name", "Echo", "ECHO", "echo ", " echo", "echo\\u0000", "ec\\u200bho", "\\uff45cho", "\\u0435cho", "cafe\\u0301", "n\\u0061me", "echo/../name", ""} {
		mark := fmt.Sprint("name ", n)
		w := &wire{http: a.http, url: s.url + legacyPath, version: versionLegacy}
		if err := w.initialize(within(t)); err != nil {
			t.Fatal(err)
		}
		r, err := w.post(within(t), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{"text":%q}}}`, name, mark), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := outcome(r); got != "200 error" && got != "400 error" || p.times(mark) != 0 {
			t.Errorf("a tool %q came to %s and ran %d times, want an error and none", name, got, p.times(mark))
		}
	}
}

// Arguments that a rule looks at are those that the server reads.
func TestArgumentsOfARuleAreTheServers(t *testing.T) {
	t.Parallel()
	p, i := newPeer("peer"), newIssuer(t)
	s, _ := fileSidecar(t, nil, append(both(p.serve(t), ""), i.callers(""), rules("rules", `{name: small, action: allow, tools: [echo], when: 'args.text == "small"'}`))...)
	a := newAsker(t, s.url+statelessPath, i.token(t, "bob", nil))
	for arguments, want := range map[string]int{
		`{"text":"small"}`: 200, `{"text":"large"}`: 403, `{}`: 403, `[]`: 403, `null`: 403, `{"Text":"large"}`: 403,
		`{"text":"small","text":"large"}`: 400, `{"text":"large","text":"small"}`: 400,
		`{"text":"small","t\u0065xt":"large"}`: 400, `{"text":"small","TEXT":"large"}`: 403, `{"text":"sm\u0061ll"}`: 200,
	} {
		res, err := a.post(within(t), "1", "tools/call", "echo", `"name":"echo","arguments":`+arguments)
		if err != nil {
			t.Fatal(err)
		}
		if got := outcome(res); !strings.HasPrefix(got, fmt.Sprint(want)) {
			t.Errorf("arguments %s came to %s, want %d", arguments, got, want)
		}
	}
	if n := p.times("large"); n != 0 {
		t.Errorf("large ran %d times, want none", n)
	}
}

// What belongs to a caller opens for nobody else: sessions, states, cursors and tasks.
func TestWhatACallerHasIsItsOwn(t *testing.T) {
	t.Parallel()
	i, p := newIssuer(t), newPeer("peer")
	url := p.serve(t)
	s, _ := fileSidecar(t, nil, append(both(url, ""), i.callers(""),
		httpUpstream("workshop", newWorkshop("workshop", versionLegacy).serve(t).url), binding("workshop", "/workshop", "workshop", ""),
		httpUpstream("tasker", newTasker("tasker").serve(t).url), binding("tasker", "/tasker", "tasker", ""),
		federation("all", "/all", ", lists: {pageSize: 1}", "stateless", "tasker"))...)
	annsToken, bobsToken := i.token(t, "ann", nil), i.token(t, "bob", nil)
	ann, bob := newAsker(t, s.url, annsToken), newAsker(t, s.url, bobsToken)

	session := clients(t, []*sidecar{s}, "ann", annsToken)[0]
	thief := &wire{http: bob.http, url: s.url + legacyPath, version: versionLegacy, session: session.legacy.session}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if got := thief.tries(t, method); got != http.StatusNotFound {
			t.Errorf("%s of another's session: %d, want 404", method, got)
		}
	}
	session.passes(t)
	renewed := *session.legacy // the same caller with a token that is new
	renewed.http = httpClient(t, i.token(t, "ann", map[string]any{"jti": "renewed"}))
	if r, err := renewed.call(within(t), "1", "echo", "on", nil); err != nil || r.text() != "on" {
		t.Errorf("with a renewed token: %+v (%v), want that the session goes on", r, err)
	}

	q := ann.at(s.url+"/workshop").asked(t, "ask", "mine")
	bob.at(s.url+"/workshop").isRefused(t, "ask", "mine", q, "another caller")
	ann.at(s.url+"/workshop").goesOn(t, "ask", "mine", q, "mine:accept:ann")

	tasks := ann.at(s.url + "/tasker").declaring(declaresTasks)
	id := tasks.makes(t, "make")
	bob.at(s.url+"/tasker").declaring(declaresTasks).hasNoTask(t, id)
	tasks.taskIs(t, id, taskAsks)

	page := ann.at(s.url+"/all").asks(t, "tools/list", "", "")
	cursor := page.cursor(t)
	if r := bob.at(s.url+"/all").asks(t, "tools/list", "", fmt.Sprintf(`"cursor":%q`, cursor)); r.Error == nil || r.Error.Code != -32602 {
		t.Errorf("with another's cursor: %v, want -32602", r)
	}
	if r := ann.at(s.url+"/all").asks(t, "tools/list", "", fmt.Sprintf(`"cursor":%q`, cursor)); r.Error != nil {
		t.Errorf("with its own cursor: %v", r)
	}
}

// tries makes an empty request of the session, and returns the status.
func (w *wire) tries(t *testing.T, method string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), method, w.url, strings.NewReader(map[string]string{
		http.MethodPost: `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`}[method]))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Mcp-Protocol-Version", w.version)
	r.Header.Set("Mcp-Session-Id", w.session)
	res, err := w.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}

// tokenServer gives tokens to a client desk with the secret pearl-diver (RFC 6749, 4.4, and RFC 8693).
func tokenServer(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "desk" || secret != "pearl-diver" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		token := "own-token"
		if subject := r.FormValue("subject_token"); subject != "" {
			token = fmt.Sprintf("in-exchange-for-%d", len(subject))
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600,"issued_token_type":"urn:ietf:params:oauth:token-type:access_token"}`, token)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A server is presented what its Upstream says, and never what the client carried.
func TestAClientsTokenNeverReachesAServer(t *testing.T) {
	t.Parallel()
	i, tokens, url := newIssuer(t), tokenServer(t), newPeer("peer").serve(t)
	resources := append(both(url, ""), i.callers(""), "kind: Secret\nname: desk\nspec: {values: {client: pearl-diver, static: swordfish}}\n")
	endpoint := fmt.Sprintf(`{endpoint: {url: %q, clientId: desk, clientSecret: {secret: {name: desk, key: client}}}}`, tokens)
	for name, credential := range map[string]string{
		"static": `prefix: "Bearer ", secret: {name: desk, key: static}`, "own": "clientCredentials: " + endpoint, "exchange": "tokenExchange: " + endpoint,
	} {
		for _, era := range eras {
			resources = append(resources, upstream(name+"-"+era.name, fmt.Sprintf("http: {url: %q}, credential: {%s}", url+era.path, credential)),
				binding(name+"-"+era.name, "/"+name+era.path, name+"-"+era.name, ""))
		}
	}
	s, _ := fileSidecar(t, nil, resources...)
	token := i.token(t, "ann", nil)
	for path, want := range map[string]string{"": "", "/static": "Bearer swordfish", "/own": "Bearer own-token",
		"/exchange": fmt.Sprintf("Bearer in-exchange-for-%d", len(token))} {
		for _, era := range eras {
			w := &wire{http: httpClient(t, token), url: s.url + path + era.path, version: era.version}
			if err := w.initialize(within(t)); err != nil {
				t.Errorf("%s%s: %v", path, era.path, err)
				continue
			}
			if r, err := w.call(within(t), "1", "credential", "", nil); err != nil || r.text() != want {
				t.Errorf("the server at %s%s was presented %+v (%v), want %q", path, era.path, r, err, want)
			}
		}
	}
}

// cursor is where a list goes on.
func (a *answered) cursor(t *testing.T) string {
	t.Helper()
	var list struct{ NextCursor string }
	if err := json.Unmarshal([]byte(a.result(t)), &list); err != nil || list.NextCursor == "" {
		t.Fatalf("the list is %v (%v), want a cursor", a, err)
	}
	return list.NextCursor
}

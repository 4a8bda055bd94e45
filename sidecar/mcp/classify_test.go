package mcp

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// meta is a stateless request's _meta with the given version, a JSON value.
func meta(version string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":` + version + `,"io.modelcontextprotocol/clientCapabilities":{}}`
}

// request is a request with params, a JSON object's members.
func request(method, members string) string {
	return `{"jsonrpc":"2.0","id":"q","method":"` + method + `","params":{` + members + `}}`
}

// The rows follow the decision in the order of Classify.
func TestClassify(t *testing.T) {
	none, modern := header(), header(HeaderVersion, "2026-07-28")
	session := header(HeaderSessionID, "s", HeaderVersion, "2025-11-25")
	for _, row := range []struct {
		name, verb string
		h          http.Header
		body       string
		want       Era
	}{
		{"GET", "GET", modern, "", Legacy},
		{"DELETE", "DELETE", none, "", Legacy},
		{"a version in _meta", "POST", none, request("tools/list", meta(`"2026-07-28"`)), Stateless},
		{"and a session id, which is ignored", "POST", session, request("tools/list", meta(`"2026-07-28"`)), Stateless},
		{"initialize with modern _meta", "POST", none, request("initialize", meta(`"2026-07-28"`)), Stateless},
		{"a version in _meta that no one knows", "POST", none, request("tools/list", meta(`"v999"`)), Stateless},
		{"a legacy version in _meta", "POST", none, request("tools/list", meta(`"2025-11-25"`)), Stateless},
		{"a version in _meta that is no string", "POST", none, request("tools/list", meta(`5`)), Stateless},
		{"a response", "POST", modern, `{"jsonrpc":"2.0","id":1,"result":{}}`, Legacy},
		{"initialize", "POST", none, legacyInitialize, Legacy},
		{"initialize that asks for a modern version", "POST", none, strings.Replace(legacyInitialize, "2025-11-25", "2026-07-28", 1), Legacy},
		{"initialize under a modern header", "POST", modern, legacyInitialize, Legacy},
		{"a modern header", "POST", modern, legacyCall, Stateless},
		{"a modern header and a session id", "POST", with(session, HeaderVersion, "2026-07-28"), legacyCall, Stateless},
		{"a header of a version to come", "POST", header(HeaderVersion, "2027-01-15"), legacyCall, Stateless},
		{"a header of no version", "POST", header(HeaderVersion, "banana"), legacyCall, Stateless},
		{"a legacy header", "POST", header(HeaderVersion, "2025-06-18"), legacyCall, Legacy},
		{"a session", "POST", session, request("server/discover", ""), Legacy},
		{"discover without anything", "POST", none, request("server/discover", ""), Stateless},
		{"listen without anything", "POST", none, request("subscriptions/listen", ""), Stateless},
		{"a call without anything", "POST", none, legacyCall, Legacy},
		{"the text server/discover in an argument", "POST", none, request("tools/call", `"name":"a","arguments":{"method":"server/discover",`+meta(`"2026-07-28"`)+`}`), Legacy},
	} {
		var m *Message
		if row.body != "" {
			scanned := mustScan(t, row.body)
			m = &scanned
		}
		if got := Classify(row.verb, row.h, m); got != row.want {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
}

// headersOf is what a client sends with a call.
func headersOf(method, name string) http.Header {
	h := header(HeaderVersion, "2026-07-28", HeaderMethod, method)
	if name != "" {
		h.Set(HeaderName, name)
	}
	return h
}

func TestCheckStateless(t *testing.T) {
	call := request("tools/call", `"name":"grüße",`+meta(`"2026-07-28"`))
	ok := headersOf("tools/call", EncodeHeaderValue("grüße"))
	list := request("tools/list", meta(`"2026-07-28"`))
	for _, row := range []struct {
		name         string
		h            http.Header
		body         string
		code, status int
	}{
		{"a call", ok, call, 0, 0},
		{"a list without a name", headersOf("tools/list", ""), list, 0, 0},
		{"a list with some name", headersOf("tools/list", "x"), list, 0, 0},
		{"a method no one knows", headersOf("vendor/thing", ""), request("vendor/thing", meta(`"2026-07-28"`)), 0, 0},
		{"completion needs no name", headersOf("completion/complete", ""), request("completion/complete", meta(`"2026-07-28"`)), 0, 0},
		{"a resource", headersOf("resources/read", "file:///x"), request("resources/read", `"uri":"file:///x",`+meta(`"2026-07-28"`)), 0, 0},
		{"a task", headersOf("tasks/update", "tk"), request("tasks/update", `"taskId":"tk",`+meta(`"2026-07-28"`)), 0, 0},

		{"empty params", headersOf("tools/list", ""), request("tools/list", ""), CodeInvalidParams, 400},
		{"no params", headersOf("tools/list", ""), `{"jsonrpc":"2.0","id":"q","method":"tools/list"}`, CodeInvalidParams, 400},
		{"a version that is no string", headersOf("tools/list", ""), request("tools/list", meta(`5`)), CodeInvalidParams, 400},
		{"no capabilities", headersOf("tools/list", ""), request("tools/list", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), CodeInvalidParams, 400},
		{"capabilities that are no object", headersOf("tools/list", ""), strings.Replace(list, "{}}", "null}", 1), CodeInvalidParams, 400},
		{"_meta is checked before headers", header(), request("tools/list", ""), CodeInvalidParams, 400},

		{"no version header", without(ok, HeaderVersion), call, CodeHeaderMismatch, 400},
		{"another version header", header(HeaderVersion, "2025-11-25", HeaderMethod, "tools/list"), list, CodeHeaderMismatch, 400},
		{"two version headers", with(ok, HeaderVersion, "2026-07-28"), call, CodeHeaderMismatch, 400},
		{"equality is checked before the version", headersOf("tools/list", ""), request("tools/list", meta(`"v999"`)), CodeHeaderMismatch, 400},
		{"a version not served", header(HeaderVersion, "v999"), request("tools/list", meta(`"v999"`)), CodeUnsupportedVersion, 400},
		{"a legacy version", header(HeaderVersion, "2025-11-25"), request("tools/list", meta(`"2025-11-25"`)), CodeUnsupportedVersion, 400},

		{"no method header", without(ok, HeaderMethod), call, CodeHeaderMismatch, 400},
		{"another method header", headersOf("tools/list", "x"), call, CodeHeaderMismatch, 400},
		{"a method header in another case", headersOf("Tools/Call", EncodeHeaderValue("grüße")), call, CodeHeaderMismatch, 400},
		{"an encoded method header", headersOf("=?base64?dG9vbHMvbGlzdA==?=", ""), list, CodeHeaderMismatch, 400},
		{"two method headers", with(ok, HeaderMethod, "tools/call"), call, CodeHeaderMismatch, 400},
		{"no name header", without(ok, HeaderName), call, CodeHeaderMismatch, 400},
		{"another name header", headersOf("tools/call", "ledger.read"), call, CodeHeaderMismatch, 400},
		{"a raw name header", headersOf("tools/call", "grüße"), call, CodeHeaderMismatch, 400},
		{"two name headers", with(ok, HeaderName, "x"), call, CodeHeaderMismatch, 400},
		{"a prompt without name header", headersOf("prompts/get", ""), request("prompts/get", `"name":"p",`+meta(`"2026-07-28"`)), CodeHeaderMismatch, 400},
		{"a resource without name header", headersOf("resources/read", ""), request("resources/read", `"uri":"u",`+meta(`"2026-07-28"`)), CodeHeaderMismatch, 400},
		{"two values of a parameter header", with(with(ok, "Mcp-Param-Region", "a"), "Mcp-Param-Region", "b"), call, CodeHeaderMismatch, 400},
		{"no name in the body", headersOf("tools/call", "x"), request("tools/call", meta(`"2026-07-28"`)), CodeInvalidParams, 400},
		{"a response", header(), `{"jsonrpc":"2.0","id":"q","result":{}}`, CodeInvalidRequest, 400},
	} {
		m := mustScan(t, row.body)
		e := CheckStateless(row.h, &m)
		checkError(t, row.name, e, row.code, row.status)
		if e != nil && string(e.ID) != `"q"` {
			t.Errorf("%s: got id %s, want \"q\"", row.name, e.ID)
		}
	}
}

func TestUnsupportedVersionsListWhatIsServed(t *testing.T) {
	m := mustScan(t, request("tools/list", meta(`"a\"b"`)))
	e := CheckStateless(header(HeaderVersion, `a"b`), &m)
	checkError(t, "a version not served", e, CodeUnsupportedVersion, 400)
	var data struct {
		Supported []string
		Requested string
	}
	if err := json.Unmarshal(e.Data, &data); err != nil || data.Requested != `a"b` || len(data.Supported) != len(SupportedVersions) {
		t.Errorf("got data %s (%v), want %v", e.Data, err, SupportedVersions)
	}
}

func TestRemovedMethodsAreNotFound(t *testing.T) {
	for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/result", "tasks/list"} {
		m := mustScan(t, request(method, `"uri":"u","taskId":"t",`+meta(`"2026-07-28"`)))
		checkError(t, method, CheckStateless(headersOf(method, ""), &m), CodeMethodNotFound, 404)
	}
	m := mustScan(t, `{"jsonrpc":"2.0","method":"notifications/initialized","params":{`+meta(`"2026-07-28"`)+`}}`)
	e := CheckStateless(header(), &m)
	checkError(t, "notifications/initialized", e, CodeMethodNotFound, 404)
	if e.ID != nil {
		t.Errorf("notifications/initialized: got id %s, want none", e.ID)
	}
}

func TestNotificationsNeedNoHeaders(t *testing.T) {
	for _, body := range []string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/vendor"}`,
	} {
		m := mustScan(t, body)
		for _, h := range []http.Header{nil, header(), headersOf("tools/call", "x"), header(HeaderMethod, "a", HeaderMethod, "b")} {
			checkError(t, body, CheckStateless(h, &m), 0, 0)
		}
	}
}

func TestCheckLegacyVersion(t *testing.T) {
	for _, row := range []struct {
		name string
		h    http.Header
		code int
	}{
		{"absent", header(), 0},
		{"2025-11-25", header(HeaderVersion, "2025-11-25"), 0},
		{"2025-06-18", header(HeaderVersion, "2025-06-18"), 0},
		{"2025-03-26", header(HeaderVersion, "2025-03-26"), 0},
		{"not served", header(HeaderVersion, "2024-11-05"), CodeInvalidRequest},
		{"of the other wire", header(HeaderVersion, "2026-07-28"), CodeInvalidRequest},
		{"invalid", header(HeaderVersion, "banana"), CodeInvalidRequest},
		{"empty", header(HeaderVersion, ""), CodeInvalidRequest},
		{"two", header(HeaderVersion, "2025-11-25", HeaderVersion, "2025-11-25"), CodeInvalidRequest},
	} {
		checkError(t, row.name, CheckLegacyVersion(row.h), row.code, 400)
	}
}

func TestTheLegacyWireListsOnlyVersionsWithSessions(t *testing.T) {
	e := CheckLegacyVersion(header(HeaderVersion, Version20260728))
	const want = `{"supported":["2025-11-25","2025-06-18","2025-03-26"],"requested":"2026-07-28"}`
	if e == nil || string(e.Data) != want {
		t.Errorf("%s there: %v with data %s, want data %s", Version20260728, e, e.Data, want)
	}
}

func TestCheckStatelessDoesNotAllocate(t *testing.T) {
	m := mustScan(t, statelessCall)
	h := headersOf("tools/call", "ledger.post")
	h.Set("Content-Type", "application/json")
	if n := testing.AllocsPerRun(100, func() {
		if Classify("POST", h, &m) != Stateless || CheckStateless(h, &m) != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// FuzzClassify holds Classify to its promises about any headers and any body that Scan accepts.
func FuzzClassify(f *testing.F) {
	f.Add("POST", "2026-07-28", "", []byte(statelessCall))
	f.Add("POST", "2025-11-25", "s", []byte(legacyCall))
	f.Add("POST", "", "", []byte(legacyInitialize))
	f.Add("GET", "", "s", []byte(nil))
	f.Fuzz(func(t *testing.T, verb, version, session string, body []byte) {
		h := make(http.Header)
		if version != "" {
			h.Set(HeaderVersion, version)
		}
		if session != "" {
			h.Set(HeaderSessionID, session)
		}
		m, err := Scan(body, Limits{})
		if err != nil {
			return
		}
		era := Classify(verb, h, &m)
		stateless := CheckStateless(h, &m) == nil && m.Kind == Request
		switch {
		case era != Legacy && era != Stateless:
			t.Errorf("got %v", era)
		case verb != "POST" && era != Legacy:
			t.Errorf("%s: got %v", verb, era)
		case verb == "POST" && stateless && era != Stateless:
			t.Errorf("a valid stateless request is taken for %v: %s", era, body)
		case verb == "POST" && m.Method == MethodInitialize && !m.MetaVersionSpan.Present() && era != Legacy:
			t.Errorf("initialize is taken for %v: %s", era, body)
		}
	})
}

func BenchmarkCheckStateless(b *testing.B) {
	m := mustScan(b, statelessCall)
	h := headersOf("tools/call", "ledger.post")
	for _, name := range []string{"Accept", "Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "User-Agent", "Mcp-Param-Region"} {
		h.Set(name, "x")
	}
	b.ReportAllocs()
	for b.Loop() {
		if CheckStateless(h, &m) != nil {
			b.Fatal("refused")
		}
	}
}

package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// The answers of mcp-wire 2026-07-28, basic/transports/streamable-http, Server Validation, as a client sees them.
func TestTheStatelessWiresAnswers(t *testing.T) {
	r := newRig(t, newPeer().serveHTTP(t, inEvents))
	h := modern("tools/call", "echo")
	good := modernCall("9", "echo", `{"text":"a"}`)
	for _, tt := range []struct {
		name         string
		h            head
		body         string
		status, code int
		id           string
	}{
		{"not JSON", h, `{"jsonrpc":`, 400, -32700, ""},
		{"a batch", h, `[` + good + `]`, 400, -32600, ""},
		{"an empty body", h, ` `, 400, -32700, ""},
		{"id null", h, strings.Replace(good, `"id":9`, `"id":null`, 1), 400, -32600, ""},
		{"id fractional", h, strings.Replace(good, `"id":9`, `"id":1.5`, 1), 400, -32600, ""},
		{"id twice", h, strings.Replace(good, `"id":9`, `"id":9,"id":8`, 1), 400, -32600, ""},
		{"method in another case", h, strings.Replace(good, `"method"`, `"Method":"ping","method"`, 1), 400, -32600, "9"},
		{"no _meta", h, `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo"}}`, 400, -32602, `"x"`},
		{"no clientCapabilities", h, strings.Replace(good, `"io.modelcontextprotocol/clientCapabilities":{}`, `"a":{}`, 1), 400, -32602, "9"},
		{"no version header", h.without(mcp.HeaderVersion), good, 400, -32020, "9"},
		{"version header differs", h.with(mcp.HeaderVersion, "2025-11-25"), good, 400, -32020, "9"},
		{"_meta of an unknown version", h, strings.Replace(good, "2026-07-28", "v999", 1), 400, -32020, "9"},
		{"version not served", h.with(mcp.HeaderVersion, "2099-01-01"), strings.Replace(good, "2026-07-28", "2099-01-01", 1), 400, -32022, "9"},
		{"version of the other wire", h.with(mcp.HeaderVersion, "2025-11-25"), strings.Replace(good, "2026-07-28", "2025-11-25", 1), 400, -32022, "9"},
		{"no method header", h.without(mcp.HeaderMethod), good, 400, -32020, "9"},
		{"method header in another case", h.with(mcp.HeaderMethod, "Tools/Call"), good, 400, -32020, "9"},
		{"no name header", h.without(mcp.HeaderName), good, 400, -32020, "9"},
		{"name header differs", h.with(mcp.HeaderName, "wait"), good, 400, -32020, "9"},
		{"name header badly encoded", h.with(mcp.HeaderName, "=?base64?ZWNobw?="), good, 400, -32020, "9"},
		{"removed method", modern("ping", ""), `{"jsonrpc":"2.0","id":9,"method":"ping","params":{` + meta + `}}`, 404, -32601, "9"},
		{"initialize with _meta", modern("initialize", ""), `{"jsonrpc":"2.0","id":9,"method":"initialize","params":{` + meta + `}}`, 404, -32601, "9"},
		{"unknown method", modern("no/such", ""), `{"jsonrpc":"2.0","id":9,"method":"no/such","params":{` + meta + `}}`, 404, -32601, "9"},
		{"wrong content type", h.with("Content-Type", "text/plain"), good, 415, -32600, ""},
		{"accept without a use", h.with("Accept", "text/html"), good, 406, -32600, ""},
		{"foreign origin", h.with("Origin", "https://evil.example"), good, 403, -32600, ""},
		{"foreign host", h.with("Host", "evil.example"), good, 403, -32600, ""},
		{"a response", modern("", ""), `{"jsonrpc":"2.0","id":9,"result":{` + meta + `}}`, 400, -32600, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := r.do(http.MethodPost, tt.h, tt.body)
			m := p.wantError(t, tt.status, tt.code, tt.id)
			if ct := p.header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type %q", ct)
			}
			if tt.code == -32022 && !strings.Contains(string(m.Error.Data), `"supported":["2026-07-28"`) {
				t.Errorf("data %s, want the versions supported", m.Error.Data)
			}
			if sid := p.header.Get(mcp.HeaderSessionID); sid != "" {
				t.Errorf("a session id %q", sid)
			}
		})
	}
	wantText(t, r.do(http.MethodPost, h, good), "9", "a")
	wantText(t, r.do(http.MethodPost, h.with(mcp.HeaderSessionID, "ignored").with("Last-Event-ID", "1_1"), good), "9", "a")
	wantText(t, r.do(http.MethodPost, h.with("Content-Type", "Application/JSON; charset=utf-8").with("Accept", "*/*"), good), "9", "a")
	if p := r.do(http.MethodPost, nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,`+meta+`}}`); p.status != 202 || p.body != "" {
		t.Errorf("a notification: %d %q, want 202 and nothing", p.status, p.body)
	}
}

func TestAnEncodedNameMirrorsItsName(t *testing.T) {
	r := newRig(t, &fake{})
	body := modernCall("1", "wetter-größe", "{}")
	p := r.do(http.MethodPost, modern("tools/call", mcp.EncodeHeaderValue("wetter-größe")), body)
	if p.status != 200 {
		t.Errorf("got %d %s", p.status, p.body)
	}
}

func TestARepeatedHeaderIsRefused(t *testing.T) {
	r := newRig(t, &fake{})
	for _, name := range []string{mcp.HeaderVersion, mcp.HeaderMethod, mcp.HeaderName, "Mcp-Param-Region"} {
		req := r.request(testContext(t), http.MethodPost, modern("tools/call", "echo"), modernCall("4", "echo", "{}"))
		req.Header.Add(name, req.Header.Get(name))
		if len(req.Header[name]) == 1 {
			req.Header.Add(name, "b")
		}
		r.send(req).wantError(t, 400, -32020, "4")
	}
	s := r.initialize()
	for _, name := range []string{mcp.HeaderVersion, mcp.HeaderSessionID} {
		req := r.request(testContext(t), http.MethodPost, s, toolCall("4", "echo", "{}"))
		req.Header.Add(name, s[name])
		r.send(req).wantError(t, 400, -32600, "4")
	}
	req := r.request(testContext(t), http.MethodPost, modern("tools/call", "echo"), modernCall("4", "echo", "{}"))
	req.Header["Origin"] = []string{"http://localhost", "https://evil.example"}
	r.send(req).wantError(t, 403, -32600, "")
}

func TestTheLegacyWiresAnswers(t *testing.T) {
	r := newRig(t, newPeer().serveHTTP(t, nil))
	s := r.initialize()
	unknown := s.with(mcp.HeaderSessionID, "unknown")
	call := toolCall("3", "echo", `{"text":"a"}`)
	for _, tt := range []struct {
		name, method string
		h            head
		body         string
		status, code int
		id           string
	}{
		{"no session", "POST", nil, call, 400, -32600, "3"},
		{"an empty session id", "POST", head{mcp.HeaderSessionID: ""}, call, 404, -32600, "3"},
		{"an unknown session", "POST", unknown, call, 404, -32600, "3"},
		{"an unknown session, a notification", "POST", unknown, initialized, 404, -32600, ""},
		{"a response without a session", "POST", nil, `{"jsonrpc":"2.0","id":1,"result":{}}`, 400, -32600, ""},
		{"GET of an unknown session", "GET", unknown, "", 404, -32600, ""},
		{"DELETE of an unknown session", "DELETE", unknown, "", 404, -32600, ""},
		{"an unknown version", "POST", s.with(mcp.HeaderVersion, "2025-01-01x"), call, 400, -32602, "3"},
		{"2024-11-05, which is not served", "POST", s.with(mcp.HeaderVersion, "2024-11-05"), call, 400, -32600, "3"},
		{"GET with a version not served", "GET", s.with(mcp.HeaderVersion, "1"), "", 400, -32600, ""},
		{"an unknown tool", "POST", s, toolCall("2", "no-such", "{}"), 200, -32602, "2"},
		{"a batch in 2025-11-25", "POST", s, "[" + call + "]", 400, -32600, ""},
		{"resuming what never was", "GET", s.with("Last-Event-ID", "77_1"), "", 400, -32600, ""},
		{"resuming nonsense", "GET", s.with("Last-Event-ID", "x"), "", 400, -32600, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.do(tt.method, tt.h, tt.body).wantError(t, tt.status, tt.code, tt.id)
		})
	}
	wantText(t, r.do("POST", s, call), "3", "a")
	wantText(t, r.do("POST", s.without(mcp.HeaderVersion), toolCall("4", "echo", `{"text":"a"}`)), "4", "a")
	if p := r.do("POST", s, initialized); p.status != 202 || p.body != "" || p.header["Content-Type"] != nil {
		t.Errorf("a notification: %d %q %v, want 202, no body and no content type", p.status, p.body, p.header)
	}
	if p := r.do("DELETE", s, ""); p.status != 204 || p.body != "" {
		t.Errorf("DELETE: %d %q, want 204 and nothing", p.status, p.body)
	}
	r.do("POST", s, call).wantError(t, 404, -32600, "3")
	r.do("DELETE", s, "").wantError(t, 404, -32600, "")
	r.do("GET", s, "").wantError(t, 404, -32600, "")
}

// L24
func TestOtherVerbsAreAnsweredWithTheVerbsThereAre(t *testing.T) {
	for name, tt := range map[string]struct {
		eras  mcp.Eras
		allow string
	}{
		"legacy": {mcp.EraSet(mcp.Legacy), "GET, POST, DELETE"}, "stateless": {mcp.EraSet(mcp.Stateless), "POST"},
		"both": {bothEras, "GET, POST, DELETE"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, &fake{eras: tt.eras})
			for _, verb := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "BREW"} {
				p := r.do(verb, head{mcp.HeaderVersion: mcp.Version20260728}, "")
				if p.status != 405 || p.header.Get("Allow") != tt.allow {
					t.Errorf("%s: %d, Allow %q; want 405, %q", verb, p.status, p.header.Get("Allow"), tt.allow)
				}
				if verb == "HEAD" && p.body != "" {
					t.Errorf("HEAD has a body %q", p.body)
				}
			}
		})
	}
}

// L14, L24
func TestAServerWithoutAGETStreamIsPassedOnAs405(t *testing.T) {
	r := newRig(t, &fake{})
	s := r.initialize()
	for range 2 {
		p := r.do("GET", s.with("Accept", "text/event-stream"), "")
		if p.status != 405 || p.header.Get("Allow") != "POST, DELETE" {
			t.Errorf("got %d, Allow %q; want 405 with the other verbs", p.status, p.header.Get("Allow"))
		}
	}
}

func TestAGETWithoutAnOfferOfEventsIsRefused(t *testing.T) {
	f := &fake{listen: func(ctx ctx) (upstream.EventStream, error) { return newEvents(ctx), nil }}
	r := newRig(t, f)
	s := r.initialize()
	for _, accept := range []string{"application/json", "text/html, application/xhtml+xml", ""} {
		p := r.do("GET", s.with("Accept", accept), "")
		if p.status != 405 || p.header.Get("Allow") != "POST, DELETE" {
			t.Errorf("Accept %q: %d, Allow %q; want 405 with the other verbs", accept, p.status, p.header.Get("Allow"))
		}
	}
	r.open("GET", s, "").leave()
	for _, accept := range []string{"*/*", "text/*", "Text/Event-Stream", "application/json, text/event-stream;q=0.9"} {
		r.open("GET", s.with("Accept", accept), "").leave()
	}
}

func TestAnInvalidCallDoesNotWaitForTheServer(t *testing.T) {
	r := newRig(t, &fake{erasErr: &upstream.Error{Kind: upstream.Unreachable, Upstream: "up", Detail: "gone"}})
	h := modern("tools/call", "echo")
	r.do("POST", h.without(mcp.HeaderMethod), modernCall("9", "echo", "{}")).wantError(t, 400, -32020, "9")
	r.do("POST", h, modernCall("9", "echo", "{}")).wantError(t, 200, -32603, "9")
}

func TestASessionsCallsInFlightAreBoundedOnTheWire(t *testing.T) {
	r := newRig(t, &fake{})
	h := r.initializeAs(mcp.Version20250326)
	s := r.table.Load().endpoints["/mcp"].sessions.Get(h[mcp.HeaderSessionID], "")
	for {
		_, done, err := s.Begin([]byte("0"))
		if err != nil {
			break
		}
		defer done()
	}
	p := r.do("POST", h, toolCall("7", "echo", "{}"))
	p.wantError(t, 429, -32603, "7")
	if n := r.metric("outrigger_refusals_total", "reason", "too_many_calls"); n != 1 || p.header.Get("Retry-After") == "" {
		t.Errorf("%v counted and Retry-After %q, want 1 and a time", n, p.header.Get("Retry-After"))
	}
	r.do("POST", h, "["+toolCall("8", "echo", "{}")+"]").wantError(t, 200, -32603, "8")
}

// L23
func TestInitializeIsNeverAnsweredWithAStatelessVersion(t *testing.T) {
	r := newRig(t, newPeer().serveHTTP(t, nil))
	for _, h := range []head{nil, modern("initialize", ""), {mcp.HeaderVersion: "2099-01-01"}} {
		for _, asked := range []string{"2026-07-28", "2099-01-01", "nonsense"} {
			p := r.do("POST", h, strings.Replace(initialize, "2025-11-25", asked, 1))
			if p.status != 200 || !strings.Contains(p.body, `"protocolVersion":"2025-11-25"`) || p.header.Get(mcp.HeaderSessionID) == "" {
				t.Errorf("asked for %s under %v: %d %s; want a session of 2025-11-25", asked, h, p.status, p.body)
			}
		}
	}
}

// L23
func TestAnInitializeResultOfAStatelessVersionIsNoSession(t *testing.T) {
	f := &fake{}
	f.open = func(_ ctx, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
		return &fakeSession{f}, jsonAnswer(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2026-07-28"}}`), nil
	}
	r := newRig(t, f)
	m := r.do("POST", nil, initialize).wantError(t, 200, -32603, "0")
	wantOurs(t, m, "upstream_bad_answer")
	if f.ended.Load() != 1 {
		t.Errorf("the server's session was ended %d times, want once", f.ended.Load())
	}
}

// L25
func TestAMethodNameInAnArgumentIsNotAMethod(t *testing.T) {
	f := &fake{}
	r := newRig(t, f)
	for _, args := range []string{
		`{"text":"server/discover"}`, `{"method":"initialize"}`, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`,
		`{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`, `{"x":"\"method\":\"initialize\""}`,
	} {
		if p := r.callModern("1", "echo", args); p.status != 200 || !strings.Contains(p.body, args) {
			t.Errorf("stateless %s: %d %s", args, p.status, p.body)
		}
		s := r.initialize()
		if p := r.do("POST", s, toolCall("1", "echo", args)); p.status != 200 || !strings.Contains(p.body, args) {
			t.Errorf("legacy %s: %d %s", args, p.status, p.body)
		}
	}
}

// L5, L8
func TestWhatTheSidecarHasNoBusinessWithPassesByteForByte(t *testing.T) {
	const result = `{"structuredContent":null,"n":9007199254740993,"f":1.0000000000000000001,"e":1E+2,"s":"\u00e9\/é","nested":{"a":[ 1 , 2 ]},"_meta":{"vendor/x":9007199254740993},"isError":false,"content":[]}`
	var got string
	f := &fake{}
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		if c.Message.Kind != mcp.Request {
			return nil, nil
		}
		got = string(c.Message.Raw)
		return jsonAnswer(`{"result":` + result + `,"id":` + string(c.Message.ID.Of(c.Message.Raw)) + `,"jsonrpc":"2.0","extra":{}}`), nil
	}
	r := newRig(t, f)
	const args = `{"n":9007199254740993,"x":null,"d":[1.10, -0],"cursor":"","f":1e400,"u":"\ud83d\ude00"}`
	for _, id := range []string{"9007199254740993", `"9007199254740993"`, "-1", `"é\n"`} {
		body := strings.Replace(modernCall(id, "echo", args), `"jsonrpc"`, `"unknown":[null],"jsonrpc"`, 1)
		p := r.do("POST", modern("tools/call", "echo"), body)
		if want := `{"result":` + result + `,"id":` + id + `,"jsonrpc":"2.0","extra":{}}`; p.body != want {
			t.Errorf("answer\n got %s\nwant %s", p.body, want)
		}
		if got != body {
			t.Errorf("request\n got %s\nwant %s", got, body)
		}
		body = toolCall(id, "echo", args)
		p = r.do("POST", r.initialize(), body)
		if !strings.Contains(p.body, result) || got != body {
			t.Errorf("legacy request\n got %s\nwant %s\nanswer %s", got, body, p.body)
		}
	}
}

func TestTheServersStatusIsTheClients(t *testing.T) {
	f := &fake{}
	status := 0
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		a := jsonAnswer(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`)
		a.Status = status
		return a, nil
	}
	r := newRig(t, f)
	for _, status = range []int{200, 400, 404, 500} {
		if p := r.callModern("1", "echo", "{}"); p.status != status {
			t.Errorf("got %d, want %d", p.status, status)
		}
	}
	if n := r.metric("outrigger_call_duration_seconds", "outcome", "rpc_error", "method", "tools/call", "era", "stateless", "binding", "main"); n != 4 {
		t.Errorf("%v calls counted as rpc_error, want 4", n)
	}
}

func TestAMixedPairIsToldWhichWireThereIsWhereNothingTranslates(t *testing.T) {
	off := &outriggerv1.Bridge{Enabled: proto.Bool(false)}
	spec := newPeer(mcp.Version20260728).serveHTTP(t, inEvents)
	spec.Era, spec.Bridge = outriggerv1.Era_ERA_STATELESS, off
	stateless := newRig(t, spec)
	m := stateless.do("POST", nil, initialize).wantError(t, 200, -32602, "0")
	if !strings.Contains(m.Error.Message, "2026-07-28") || !strings.Contains(string(m.Error.Data), `"supported":["2026-07-28"]`) {
		t.Errorf("error %s %s, want the version there is", m.Error.Message, m.Error.Data)
	}
	spec = newPeer().serveHTTP(t, nil)
	spec.Bridge = off
	legacy := newRig(t, spec)
	m = legacy.callModern(`"a"`, "echo", "{}").wantError(t, 400, -32022, `"a"`)
	if want := `"supported":["2025-11-25","2025-06-18","2025-03-26"]`; !strings.Contains(string(m.Error.Data), want) {
		t.Errorf("data %s, want %s", m.Error.Data, want)
	}
	discover := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}`
	legacy.do("POST", modern("server/discover", ""), discover).wantError(t, 400, -32022, "1")
}

func TestAMixedPairIsTranslated(t *testing.T) {
	stateless := newRig(t, newPeer(mcp.Version20260728).serveHTTP(t, inEvents))
	s := stateless.initializeAs(mcp.Version20251125)
	p := stateless.do("POST", s, toolCall("7", "echo", `{"text":"9007199254740993"}`))
	if m := p.rpc(t); string(m.ID) != "7" || !strings.Contains(string(m.Result), "9007199254740993") || strings.Contains(p.body, "resultType") {
		t.Errorf("a session at a stateless server: %d %s", p.status, p.body)
	}
	legacy := newRig(t, newPeer().serveHTTP(t, nil))
	p = legacy.callModern(`"a"`, "echo", `{"text":"x"}`)
	if m := p.rpc(t); string(m.ID) != `"a"` || !strings.Contains(string(m.Result), `"resultType":"complete"`) {
		t.Errorf("a stateless call at a server with sessions: %d %s", p.status, p.body)
	}
	discover := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + meta + `}}`
	if p = legacy.do("POST", modern("server/discover", ""), discover); !strings.Contains(p.body, `"supportedVersions":["2026-07-28"`) {
		t.Errorf("discover at a server with sessions: %d %s", p.status, p.body)
	}
}

func TestABatchIsEachOfItsMessages(t *testing.T) {
	r := newRig(t, newPeer().serveHTTP(t, nil))
	s := r.initializeAs(mcp.Version20250326)
	batch := "[" + toolCall("1", "echo", `{"text":"a"}`) + "," + initialized + "," + toolCall(`"1"`, "progress", `{"text":"b"}`) + "," +
		`{"jsonrpc":"2.0","id":3,"method":"no/such"}` + "]"
	p := r.do("POST", s, batch)
	answers := map[string]rpcReply{}
	for _, e := range parseEvents(p.body) {
		if m := (reply{body: e.data}).rpc(t); m.ID != nil {
			answers[string(m.ID)] = m
		}
	}
	if p.status != 200 || len(answers) != 3 || !strings.Contains(string(answers["1"].Result), `"a"`) ||
		!strings.Contains(string(answers[`"1"`].Result), `"b"`) || answers["3"].Error == nil {
		t.Errorf("got %d %s; want three answers", p.status, p.body)
	}
	for method, want := range map[string]float64{"tools/call": 2, "notifications/initialized": 2, "other": 1} {
		if n := r.metric("outrigger_call_duration_seconds", "method", method); n != want {
			t.Errorf("%v calls of %s counted, want %v", n, method, want)
		}
	}
	if p := r.do("POST", s, "["+initialized+","+initialized+"]"); p.status != 202 || p.body != "" {
		t.Errorf("notifications alone: %d %q, want 202", p.status, p.body)
	}
	for name, body := range map[string]string{
		"empty": "[]", "initialize inside": "[" + initialize + "]", "no message": "[1]", "nested": "[[" + initialized + "]]",
		"too many": "[" + strings.Repeat(initialized+",", 100) + initialized + "]",
	} {
		t.Run(name, func(t *testing.T) {
			if p := r.do("POST", s, body); p.status != 400 || p.rpc(t).Error.Code != -32600 {
				t.Errorf("got %d %s; want 400 and -32600", p.status, p.body)
			}
		})
	}
	r.do("POST", nil, "["+initialized+"]").wantError(t, 400, -32600, "")
	r.do("POST", s.with(mcp.HeaderSessionID, "unknown"), "["+initialized+"]").wantError(t, 404, -32600, "")
}

func TestAPanicInABatchIsItsMembersFailure(t *testing.T) {
	f := &fake{}
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		if string(c.Message.ID.Of(c.Message.Raw)) == "1" {
			panic("broken")
		}
		return answerTo(c), nil
	}
	r := newRig(t, f)
	p := r.do("POST", r.initializeAs(mcp.Version20250326), "["+toolCall("1", "echo", "{}")+","+toolCall("2", "echo", "{}")+"]")
	failed := map[string]bool{}
	for _, e := range parseEvents(p.body) {
		m := reply{body: e.data}.rpc(t)
		failed[string(m.ID)] = m.Error != nil
	}
	if len(failed) != 2 || !failed["1"] || failed["2"] {
		t.Errorf("got %s; want an error for 1 and a result for 2", p.body)
	}
	if strings.Contains(p.body, "broken") || !strings.Contains(r.log.String(), "panic: broken") {
		t.Errorf("the panic is shown in %s, or is not in the log", p.body)
	}
}

// 2025-03-26, basic/transports: a disconnection is not a cancellation.
func TestABatchWhoseClientLeftIsServedToItsEnd(t *testing.T) {
	f := &fake{}
	r := newRig(t, f)
	h := r.initializeAs(mcp.Version20250326)
	calls := streaming(f)
	s := r.open("POST", h, "["+toolCall("1", "echo", "{}")+"]")
	e := <-calls
	s.leave()
	for range 100 { // more than connection and channel take in
		e.feed <- strings.Replace(progressNote, `"progress":1`, `"progress":1,"message":"`+strings.Repeat("x", 100_000)+`"`, 1)
	}
	e.feed <- response("1", "done")
	close(e.feed)
	eventually(t, "the call is counted", func() bool {
		return r.metric("outrigger_call_duration_seconds", "method", "tools/call", "outcome", "ok") == 1
	})
	if e.ctx.Err() == nil {
		t.Error("its context goes on after its end")
	}
}

// L27
func TestACancellationInABatchCancels(t *testing.T) {
	p := newPeer()
	r := newRig(t, p.serveHTTP(t, nil))
	s := r.initializeAs(mcp.Version20250326)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.client.Do(r.request(testContext(t), "POST", s, toolCall("5", "wait", `{"text":"w"}`)))
	}()
	<-p.begun
	r.do("POST", s, `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}]`)
	<-p.ended
	r.do("DELETE", s, "")
	<-done
}

func TestSessionsAreTheirBindingsOwn(t *testing.T) {
	r := newRig(t, &fake{})
	r.config.Bindings = append(r.config.Bindings, binding(func(b *bindingSpec) { b.Name, b.Path = "other", "/other" }))
	if refused := r.Apply(r.config); len(refused) > 0 {
		t.Fatal(refused)
	}
	s := r.initialize()
	r.url = "http://" + r.addr + "/other"
	r.do("POST", s, toolCall("1", "echo", "{}")).wantError(t, 404, -32600, "1")
	r.url = "http://" + r.addr + "/nowhere"
	r.do("POST", s, toolCall("1", "echo", "{}")).wantError(t, 404, -32600, "")
	if n := r.metric("outrigger_refusals_total", "binding", "", "reason", "no_binding"); n != 1 {
		t.Errorf("%v refusals outside of bindings counted, want 1", n)
	}
}

// wantOurs checks that an error says it is the sidecar's, and why.
func wantOurs(t testing.TB, m rpcReply, reason string) {
	t.Helper()
	if want := fmt.Sprintf(`{"source":"outrigger","reason":%q}`, reason); m.Error == nil || string(m.Error.Data) != want {
		t.Errorf("error %+v, want data %s", m.Error, want)
	}
}

// loop makes n sidecars whose upstreams lead from one to the next, and from the last to the first, by two URLs if that is
// what twice says.
func loop(t *testing.T, n int, era outriggerv1.Era, twice bool) []*rig {
	var rigs []*rig
	for i := range n {
		r := newRig(t, &outriggerv1.Upstream{Name: "up", Era: outriggerv1.Era_ERA_STATELESS, Transport: &outriggerv1.Upstream_Http{
			Http: &outriggerv1.HTTPTransport{Url: "http://127.0.0.1:1/mcp"}}})
		r.Via = fmt.Sprint("sidecar-", i)
		r.Dial = Dialer{Log: r.Log, Version: "test", Via: r.Via}.Dial
		rigs = append(rigs, r)
	}
	for i, r := range rigs {
		r.apply(func(c *config.Config) {
			http := &outriggerv1.HTTPTransport{Url: rigs[(i+1)%n].url}
			if twice {
				http.MoreUrls = []string{http.Url + "?again"}
			}
			c.Upstreams[0] = &outriggerv1.Upstream{Name: "up", Era: era, Transport: &outriggerv1.Upstream_Http{Http: http}}
			c.Bindings[0].AccessLog = proto.Bool(false) // made anew, with its Via
		})
	}
	return rigs
}

// A binding whose upstream leads back to it, itself or through others. Whatever is asked first, and however many sidecars
// ask at once which wires the next one speaks, a request that comes round is refused at once, and its client told why.
func TestACallThatComesRoundIsRefused(t *testing.T) {
	for _, era := range []outriggerv1.Era{outriggerv1.Era_ERA_UNSPECIFIED, outriggerv1.Era_ERA_STATELESS, outriggerv1.Era_ERA_LEGACY} {
		for n := range 6 {
			n, twice := n/2+1, n%2 == 1
			t.Run(fmt.Sprint(era, " ", n, " ", twice), func(t *testing.T) {
				t.Parallel()
				begun := time.Now()
				var all sync.WaitGroup
				for _, r := range loop(t, n, era, twice) {
					all.Go(func() {
						p := r.callModern(`"mine"`, "echo", "{}")
						m := p.rpc(t)
						wantOurs(t, m, "loop")
						if p.status != http.StatusLoopDetected || string(m.ID) != `"mine"` {
							t.Errorf("got %d %s, want 508 with the request's id", p.status, p.body)
						}
					})
				}
				all.Wait()
				if took := time.Since(begun); took > 5*time.Second { // a handshake that nobody answers takes 10
					t.Errorf("that took %v", took)
				}
			})
		}
	}
}

func TestAnotherProxysViaIsNoLoop(t *testing.T) {
	r := loop(t, 1, outriggerv1.Era_ERA_STATELESS, false)[0]
	for via, want := range map[string]bool{
		"1.1 sidecar-0": true, "1.1 other, 1.0 sidecar-0 (a comment)": true, "HTTP/1.1 sidecar-0": true,
		"1.1 sidecar-00": false, "sidecar-0": false, "1.1 other (1.1 sidecar-0)": false,
	} {
		q := httptest.NewRequest("POST", "/mcp", nil)
		q.Header.Set("Via", via)
		if err := r.table.Load().endpoints["/mcp"].comesRound(q); (err != nil) != want {
			t.Errorf("Via %q: refused is %v, want %v", via, err, want)
		}
	}
}

// Each has what the other has itself, and neither fetches its own tools through the other.
func TestTwoFederationsThatNameEachOtherEnd(t *testing.T) {
	var rigs []*rig
	for i := range 2 {
		r := newRig(t, newPeer(mcp.Version20260728).serveHTTP(t, inEvents))
		r.Via = fmt.Sprint("sidecar-", i)
		d := Dialer{Log: r.Log, Version: "test", Via: r.Via}
		r.Dial, r.Federate, r.Lone = d.Dial, d.Federate, d.Lone
		rigs = append(rigs, r)
	}
	for i, r := range rigs {
		r.apply(func(c *config.Config) {
			other := &outriggerv1.Upstream{Name: "other", Transport: &outriggerv1.Upstream_Http{
				Http: &outriggerv1.HTTPTransport{Url: rigs[1-i].url}}}
			c.Upstreams[0].Health = &outriggerv1.Health{} // dialed anew, with its Via
			c.Upstreams = append(c.Upstreams, other)
			c.Bindings[0].Upstreams = append(c.Bindings[0].Upstreams, &outriggerv1.UpstreamReference{Name: "other"})
			c.Bindings[0].Lists = &outriggerv1.Lists{Ttl: durationpb.New(time.Millisecond)}
		})
	}
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`
	tools := func(r *rig) (names []string) {
		var result struct{ Tools []struct{ Name string } }
		p := r.do("POST", modern("tools/list", ""), list)
		if m := p.rpc(t); json.Unmarshal(m.Result, &result) != nil {
			t.Fatalf("%d %s", p.status, p.body)
		}
		for _, tool := range result.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	for range 5 {
		for _, r := range rigs {
			names := strings.Join(tools(r), " ")
			if !strings.Contains(names, "up_echo") || !strings.Contains(names, "other_up_echo") || strings.Contains(names, "other_other") {
				t.Fatalf("tools %s, want those of both servers, and none that came round", names)
			}
		}
	}
}

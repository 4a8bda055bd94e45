package tolegacy

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func scanned(t testing.TB, raw string) *mcp.Message {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &m
}

func TestRequestsAreRewrittenAndNothingElse(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`, `{"jsonrpc":"2.0","id":17,"method":"tools/list"}`},
		{`{"method":"tools/list","params":{"cursor":""},"id":1,"jsonrpc":"2.0"}`,
			`{"method":"tools/list","params":{"cursor":""},"id":17,"jsonrpc":"2.0"}`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{}}}}`, `{"jsonrpc":"2.0","id":17,"method":"tools/list","params":{}}`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{ "name" : "t", "arguments" : {"n": 9007199254740993,` +
			`"_meta":{"io.modelcontextprotocol/logLevel":"x"},"task":1,"null":null}, "task":{"ttl":1}, "inputResponses":{},` +
			`"requestState":"s", "_meta" :{"traceparent":"00-1","io.modelcontextprotocol/clientInfo":{},` +
			`"io.modelcontextprotocol/logLevel":"info", "progressToken" : "p", "acme/x":[1,2]}}}`,
			`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name" : "t","arguments" : {"n": 9007199254740993,` +
				`"_meta":{"io.modelcontextprotocol/logLevel":"x"},"task":1,"null":null},"_meta" :{"traceparent":"00-1",` +
				`"progressToken" : 17,"acme/x":[1,2]}}}`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":null}}}`,
			`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"t"}}`},
	} {
		if got := string(toLegacy(scanned(t, c.raw), []byte("17"))); got != c.want {
			t.Errorf("%s\n became %s\n want   %s", c.raw, got, c.want)
		}
	}
}

func TestResponsesAreRewrittenAndNothingElse(t *testing.T) {
	for _, c := range []struct {
		method, raw, want string
		status            int
	}{
		{mcp.MethodToolsCall, `{"jsonrpc":"2.0","id":17,"result":{}}`, `{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete"}}`, 200},
		{mcp.MethodToolsCall, `{"jsonrpc":"2.0","result":{ "structuredContent":null,"n":9007199254740993,"isError":true},"id":17}`,
			`{"jsonrpc":"2.0","result":{"resultType":"complete", "structuredContent":null,"n":9007199254740993,"isError":true},"id":"a"}`, 200},
		{mcp.MethodToolsCall, `{"jsonrpc":"2.0","id":17,"result":{"resultType":"acme","ttlMs":5}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"acme","ttlMs":5}}`, 200},
		{mcp.MethodResourcesRead, `{"jsonrpc":"2.0","id":17,"result":{"contents":[],"ttlMs":5}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete","cacheScope":"private","contents":[],"ttlMs":5}}`, 200},
		{mcp.MethodResourcesList, `{"jsonrpc":"2.0","id":17,"result":{"cacheScope":"public"}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete","ttlMs":0,"cacheScope":"private"}}`, 200},
		{mcp.MethodResourcesList, `{"jsonrpc":"2.0","id":17,"result":{"cacheScope":"public","cacheScope":{}}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","cacheScope":"private"}}`, 200},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","id":17,"result":{"tools":[{"name":"a","execution":{"taskSupport":"optional"},"x":[1]},` +
			` {"name":"execution","inputSchema":{"properties":{"execution":{}}}}, {"\u0065xecution":1}],"nextCursor":"c"}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"a","x":[1]},` +
				` {"name":"execution","inputSchema":{"properties":{"execution":{}}}}, {}],"nextCursor":"c"}}`, 200},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","id":17,"result":{"tools":{"execution":1}}}`,
			`{"jsonrpc":"2.0","id":"a","result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":{"execution":1}}}`, 200},
		{mcp.MethodResourcesRead, `{"jsonrpc":"2.0","id":17,"error":{"code":-32002,"message":"no","data":{"uri":"u","code":-32002}}}`,
			`{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"no","data":{"uri":"u","code":-32002}}}`, 200},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","id":17,"error":{"message":"no","code":-32601}}`,
			`{"jsonrpc":"2.0","id":"a","error":{"message":"no","code":-32601}}`, 404},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","error":{"code":-32022,"message":"no"}}`,
			`{"id":"a","jsonrpc":"2.0","error":{"code":-32022,"message":"no"}}`, 400},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","id":null,"error":{"code":"7","message":"no"}}`,
			`{"jsonrpc":"2.0","id":"a","error":{"code":"7","message":"no"}}`, 200},
		{mcp.MethodToolsList, `{"jsonrpc":"2.0","id":17,"error":{}}`, `{"jsonrpc":"2.0","id":"a","error":{}}`, 200},
	} {
		got, status, ok := fromLegacy(scanned(t, c.raw), c.method, []byte(`"a"`))
		if string(got) != c.want || status != c.status || !ok {
			t.Errorf("%s\n became %d %s\n want   %d %s", c.raw, status, got, c.status, c.want)
		}
	}
}

func TestQuestionsLoseWhatBelongsToTheSession(t *testing.T) {
	m := scanned(t, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"mode":"url","task":{},"elicitationId":"e",`+
		`"url":"u","_meta":{"progressToken":1},"message":"\u00e9"}}`)
	const want = `{"mode":"url","url":"u","message":"\u00e9"}`
	if got := string(questionParams(m)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCapabilitiesAreReadByWhatTheyMean(t *testing.T) {
	const form, url = `"elicitation/create","params":{"message":"m"}`, `"elicitation/create","params":{"mode":"url"}`
	for _, c := range []struct {
		declared string
		question string
		allowed  bool
	}{
		{`{"elicitation":{}}`, form, true}, {`{"elicitation":{}}`, url, false},
		{`{"elicitation":{"url":{}}}`, form, false}, {`{"elicitation":{"url":{}}}`, url, true},
		{`{"elicitation":{"form":{},"url":{}}}`, form, true}, {`{"elicitation":{"form":{}}}`, url, false},
		{`{"elicitation":null}`, form, false}, {`{"elicitation":7}`, form, false}, {`{}`, form, false},
		{`{"sampling":{}}`, `"sampling/createMessage","params":{}`, true},
		{`{"sampling":{}}`, `"sampling/createMessage","params":{"tools":[]}`, false},
		{`{"sampling":{"tools":{}}}`, `"sampling/createMessage","params":{"tools":[]}`, true},
		{`{"roots":{"listChanged":true}}`, `"roots/list"`, true}, {`{}`, `"roots/list"`, false},
	} {
		m := scanned(t, `{"jsonrpc":"2.0","id":1,"method":`+c.question+`}`)
		if lacks := readCapabilities([]byte(c.declared)).lacks(m); (lacks == "") != c.allowed {
			t.Errorf("%s asked of a client with %s: lacks %q, want allowed %v", c.question, c.declared, lacks, c.allowed)
		}
	}
	big := `{"experimental":{"a":9007199254740993}}`
	if got := readCapabilities([]byte(big)).canonical; got != big {
		t.Errorf("canonical form %s, want %s", got, big)
	}
	if readCapabilities([]byte(`{"a":"`+strings.Repeat("x", maxCapabilities)+`"}`)) != nil {
		t.Error("a declaration of any size is taken")
	}
}

// FuzzRequest holds that whatever Scan accepts is rewritten into what a session takes, with all the rest unchanged.
func FuzzRequest(f *testing.F) {
	for _, params := range []string{
		`{}`, `{ "name" : "a\"b" , "_meta" : { } }`, `{"arguments":[1,{"a":[]},"}"],"_meta":{"progressToken":"\\"}}`,
		`{"\u005fmeta":{"io.modelcontextprotocol/logLevel":1},"task":1,"requestState":"","x":null}`,
	} {
		f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		m, err := mcp.Scan([]byte(raw), mcp.Limits{})
		if err != nil || m.Kind != mcp.Request {
			return
		}
		got, err := mcp.ScanAnswer(toLegacy(&m, []byte("17")))
		if err != nil {
			t.Fatalf("%q became %q: %v", raw, toLegacy(&m, []byte("17")), err)
		}
		if string(got.ID.Of(got.Raw)) != "17" || got.Method != m.Method || got.MetaVersionSpan.Present() ||
			string(got.Arguments.Of(got.Raw)) != string(m.Arguments.Of(m.Raw)) || string(got.Name) != string(m.Name) {
			t.Errorf("%q became %q", raw, got.Raw)
		}
		if string(digest(&m)) != string(digest(&got)) {
			t.Errorf("%q and what it became, %q, do not have one digest", raw, got.Raw)
		}
	})
}

// FuzzResponse holds that whatever a server may answer comes out as JSON, with the members it had.
func FuzzResponse(f *testing.F) {
	for _, rest := range []string{
		`"result":{}`, `"result":{"tools":[{"execution":1},[],{"a":"{"}, 7 ]}`, `"error":{"code":-32002}`,
		`"error":{"code":-32042,"data":{"elicitations":[{"url":"u","mode":"url"},{ "url" : 1 }]}}`,
		`"result":{"cacheScope":{"a":1},"\u0072esultType":null}`,
	} {
		f.Add(`{"jsonrpc":"2.0","id":1,` + rest + `}`)
	}
	s := New(&fake{}, Options{})
	f.Fuzz(func(t *testing.T, raw string) {
		m, err := mcp.Scan([]byte(raw), mcp.Limits{})
		if err != nil || m.Kind != mcp.Response {
			return
		}
		k := &call{server: s, method: mcp.MethodToolsList, declared: &capabilities{elicitURL: true}, round: 1, sent: &m}
		for _, k.method = range []string{mcp.MethodToolsList, mcp.MethodToolsCall} {
			body, _, err := k.respondLocked(&m, []byte(`"a"`))
			if err != nil {
				continue
			}
			got, err := mcp.ScanAnswer(body)
			if err != nil || got.Kind != mcp.Response || !got.Answers([]byte(`"a"`)) {
				t.Fatalf("%q became %q: %v", raw, body, err)
			}
			if k.method == mcp.MethodToolsCall && m.Result.Present() {
				sameBut(t, m.Result.Of(m.Raw), got.Result.Of(got.Raw), "resultType")
			}
		}
	})
}

// sameBut holds that two objects have the same members apart from one.
func sameBut(t *testing.T, was, is []byte, added string) {
	t.Helper()
	var a, b map[string]any
	if json.Unmarshal(was, &a) != nil || json.Unmarshal(is, &b) != nil {
		return // deeper than encoding/json goes
	}
	if a[added] == nil {
		delete(a, added)
		delete(b, added)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%s became %s", was, is)
	}
}

func BenchmarkTranslation(b *testing.B) {
	request := scanned(b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"text":"`+
		strings.Repeat("x", 200)+`"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`)
	b.Run("request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			toLegacy(request, []byte("17"))
		}
	})
	for _, size := range []int{200, 100 << 10} {
		response := scanned(b, `{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"`+strings.Repeat("x", size)+`"}]}}`)
		b.Run(fmt.Sprintf("response of %d bytes", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fromLegacy(response, mcp.MethodToolsCall, []byte("1"))
			}
		})
	}
}

// BenchmarkCall is a whole call over a server in memory: what the bridge adds to a call.
func BenchmarkCall(b *testing.B) {
	asStream := func(ctx context.Context, _ *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		return newScript(ctx, `{"jsonrpc":"2.0","id":`+string(m.ID.Of(m.Raw))+`,"result":{}}`).answer(), nil
	}
	aside, _ := streaming(b)
	for name, f := range map[string]*fake{"body": {}, "stream": {call: asStream}, "body, and may ask aside": aside} {
		s := newBridge(b, f)
		c := newClient(b, s, "ann", `{"elicitation":{}}`)
		call := c.tool("1", "t", "x", "")
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a, err := s.Call(b.Context(), call)
				if err != nil {
					b.Fatal(err)
				}
				a.Close()
				f.said = f.said[:0]
			}
		})
	}
}

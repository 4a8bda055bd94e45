package tostateless

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestResultsAreThoseOfTheClientsVersion(t *testing.T) {
	const newer, older, oldest = "2025-11-25", "2025-06-18", "2025-03-26"
	tests := []struct{ name, method, result, newer, older, oldest string }{
		{"what is not known stays", mcp.MethodToolsCall,
			`{ "x" : 9007199254740993 , "resultType":"complete","content":[ ],"isError":true,"_meta":{"a": null},"x":1}`,
			`{"x" : 9007199254740993,"content":[ ],"isError":true,"_meta":{"a": null},"x":1}`, "", ""},
		{"only a type", mcp.MethodComplete, `{"resultType":"complete"}`, `{}`, "", ""},
		{"no type", mcp.MethodComplete, `{"ttlMs":1,"completion":{"values":[]}}`, `{"ttlMs":1,"completion":{"values":[]}}`, "", ""},
		{"cache hints", mcp.MethodResourcesRead, `{"contents":[{"uri":"a","text":"é"}],"ttlMs":1,"cacheScope":"public","resultType":"complete"}`,
			`{"contents":[{"uri":"a","text":"é"}]}`, "", ""},
		{"structured content", mcp.MethodToolsCall, `{"content":[{"type":"text","text":"1"}],"structuredContent":{"n":9007199254740993}}`,
			`{"content":[{"type":"text","text":"1"}],"structuredContent":{"n":9007199254740993}}`, "", `{"content":[{"type":"text","text":"1"}]}`},
		{"structured content that is null", mcp.MethodToolsCall, `{"structuredContent":null,"content":[]}`, `{"content":[]}`, "", ""},
		{"structured content that is a list", mcp.MethodToolsCall, `{"content":[{"type":"text","text":"[1]"}],"structuredContent":[1]}`,
			`{"content":[{"type":"text","text":"[1]"}]}`, "", ""},
		{"a list without its text", mcp.MethodToolsCall, `{"content":[],"structuredContent":[1, "a"]}`,
			`{"content":[{"type":"text","text":"[1, \"a\"]"}]}`, "", ""},
		{"a link", mcp.MethodToolsCall, `{"content":[{"type":"text","text":"t"},{"type":"resource_link","uri":"file:///a","name":"A","description":"D"}]}`,
			`{"content":[{"type":"text","text":"t"},{"type":"resource_link","uri":"file:///a","name":"A","description":"D"}]}`, "",
			`{"content":[{"type":"text","text":"t"},{"type":"text","text":"file:///a\nA\nD"}]}`},
		{"a link in a prompt", mcp.MethodPromptsGet, `{"messages":[{"role":"user","content":{"type":"resource_link","uri":"u"}},5,{"role":"user"}]}`,
			`{"messages":[{"role":"user","content":{"type":"resource_link","uri":"u"}},5,{"role":"user"}]}`, "",
			`{"messages":[{"role":"user","content":{"type":"text","text":"u"}},5,{"role":"user"}]}`},
		{"tools", mcp.MethodToolsList,
			`{"tools":[{"name":"a","title":"A","inputSchema":{"x-mcp-header":1,"type":"object"} , "outputSchema":{"type":"object"}},` +
				`{"name":"b","inputSchema":{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"P"}}},"outputSchema":{"type":"array"},"icons":[],"new":1e400},` +
				`{"name":"c","outputSchema":true}],"nextCursor":"","ttlMs":0,"cacheScope":"private"}`,
			`{"tools":[{"name":"b","inputSchema":{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"P"}}},"icons":[],"new":1e400},` +
				`{"name":"c"}],"nextCursor":""}`, "", ""},
		{"a tool with objects", mcp.MethodToolsList, `{"tools":[{"name":"a","title":"A","outputSchema":{"type":"object"}}]}`,
			`{"tools":[{"name":"a","title":"A","outputSchema":{"type":"object"}}]}`, "", `{"tools":[{"name":"a"}]}`},
		{"titles", mcp.MethodResourcesList, `{"resources":[{"uri":"u","title":"U","name":"n"}],"ttlMs":5,"cacheScope":"public"}`,
			`{"resources":[{"uri":"u","title":"U","name":"n"}]}`, "", `{"resources":[{"uri":"u","name":"n"}]}`},
		{"lists that are none", mcp.MethodToolsList, `{"tools":{"a":[]}}`, `{"tools":{"a":[]}}`, "", ""},
		{"no object", mcp.MethodToolsList, `[1]`, `[1]`, "", ""},
	}
	for _, tt := range tests {
		want := map[string]string{newer: tt.newer, older: tt.older, oldest: tt.oldest}
		for _, version := range []string{newer, older, oldest} {
			if want[version] == "" {
				want[version] = tt.newer
			}
			f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(tt.result), nil }}
			c := connect(t, newBridge(t, f), version, `{}`)
			r := c.do(`"7"`, tt.method, `{"name":"n","uri":"u"}`)
			if want := `{"jsonrpc":"2.0","id":"7","result":` + want[version] + `}`; r.last != want {
				t.Errorf("%s, %s\ngot  %s\nwant %s", tt.name, version, r.last, want)
			}
		}
	}
}

func TestAnIDComesBackWithItsType(t *testing.T) { // L9
	f := &fake{script: func(s sent) (*upstream.Answer, error) { return s.result(`{"resultType":"complete"}`), nil }}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	for _, id := range []string{`7`, `"7"`, `"\u0037"`, `9007199254740993`, `-1`} {
		c.do(id, mcp.MethodToolsList, ``).is(t, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
	}
}

func TestResultsThatNobodyAskedForAreRefused(t *testing.T) {
	for name, body := range map[string]string{
		"a task":          `{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"t"}}`,
		"no response":     `{"jsonrpc":"2.0","method":"x"}`,
		"no JSON":         `<html>`,
		"a cut off one":   `{"jsonrpc":"2.0","id":1,"result":{`,
		"an unknown type": `{"jsonrpc":"2.0","id":1,"result":{"resultType":"later"}}`,
	} {
		f := &fake{script: func(s sent) (*upstream.Answer, error) { return upstream.Whole(200, []byte(body)), nil }}
		c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
		a, err := c.session.Call(testContext(t), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`))
		if e, ok := err.(*upstream.Error); !ok || e.Kind != upstream.BadAnswer {
			t.Errorf("%s: got %v, %v; want a bad answer", name, a, err)
		}
	}
}

func TestALongAnswerPassesAndAnEndlessOneDoesNot(t *testing.T) {
	long := strings.Repeat("0123456789", 512<<10)
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		return s.result(`{"resultType":"complete","content":[{"type":"text","text":"` + long + `"}]}`), nil
	}}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	c.tool(`1`, "x", `{}`).is(t, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"`+long+`"}]}}`)
	f.become(func(s sent) (*upstream.Answer, error) {
		a := s.result(`"` + strings.Repeat("x", maxAnswer) + `"`)
		a.Length = -1
		return a, nil
	})
	_, err := c.session.Call(testContext(t), requestCall(t, `1`, mcp.MethodToolsCall, `{"name":"x"}`))
	if e, ok := err.(*upstream.Error); !ok || e.Kind != upstream.Overloaded {
		t.Errorf("got %v, want the bound", err)
	}
}

// mirroring is the schema of a tool whose arguments are repeated in headers.
const mirroring = `{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"S"},"n":{"type":"integer","x-mcp-header":"N"},` +
	`"b":{"type":"boolean","x-mcp-header":"B"},"o":{"type":"object","properties":{"d":{"type":"string","x-mcp-header":"D"}}}}}`

const mirroringTools = `{"resultType":"complete","tools":[{"name":"t","inputSchema":` + mirroring + `}],"ttlMs":0,"cacheScope":"private"}`

// newMirroring is a server with that tool, on the second page of its list. It holds calls to the headers.
func newMirroring(t testing.TB) *fake {
	t.Helper()
	ps, err := mcp.ParamHeaders([]byte(mirroring))
	if err != nil || len(ps) != 4 {
		t.Fatal(ps, err)
	}
	return &fake{script: func(s sent) (*upstream.Answer, error) {
		switch {
		case s.Method == mcp.MethodToolsList && s.Cursor.Present():
			return s.result(mirroringTools), nil
		case s.Method == mcp.MethodToolsList:
			return s.result(`{"resultType":"complete","tools":[{"name":"other"}],"nextCursor":"p\u0032"}`), nil
		}
		if e := mcp.CheckParams(s.header, s.Arguments.Of(s.Raw), ps); e != nil {
			return upstream.Whole(200, mcp.AppendError(nil, s.ID.Of(s.Raw), e)), nil
		}
		return s.result(`{"resultType":"complete"}`), nil
	}}
}

// params are a request's mirrored arguments.
func (s sent) params() string {
	var all []string
	for _, name := range []string{"S", "N", "B", "D"} {
		if v, ok := s.header["Mcp-Param-"+name]; ok {
			all = append(all, name+"="+v[0])
		}
	}
	return strings.Join(all, " ")
}

func TestArgumentsAreMirroredOnceTheServerAsksForIt(t *testing.T) {
	tests := []struct {
		arguments, headers string
		calls              int // of two: refused, sent again, and right at once
	}{
		{`{"s":"a","n":5,"b":true,"o":{"d":""}}`, "S=a N=5 B=true D=", 3},
		{`{"s":" Zürich ","n":-1}`, "S==?base64?IFrDvHJpY2gg?= N=-1", 3},
		{`{"s":null,"o":null,"n":1e2,"b":false}`, "N=100 B=false", 3},
		{`{}`, "", 2},
		{`{"s":"q\u0022","o":{"d":"=?base64?eA==?="}}`, `S=q" D==?base64?PT9iYXNlNjQ/ZUE9PT89?=`, 3},
	}
	for _, tt := range tests {
		f := newMirroring(t)
		c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
		for range 2 {
			c.tool(`1`, "t", tt.arguments).is(t, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		}
		calls := f.calls(mcp.MethodToolsCall)
		if got := calls[len(calls)-1].params(); got != tt.headers || len(calls) != tt.calls {
			t.Errorf("%s: %d calls and headers %q, want %d and %q", tt.arguments, len(calls), got, tt.calls, tt.headers)
		}
	}
}

func TestArgumentsAreMirroredOnceTheClientListedTools(t *testing.T) {
	f := newMirroring(t)
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	c.do(`1`, mcp.MethodToolsList, `{"cursor":"x"}`).has(t, `"name":"t"`)
	c.tool(`2`, "t", `{"s":"a"}`).has(t, `"result":{}`)
	if n := len(f.calls(mcp.MethodToolsCall)); n != 1 {
		t.Errorf("%d calls, want one that was right at once", n)
	}
}

func TestARefusalThatHeadersDoNotCureIsTheAnswer(t *testing.T) {
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		if s.Method == mcp.MethodToolsList {
			return s.result(mirroringTools), nil
		}
		return s.error(mcp.CodeHeaderMismatch, ""), nil
	}}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	c.tool(`1`, "t", `{"s":"a"}`).has(t, `-32603`, `said the server`)
	c.tool(`1`, "u", `{"s":"a"}`).has(t, `-32603`)
	if n := len(f.calls(mcp.MethodToolsCall)); n != 3 {
		t.Errorf("%d calls, want one again for the tool that has headers alone", n)
	}
}

func TestServersThatHaveSessionsAreLeftAlone(t *testing.T) {
	both := mcp.EraSet(mcp.Legacy, mcp.Stateless)
	refused := func(c *upstream.Call) *upstream.Answer {
		return refusal(c.Message, mcp.CodeMethodNotFound, "no initialize here")
	}
	wrong := &upstream.Error{Kind: upstream.WrongEra, Upstream: "new", Detail: "no sessions"}
	tests := []struct {
		name   string
		before mcp.Eras
		after  mcp.Eras // what it turns out to speak
		err    error
		minted bool
		failed bool
	}{
		{"refuses for its own reasons", both, both, nil, false, false},
		{"turns out to have none", both, mcp.EraSet(mcp.Stateless), nil, true, false},
		{"says the era is wrong", both, both, wrong, true, false},
		{"is not there", both, both, &upstream.Error{Kind: upstream.Unreachable, Upstream: "new"}, false, true},
		{"speaks nothing known", 0xf0, 0xf0, wrong, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &opening{fake: fake{eras: tt.before}}
			f.open = func(c *upstream.Call) (*upstream.Answer, error) {
				f.eras = tt.after
				if tt.err != nil {
					return nil, tt.err
				}
				return refused(c), nil
			}
			session, a, err := newBridge(t, f).Open(testContext(t), initializeCall(t, "2025-11-25", `{}`))
			if (session != nil) != tt.minted || (err != nil) != tt.failed {
				t.Errorf("got %v, %v, %v", session, a, err)
			}
			if !tt.failed && !tt.minted {
				got(t, a, nil).has(t, "no initialize here")
			}
		})
	}
}

// opening is a fake that is asked for sessions.
type opening struct {
	fake
	open func(*upstream.Call) (*upstream.Answer, error)
}

func (o *opening) Open(_ context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	a, err := o.open(c)
	return nil, a, err
}

func TestAFailedDiscoveryFailsInitialize(t *testing.T) {
	f := &fake{discover: "none", script: func(s sent) (*upstream.Answer, error) { return s.error(-32022, ""), nil }}
	s := newBridge(t, f)
	session, a, err := s.Open(testContext(t), initializeCall(t, "2025-11-25", `{}`))
	if session != nil || err != nil {
		t.Fatalf("got %v, %v", session, err)
	}
	got(t, a, nil).is(t, `{"jsonrpc":"2.0","id":"i","error":{"code":-32603,"message":"said the server"}}`)
	f.become(func(s sent) (*upstream.Answer, error) { return s.result(`[]`), nil })
	if session, _, err := s.Open(testContext(t), initializeCall(t, "2025-11-25", `{}`)); session != nil || err == nil {
		t.Errorf("got %v, %v; want a bad answer", session, err)
	}
}

// FuzzResult holds that a rewritten result is JSON, and that members which no rule is for keep their bytes.
func FuzzResult(f *testing.F) {
	for _, seed := range []string{
		`{"resultType":"complete","content":[],"structuredContent":[1]}`, `{"tools":[{"name":"a","title":"x","outputSchema":{"type":"array"},"inputSchema":{}}]}`,
		`{"messages":[{"content":{"type":"resource_link","uri":"a"}}],"x":1e5}`, `{"content":[{"type":"resource_link"}],"\u0063ontent":[]}`, `{}`, `[]`,
	} {
		for i := range 3 {
			f.Add([]byte(seed), uint8(i), uint8(i))
			f.Add([]byte(seed), uint8(i), uint8(i+8))
		}
	}
	methods := []string{mcp.MethodToolsList, mcp.MethodToolsCall, mcp.MethodPromptsGet, mcp.MethodResourcesList, mcp.MethodResourcesRead, "x/y"}
	versions := mcp.SupportedVersions[1:]
	f.Fuzz(func(t *testing.T, result []byte, method, version uint8) {
		raw := append(append([]byte(`{"jsonrpc":"2.0","id":1,"result":`), result...), '}')
		if version&8 != 0 { // the id behind the result
			raw = append(append([]byte(`{"jsonrpc":"2.0","result":`), result...), `, "id":1 }`...)
		}
		m, err := mcp.ScanAnswer(raw)
		if err != nil || m.Kind != mcp.Response {
			return
		}
		w := rewrite(&m, methods[int(method)%len(methods)], versions[int(version)%len(versions)])
		out := w.response([]byte(`"i"`))
		n, err := mcp.ScanAnswer(out)
		if err != nil || !n.Answers([]byte(`"i"`)) {
			t.Fatalf("%s became %s: %v", raw, out, err)
		}
		if !rawjson.IsObject(m.Result.Of(m.Raw)) {
			return
		}
		for p := range rawjson.Members(m.Raw, m.Result) {
			switch string(p.Name) {
			case "resultType", "ttlMs", "cacheScope", "content", "structuredContent", "tools", "messages", "prompts", "resources", "resourceTemplates":
				continue
			}
			if !bytes.Contains(out, p.Whole.Of(m.Raw)) {
				t.Fatalf("%s became %s, without %s", raw, out, p.Whole.Of(m.Raw))
			}
		}
	})
}

// FuzzRequest holds that a rewritten request is one that the stateless wire takes, with its arguments as they were.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"n":9007199254740993},"task":{},"_meta":{"progressToken":1}}}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`, "{\"jsonrpc\":\"2.0\", \"id\":1,\n\"method\":\"x\",\"params\":{ }}",
		`{"params":{"_meta":{"io.modelcontextprotocol/logLevel":1},"inputResponses":{},"requestState":1,"uri":"u"},"jsonrpc":"2.0","id":1,"method":"resources/read"}`,
	} {
		f.Add([]byte(seed))
	}
	meta := metaMembers([]byte(`{"name":"old"}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := mcp.Scan(raw, mcp.Limits{})
		if err != nil || m.Kind != mcp.Request {
			return
		}
		out, err := toStateless(&m, meta)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if !json.Valid(out.Raw) || !bytes.Equal(out.Arguments.Of(out.Raw), m.Arguments.Of(m.Raw)) || !bytes.Equal(out.ID.Of(out.Raw), m.ID.Of(m.Raw)) ||
			!bytes.Equal(out.ProgressToken.Of(out.Raw), m.ProgressToken.Of(m.Raw)) {
			t.Fatalf("%s became %s", raw, out.Raw)
		}
		if e := mcp.CheckStateless(headerFor(&out, nil), &out); e != nil && e.Code != mcp.CodeMethodNotFound && out.Name != nil {
			t.Fatalf("%s became %s, which is refused: %v", raw, out.Raw, e)
		}
		for p := range rawjson.Members(out.Raw, out.Params) {
			if isMisread(out.Method, p.Name) {
				t.Fatalf("%s became %s, with %s", raw, out.Raw, p.Name)
			}
		}
	})
}

// FuzzAdapted holds that rewritten capabilities are an object that the stateless wire takes.
func FuzzAdapted(f *testing.F) {
	f.Add([]byte(allCapabilities))
	f.Add([]byte(`{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":5,"tasks":null}`))
	f.Fuzz(func(t *testing.T, capabilities []byte) {
		if !json.Valid(capabilities) {
			return
		}
		capabilities = bytes.TrimSpace(capabilities)
		for _, version := range mcp.SupportedVersions[1:] {
			out := adapted(capabilities, rawjson.Whole(capabilities), version)
			if !json.Valid(out) || !rawjson.IsObject(out) || rawjson.Find(out, rawjson.Whole(out), "tasks").Present() {
				t.Fatalf("%s became %s", capabilities, out)
			}
			if legacy := legacyCapabilities(capabilities, rawjson.Whole(capabilities)); !json.Valid(legacy) {
				t.Fatalf("%s became %s", capabilities, legacy)
			}
			_ = fmt.Sprint(declaredBy(out))
		}
	})
}

func TestAnErrorWithoutAnIDGetsTheRequests(t *testing.T) {
	for _, id := range []string{``, `"id":null,`} {
		f := &fake{script: func(s sent) (*upstream.Answer, error) {
			return upstream.Whole(200, []byte(` { "jsonrpc":"2.0",`+id+`"error":{"code":-32700,"message":"what"}}`)), nil
		}}
		c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
		var got struct {
			ID    json.RawMessage
			Error struct{ Code int }
		}
		r := c.tool(`"7"`, "x", `{}`)
		if err := json.Unmarshal([]byte(r.last), &got); err != nil || string(got.ID) != `"7"` || got.Error.Code != -32700 {
			t.Errorf("got %s, %v", r.last, err)
		}
	}
}

func TestHeadersFollowATool(t *testing.T) {
	schema := func(header string) string {
		return `{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"s":{"type":"string","x-mcp-header":"` + header + `"}}}}]}`
	}
	var now atomic.Value
	now.Store("S")
	f := &fake{script: func(s sent) (*upstream.Answer, error) {
		switch header := now.Load().(string); {
		case s.Method == mcp.MethodToolsList && header == "":
			return s.result(`{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`), nil
		case s.Method == mcp.MethodToolsList:
			return s.result(schema(header)), nil
		case s.params() != "" && header == "", header != "" && s.params() != header+"=v":
			return s.error(mcp.CodeHeaderMismatch, ""), nil
		}
		return s.result(`{}`), nil
	}}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	for _, header := range []string{"S", "N", "", "B"} {
		now.Store(header)
		c.tool(`1`, "t", `{"s":"v"}`).is(t, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}
}

func TestAToolThatMirrorsNothingAnyMoreIsForgotten(t *testing.T) {
	schema := `{"type":"object","properties":{"r":{"type":"string","x-mcp-header":"Region"}}}`
	f := &fake{}
	f.script = func(s sent) (*upstream.Answer, error) {
		if s.Method == mcp.MethodToolsList {
			return s.result(`{"resultType":"complete","tools":[{"name":"a","inputSchema":` + schema + `}]}`), nil
		}
		return s.result(`{"resultType":"complete","content":[]}`), nil
	}
	c := connect(t, newBridge(t, f), "2025-11-25", `{}`)
	for i, want := range []string{"", "eu", ""} {
		if i == 2 {
			schema = `{"type":"object"}`
		}
		if i > 0 {
			c.do(`1`, mcp.MethodToolsList, "").has(t, `"name":"a"`)
		}
		c.tool(`2`, "a", `{"r":"eu"}`).has(t, `"result"`)
		calls := f.calls(mcp.MethodToolsCall)
		if got := calls[len(calls)-1].header.Get("Mcp-Param-Region"); got != want {
			t.Errorf("call %d repeats %q in its header, want %q", i, got, want)
		}
	}
}

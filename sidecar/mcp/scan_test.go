package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// statelessCall is an ordinary call of 2026-07-28, about 350 bytes.
const statelessCall = `{"jsonrpc":"2.0","id":"c-17","method":"tools/call","params":{"name":"ledger.post",` +
	`"arguments":{"region":"eu-west","entry":9007199254740993},"_meta":{` +
	`"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"desk-agent","version":"4.2.0"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}},"progressToken":41}}}`

const legacyCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ledger.post","arguments":{"region":"eu-west"}}}`

const legacyInitialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
	`"capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"old-desk","version":"2.0"}}}`

func mustScan(t testing.TB, text string) Message {
	t.Helper()
	m, err := Scan([]byte(text), Limits{})
	if err != nil {
		t.Fatalf("Scan(%s): %v", text, err)
	}
	return m
}

func TestScanFindsThePartsOfAStatelessCall(t *testing.T) {
	m := mustScan(t, " \r\n\t"+statelessCall+"\n")
	for _, part := range []struct{ name, got, want string }{
		{"raw", string(m.Raw), statelessCall},
		{"kind", fmt.Sprint(m.Kind), fmt.Sprint(Request)},
		{"method", m.Method, "tools/call"},
		{"id", string(m.ID.Of(m.Raw)), `"c-17"`},
		{"name", string(m.Name), "ledger.post"},
		{"name token", string(m.NameSpan.Of(m.Raw)), `"ledger.post"`},
		{"arguments", string(m.Arguments.Of(m.Raw)), `{"region":"eu-west","entry":9007199254740993}`},
		{"version", string(m.MetaVersion), "2026-07-28"},
		{"version token", string(m.MetaVersionSpan.Of(m.Raw)), `"2026-07-28"`},
		{"client", string(m.ClientInfo.Of(m.Raw)), `{"name":"desk-agent","version":"4.2.0"}`},
		{"capabilities", string(m.ClientCapabilities.Of(m.Raw)), `{"elicitation":{"form":{}}}`},
		{"progress token", string(m.ProgressToken.Of(m.Raw)), `41`},
	} {
		if part.got != part.want {
			t.Errorf("%s: got %q, want %q", part.name, part.got, part.want)
		}
	}
	for name, span := range map[string]Span{"params": m.Params, "meta": m.Meta} {
		if !json.Valid(span.Of(m.Raw)) {
			t.Errorf("%s: got %q, want an object", name, span.Of(m.Raw))
		}
	}
}

func TestScanFindsWhatEachMethodIsAbout(t *testing.T) {
	for _, row := range []struct{ method, params, want string }{
		{"tools/call", `{"name":"a","uri":"b","taskId":"c"}`, "a"},
		{"prompts/get", `{"uri":"b","name":"a"}`, "a"},
		{"resources/read", `{"name":"a","uri":"file:///x"}`, "file:///x"},
		{"resources/subscribe", `{"uri":"u"}`, "u"},
		{"notifications/resources/updated", `{"uri":"u"}`, "u"},
		{"tasks/get", `{"taskId":"t","name":"a"}`, "t"},
		{"tasks/cancel", `{"taskId":"t"}`, "t"},
		{"tools/call", `{"name":"gr\u00fc\u00DFe \ud83d\ude00 \"\\\/\b\f\n\r\t"}`, "grüße 😀 \"\\/\b\f\n\r\t"},
		{"tools/call", `{"name":""}`, ""},
	} {
		m := mustScan(t, `{"jsonrpc":"2.0","id":1,"params":`+row.params+`,"method":"`+row.method+`"}`)
		if string(m.Name) != row.want || m.Name == nil {
			t.Errorf("%s %s: got name %q, want %q", row.method, row.params, m.Name, row.want)
		}
	}
	for _, params := range []string{`{}`, `{"name":null}`, `{"name":7}`, `{"name":{"name":"a"}}`, `{"arguments":{"name":"a"}}`} {
		if m := mustScan(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+params+`}`); m.Name != nil || m.NameSpan.Present() {
			t.Errorf("params %s: got name %q, want none", params, m.Name)
		}
	}
}

func TestScanKeepsTokensOfTheirOwnKind(t *testing.T) {
	cancelled := mustScan(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7"}}`)
	if got := cancelled.RequestID.Of(cancelled.Raw); string(got) != `"7"` || cancelled.Kind != Notification {
		t.Errorf("cancelled: got %s, want \"7\"", got)
	}
	progress := mustScan(t, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9007199254740993,"progress":1}}`)
	if got := progress.ProgressToken.Of(progress.Raw); string(got) != `9007199254740993` {
		t.Errorf("progress: got %s, want 9007199254740993", got)
	}
	initialize := mustScan(t, legacyInitialize)
	if string(initialize.Version) != "2025-11-25" {
		t.Errorf("initialize: got version %q", initialize.Version)
	}
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":8,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":8}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":8}}}`,
	} {
		if m := mustScan(t, text); string(m.SubscriptionID.Of(m.Raw)) != "8" {
			t.Errorf("%s: got subscription %q, want 8", text, m.SubscriptionID.Of(m.Raw))
		}
	}
	for _, token := range []string{"null", "1.5", "1e3", "true", "{}", "[1]"} {
		m := mustScan(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":`+token+`}}}`)
		if m.ProgressToken.Present() {
			t.Errorf("progress token %s: got it as a token", token)
		}
	}
	cursor := mustScan(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":""}}`)
	if string(cursor.Cursor.Of(cursor.Raw)) != `""` {
		t.Errorf("cursor: got %q, want the empty string, which is one", cursor.Cursor.Of(cursor.Raw))
	}
}

// Ids: a string or an integer, echoed as they came (basic, "Requests" and "Responses"); L8, L9.
func TestScanKeepsTheIDsToken(t *testing.T) {
	for _, id := range []string{`7`, `"7"`, `0`, `-1`, `-0`, `""`, `9007199254740993`, `123456789012345678901234567890`, `"\u0037"`, `"a\"b"`} {
		for _, text := range []string{
			`{"jsonrpc":"2.0","id":` + id + `,"method":"ping"}`,
			`{"method":"ping","jsonrpc":"2.0","id" : ` + id + ` }`,
			`{"jsonrpc":"2.0","id":` + id + `,"result":null}`,
			`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":1,"message":""}}`,
		} {
			if m := mustScan(t, text); string(m.ID.Of(m.Raw)) != id {
				t.Errorf("%s: got id %s, want %s", text, m.ID.Of(m.Raw), id)
			}
		}
	}
}

// L25: text inside of values is never taken for the envelope.
func TestScanTakesNothingInsideAnArgumentForTheEnvelope(t *testing.T) {
	for _, arguments := range []string{
		`{"method":"initialize","id":99,"jsonrpc":"1.0","params":[],"result":1,"error":2}`,
		`{"query":"\"method\":\"initialize\"","text":"server/discover"}`,
		`{"deep":{"_meta":{"io.modelcontextprotocol/protocolVersion":"1999-01-01"},"name":"other","METHOD":1}}`,
		`{"list":[{"name":"other","name":"twice","Name":"thrice"}],"_meta":{"progressToken":1,"progressToken":2}}`,
	} {
		text := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":` + arguments + `,"name":"right"}}`
		m := mustScan(t, text)
		if m.Method != "tools/call" || string(m.Name) != "right" || string(m.ID.Of(m.Raw)) != "1" || m.MetaVersionSpan.Present() ||
			string(m.Arguments.Of(m.Raw)) != arguments {
			t.Errorf("%s: got method %q, name %q, id %s, arguments %s", text, m.Method, m.Name, m.ID.Of(m.Raw), m.Arguments.Of(m.Raw))
		}
	}
	result := `{"jsonrpc":"2.0","id":1,"result":{"method":"initialize","Method":1,"error":{},"_Meta":1,"content":[],"content":[]}}`
	if m := mustScan(t, result); m.Kind != Response || m.Method != "" {
		t.Errorf("%s: got kind %v, method %q", result, m.Kind, m.Method)
	}
}

func TestScanReadsResponses(t *testing.T) {
	for _, row := range []struct{ text, result, rpcError string }{
		{`{"jsonrpc":"2.0","id":1,"result":null}`, `null`, ``},
		{`{"jsonrpc":"2.0","id":1,"result":{"structuredContent":null}}`, `{"structuredContent":null}`, ``},
		{`{"jsonrpc":"2.0","id":1,"result":[1]}`, `[1]`, ``},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}`, ``, `{"code":-32700}`},
		{`{"jsonrpc":"2.0","error":{"code":-32700}}`, ``, `{"code":-32700}`},
	} {
		m := mustScan(t, row.text)
		if m.Kind != Response || string(m.Result.Of(m.Raw)) != row.result || string(m.Error.Of(m.Raw)) != row.rpcError {
			t.Errorf("%s: got kind %v, result %s, error %s", row.text, m.Kind, m.Result.Of(m.Raw), m.Error.Of(m.Raw))
		}
	}
}

// L5: nothing is dropped, for everything is still in Raw and invented members change nothing.
func TestScanMindsNoUnknownMembers(t *testing.T) {
	m := mustScan(t, `{"jsonrpc":"2.0","x-trace":{"a":[1,2.5e-3,true,false,null]},"id":1,"method":"vendor/thing","params":{"x":1,"x":2,"_meta":{"com.example/a":1,"com.example/a":2}}}`)
	if m.Method != "vendor/thing" || m.Kind != Request || !m.Meta.Present() {
		t.Errorf("got %q, kind %v, meta %v", m.Method, m.Kind, m.Meta)
	}
}

func TestScanRefuses(t *testing.T) {
	call := func(params string) string {
		return `{"jsonrpc":"2.0","method":"tools/call","params":` + params + `,"id":5}`
	}
	for _, row := range []struct {
		name, text string
		code       int
		id         string
	}{
		{"nothing", "", CodeParseError, ""},
		{"white space", " \n", CodeParseError, ""},
		{"a form feed around it", "\f{}", CodeParseError, ""},
		{"a byte order mark", "\ufeff" + legacyCall, CodeParseError, ""},
		{"half an object", `{"jsonrpc":"2.0","id":5,"method":"ping"`, CodeParseError, "5"},
		{"a byte after it", `{"jsonrpc":"2.0","id":5,"method":"ping"}x`, CodeParseError, "5"},
		{"two objects", `{"jsonrpc":"2.0","id":5,"method":"ping"}{}`, CodeParseError, "5"},
		{"a comma too many", `{"jsonrpc":"2.0","id":5,"method":"ping",}`, CodeParseError, "5"},
		{"no colon", `{"jsonrpc" "2.0"}`, CodeParseError, ""},
		{"an array that does not end", `[1,`, CodeParseError, ""},
		{"a raw line break in a string", "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"pi\nng\"}", CodeParseError, "5"},
		{"a control character in a long string", "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"" + strings.Repeat("a", 21) + "\x01\"}", CodeParseError, "5"},
		{"a wrong escape", `{"jsonrpc":"2.0","id":5,"method":"\x41"}`, CodeParseError, "5"},
		{"a short escape", `{"jsonrpc":"2.0","id":5,"method":"\u12G4"}`, CodeParseError, "5"},
		{"a leading zero", `{"jsonrpc":"2.0","id":05,"method":"ping"}`, CodeParseError, ""},
		{"a plus sign", `{"jsonrpc":"2.0","id":+5,"method":"ping"}`, CodeParseError, ""},
		{"a point without digits", `{"jsonrpc":"2.0","id":5.,"method":"ping"}`, CodeParseError, ""},
		{"an exponent without digits", `{"jsonrpc":"2.0","id":5,"method":"ping","x":1e}`, CodeParseError, "5"},
		{"half a literal", `{"jsonrpc":"2.0","id":5,"method":"ping","x":nul}`, CodeParseError, "5"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"\xff\"}", CodeParseError, "5"},
		{"invalid UTF-8 before the id", call("{\"name\":\"\xc0\xaf\"}"), CodeParseError, "5"},

		{"an array", `[]`, CodeInvalidRequest, ""},
		{"a string", `"x"`, CodeInvalidRequest, ""},
		{"null", `null`, CodeInvalidRequest, ""},
		{"an empty object", `{}`, CodeInvalidRequest, ""},
		{"no version", `{"id":5,"method":"ping"}`, CodeInvalidRequest, "5"},
		{"version 1.0", `{"jsonrpc":"1.0","id":5,"method":"ping"}`, CodeInvalidRequest, "5"},
		{"version as a number", `{"jsonrpc":2.0,"id":5,"method":"ping"}`, CodeInvalidRequest, "5"},
		{"a null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, CodeInvalidRequest, ""},
		{"a fraction as id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, CodeInvalidRequest, ""},
		{"an exponent as id", `{"jsonrpc":"2.0","id":1E2,"method":"ping"}`, CodeInvalidRequest, ""},
		{"an object as id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, CodeInvalidRequest, ""},
		{"a boolean as id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, CodeInvalidRequest, ""},
		{"a method that is no string", `{"jsonrpc":"2.0","id":5,"method":7}`, CodeInvalidRequest, "5"},
		{"a null method", `{"jsonrpc":"2.0","id":5,"method":null}`, CodeInvalidRequest, "5"},
		{"half a surrogate pair in a method", `{"jsonrpc":"2.0","id":5,"method":"\ud800"}`, CodeInvalidRequest, "5"},
		{"half a surrogate pair in a name", call(`{"name":"a\udc00"}`), CodeInvalidRequest, "5"},
		{"a pair the wrong way round", call(`{"name":"\ude00\ud83d"}`), CodeInvalidRequest, "5"},
		{"params as an array", call(`["x"]`), CodeInvalidRequest, "5"},
		{"null params", call(`null`), CodeInvalidRequest, "5"},
		{"_meta that is no object", call(`{"_meta":[]}`), CodeInvalidRequest, "5"},
		{"neither call nor response", `{"jsonrpc":"2.0","id":5}`, CodeInvalidRequest, "5"},
		{"a result and an error", `{"jsonrpc":"2.0","id":5,"result":{},"error":{}}`, CodeInvalidRequest, "5"},
		{"a result and a null error", `{"jsonrpc":"2.0","id":5,"result":{},"error":null}`, CodeInvalidRequest, "5"},
		{"a call and a result", `{"jsonrpc":"2.0","id":5,"method":"ping","result":{}}`, CodeInvalidRequest, "5"},
		{"a result without id", `{"jsonrpc":"2.0","result":{}}`, CodeInvalidRequest, ""},
		{"a result with a null id", `{"jsonrpc":"2.0","id":null,"result":{}}`, CodeInvalidRequest, ""},
		{"an error with a fraction as id", `{"jsonrpc":"2.0","id":0.5,"error":{}}`, CodeInvalidRequest, ""},
		{"an error that is no object", `{"jsonrpc":"2.0","id":5,"error":"x"}`, CodeInvalidRequest, "5"},

		{"two methods", `{"jsonrpc":"2.0","method":"ping","method":"tools/call","id":5}`, CodeInvalidRequest, "5"},
		{"a second method behind escapes", `{"jsonrpc":"2.0","method":"ping","m\u0065thod":"tools/call","id":5}`, CodeInvalidRequest, "5"},
		{"a method in another case", `{"jsonrpc":"2.0","method":"ping","Method":"tools/call","id":5}`, CodeInvalidRequest, "5"},
		{"another case behind escapes", `{"jsonrpc":"2.0","method":"ping","\u004dethod":"tools/call","id":5}`, CodeInvalidRequest, "5"},
		{"another case alone", `{"jsonrpc":"2.0","Method":"ping","id":5}`, CodeInvalidRequest, "5"},
		{"a letter that folds to s", `{"jsonrpc":"2.0","method":"ping","param` + "\u017f" + `":{},"id":5}`, CodeInvalidRequest, "5"},
		{"a letter that folds to k", call(`{"tas` + "\u212a" + `Id":"t"}`), CodeInvalidRequest, "5"},
		{"two ids", `{"jsonrpc":"2.0","method":"ping","id":5,"id":6}`, CodeInvalidRequest, ""},
		{"ID for id", `{"jsonrpc":"2.0","method":"ping","ID":6,"id":5}`, CodeInvalidRequest, "5"},
		{"two names", call(`{"name":"a","name":"b"}`), CodeInvalidRequest, "5"},
		{"a second name behind escapes", call(`{"name":"a","n\u0061me":"b"}`), CodeInvalidRequest, "5"},
		{"Name for name", call(`{"Name":"a"}`), CodeInvalidRequest, "5"},
		{"two arguments", call(`{"arguments":{},"arguments":{}}`), CodeInvalidRequest, "5"},
		{"two request states", call(`{"requestState":"a","requestState":"b"}`), CodeInvalidRequest, "5"},
		{"two _meta", call(`{"_meta":{},"_meta":{}}`), CodeInvalidRequest, "5"},
		{"two versions", call(`{"_meta":{"io.modelcontextprotocol/protocolVersion":"a","io.modelcontextprotocol/protocolVersion":"b"}}`), CodeInvalidRequest, "5"},
		{"a version in another case", call(`{"_meta":{"io.modelcontextprotocol/ProtocolVersion":"a"}}`), CodeInvalidRequest, "5"},
		{"two progress tokens", call(`{"_meta":{"progressToken":1,"progressToken":2}}`), CodeInvalidRequest, "5"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Scan([]byte(row.text), Limits{})
			var e *Error
			if !errors.As(err, &e) || e.Code != row.code || string(e.ID) != row.id || e.Status != 400 || e.Message == "" {
				t.Errorf("Scan(%q): got %#v, want code %d with id %q", row.text, err, row.code, row.id)
			}
		})
	}
}

func TestScanBoundsTheDepth(t *testing.T) {
	nested := func(levels int) string { // the object, params and arguments are three
		return `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a","arguments":{"x":` +
			strings.Repeat("[", levels-3) + strings.Repeat("]", levels-3) + `}}}`
	}
	for _, row := range []struct {
		levels, max int
		ok          bool
	}{{128, 0, true}, {129, 0, false}, {5, 5, true}, {6, 5, false}} {
		_, err := Scan([]byte(nested(row.levels)), Limits{MaxDepth: row.max})
		var e *Error
		if errors.As(err, &e); row.ok != (err == nil) || !row.ok && (e.Code != CodeInvalidRequest || string(e.ID) != "5") {
			t.Errorf("%d levels, limit %d: got %v, want ok %v", row.levels, row.max, err, row.ok)
		}
	}
	bomb := strings.Repeat(`{"a":`, 1<<20)
	if _, err := Scan([]byte(bomb), Limits{}); err == nil {
		t.Error("a million open objects: got no error")
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	for _, text := range []string{
		statelessCall, legacyCall, legacyInitialize,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4,"reason":"x"}}`,
		`{"jsonrpc":"2.0","id":"srv-5","result":{"action":"accept","content":{"ok":true}}}`,
	} {
		data := []byte(text)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := Scan(data, Limits{}); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations for %s, want 0", n, text)
		}
	}
}

// view is what encoding/json, which minds no case and lets the last duplicate win, sees of a message.
type view struct {
	ID     json.RawMessage `json:"id"`
	Method json.RawMessage `json:"method"`
	Params struct {
		Name json.RawMessage `json:"name"`
		URI  json.RawMessage `json:"uri"`
		Task json.RawMessage `json:"taskId"`
		Meta struct {
			Version json.RawMessage `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		statelessCall, legacyCall, legacyInitialize, "[" + legacyCall + "]",
		`{"jsonrpc":"2.0","id":5,"m\u0065thod":"resources/read","params":{"uri":"\ud83d\ude00"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}`,
		`{"jsonrpc":"2.0","id":5,"method":"ping","METHOD":"x"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Scan(data, Limits{})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.ID != nil && !isToken(e.ID) {
				t.Fatalf("Scan(%q): got error %#v", data, err)
			}
			if e.Code == CodeParseError && json.Valid(data) && utf8.Valid(data) {
				t.Fatalf("Scan(%q): %v, but encoding/json reads it", data, err)
			}
			if !json.Valid(AppendError(nil, e.ID, e)) {
				t.Fatalf("Scan(%q): the error is no JSON: %s", data, AppendError(nil, e.ID, e))
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("Scan accepts %q, encoding/json does not", data)
		}
		var v view
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("Unmarshal(%q): %v", data, err)
		}
		compareViews(t, &m, &v)
	})
}

// compareViews holds what Scan saw to what encoding/json saw.
func compareViews(t *testing.T, m *Message, v *view) {
	t.Helper()
	for _, part := range []struct {
		name string
		got  []byte
		want json.RawMessage
	}{
		{"id", m.ID.Of(m.Raw), v.ID},
		{"result", m.Result.Of(m.Raw), v.Result},
		{"error", m.Error.Of(m.Raw), v.Error},
		{"version", m.MetaVersionSpan.Of(m.Raw), v.Params.Meta.Version},
	} {
		if part.name == "version" && m.Kind == Response {
			continue
		}
		if !bytes.Equal(part.got, part.want) {
			t.Errorf("%s: %s of %q, encoding/json has %q", m.Raw, part.name, part.got, part.want)
		}
	}
	var method string
	if v.Method != nil {
		if err := json.Unmarshal(v.Method, &method); err != nil {
			t.Fatalf("%s: method %s: %v", m.Raw, v.Method, err)
		}
	}
	if m.Method != method {
		t.Errorf("%s: method %q, encoding/json has %q", m.Raw, m.Method, method)
	}
	named := map[key]json.RawMessage{keyName: v.Params.Name, keyURI: v.Params.URI, keyTaskID: v.Params.Task}
	var name *string
	if token := named[nameKey(m.Method)]; token != nil && json.Unmarshal(token, &name) != nil {
		name = nil
	}
	if (name != nil) != (m.Name != nil) || name != nil && *name != string(m.Name) {
		t.Errorf("%s: name %q, encoding/json has %v", m.Raw, m.Name, name)
	}
}

func BenchmarkScan(b *testing.B) {
	large := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("lorem ipsum ", 100_000) + `"}]}}`
	structured := `{"jsonrpc":"2.0","id":1,"result":{"rows":[` + strings.Repeat(`{"id":12345,"name":"abc","ok":true,"x":[1.5,null]},`, 2000) + `{}]}}`
	for _, size := range []struct{ name, text string }{
		{"call", statelessCall}, {"legacy", legacyCall}, {"text", large}, {"structured", structured},
	} {
		b.Run(fmt.Sprintf("%s-%dB", size.name, len(size.text)), func(b *testing.B) {
			data := []byte(size.text)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Scan(data, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAStringEndsAtTheFirstByteThatIsNotPlain(t *testing.T) {
	for c := range 256 {
		for at := range 70 { // in, between and behind the pieces that are looked at together
			text := []byte(strings.Repeat("\xc3a! #~\x7f\xff", 10))
			text[at] = byte(c)
			s := scanner{data: text}
			s.plain()
			if want := map[bool]int{true: at, false: len(text)}[c < ' ' || c == '"' || c == '\\']; s.pos != want {
				t.Fatalf("byte %#x at %d: stopped at %d, want %d", c, at, s.pos, want)
			}
		}
	}
}

// FuzzMayFold holds that no name is ruled out which differs from a known one by case only.
func FuzzMayFold(f *testing.F) {
	for _, name := range []string{"", "ID", "Method", "\u017fubscription", "\u212aey", "_META", "\x7fmeta", "IO.modelcontextprotocol/loglevel"} {
		f.Add([]byte(name), byte(0))
	}
	f.Fuzz(func(t *testing.T, name []byte, first byte) {
		candidates := [][]byte{{first % utf8.RuneSelf}}
		for _, set := range []keySet{envelopeKeys, paramsKeys, metaKeys, resultKeys, resultMetaKeys} {
			candidates = append(candidates, set.names...)
		}
		for _, k := range candidates {
			if bytes.EqualFold(name, k) && !mayFold(name, k) {
				t.Errorf("%q differs from %q by case only, and mayFold says that it cannot", name, k)
			}
		}
	})
}

func TestANameMayFoldWithEveryFormOfItsFirstLetter(t *testing.T) {
	for c := rune(0); c < utf8.RuneSelf; c++ {
		known := []byte(string(c))
		for r := unicode.SimpleFold(c); ; r = unicode.SimpleFold(r) {
			if name := []byte(string(r)); !mayFold(name, known) {
				t.Errorf("%q is %q but for case, and mayFold says that it cannot be", name, known)
			}
			if r == c {
				break
			}
		}
	}
	for _, name := range []string{"", "progress", "total"} {
		if mayFold([]byte(name), []byte("name")) {
			t.Errorf("%q may be name, want not", name)
		}
	}
}

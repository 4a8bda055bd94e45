package mcp

import (
	"bytes"
	"encoding/json"
	"testing"
)

// L5, L8, L9: what is not edited stays byte for byte, unknown members, null and large integers among it.
func TestSpliceLeavesTheRestAsItCame(t *testing.T) {
	text := `{ "jsonrpc":"2.0","id": 9007199254740993,"x":null,"method":"tools/call","params":{"name":"weather.get","arguments":{"n":9007199254740993}}}`
	m := mustScan(t, text)
	got := Splice([]byte("> "), m.Raw,
		Edit{m.ID, []byte(`"7"`)},
		Edit{Span{m.Params.Start + 1, m.Params.Start + 1}, []byte(`"_meta":{},`)},
		Edit{m.NameSpan, []byte(`"get"`)})
	want := `> { "jsonrpc":"2.0","id": "7","x":null,"method":"tools/call","params":{"_meta":{},"name":"get","arguments":{"n":9007199254740993}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if string(m.Raw) != text {
		t.Errorf("the message itself became %s", m.Raw)
	}
	if got := Splice(nil, m.Raw); string(got) != text {
		t.Errorf("no edits: got %s", got)
	}
}

func TestCompactLeavesOneLine(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": "b\nc"}`:                     `{"a": "b\nc"}`,
		"{\r\n  \"a\": [1,\r2\n]\n}":        `{  "a": [1,2]}`,
		"{\"a\":\"\u2028\u0085\"}":          "{\"a\":\"\u2028\u0085\"}",
		"[1,\n9007199254740993,\n1.0e+5\n]": `[1,9007199254740993,1.0e+5]`,
	} {
		got := Compact([]byte("x"), []byte(text))
		if string(got) != "x"+want {
			t.Errorf("Compact(%q): got %q, want %q", text, got[1:], want)
		}
	}
}

func FuzzCompact(f *testing.F) {
	f.Add([]byte("{\n\"a\":\r\n1}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		var got, want bytes.Buffer
		line := Compact(nil, text)
		if bytes.ContainsAny(line, "\r\n") {
			t.Errorf("Compact(%q) = %q: more than a line", text, line)
		}
		if err := json.Compact(&got, line); err != nil {
			t.Fatalf("Compact(%q) = %q: %v", text, line, err)
		}
		if err := json.Compact(&want, text); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("Compact(%q) = %q: another value", text, line)
		}
	})
}

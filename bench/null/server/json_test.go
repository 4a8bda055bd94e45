package server

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestMembersAreFoundAtTheirOwnDepth(t *testing.T) {
	const in = ` {"a" : {"method":"x"}, "s":"q\"}\\", "n":-1.5e3 ,"l":[1,{"b":"]"}],"t":true,"z":null} `
	want := map[string]string{
		"a": `{"method":"x"}`, "s": `"q\"}\\"`, "n": "-1.5e3", "l": `[1,{"b":"]"}]`, "t": "true", "z": "null",
	}
	got := map[string]string{}
	if ok := members([]byte(in), func(k, v []byte) { got[string(k)] = string(v) }); !ok {
		t.Fatalf("members(%s) is false", in)
	}
	for k, w := range want {
		if got[k] != w {
			t.Errorf("%s: %s is %s, want %s", in, k, got[k], w)
		}
	}
	for _, in := range []string{"", "[]", "1", "{", `{"a"`, `{"a":`, `{"a":"`, `{"a":{`, `{"a":1`} {
		if members([]byte(in), func(_, _ []byte) {}) {
			t.Errorf("members(%s) is true", in)
		}
	}
}

func TestParsingACallAllocatesNothing(t *testing.T) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"null","arguments":{"owner":"a","n":2,` +
		`"pad":3,"delayUs":4,"stream":1,"events":5,"gapUs":6},"_meta":{"progressToken":7}}}`)
	if n := testing.AllocsPerRun(100, func() { parse(body) }); n != 0 {
		t.Errorf("%v allocations to parse %s, want 0", n, body)
	}
}

// FuzzMembers holds that of an object that the standard library reads, the same members are found.
func FuzzMembers(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"a":{"b":[1,"}"]}, "c":"\\\""}`, `{"a":tru`, "{,}", `{"a" "b":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got := map[string][]byte{}
		ok := members(in, func(k, v []byte) { got[string(k)] = v })
		parse(in)
		var want map[string]json.RawMessage
		if json.Unmarshal(in, &want) != nil || want == nil {
			return
		}
		if bytes.ContainsRune(in, '\\') || !bytes.Equal(bytes.ToValidUTF8(in, nil), in) {
			return // keys are compared as they are written
		}
		for k, w := range want {
			if !ok || !bytes.Equal(got[k], w) {
				t.Errorf("members(%s) = %v; %s is %s, want %s", in, ok, k, got[k], w)
			}
		}
	})
}

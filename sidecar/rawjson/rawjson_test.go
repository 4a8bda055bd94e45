package rawjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const sample = ` {"a" : 9007199254740993 , "b":{"c":[1, "x,]}" ,{"d":null}],"a\u002fb":"\"}"},"a":2.50 ,"e":[] , "f":{} } `

func whole(text string) ([]byte, mcp.Span) {
	raw := bytes.TrimSpace([]byte(text))
	return raw, Whole(raw)
}

func TestMembersComeInOrderWithTheirOwnBytes(t *testing.T) {
	raw, object := whole(sample)
	var got []string
	for m := range Members(raw, object) {
		got = append(got, fmt.Sprintf("%s=%s", m.Name, m.Value.Of(raw)))
	}
	want := []string{"a=9007199254740993", `b={"c":[1, "x,]}" ,{"d":null}],"a\u002fb":"\"}"}`, "a=2.50", "e=[]", "f={}"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestFindFollowsAPath(t *testing.T) {
	raw, object := whole(sample)
	for _, r := range []struct{ path, want string }{
		{"a", "9007199254740993"}, {"b c", `[1, "x,]}" ,{"d":null}]`}, {"b a/b", `"\"}"`}, {"b d", ""}, {"a x", ""}, {"f x", ""}, {"z", ""},
	} {
		var path []string
		for _, p := range bytes.Fields([]byte(r.path)) {
			path = append(path, string(p))
		}
		if got := Find(raw, object, path...).Of(raw); string(got) != r.want {
			t.Errorf("%s: got %s, want %s", r.path, got, r.want)
		}
	}
	var got []string
	for e := range Elements(raw, Find(raw, object, "b", "c")) {
		got = append(got, string(e.Of(raw)))
	}
	if want := []string{"1", `"x,]}"`, `{"d":null}`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("elements %q, want %q", got, want)
	}
}

func TestRewriteKeepsTheBytesOfWhatStays(t *testing.T) {
	raw, object := whole(sample)
	got, left := Rewrite([]byte("> "), raw, object, func(m Member) ([]byte, bool) {
		switch string(m.Name) {
		case "b", "f":
			return nil, false
		case "e":
			return []byte("[7]"), true
		}
		return nil, true
	})
	if want := `> {"a" : 9007199254740993,"a":2.50,"e":[7]}`; string(got) != want || !left {
		t.Errorf("got %s, %v\nwant %s", got, left, want)
	}
	none, left := Rewrite(nil, raw, object, func(Member) ([]byte, bool) { return nil, false })
	if string(none) != "{}" || left {
		t.Errorf("with nothing left: %s, %v", none, left)
	}
}

func TestSpliceTakesEditsInAnyOrder(t *testing.T) {
	raw := []byte("0123456789")
	got := Splice(raw, mcp.Edit{Span: mcp.Span{Start: 8, End: 9}, With: []byte("x")}, mcp.Edit{Span: mcp.Span{Start: 0, End: 2}})
	if string(got) != "234567x9" || string(raw) != "0123456789" {
		t.Errorf("got %s of %s", got, raw)
	}
}

func TestInsertPutsAMemberAtTheEnd(t *testing.T) {
	for _, r := range []struct{ path, want string }{
		{"f", `"f":{"x":1}`}, {"b", `"a\u002fb":"\"}","x":1}`}, {"", `"f":{} ,"x":1}`},
	} {
		raw, object := whole(sample)
		if got := Insert(raw, Find(raw, object, strings.Fields(r.path)...), `"x":1`); !strings.Contains(string(got), r.want) || !json.Valid(got) {
			t.Errorf("%s: got %s, want %s", r.path, got, r.want)
		}
	}
}

func TestCanonicalFormsAreEqualWhereValuesAre(t *testing.T) {
	a, b := Canonical([]byte(`{"b":1e2, "a":"\u0041"}`)), Canonical([]byte(`{"a":"A","b":1e2}`))
	if a == nil || !bytes.Equal(a, b) {
		t.Errorf("%s and %s", a, b)
	}
	if Canonical([]byte(`{`)) != nil {
		t.Error("half a value has a form")
	}
	if c := Canonical([]byte(`9007199254740993`)); string(c) != "9007199254740993" {
		t.Errorf("digits changed: %s", c)
	}
}

// FuzzWalk holds that a walk of anything that the scanner takes sees what encoding/json does.
func FuzzWalk(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":` + sample + `}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"\u0061","params":{"":[[],{}],"x":-1.5e3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := mcp.Scan(data, mcp.Limits{})
		if err != nil || !m.Params.Present() {
			return
		}
		walk(t, m.Raw, m.Params)
	})
}

func walk(t *testing.T, raw []byte, v mcp.Span) {
	value := v.Of(raw)
	if !json.Valid(value) {
		t.Fatalf("%q of %q is no value", value, raw)
	}
	switch {
	case IsObject(value):
		var want map[string]json.RawMessage
		if err := json.Unmarshal(value, &want); err != nil {
			return
		}
		last := map[string]string{}
		for m := range Members(raw, v) {
			last[string(m.Name)] = string(m.Value.Of(raw))
			walk(t, raw, m.Value)
		}
		for name, w := range want {
			if got, ok := last[name]; !ok || got != string(w) {
				t.Fatalf("member %q of %q is %q, want %q", name, value, got, w)
			}
		}
	case IsArray(value):
		n := 0
		for e := range Elements(raw, v) {
			walk(t, raw, e)
			n++
		}
		for e, found := range Fields(raw, v, "x") {
			if want := Find(raw, e, "x"); found[0] != want {
				t.Fatalf("x of %q is %v, want %v", e.Of(raw), found[0], want)
			}
			n--
		}
		if n != 0 {
			t.Fatalf("%d elements in %q that Fields does not see", n, value)
		}
		n = len(slices.Collect(Elements(raw, v)))
		var want []json.RawMessage
		if json.Unmarshal(value, &want) != nil || len(want) != n {
			t.Fatalf("%d elements in %q, want %d", n, value, len(want))
		}
	}
}

// Long texts, and short ones as in a list of tools.
func BenchmarkSkip(b *testing.B) {
	short := `{"name":"search","inputSchema":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","minimum":1}},"required":["a"]}},`
	for _, row := range []struct{ name, value string }{
		{"short strings", "[" + strings.Repeat(short, 100) + "0]"},
		{"long strings", `["` + strings.Repeat("words and more words ", 500) + `"]`},
		{"escapes", `["` + strings.Repeat(`a \"word\"\n`, 1000) + `"]`},
	} {
		b.Run(row.name, func(b *testing.B) {
			raw := []byte(row.value)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if end := skip(raw, 0); end != len(raw) {
					b.Fatalf("ends at %d of %d", end, len(raw))
				}
			}
		})
	}
}

func TestAStringEndsAtItsOwnQuote(t *testing.T) {
	for _, value := range []string{`""`, `"a"`, `"\""`, `"\\"`, `"\\\""`, `"\\\\"`, `"a\\\\\"\\"`, `"\u0022\""`, `"\"\"\\\"\\"`} {
		raw := []byte(`[` + value + `,"x"]`)
		if end := skip(raw, 1); string(raw[1:end]) != value {
			t.Errorf("%s ends as %s", value, raw[1:end])
		}
	}
}

func TestFieldsAreTheFirstOfEachElement(t *testing.T) {
	raw, array := whole(` [ {"b":1,"a":{"b":2},"b":3} ,7,[{"a":1}], {} ,{"\u0061" : "x" } ] `)
	var got []string
	for e, found := range Fields(raw, array, "a", "b") {
		got = append(got, fmt.Sprintf("%s: %s, %s", e.Of(raw), found[0].Of(raw), found[1].Of(raw)))
	}
	want := []string{`{"b":1,"a":{"b":2},"b":3}: {"b":2}, 1`, `7: , `, `[{"a":1}]: , `, `{}: , `, `{"\u0061" : "x" }: "x", `}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

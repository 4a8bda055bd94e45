package rawjson

import (
	"bytes"
	"encoding/json"
	"fmt"
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
		var want []json.RawMessage
		if json.Unmarshal(value, &want) != nil || len(want) != n {
			t.Fatalf("%d elements in %q, want %d", n, value, len(want))
		}
	}
}

package jwt

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestAPathLeadsThroughObjectsAndNamesWithDots(t *testing.T) {
	c := claims{
		"a": map[string]any{"b": map[string]any{"c": "abc"}, "b.c": "ab.c"}, "a.b": map[string]any{"c": "a.bc"},
		"https://x/y.z": "url", "text": "t", "null": nil,
	}
	for path, want := range map[string]any{
		"text": "t", "a.b.c": "abc", `a.b\.c`: "ab.c", `a\.b.c`: "a.bc", `https://x/y\.z`: "url",
		"A.b.c": nil, "a.x": nil, "text.x": nil, "null": nil, "null.x": nil, "https://x/y.z": nil,
	} {
		if got := c.at(parsePath(path)); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func TestTextsAreThoseThatAPathCouldAskFor(t *testing.T) {
	c := claims{
		"a": "1", "b.c": map[string]any{"d.e": "2", "f": true, "g": []any{"x"}}, `h\`: map[string]any{"i": "x"}, `j\.k`: "x",
		"deep": nested(maxTextDepth - 1), "deeper": nested(maxTextDepth),
	}
	got, ok := c.texts()
	want := map[string]string{"a": "1", `b\.c.d\.e`: "2", "deep" + strings.Repeat(".a", maxTextDepth-1): "x"}
	if !ok || !maps.Equal(got, want) {
		t.Errorf("got %v and %v\nwant %v", got, ok, want)
	}
	for path, text := range got {
		if c.at(parsePath(path)) != text {
			t.Errorf("the path %s does not lead to %q", path, text)
		}
	}
	long := map[string]any{}
	for n := range maxTextBytes/1000 + 1 {
		long[strings.Repeat("n", 990)+strings.Repeat("m", n%9)+string(rune('a'+n%26))+string(rune('a'+n/26))] = "x"
	}
	if got, ok := (claims{"long": long}).texts(); ok {
		t.Errorf("%d texts with paths of more than %d bytes are taken", len(got), maxTextBytes)
	}
}

func TestAListIsWordsOrTexts(t *testing.T) {
	for _, test := range []struct {
		value any
		want  []string
		ok    bool
	}{
		{nil, nil, true},
		{"b a  b", []string{"a", "b"}, true},
		{"", nil, true},
		{[]any{"b", "a c", "b"}, []string{"a c", "b"}, true},
		{[]any{}, nil, true},
		{[]any{"a", nil}, nil, false},
		{[]any{[]any{"a"}}, nil, false},
		{true, nil, false},
		{map[string]any{"a": "b"}, nil, false},
		{many(maxListed), nil, true},
		{many(maxListed + 1), nil, false},
	} {
		got, ok := claims{"x": test.value}.list(path{"x"})
		if ok != test.ok || test.want != nil && !slices.Equal(got, test.want) || !slices.IsSorted(got) {
			t.Errorf("%.40v: %.3v and %v, want %v and %v", test.value, got, ok, test.want, test.ok)
		}
	}
}

package federate

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

var strict = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

var alwaysNamer = namer{mode: outriggerv1.Prefix_PREFIX_ALWAYS, maxLength: 64}

// L3. These names are what clients have configured and models have learned: they never change.
func TestNamesAreTheSameAfterARestart(t *testing.T) {
	server, tool := strings.Repeat("server-of-40", 4)[:40], strings.Repeat("tool_of_40_", 4)[:40]
	for _, c := range []struct{ prefix, name, want string }{
		{"search", "find", "search_find"},
		{"a", "b_c", "a_b_c"},
		{server, tool, "server-of-40server-of-40server-of-40serv_tool_of_40_t-ccc2a64f07"},
		{"s", "a.b", "s_a-b-cda64c94f2"},
		{"s", "a b", "s_a-b-3ba4b6b675"},
		{"s", "grüße", "s_gr--e-af4776b26b"},
		{"s", "検索", "s_---aa8c80668c"},
		{"s", "x-0123456789", "s_x-0123456789-287661a423"},
	} {
		got := alwaysNamer.prefixed(c.prefix, c.name)
		if got != c.want {
			t.Errorf("%q of %q: got %q, want %q", c.name, c.prefix, got, c.want)
		}
		if !strict.MatchString(got) {
			t.Errorf("%q of %q: %q is a name that clients refuse", c.name, c.prefix, got)
		}
	}
}

func TestLongestNamesAndCharactersAreSettings(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, c := range []struct {
		n        namer
		name     string
		length   int
		unhashed bool
	}{
		{namer{maxLength: 32}, long, 32, false},
		{namer{maxLength: 128}, long, 102, true},
		{namer{maxLength: 64, anyCharacters: true}, "a.b/ü", 8, true},
		{namer{maxLength: 32, anyCharacters: true}, strings.Repeat("ü", 40), 31, false}, // without half a character
	} {
		got := c.n.prefixed("p", c.name)
		if len(got) != c.length || (got == "p_"+c.name) != c.unhashed {
			t.Errorf("%+v of %q: got %q of %d bytes, want %d bytes, as it is: %v", c.n, c.name, got, len(got), c.length, c.unhashed)
		}
	}
}

// L4
func TestADelimiterInANameIsNoQuestion(t *testing.T) {
	members := []*member{{Member: Member{Name: "a", Prefix: "a"}}, {Member: Member{Name: "a_b-", Prefix: "a_b-"}}}
	for _, c := range []struct{ name, member, original string }{
		{"a_b_c", "a", "b_c"},
		{"a_b-_c", "", ""}, // either could have it: the lists tell
		{"a_", "", ""},
		{"b_c", "", ""},
		{"a_b.c", "", ""}, // never a name's form here: it would be a second name for one tool
		{"a_" + strings.Repeat("x", 70), "", ""},
	} {
		got, ok := alwaysNamer.split(c.name, members)
		if ok != (c.member != "") || ok && (got.member.Name != c.member || got.name != c.original) {
			t.Errorf("%q: got %v %q, want %q of %q", c.name, ok, got.name, c.original, c.member)
		}
	}
}

// Whatever servers call their tools: two of them never get one name, and the name leads back.
func FuzzNames(f *testing.F) {
	f.Add("a", "b_c", "a_b", "c")
	f.Add("s", "x-0123456789", "s", "x")
	f.Add("s", strings.Repeat("é", 50), "s", strings.Repeat("é", 51))
	f.Fuzz(func(t *testing.T, prefix, name, prefix2, name2 string) {
		prefix, prefix2 = cleanPrefix(prefix), cleanPrefix(prefix2)
		one, two := alwaysNamer.prefixed(prefix, name), alwaysNamer.prefixed(prefix2, name2)
		if !strict.MatchString(one) {
			t.Errorf("%q of %q is %q", name, prefix, one)
		}
		if one == two && prefix+"_"+name != prefix2+"_"+name2 {
			t.Errorf("%q of %q and %q of %q are both %q", name, prefix, name2, prefix2, one)
		}
		m := &member{Member: Member{Prefix: prefix}}
		if got, ok := alwaysNamer.split(one, []*member{m}); ok && got.name != name {
			t.Errorf("%q of %q is %q, which leads to %q", name, prefix, one, got.name)
		}
	})
}

func cleanPrefix(p string) string {
	return cut(strings.Map(allowed, "p"+p), 24)
}

func TestWaysOfNaming(t *testing.T) {
	for _, c := range []struct {
		mode      string
		zero, one []string // tools of the members
		want      []string
		leftOut   string
	}{
		{
			"always", []string{"search", "m1_search"}, []string{"search", "search", "other"},
			[]string{"m0_search", "m0_m1_search", "m1_search", "m1_other"}, "[{m1 search}]",
		},
		{
			// m1's own m1_search comes after its search has got that name
			"on_conflict", []string{"search"}, []string{"search", "m1_search", "search", "other"},
			[]string{"search", "m1_search", "m1_m1_search", "other"}, "[{m1 search}]",
		},
		{
			"never", []string{"search", "m1_search"}, []string{"search", "search", "other"},
			[]string{"search", "m1_search", "other"}, "[{m1 search} {m1 search}]",
		},
	} {
		t.Run(c.mode, func(t *testing.T) {
			spec := fmt.Sprintf("names: {prefix: %s}", c.mode)
			s := newClient(t, federation(t, spec, tooled("m0", c.zero...), tooled("m1", c.one...)))
			l := s.list(tools, "")
			wantList(t, "names", l.keys, c.want...)
			if got := fmt.Sprint(l.leftOut); got != c.leftOut {
				t.Errorf("left out: got %s, want %s", got, c.leftOut)
			}
			for i, name := range l.keys {
				if owner, called := s.calls(name); owner != l.owners[i] || called == "" {
					t.Errorf("%s reached %q as %q, want %q", name, owner, called, l.owners[i])
				}
			}
		})
	}
}

// A name that stands twice in a tool, or in another case, would be one thing to us and another to a client.
func TestAnEntryOfTwoNamesIsLeftOut(t *testing.T) {
	p := tooled("m0").on("tools/list", always(page(tools,
		`{"name":"a","name":"m1_search"},{"name":"b","Name":"m1_search"},{"NAME":"c"},{"n\u0061me":"d","name":"e"},{"name":7},{"name":""},{},17,{"name":"good"}`, forAll)))
	l := newClient(t, federation(t, "", p, tooled("m1", "search"))).list(tools, "")
	wantList(t, "names", l.keys, "m0_good", "m1_search")
	if len(l.leftOut) != 8 || l.leftOut[0].Upstream != "m0" {
		t.Errorf("left out: %v", l.leftOut)
	}
}

// A server may choose names of any length, and the answer to everybody repeats those that are left out.
func TestALongNameThatIsLeftOutIsShownInPart(t *testing.T) {
	long := strings.Repeat("n", maxLeftOutName-1) + "é" + strings.Repeat("n", 1<<20)
	l := newClient(t, federation(t, "names: {prefix: never}", tooled("m0", long), tooled("m1", long))).list(tools, "")
	wantList(t, "names", l.keys, long)
	if want := long[:maxLeftOutName-1]; len(l.leftOut) != 1 || l.leftOut[0].Name != want {
		t.Errorf("left out: got %.300q, want one of %d bytes", fmt.Sprint(l.leftOut), len(want))
	}
}

func TestANameThatWasNeverListedLeadsByItsPrefixOnly(t *testing.T) {
	for _, c := range []struct{ mode, name, owner, called string }{
		{"always", "m1_hidden", "m1", "hidden"},
		{"always", "hidden", "", ""},
		{"always", "m2_hidden", "", ""},
		{"always", "m1_", "", ""},
		{"always", "m1_a.b", "", ""},
		{"never", "hidden", "", ""},
		{"never", "m1_hidden", "", ""},
		{"on_conflict", "m1_hidden", "", ""},
	} {
		s := newClient(t, federation(t, fmt.Sprintf("names: {prefix: %s}", c.mode), tooled("m0", "a"), tooled("m1", "b")))
		owner, called := s.calls(c.name)
		if owner != c.owner || owner != "" && called != c.called || owner == "" && !strings.Contains(called, "-32602") {
			t.Errorf("%s, %s: reached %q as %q, want %q as %q", c.mode, c.name, owner, called, c.owner, c.called)
		}
	}
}

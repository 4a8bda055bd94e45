package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// hundredRules is the policy of a middling company: eighty rules for single tools, the others with globs, groups, scopes and
// expressions.
func hundredRules(extra ...string) string {
	var rules []string
	for i := range 80 {
		rules = append(rules, fmt.Sprintf("action: allow, tools: [tool_%d], groups: [g%d, staff]", i, i%7))
	}
	for i := range 18 - len(extra) {
		rules = append(rules, fmt.Sprintf("action: deny, tools: ['secret_%d_*'], groups: [g%d]", i, i%7))
	}
	rules = append(rules, "action: allow, tools: ['get_*'], scopes: [read]", "action: deny, when: '\"suspended\" in principal.groups'")
	return rulesOf(append(rules, extra...)...)
}

var staff = &identity.Principal{ID: "https://i|jo", Issuer: "https://i", Subject: "jo", Groups: []string{"staff"}, Scopes: []string{"read"}}

func thousandTools() (all []*Request) {
	for i := range 1000 {
		all = append(all, tool(staff, fmt.Sprintf("get_something_%d", i), ""))
	}
	return all
}

func BenchmarkDecide(b *testing.B) {
	for _, tt := range []struct{ name, policies, arguments string }{
		{"100 rules", hundredRules(), `{"path":"/tmp/x"}`},
		{"100 rules and a tenant", hundredRules() + "---\nkind: Policy\nname: q\nspec: {target: {tenants: [acme]}, rules: [{action: deny, tools: [x]}]}", `{"path":"/tmp/x"}`},
		{"100 rules with hints", hundredRules("action: deny, hints: {openWorld: false}"), `{"path":"/tmp/x"}`},
		{"argument rule", hundredRules("action: deny, tools: [get_file], when: '!args.path.startsWith(\"/tmp/\")'"), `{"path":"/tmp/x","mode":"append","content":"hello, world","lines":12}`},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s := compiled(b, tt.policies)
			r := tool(staff, "get_file", tt.arguments)
			b.ReportAllocs()
			for b.Loop() {
				if !s.Decide(r).Allowed {
					b.Fatal("denied")
				}
			}
		})
	}
}

func BenchmarkDecideParallel(b *testing.B) {
	s := compiled(b, hundredRules())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := tool(staff, "get_file", "")
		for pb.Next() {
			if !s.Decide(r).Allowed {
				b.Error("denied")
			}
		}
	})
}

// BenchmarkDecideCold is a name that nobody asked for before, too long to be remembered.
func BenchmarkDecideCold(b *testing.B) {
	s := compiled(b, hundredRules())
	r := tool(staff, "get_"+strings.Repeat("x", maxRemembered), "")
	b.ReportAllocs()
	for b.Loop() {
		if !s.Decide(r).Allowed {
			b.Fatal("denied")
		}
	}
}

func BenchmarkList1000Tools(b *testing.B) {
	for name, policies := range map[string]string{
		"globs":     hundredRules(),
		"arguments": hundredRules("action: deny, tools: ['*'], when: args.path.startsWith('/etc')"),
	} {
		b.Run(name, func(b *testing.B) {
			s := compiled(b, policies)
			tools := thousandTools()
			b.ReportAllocs()
			for b.Loop() {
				for _, r := range tools {
					if !s.List(r) {
						b.Fatal("not listed")
					}
				}
			}
		})
	}
}

func BenchmarkGlobs(b *testing.B) {
	for _, pattern := range []string{"get_something_999", "get_*", "*thing*", "get_?omething_*"} {
		b.Run(pattern, func(b *testing.B) {
			g, name := newGlob(pattern), []byte("get_something_999")
			b.ReportAllocs()
			for b.Loop() {
				if !g.match(name) {
					b.Fatal("no match")
				}
			}
		})
	}
}

func BenchmarkNeedsArguments(b *testing.B) {
	s := compiled(b, hundredRules("action: deny, tools: ['get_*'], when: args.path.startsWith('/etc')"))
	name := []byte("get_file")
	b.ReportAllocs()
	for b.Loop() {
		if !s.NeedsArguments(Tool, name) {
			b.Fatal("not needed")
		}
	}
}

func TestAllocGlobs(t *testing.T) {
	name := []byte("get_something_with_a_long_name_that_does_not_fit_anywhere")
	globs := newGlobs([]string{"get_x", "*nothing*", "get_*_else", "g?t_*_anywhere"})
	if n := testing.AllocsPerRun(100, func() { matchOne(globs, name) }); n != 0 {
		t.Errorf("%v allocations for globs, want 0", n)
	}
}

func TestAllocDecide(t *testing.T) {
	s := compiled(t, hundredRules("action: deny, hints: {openWorld: false}"))
	allowed, denied := tool(staff, "get_something_with_a_long_name_that_does_not_fit_anywhere", `{"a":1}`), tool(staff, "no", "")
	s.Decide(allowed)
	s.Decide(denied)
	if n := testing.AllocsPerRun(100, func() { s.Decide(allowed); s.Decide(denied) }); n != 0 {
		t.Errorf("%v allocations for decisions that were made before, want 0", n)
	}
}

func TestAllocList(t *testing.T) {
	s := compiled(t, hundredRules("action: deny, tools: ['*'], when: args.path.startsWith('/etc')"))
	r := tool(staff, "get_something_with_a_long_name_that_does_not_fit_anywhere", "")
	s.List(r)
	if n := testing.AllocsPerRun(100, func() { s.List(r) }); n != 0 {
		t.Errorf("%v allocations for an entry that was listed before, want 0", n)
	}
}

func TestAllocNeedsArguments(t *testing.T) {
	s := compiled(t, hundredRules("action: deny, tools: ['get_*'], when: args.path.startsWith('/etc')"))
	name := []byte("get_something_with_a_long_name_that_does_not_fit_anywhere")
	if n := testing.AllocsPerRun(100, func() { s.NeedsArguments(Tool, name) }); n != 0 {
		t.Errorf("%v allocations for NeedsArguments, want 0", n)
	}
}

func TestAllocArgumentRule(t *testing.T) {
	s := compiled(t, hundredRules("action: deny, tools: [get_file], when: '!args.path.startsWith(\"/tmp/\")'"))
	r := tool(staff, "get_file", `{"path":"/tmp/x","mode":"append","content":"hello, world","lines":12}`)
	s.Decide(r)
	if n := testing.AllocsPerRun(100, func() { s.Decide(r) }); n > 20 {
		t.Errorf("%v allocations for a rule on one argument, want at most 20", n)
	}
}

package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// policiesIn reads policies as their authors write them.
func policiesIn(t testing.TB, yaml string) (policies []*outriggerv1.Policy) {
	t.Helper()
	resources, errs := resource.Parse("test", []byte(yaml))
	for _, r := range resources {
		o, mistakes := resource.Check(r)
		errs = append(errs, mistakes...)
		if p, ok := o.(*outriggerv1.Policy); ok {
			policies = append(policies, p)
		}
	}
	if len(errs) > 0 {
		t.Fatalf("%v in\n%s", errs, yaml)
	}
	return policies
}

// compiled is the Set of the binding "demo" in front of these upstreams.
func compiled(t testing.TB, yaml string, upstreams ...string) *Set {
	t.Helper()
	if upstreams == nil {
		upstreams = []string{"files"}
	}
	s, err := Compile(Options{Binding: "demo", Upstreams: upstreams, Policies: policiesIn(t, yaml)})
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	return s
}

// rulesOf is a policy for all calls with these rules, one a line, in YAML's short form.
func rulesOf(rules ...string) string {
	return "kind: Policy\nname: p\nspec:\n  rules:\n  - {" + strings.Join(rules, "}\n  - {") + "}\n"
}

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// tool is a call of one.
func tool(p *identity.Principal, name, arguments string) *Request {
	r := &Request{Principal: p, Method: "tools/call", Subject: Tool, Name: []byte(name), Time: noon}
	if arguments != "" {
		r.Arguments = []byte(arguments)
	}
	return r
}

func TestABindingWithoutRulesAllowsEverything(t *testing.T) {
	s := compiled(t, `
kind: Policy
name: who
spec: {identity: {anonymous: true}}
---
kind: Policy
name: elsewhere
spec: {target: {bindings: [other]}, rules: [{action: deny}]}
---
kind: Policy
name: another
spec: {target: {upstreams: [mail]}, rules: [{action: deny}]}
`)
	if s != nil {
		t.Fatalf("Compile = %v, want nil", s)
	}
	r := tool(nil, "x", "")
	d, rules := s.Explain(r)
	if !s.Decide(r).Allowed || !s.List(r) || !d.Allowed || rules != nil || s.NeedsArguments(Tool, []byte("x")) || s.NeedsHints() || s.Failures() != 0 {
		t.Error("a nil Set has something against a call")
	}
}

func TestCompileNamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		rule *outriggerv1.Rule
		want string
	}{
		{&outriggerv1.Rule{}, `policy "p": rules[0]: no action`},
		{&outriggerv1.Rule{Action: 1, When: "tool.x"}, `policy "p": rules[0]: when: 1:5: undefined field 'x'`},
	} {
		_, err := Compile(Options{Policies: []*outriggerv1.Policy{{Name: "p", Rules: []*outriggerv1.Rule{tt.rule}}}})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Compile(%v): %v, want %s", tt.rule, err, tt.want)
		}
	}
}

func TestGlobs(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "a", true}, {"a", "A", false}, {"a", "ab", false}, {"ab", "a", false},
		{"*", "", true}, {"*", "anything/at all\n", true}, {"**", "x", true}, {"a*", "a", true}, {"a*", "abc", true}, {"a*", "ba", false},
		{"*a", "ba", true}, {"*a", "ab", false}, {"a*a", "a", false}, {"a*a", "aa", true}, {"a*b*c", "a1b2c", true}, {"a*b*c", "acb", false},
		{"*ab*ab*", "abab", true}, {"*ab*ab*", "aba", false}, {"a*ab", "ab", false}, {"a*ab", "aab", true},
		{"?", "", false}, {"?", "a", true}, {"?", "ab", false}, {"?", "é", true}, {"?", "😀", true}, {"?", "\xff", true}, {"??", "é", false},
		{"*?", "é", true}, {"*??", "é", false}, {"?*?", "é", false}, {"a?c", "abc", true}, {"a?c", "ac", false}, {"a*?c", "ac", false}, {"a*?c", "axxc", true},
		{"?*", "", false}, {"*?*", "x", true}, {"get_*", "get_", true}, {"get_*", "Get_x", false}, {"get_*", "ɡet_x", false},
		{"[a]", "a", false}, {"[a]", "[a]", true}, {`\*`, `\x`, true}, {"a.c", "abc", false}, {"café", "cafe\u0301", false}, {"café", "café", true},
		{"file:///a/*", "file:///a/../b", true}, {"*|jo", "https://i|jo", true}, {"*|jo", "https://i|joe", false},
	} {
		if got := newGlob(tt.pattern).match([]byte(tt.text)); got != tt.want {
			t.Errorf("glob %q matches %q: %v, want %v", tt.pattern, tt.text, got, tt.want)
		}
	}
}

func TestAHostileNameCostsLittle(t *testing.T) {
	text := []byte(strings.Repeat("a", maxSubjectName))
	start := time.Now()
	for _, pattern := range []string{strings.Repeat("*a", 500) + "b", strings.Repeat("*a?", 300) + "b"} {
		if newGlob(pattern).match(text) {
			t.Errorf("%.20s... matches", pattern)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// FuzzGlobsMatchAsTheSlowWayDoes compares with a definition that tries everything.
func FuzzGlobsMatchAsTheSlowWayDoes(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add("*é?", "éé")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 12 || len(text) > 24 {
			return
		}
		if got, want := newGlob(pattern).match([]byte(text)), slowly(pattern, text); got != want {
			t.Errorf("glob %q matches %q: %v, want %v", pattern, text, got, want)
		}
	})
}

func slowly(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	switch {
	case pattern[0] == '*':
		for at := 0; at <= len(text); at++ {
			if slowly(pattern[1:], text[at:]) && (at == len(text) || !strings.Contains(pattern, "?") || boundary(text, at)) {
				return true
			}
		}
		return false
	case text == "":
		return false
	case pattern[0] == '?':
		_, size := utf8.DecodeRuneInString(text)
		return slowly(pattern[1:], text[size:])
	}
	return pattern[0] == text[0] && slowly(pattern[1:], text[1:])
}

// boundary reports whether a character begins there, when the text is read from its start.
func boundary(text string, at int) bool {
	for i := range text {
		if i == at {
			return true
		}
	}
	return false
}

func TestNamesAreComparedByteForByte(t *testing.T) {
	s := compiled(t, rulesOf("action: allow, tools: [delete, 'café*']"))
	for name, want := range map[string]bool{
		"delete": true, "Delete": false, "DELETE": false, "delete ": false, " delete": false, "delete\x00": false, "d\u0435lete": false,
		"delete\u200b": false, "ｄelete": false, "": false, "café1": true, "cafe\u03011": false,
	} {
		if got := s.Decide(tool(nil, name, "")).Allowed; got != want {
			t.Errorf("%q allowed: %v, want %v", name, got, want)
		}
	}
	deny := compiled(t, rulesOf("action: allow", "action: deny, tools: ['*']"))
	for _, name := range []string{"", "\xff\xfe", "a\nb", strings.Repeat("x", maxRemembered+1), strings.Repeat("x", maxSubjectName), strings.Repeat("x", maxSubjectName+1)} {
		if deny.Decide(tool(nil, name, "")).Allowed {
			t.Errorf("%.20q (%d bytes) is allowed though everything is denied", name, len(name))
		}
	}
}

func TestANameLongerThanRulesAreHeldToIsDenied(t *testing.T) {
	s := compiled(t, rulesOf("action: allow"))
	long := tool(nil, strings.Repeat("x", maxSubjectName+1), "")
	d, rules := s.Explain(long)
	if s.Decide(long).Allowed || s.List(long) || d.Allowed || rules[0].Matched {
		t.Errorf("a name of %d bytes is allowed", len(long.Name))
	}
	if !s.Decide(tool(nil, strings.Repeat("x", maxSubjectName), "")).Allowed {
		t.Errorf("a name of %d bytes is denied", maxSubjectName)
	}
}

func TestMethodsWithoutASubjectNeedNoRuleUnlessOneNamesThem(t *testing.T) {
	mine := &Request{Method: "tools/list"}
	s := compiled(t, rulesOf("action: allow, tools: [a]", "action: deny", "action: deny, methods: [logging/setLevel]"))
	for method, want := range map[string]bool{
		"initialize": true, "ping": true, "server/discover": true, "tools/list": true, "notifications/initialized": true,
		"subscriptions/listen": true, "resources/unsubscribe": true, "logging/setLevel": false,
		"tools/call": false, "tasks/get": false, "tasks/list": false, "completion/complete": false, "vendor/x": false, "": false, "Tools/list": false,
	} {
		mine.Method = method
		if got := s.Decide(mine).Allowed; got != want {
			t.Errorf("%q allowed: %v, want %v", method, got, want)
		}
	}
	for _, tt := range []struct {
		rule, method string
		want         bool
	}{
		{"action: allow", "vendor/x", true},
		{"action: allow, methods: [vendor/*]", "vendor/x", true},
		{"action: allow, methods: ['*']", "tasks/get", true},
		{"action: allow, tools: ['*']", "vendor/x", false},
		{"action: allow, hints: {readOnly: false}", "vendor/x", false},
		{"action: allow, when: tool.name == ''", "vendor/x", false},
		{"action: allow, when: '!has(args.x)'", "vendor/x", false},
		{"action: allow, groups: [g]", "tools/list", true},
		{"action: deny, methods: ['*']", "initialize", false},
		{"action: deny, tools: ['*'], methods: ['*']", "initialize", true},
		{"action: deny, methods: [ping], groups: [g]", "ping", true},
	} {
		s := compiled(t, rulesOf(tt.rule))
		if got := s.Decide(&Request{Method: tt.method}).Allowed; got != tt.want {
			t.Errorf("%s: %s allowed: %v, want %v", tt.rule, tt.method, got, tt.want)
		}
	}
}

func TestAFinalPolicyThatAllowsLeavesMethodsWithoutASubjectAlone(t *testing.T) {
	s := compiled(t, "kind: Policy\nname: p\nspec: {final: true, rules: [{action: allow, tools: [a]}]}")
	if !s.Decide(&Request{Method: "initialize"}).Allowed || s.Decide(&Request{Method: "prompts/get", Subject: Prompt, Name: []byte("a")}).Allowed {
		t.Error("want initialize allowed, and a prompt denied")
	}
}

func TestWhoHasACallIsNotKnown(t *testing.T) {
	const policies = `
kind: Policy
name: wide
spec: {rules: [{action: allow}]}
---
kind: Policy
name: mail
spec: {target: {upstreams: [mail]}, rules: [{name: no, action: deny, tools: [send]}, {name: quiet, action: deny, methods: [logging/setLevel]}]}
`
	s := compiled(t, policies, "files", "mail")
	for _, tt := range []struct {
		r            Request
		want         bool
		policy, rule string
	}{
		{Request{Method: "tools/call", Subject: Tool, Name: []byte("read")}, false, "mail", ""},
		{Request{Method: "tools/call", Subject: Tool, Name: []byte("send"), Upstream: "files"}, true, "wide", "rules[0]"},
		{Request{Method: "tools/call", Subject: Tool, Name: []byte("send"), Upstream: "mail"}, false, "mail", "no"},
		{Request{Method: "tools/call", Subject: Tool, Name: []byte("read"), Upstream: "mail"}, true, "wide", "rules[0]"},
		{Request{Method: "vendor/x"}, false, "mail", ""},
		{Request{Method: "tools/list"}, true, "wide", "rules[0]"},
		{Request{Method: "logging/setLevel"}, false, "mail", "quiet"},
		{Request{Method: "logging/setLevel", Upstream: "files"}, true, "wide", "rules[0]"},
	} {
		d := s.Decide(&tt.r)
		if d.Allowed != tt.want || d.Policy != tt.policy || d.Rule != tt.rule {
			t.Errorf("%s %s at %q: %+v, want %v by %s/%s", tt.r.Method, tt.r.Name, tt.r.Upstream, d, tt.want, tt.policy, tt.rule)
		}
		if explained, _ := s.Explain(&tt.r); explained.Allowed != d.Allowed || explained.Policy != d.Policy {
			t.Errorf("%s %s: explained as %+v, decided %+v", tt.r.Method, tt.r.Name, explained, d)
		}
	}
	alone := compiled(t, policies, "mail")
	if d := alone.Decide(tool(nil, "send", "")); d.Allowed || d.Rule != "no" {
		t.Errorf("the only upstream need not be named: %+v", d)
	}
}

func TestFailuresAreSafeCountedAndExplained(t *testing.T) {
	s := compiled(t, rulesOf("name: a, action: allow, tools: [a], when: args.x == 1", "name: b, action: allow, tools: [b]", "name: d, action: deny, tools: [b], when: args.x == 1"))
	for i, tt := range []struct {
		name, arguments, rule, unmatched string
		allowed                          bool
	}{
		{"a", `{}`, "", "when: no such key: x", false},
		{"b", `{}`, "d", "when: no such key: x", false},
		{"b", `{"x":2}`, "b", "when", true},
		{"b", `[1]`, "d", "when: arguments: not a JSON object", false},
		{"b", `{"x":2,"x":1}`, "d", `when: arguments: "x" is there twice`, false},
	} {
		before := s.Failures()
		r := tool(nil, tt.name, tt.arguments)
		d := s.Decide(r)
		if d.Allowed != tt.allowed || d.Rule != tt.rule {
			t.Errorf("%d: %+v, want %v by %q", i, d, tt.allowed, tt.rule)
		}
		if failed := s.Failures() - before; (failed > 0) != (tt.unmatched != "when") {
			t.Errorf("%d: %d failures counted", i, failed)
		}
		_, rules := s.Explain(r)
		if !slices.ContainsFunc(rules, func(e *outriggerv1.ExplainedRule) bool { return e.Unmatched == tt.unmatched }) {
			t.Errorf("%d: no rule is explained with %q: %v", i, tt.unmatched, rules)
		}
	}
}

func TestNeedsArgumentsAndHints(t *testing.T) {
	s := compiled(t, rulesOf("action: allow, tools: [a, 'b*'], when: has(args.x)", "action: allow, when: prompt.name == 'p' && has(args.y)", "action: allow, tools: [c]")+`
---
kind: Policy
name: trial
spec: {auditOnly: true, rules: [{action: deny, tools: [c], when: has(args.x)}]}
`)
	for _, tt := range []struct {
		subject Subject
		name    string
		want    bool
	}{{Tool, "a", true}, {Tool, "bcd", true}, {Tool, "c", false}, {Tool, "p", false}, {Prompt, "p", true}, {Prompt, "a", true}, {Resource, "a", false}, {None, "", false}} {
		if got := s.NeedsArguments(tt.subject, []byte(tt.name)); got != tt.want {
			t.Errorf("NeedsArguments(%d, %s) = %v, want %v", tt.subject, tt.name, got, tt.want)
		}
	}
	for rule, want := range map[string]bool{
		"action: allow": false, "action: allow, hints: {readOnly: true}": true, "action: allow, when: tool.destructive": true, "action: allow, when: tool.name == 'x'": false,
	} {
		if got := compiled(t, rulesOf(rule)).NeedsHints(); got != want {
			t.Errorf("%s: NeedsHints = %v, want %v", rule, got, want)
		}
	}
}

func TestHintsThatAreNotKnownAreMCPsDefaults(t *testing.T) {
	for rule, want := range map[string]bool{
		"hints: {readOnly: false, destructive: true, idempotent: false, openWorld: true}": true,
		"hints: {readOnly: true}":  false,
		"when: tool.destructive":   true,
		"when: tool.idempotent":    false,
		"hints: {openWorld: true}": true,
	} {
		s := compiled(t, rulesOf("action: allow, "+rule))
		if got := s.Decide(tool(nil, "x", "")).Allowed; got != want {
			t.Errorf("%s: allowed %v, want %v", rule, got, want)
		}
		known := tool(nil, "x", "")
		known.Hints = &Hints{ReadOnly: true, Idempotent: true}
		if got := s.Decide(known).Allowed; got == want {
			t.Errorf("%s: allowed %v with the contrary hints", rule, got)
		}
	}
}

func TestTheTimeIsThatOfTheCall(t *testing.T) {
	s := compiled(t, rulesOf("action: allow, when: time.getHours() >= 9 && time.getHours() < 17"))
	r := tool(nil, "x", "")
	for hour, want := range map[int]bool{8: false, 9: true, 16: true, 17: false} {
		r.Time = time.Date(2026, 12, 1, hour, 0, 0, 0, time.UTC)
		if d, l := s.Decide(r).Allowed, s.List(r); d != want || l != want {
			t.Errorf("at %d: allowed %v, listed %v, want %v", hour, d, l, want)
		}
	}
}

func TestMoreIsForgottenThanRemembered(t *testing.T) {
	s := compiled(t, rulesOf("action: allow, tools: ['a*']"))
	for i := range maxCallers + 10 {
		p := &identity.Principal{ID: fmt.Sprintf("i|%d", i)}
		if !s.Decide(tool(p, "a", "")).Allowed || s.Decide(tool(p, "b", "")).Allowed {
			t.Fatalf("caller %d", i)
		}
	}
	if n := s.memory.Load().seen.Load(); n > maxCallers {
		t.Errorf("%d callers are remembered, want at most %d", n, maxCallers)
	}
	for i := range maxVerdicts + 10 {
		if !s.List(tool(nil, fmt.Sprintf("a%d", i), "")) {
			t.Fatalf("tool %d", i)
		}
	}
	if n := s.memory.Load().verdicts.Load(); n > maxVerdicts {
		t.Errorf("%d verdicts are remembered, want at most %d", n, maxVerdicts)
	}
}

func TestAnEntryWhoseRuleIsTooCostlyWithoutArgumentsIsListed(t *testing.T) {
	s := compiled(t, rulesOf(`action: allow, tools: [a], when: 'args.ok == true || principal.claims.n.all(x, principal.claims.n.all(y, x == y))'`))
	who := &identity.Principal{ID: "i|jo", Claims: []byte(`{"n":[` + strings.Repeat("1,", 999) + `1]}`)}
	if d := s.Decide(tool(who, "a", `{"ok":true}`)); !d.Allowed {
		t.Fatalf("with the right argument: %+v", d)
	}
	if !s.List(tool(who, "a", "")) {
		t.Error("a tool that can be called is not listed")
	}
	if d := s.Decide(tool(who, "a", `{"ok":false}`)); d.Allowed {
		t.Errorf("an evaluation that was stopped allows: %+v", d)
	}
}

func FuzzArgumentsNeverWidenARule(f *testing.F) {
	for _, arguments := range []string{`{"x":1}`, `{"x":1.0}`, `{"x":1,"x":2}`, `{"x":2,"\u0078":1}`, `[]`, `{"x":1e0} `, `{"y":{"x":1}}`, "{\"x\":1,\"\xff\":1}"} {
		f.Add([]byte(arguments))
	}
	allow := compiled(f, rulesOf("action: allow, tools: [a], when: args.x == 1"))
	deny := compiled(f, rulesOf("action: allow", "action: deny, tools: [a], when: args.x != 1"))
	f.Fuzz(func(t *testing.T, arguments []byte) {
		r := tool(nil, "a", "")
		r.Arguments = arguments
		var all map[string]any
		err := json.Unmarshal(arguments, &all)
		right := err == nil && all["x"] == 1.0
		for _, s := range []*Set{allow, deny} {
			if d := s.Decide(r); d.Allowed && !right {
				t.Errorf("%q is allowed: %+v", arguments, d)
			}
		}
	})
}

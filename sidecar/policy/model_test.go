package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// model decides as policy.proto words it: every rule of every policy, one after the other, with nothing remembered.
// TestDecisionsAreTheModels holds the engine to it: change both.
type model struct {
	policies []*outriggerv1.Policy // that target the binding, by name
	audits   bool                  // as if audits were none
}

// decide is the outcome and who decided. The arguments are nil where they are not known.
func (m model) decide(r *Request) (allowed bool, policy, rule string) {
	isFree := r.Subject == None && slices.Contains([]string{"initialize", "ping", "tools/list", "notifications/cancelled"}, r.Method)
	var falling []*outriggerv1.Policy
	for b := range breadths {
		for _, p := range m.policies {
			t := p.GetTarget()
			if m.breadth(p) == b && (m.audits || !p.AuditOnly) &&
				(len(t.GetUpstreams()) == 0 || r.Upstream == "" || slices.Contains(t.GetUpstreams(), r.Upstream)) &&
				(len(t.GetTenants()) == 0 || slices.Contains(t.GetTenants(), r.Principal.Tenant)) {
				falling = append(falling, p)
			}
		}
	}
	var opinions [breadths]func() (bool, string, string)
	for _, p := range falling {
		unknown := len(p.GetTarget().GetUpstreams()) > 0 && r.Upstream == ""
		if unknown && !isFree {
			return false, p.Name, ""
		}
		deny := m.first(p, r, isFree, outriggerv1.Action_ACTION_DENY)
		allow := m.first(p, r, isFree, outriggerv1.Action_ACTION_ALLOW)
		if unknown {
			allow = ""
		}
		hasAllow := slices.ContainsFunc(p.Rules, func(r *outriggerv1.Rule) bool { return r.Action == outriggerv1.Action_ACTION_ALLOW })
		if p.Final && (deny != "" || hasAllow && allow == "" && !isFree) {
			return false, p.Name, deny
		}
		at := &opinions[m.breadth(p)]
		says := func(allowed bool, rule string) func() (bool, string, string) {
			return func() (bool, string, string) { return allowed, p.Name, rule }
		}
		switch {
		case deny != "":
			if *at == nil || func() bool { a, _, _ := (*at)(); return a }() {
				*at = says(false, deny)
			}
		case allow != "" && *at == nil:
			*at = says(true, allow)
		}
	}
	for _, o := range slices.Backward(opinions[:]) {
		if o != nil {
			return o()
		}
	}
	any := slices.ContainsFunc(m.policies, func(p *outriggerv1.Policy) bool { return m.audits || !p.AuditOnly })
	return isFree || !any, "", ""
}

func (m model) breadth(p *outriggerv1.Policy) breadth {
	switch t := p.GetTarget(); {
	case len(t.GetTenants()) > 0:
		return tenant
	case len(t.GetUpstreams()) > 0:
		return upstream
	case len(t.GetBindings()) > 0:
		return binding
	default:
		return all
	}
}

// first is the name of the first rule that matches; empty when none does.
func (m model) first(p *outriggerv1.Policy, r *Request, isFree bool, action outriggerv1.Action) string {
	for _, rule := range p.Rules {
		if rule.Action == action && m.matches(rule, r, isFree) {
			return rule.Name
		}
	}
	return ""
}

func (m model) matches(rule *outriggerv1.Rule, r *Request, isFree bool) bool {
	deny := rule.Action == outriggerv1.Action_ACTION_DENY
	anyGlob := func(globs []string, text string) bool {
		return slices.ContainsFunc(globs, func(g string) bool { return slowly(g, text) })
	}
	if isFree && deny && len(rule.Methods) == 0 || len(rule.Methods) > 0 && !anyGlob(rule.Methods, r.Method) {
		return false
	}
	if len(rule.Tools)+len(rule.Prompts)+len(rule.Resources) > 0 {
		own := map[Subject][]string{Tool: rule.Tools, Prompt: rule.Prompts, Resource: rule.Resources}[r.Subject]
		if !anyGlob(own, string(r.Name)) {
			return false
		}
	}
	p := r.Principal
	if len(rule.Principals) > 0 && !anyGlob(rule.Principals, p.ID) ||
		len(rule.Groups) > 0 && !slices.ContainsFunc(rule.Groups, func(g string) bool { return slices.Contains(p.Groups, g) }) ||
		len(rule.Tenants) > 0 && !slices.Contains(rule.Tenants, p.Tenant) ||
		slices.ContainsFunc(rule.Scopes, func(s string) bool { return !slices.Contains(p.Scopes, s) }) {
		return false
	}
	if rule.Hints != nil && (r.Subject != Tool || rule.Hints.GetReadOnly() != r.Hints.ReadOnly) {
		return false
	}
	return rule.When == "" || m.when(rule.When, deny, r)
}

// programs are the expressions of the world. The model is for one goroutine.
var programs = map[string]*expression.Program{}

// when gives expressions their meaning by the package that has a table of its own.
func (m model) when(text string, deny bool, r *Request) bool {
	about := map[Subject]string{Tool: "tool.", Prompt: "prompt.", Resource: "resource."}
	if strings.Contains(text, "args") && !strings.Contains(text, "tool.") && r.Subject != Tool && r.Subject != Prompt {
		return false
	}
	if strings.Contains(text, "tool.") && about[r.Subject] != "tool." {
		return false
	}
	program := programs[text]
	if program == nil {
		program, _ = expression.Compile(text)
		programs[text] = program
	}
	call := &expression.Call{
		Principal: expression.NewPrincipal(expression.Caller{ID: r.Principal.ID, Groups: r.Principal.Groups, Scopes: r.Principal.Scopes}),
		Tenant:    r.Principal.Tenant, Method: r.Method, Binding: "demo", Upstream: r.Upstream, Arguments: r.Arguments, ArgumentsUnknown: r.Arguments == nil,
	}
	if r.Subject == Tool {
		call.Tool = expression.Tool{Name: string(r.Name), ReadOnly: r.Hints.ReadOnly, Destructive: r.Hints.Destructive}
	}
	switch result, _ := program.Eval(call); result {
	case expression.True:
		return true
	case expression.Unknown:
		return !deny
	case expression.Failed:
		return deny
	default:
		return false
	}
}

// arbitrary makes policies, callers and calls of a small world, in which much collides.
type arbitrary struct{ *rand.Rand }

func some[T any](a arbitrary, chance float64, of ...T) (chosen []T) {
	if a.Float64() >= chance {
		return nil
	}
	for range 1 + a.IntN(2) {
		chosen = append(chosen, of[a.IntN(len(of))])
	}
	return chosen
}

func one[T any](a arbitrary, of ...T) T { return of[a.IntN(len(of))] }

var (
	withArguments    = []string{`args.x == 1`, `has(args.y) && args.y == "a"`, `args.x == 1 || tool.name == "a"`, `!has(args.x) && tenant == "acme"`}
	withoutArguments = []string{`"g" in principal.groups`, `tenant == "acme"`, `tool.name.startsWith("a") && "g" in principal.groups`, `tool.readOnly`, `method != "tools/call"`, `upstream == "u"`, `principal.claims.x == 1`, `"s" in principal.scopes`}
	argumentsOfWorld = []string{`{}`, `{"x":1}`, `{"y":"a"}`, `{"x":2,"y":"a"}`, `{"x":1,"y":"b"}`, `{"x":"1"}`, `[]`}
)

func (a arbitrary) rule(name string, arguments bool) *outriggerv1.Rule {
	whens := withoutArguments
	if arguments {
		whens = append(slices.Clone(whens), withArguments...)
	}
	r := &outriggerv1.Rule{
		Name: name, Action: one(a, outriggerv1.Action_ACTION_ALLOW, outriggerv1.Action_ACTION_ALLOW, outriggerv1.Action_ACTION_DENY),
		Methods: some(a, .2, "tools/call", "prompts/get", "*", "tools/*", "ping", "vendor/x"),
		Tools:   some(a, .4, "a", "ab", "a*", "?b", "*", "b"), Prompts: some(a, .2, "a", "*"), Resources: some(a, .2, "a", "*"),
		Principals: some(a, .2, "i|jo", "*", "anonymous", "key:*"), Groups: some(a, .2, "g", "h"),
		Scopes: slices.Compact(some(a, .3, "s", "t")), Tenants: some(a, .15, "acme", "globex"),
	}
	if a.Float64() < .3 {
		r.When = one(a, whens...)
	}
	if a.Float64() < .1 {
		r.Hints = &outriggerv1.ToolHints{ReadOnly: proto.Bool(a.IntN(2) == 0)}
	}
	return r
}

func (a arbitrary) policies(arguments bool) (all []*outriggerv1.Policy) {
	for i := range 1 + a.IntN(4) {
		p := &outriggerv1.Policy{Name: string(rune('p' + i)), Final: a.Float64() < .15, AuditOnly: a.Float64() < .2, Target: &outriggerv1.PolicyTarget{
			Bindings: some(a, .3, "demo"), Upstreams: some(a, .2, "u", "v"), Tenants: some(a, .2, "acme", "globex"),
		}}
		for j := range 1 + a.IntN(4) {
			p.Rules = append(p.Rules, a.rule(string(rune('a'+j)), arguments))
		}
		all = append(all, p)
	}
	return all
}

func (a arbitrary) request() *Request {
	r := &Request{
		Principal: &identity.Principal{
			ID: one(a, "i|jo", "anonymous", "key:k", "i|mo"), Groups: some(a, .6, "g", "h"), Scopes: some(a, .6, "s", "t"), Tenant: one(a, "", "acme", "globex"),
		},
		Name: []byte(one(a, "a", "ab", "b", "xb", "é")), Upstream: one(a, "u", "v", ""), Hints: &Hints{ReadOnly: a.IntN(2) == 0},
		Arguments: []byte(one(a, argumentsOfWorld...)), Time: noon,
	}
	switch r.Subject = Subject(a.IntN(4)); r.Subject {
	case Tool:
		r.Method = "tools/call"
	case Prompt:
		r.Method = one(a, "prompts/get", "completion/complete")
	case Resource:
		r.Method = "resources/read"
	case None:
		r.Name, r.Method = nil, one(a, "ping", "initialize", "tools/list", "vendor/x", "notifications/cancelled")
	}
	return r
}

// worlds runs f for many sets of policies, each with many calls.
func worlds(t *testing.T, arguments bool, f func(a arbitrary, m model, s *Set)) {
	for seed := range uint64(1000) {
		a := arbitrary{rand.New(rand.NewPCG(seed, 7))}
		m := model{policies: a.policies(arguments)}
		s, err := Compile(Options{Binding: "demo", Upstreams: []string{"u", "v"}, Policies: m.policies})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		f(a, m, s)
		if t.Failed() {
			t.Fatalf("seed %d: %v", seed, m.policies)
		}
	}
}

func TestDecisionsAreTheModels(t *testing.T) {
	allowed, denied, shadows := 0, 0, 0
	worlds(t, true, func(a arbitrary, m model, s *Set) {
		for range 20 {
			r := a.request()
			want, policy, rule := m.decide(r)
			d := s.Decide(r)
			if d.Allowed != want || d.Policy != policy || d.Rule != rule {
				t.Errorf("Decide(%+v of %+v) = %+v, want %v by %s/%s", r, r.Principal, d, want, policy, rule)
			}
			if again := s.Decide(r); cellOf(again) != cellOf(d) {
				t.Errorf("Decide(%+v) = %+v, then %+v", r, d, again)
			}
			if explained, _ := s.Explain(r); cellOf(explained) != cellOf(d) {
				t.Errorf("Explain(%+v) = %+v, Decide %+v", r, explained, d)
			}
			m.audits = true
			strict, _, _ := m.decide(r)
			m.audits = false
			if shadow := d.Allowed && !strict; (d.ShadowPolicy != "") != shadow {
				t.Errorf("Decide(%+v) = %+v, want a shadow: %v", r, d, shadow)
			} else if shadow {
				shadows++
			}
			if d.Allowed {
				allowed++
			} else {
				denied++
			}
		}
	})
	if allowed < 3000 || denied < 3000 || shadows < 300 {
		t.Errorf("%d allowed, %d denied, %d shadows: the world is too narrow to show anything", allowed, denied, shadows)
	}
}

func TestListsAndCallsNeverDisagreeWithoutArguments(t *testing.T) {
	worlds(t, false, func(a arbitrary, _ model, s *Set) {
		for range 20 {
			r := a.request()
			if d, listed := s.Decide(r), s.List(r); d.Allowed != listed {
				t.Errorf("%+v of %+v: decided %+v, listed %v", r, r.Principal, d, listed)
			}
		}
	})
}

func TestAListShowsWhateverSomeArgumentsMayCall(t *testing.T) {
	shown, hidden := 0, 0
	worlds(t, true, func(a arbitrary, m model, s *Set) {
		for range 10 {
			r := a.request()
			listed := s.List(r)
			first := s.Decide(r)
			for _, arguments := range argumentsOfWorld {
				r.Arguments = []byte(arguments)
				d := s.Decide(r)
				if d.Allowed && !listed {
					t.Errorf("%+v of %+v is allowed with %s by %+v, and not listed", r, r.Principal, arguments, d)
				}
				if d.Allowed != first.Allowed && !s.NeedsArguments(r.Subject, r.Name) {
					t.Errorf("%+v of %+v depends on its arguments, and NeedsArguments does not say so", r, r.Principal)
				}
			}
			other := *r
			other.Hints = &Hints{ReadOnly: !r.Hints.ReadOnly}
			if !s.NeedsHints() && s.List(&other) != listed {
				t.Errorf("%+v of %+v depends on its hints, and NeedsHints does not say so", r, r.Principal)
			}
			r.Arguments = nil
			if explained, _ := s.Explain(r); r.Subject != None && explained.Allowed != listed {
				t.Errorf("%+v of %+v: listed %v, explained %+v", r, r.Principal, listed, explained)
			}
			if want, _, _ := m.decide(r); r.Subject != None && listed != want {
				t.Errorf("%+v of %+v: listed %v, want %v", r, r.Principal, listed, want)
			}
			if listed {
				shown++
			} else {
				hidden++
			}
		}
	})
	if shown < 1000 || hidden < 1000 {
		t.Errorf("%d shown, %d hidden: the world is too narrow to show anything", shown, hidden)
	}
}

func TestMissingScopesAreWhatIsMissing(t *testing.T) {
	named := 0
	worlds(t, true, func(a arbitrary, m model, s *Set) {
		risky := slices.ContainsFunc(m.policies, func(p *outriggerv1.Policy) bool {
			return slices.ContainsFunc(p.Rules, func(r *outriggerv1.Rule) bool {
				return strings.Contains(r.When, "scopes") || r.Action == outriggerv1.Action_ACTION_DENY && len(r.Scopes) > 0
			})
		})
		for range 20 {
			r := a.request()
			d := s.Decide(r)
			more := *r.Principal
			more.Scopes = slices.Concat(more.Scopes, d.MissingScopes)
			if d.MissingScopes == nil {
				more.Scopes = []string{"s", "t"}
			}
			with := *r
			with.Principal = &more
			switch again := s.Decide(&with); {
			case d.Allowed && d.MissingScopes != nil:
				t.Errorf("%+v is allowed and lacks %v", r, d.MissingScopes)
			case d.MissingScopes != nil && !again.Allowed:
				t.Errorf("%+v of %+v lacks %v, and with them: %+v", r, r.Principal, d.MissingScopes, again)
			case !d.Allowed && d.MissingScopes == nil && !risky && again.Allowed:
				t.Errorf("%+v of %+v would be allowed with all scopes by %+v, and is not told so", r, r.Principal, again)
			}
			if d.MissingScopes != nil {
				named++
			}
			if !slices.IsSorted(d.MissingScopes) || slices.ContainsFunc(d.MissingScopes, func(s string) bool { return slices.Contains(r.Principal.Scopes, s) }) {
				t.Errorf("%+v of %+v lacks %v: want them sorted, without those that are there", r, r.Principal, d.MissingScopes)
			}
		}
	})
	if named < 300 {
		t.Errorf("%d calls lacked scopes: the world is too narrow to show anything", named)
	}
}

func TestManyAtOnceGetWhatOneGets(t *testing.T) {
	worldsAtOnce := 0
	worlds(t, true, func(a arbitrary, m model, s *Set) {
		if worldsAtOnce++; worldsAtOnce > 50 {
			return
		}
		var requests []*Request
		var want []string
		for range 50 {
			r := a.request()
			e, _ := s.Explain(r)
			requests, want = append(requests, r), append(want, cellOf(e))
		}
		var all sync.WaitGroup
		for from := range 4 {
			all.Go(func() {
				for i := range 3 * len(requests) {
					at := (from*13 + i) % len(requests)
					s.List(requests[at])
					if got := cellOf(s.Decide(requests[at])); got != want[at] {
						t.Errorf("Decide(%+v) = %s, want %s", requests[at], got, want[at])
					}
				}
			})
		}
		all.Wait()
	})
}

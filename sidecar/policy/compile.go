package policy

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Options is what a Set is made of.
type Options struct {
	Binding   string   // its name
	Upstreams []string // those that it names
	// Policies are all that there are: those that do not target the binding are passed over. They have been validated.
	Policies []*outriggerv1.Policy
}

// Set is the rules of one binding. Only what it remembers ever changes; it is safe for concurrent use.
//
// The methods of a nil Set allow everything: it is that of a binding without rules.
type Set struct {
	binding  string
	upstream string // the binding's only one, or empty

	policies []*policy // broad to narrow, of one breadth by name
	rules    []*rule   // of all policies, in their order
	index    index

	enforced   bool    // whether any policy is more than an audit
	audit      *policy // the first that is no more, or nil
	principals bool    // whether expressions name the principal
	mixed      bool    // whether an expression names the caller together with what is called
	hints      bool
	upstreams  bool // whether a policy is for some upstreams, or an expression names them

	memory   atomic.Pointer[memory]
	failures atomic.Uint64
}

// breadth is how much a policy targets, broad to narrow.
type breadth int

const (
	all breadth = iota
	binding
	upstream
	tenant
	breadths
)

// policy is one that targets the binding and has rules.
type policy struct {
	name               string
	breadth            breadth
	upstreams, tenants []string
	final, audit       bool
	allows             bool // whether any rule allows
	rules              []*rule
}

// Compile makes the Set of a binding: nil where no policy with rules targets it. The error names the policy and the rule.
func Compile(o Options) (*Set, error) {
	s := &Set{binding: o.Binding}
	if len(o.Upstreams) == 1 {
		s.upstream = o.Upstreams[0]
	}
	for _, p := range o.Policies {
		if len(p.GetRules()) == 0 || !targets(p.GetTarget(), o) {
			continue
		}
		compiled, err := compilePolicy(p)
		if err != nil {
			return nil, err
		}
		s.policies = append(s.policies, compiled)
	}
	if len(s.policies) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(s.policies, func(a, b *policy) int {
		return cmp.Or(cmp.Compare(a.breadth, b.breadth), cmp.Compare(a.name, b.name))
	})
	for _, p := range s.policies {
		s.add(p)
	}
	s.index = newIndex(s.rules)
	s.memory.Store(newMemory())
	return s, nil
}

// targets reports whether a policy is for any calls at the binding.
func targets(t *outriggerv1.PolicyTarget, o Options) bool {
	ours := func(name string) bool { return slices.Contains(o.Upstreams, name) }
	return (len(t.GetBindings()) == 0 || slices.Contains(t.GetBindings(), o.Binding)) &&
		(len(t.GetUpstreams()) == 0 || slices.ContainsFunc(t.GetUpstreams(), ours))
}

// add takes a policy in, after those before it in the order.
func (s *Set) add(p *policy) {
	if p.audit && s.audit == nil {
		s.audit = p
	}
	s.enforced = s.enforced || !p.audit
	s.upstreams = s.upstreams || len(p.upstreams) > 0
	for _, r := range p.rules {
		r.place = len(s.rules)
		s.rules = append(s.rules, r)
		s.hints = s.hints || r.asked != 0
		for _, e := range []*expression.Program{r.who, r.when} {
			s.principals = s.principals || e != nil && e.Names(expression.NamePrincipal)
			s.hints = s.hints || e != nil && e.Names(expression.NameHints)
			s.upstreams = s.upstreams || e != nil && e.Names(expression.NameUpstream)
		}
		s.mixed = s.mixed || r.when != nil && r.when.Names(expression.NamePrincipal|expression.NameTenant)
	}
}

func compilePolicy(p *outriggerv1.Policy) (*policy, error) {
	t := p.GetTarget()
	out := &policy{name: p.GetName(), upstreams: t.GetUpstreams(), tenants: t.GetTenants(), final: p.GetFinal(), audit: p.GetAuditOnly()}
	switch {
	case len(t.GetTenants()) > 0:
		out.breadth = tenant
	case len(t.GetUpstreams()) > 0:
		out.breadth = upstream
	case len(t.GetBindings()) > 0:
		out.breadth = binding
	}
	for i, r := range p.GetRules() {
		compiled, err := compileRule(r)
		if err != nil {
			return nil, fmt.Errorf("policy %q: rules[%d]: %w", p.GetName(), i, err)
		}
		compiled.policy = out
		compiled.name = cmp.Or(r.GetName(), fmt.Sprintf("rules[%d]", i))
		out.allows = out.allows || !compiled.deny
		out.rules = append(out.rules, compiled)
	}
	return out, nil
}

func compileRule(r *outriggerv1.Rule) (*rule, error) {
	out := &rule{
		methods: newGlobs(r.GetMethods()), principals: newGlobs(r.GetPrincipals()),
		groups: r.GetGroups(), scopes: r.GetScopes(), tenants: r.GetTenants(),
	}
	out.names[Tool], out.names[Prompt], out.names[Resource] = newGlobs(r.GetTools()), newGlobs(r.GetPrompts()), newGlobs(r.GetResources())
	switch r.GetAction() {
	case outriggerv1.Action_ACTION_ALLOW:
	case outriggerv1.Action_ACTION_DENY:
		out.deny = true
	default:
		return nil, fmt.Errorf("no action")
	}
	out.asked, out.wanted = hintsAsked(r.GetHints())
	if r.GetWhen() == "" {
		return out, nil
	}
	program, problems := expression.Compile(r.GetWhen())
	if len(problems) > 0 {
		return nil, fmt.Errorf("when: %d:%d: %s", problems[0].Line, problems[0].Column, problems[0].Message)
	}
	if program.Only(expression.NamePrincipal | expression.NameTenant | expression.NameBinding) {
		out.who = program
	} else {
		out.when = program
	}
	return out, nil
}

// hintsAsked are the hints that a rule asks for, and what they have to be, as bits of hintBits.
func hintsAsked(h *outriggerv1.ToolHints) (asked, wanted uint8) {
	if h == nil {
		return 0, 0
	}
	for i, b := range []*bool{h.ReadOnly, h.Destructive, h.Idempotent, h.OpenWorld} {
		if b != nil {
			asked |= 1 << i
			if *b {
				wanted |= 1 << i
			}
		}
	}
	return asked, wanted
}

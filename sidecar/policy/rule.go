package policy

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// rule is one rule. Its conditions are in two halves: who calls, which is looked at once for each caller, and what is called.
type rule struct {
	policy *policy
	name   string
	deny   bool
	place  int // in Set.rules

	// Who calls.
	principals              []glob
	groups, scopes, tenants []string
	who                     *expression.Program // an expression about nothing else

	// What is called.
	methods       []glob
	names         [4][]glob // by Subject
	asked, wanted uint8     // hints
	when          *expression.Program
}

// Conditions, as explanations name them.
const (
	condTargetUpstreams = "target.upstreams"
	condTargetTenants   = "target.tenants"
	condPrincipals      = "principals"
	condGroups          = "groups"
	condTenants         = "tenants"
	condScopes          = "scopes"
	condMethods         = "methods"
	condNames           = "tools, prompts and resources"
	condHints           = "hints"
	condWhen            = "when"
)

var namesOf = [4]string{None: condNames, Tool: "tools", Prompt: "prompts", Resource: "resources"}

// caller is who calls, made ready for all rules.
type caller struct {
	*identity.Principal
	expression *expression.Principal // nil where no expression names it
}

// anonymous is a caller of whom nothing is known.
var anonymous = &identity.Principal{ID: identity.AnonymousID}

// fits is the first condition on the caller that does not match; empty when all do. Scopes are looked at last.
func (r *rule) fits(s *Set, c caller) string {
	switch {
	case len(r.policy.tenants) > 0 && !slices.Contains(r.policy.tenants, c.Tenant):
		return condTargetTenants
	case len(r.principals) > 0 && !matchOne(r.principals, []byte(c.ID)):
		return condPrincipals
	case len(r.groups) > 0 && !slices.ContainsFunc(r.groups, func(g string) bool { return slices.Contains(c.Groups, g) }):
		return condGroups
	case len(r.tenants) > 0 && !slices.Contains(r.tenants, c.Tenant):
		return condTenants
	}
	if r.who != nil {
		result, _ := r.who.Eval(&expression.Call{Principal: c.expression, Tenant: c.Tenant, Binding: s.binding})
		if result == expression.Failed {
			s.failures.Add(1)
		}
		if !r.hits(result) {
			return condWhen
		}
	}
	if missing(r.scopes, c.Scopes) > 0 {
		return condScopes
	}
	return ""
}

// hits reports whether a rule with this outcome of its expression matches. What is not known, or fails, widens nothing: a
// rule that failed denies and does not allow. One that depends on arguments, in a list, may allow and need not deny.
func (r *rule) hits(result expression.Result) bool {
	switch result {
	case expression.True:
		return true
	case expression.Failed:
		return r.deny
	case expression.Unknown:
		return !r.deny
	default:
		return false
	}
}

// missing is how many of the scopes are not there.
func missing(scopes, there []string) (n int) {
	for _, s := range scopes {
		if !slices.Contains(there, s) {
			n++
		}
	}
	return n
}

// matches is the first condition on what is called that does not match, but for the expression; empty when all do.
func (r *rule) matches(c *call) string {
	switch {
	case c.free && r.deny && len(r.methods) == 0:
		return condMethods // such methods are denied by their name only
	case len(r.methods) > 0 && !matchOne(r.methods, []byte(c.Method)):
		return condMethods
	case r.narrowed() && !matchOne(r.names[c.Subject], c.Name):
		return namesOf[c.Subject]
	case r.asked != 0 && (c.Subject != Tool || c.hints&r.asked != r.wanted):
		return condHints
	case r.when != nil && !r.about(c.Subject):
		return condWhen
	}
	return ""
}

// narrowed reports whether the rule is only for what has one of its names.
func (r *rule) narrowed() bool {
	return len(r.names[Tool])+len(r.names[Prompt])+len(r.names[Resource]) > 0
}

// about reports whether the expression can say anything of such a subject: one that names the tool is for tools, and so on;
// one that names none of them but arguments is for what has some.
func (r *rule) about(s Subject) bool {
	const subjects = expression.NameTool | expression.NamePrompt | expression.NameResource
	switch {
	case r.when.Names(subjects):
		return r.when.Names([4]expression.Name{None: 0, Tool: expression.NameTool, Prompt: expression.NamePrompt, Resource: expression.NameResource}[s])
	case r.when.Names(expression.NameArgs):
		return s == Tool || s == Prompt
	default:
		return true
	}
}

// live reports whether the expression has to be evaluated for each call.
func (r *rule) live() bool {
	return r.when != nil && r.when.Names(expression.NameArgs|expression.NameTime)
}

// free reports whether MCP has a method, without a subject, that is allowed unless a rule names it.
func free(method string) bool {
	switch method {
	case mcp.MethodInitialize, mcp.MethodPing, mcp.MethodDiscover, mcp.MethodToolsList, mcp.MethodPromptsList,
		mcp.MethodResourcesList, mcp.MethodResourceTemplatesList, mcp.MethodResourcesUnsubscribe, mcp.MethodListen, mcp.MethodSetLevel:
		return true
	default:
		return strings.HasPrefix(method, "notifications/")
	}
}

// hintBits are a tool's hints, for what rules ask of them; without any, what MCP takes for them.
func hintBits(h *Hints) (bits uint8) {
	if h == nil {
		h = &Hints{Destructive: true, OpenWorld: true}
	}
	for i, b := range [...]bool{h.ReadOnly, h.Destructive, h.Idempotent, h.OpenWorld} {
		if b {
			bits |= 1 << i
		}
	}
	return bits
}

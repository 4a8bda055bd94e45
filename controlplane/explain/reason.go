package explain

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/policy"
)

// reason is a decision in a sentence, and what else is to be known of it.
func (f *fleet) reason(ruled bool, r *policy.Request, d policy.Decision) string {
	text := f.decided(ruled, r, d)
	if len(d.MissingScopes) > 0 {
		text += fmt.Sprintf("; it would be allowed with the scopes that are missing: %s", strings.Join(d.MissingScopes, " "))
	}
	if d.ShadowPolicy != "" {
		text += "; " + shadow(d)
	}
	if ruled && d.Allowed && r.Arguments == nil && (r.Subject == policy.Tool || r.Subject == policy.Prompt) {
		text += ". Without arguments this is whether some may be"
	}
	return text
}

// decided says what decided.
func (f *fleet) decided(ruled bool, r *policy.Request, d policy.Decision) string {
	verb := map[bool]string{true: "allows", false: "denies"}[d.Allowed]
	switch {
	case d.Rule != "":
		return fmt.Sprintf("Policy/%s %s it by rule %q", d.Policy, verb, d.Rule)
	case d.Policy != "" && f.isFinal(d.Policy):
		return fmt.Sprintf("Policy/%s is final, and none of its rules allows it", d.Policy)
	case d.Policy != "":
		return fmt.Sprintf("Policy/%s is for some Upstreams, and which one it goes to is not known", d.Policy)
	case !ruled:
		return fmt.Sprintf("no Policy has rules for Binding/%s, so everything is allowed", f.binding.GetName())
	case d.Allowed && r.Subject == policy.None:
		return fmt.Sprintf("no rule denies %s, which is about nothing in particular", r.Method)
	case d.Allowed:
		return fmt.Sprintf("no Policy for Binding/%s does more than audit, so everything is allowed", f.binding.GetName())
	}
	return "no rule allows it"
}

// shadow says which audit would refuse what is allowed.
func shadow(d policy.Decision) string {
	if d.ShadowRule == "" {
		return fmt.Sprintf("Policy/%s, which only audits, does not allow it", d.ShadowPolicy)
	}
	return fmt.Sprintf("Policy/%s, which only audits, denies it by rule %q", d.ShadowPolicy, d.ShadowRule)
}

func (f *fleet) isFinal(name string) bool {
	for _, p := range f.policies {
		if p.GetName() == name {
			return p.GetFinal()
		}
	}
	return false
}

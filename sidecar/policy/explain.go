package policy

import (
	"cmp"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Explain decides as Decide does, and says what each rule came to, in the order in which policies are weighed. Without
// arguments the answer is that of List: whether some arguments might be allowed.
//
// A rule whose expression failed has the reason in Unmatched, also where it matches for that very reason.
func (s *Set) Explain(r *Request) (Decision, []*outriggerv1.ExplainedRule) {
	if s == nil {
		return Decision{Allowed: true}, nil
	}
	c := s.newClass(cmp.Or(r.Principal, anonymous))
	call := s.call(r, string(r.Name))
	list := r.Arguments == nil && r.Subject != None
	plan, _, _ := s.plan(c, call)
	j := s.judge(c, r, list)
	decision := j.decision(plan)

	rules := make([]*outriggerv1.ExplainedRule, 0, len(s.rules))
	for _, rule := range s.rules {
		e := &outriggerv1.ExplainedRule{
			Policy: rule.policy.name, Rule: rule.name, Action: outriggerv1.Action_ACTION_ALLOW,
			AuditOnly: rule.policy.audit, Final: rule.policy.final,
		}
		if rule.deny {
			e.Action = outriggerv1.Action_ACTION_DENY
		}
		e.Matched, e.Unmatched = s.explain(rule, c, call, list)
		rules = append(rules, e)
	}
	return decision, rules
}

// explain says whether a rule matches, and the first of its conditions that does not.
func (s *Set) explain(r *rule, c *class, call *call, list bool) (matched bool, unmatched string) {
	switch {
	case len(call.name) > maxSubjectName:
		return false, namesOf[call.Subject] + ": longer than any that rules are held to"
	case !r.policy.takes(call):
		return false, condTargetUpstreams
	case len(r.policy.upstreams) > 0 && call.upstream == "" && !(call.free && r.deny):
		return false, condTargetUpstreams + ": which it is for is not known"
	}
	if unmatched := cmp.Or(r.matches(call), r.fits(s, c.caller)); unmatched != "" {
		return false, unmatched
	}
	if r.when == nil {
		return true, ""
	}
	e := s.expressionCall(c, call)
	e.ArgumentsUnknown = list
	result, err := s.evaluate(r, e)
	switch {
	case result == expression.Failed:
		return r.hits(result), condWhen + ": " + err.Error()
	case r.hits(result):
		return true, ""
	case result == expression.Unknown:
		return false, condWhen + ": it depends on arguments"
	default:
		return false, condWhen
	}
}

package policy

import (
	"cmp"
	"slices"

	"github.com/outrigger-mesh/outrigger/proto/expression"
)

// judge weighs the rules that match one call.
type judge struct {
	set     *Set
	class   *class
	request *Request
	list    bool // what may be, rather than what is
	audits  bool // as if audits were none
	lenient bool // as if the caller had all scopes that rules that allow ask for

	expression *expression.Call     // once a rule asks
	outcomes   [8]expression.Result // of live rules, by slot: an expression is evaluated once
	known      [8]bool
	needed     []string // scopes that a lenient judge took for granted
}

func (s *Set) judge(c *class, r *Request, list bool) judge {
	return judge{set: s, class: c, request: r, list: list}
}

// outcome is what became of a call.
type outcome struct {
	allowed bool
	policy  *policy // nil where none decided
	rule    *rule   // nil where none did
}

// decision is an outcome with everything that goes with it.
func (j *judge) decision(plan []group) Decision {
	d := j.outcome(plan)
	if !d.Allowed && j.class.lacks {
		d.MissingScopes = j.missing(plan)
	}
	return d
}

// outcome is a Decision without scopes.
func (j *judge) outcome(plan []group) (d Decision) {
	o := j.weigh(plan)
	d.Allowed = o.allowed
	d.Policy, d.Rule = o.names()
	if d.Allowed && j.set.audit != nil {
		j.audits = true
		if o := j.weigh(plan); !o.allowed {
			if o.policy == nil {
				o.policy = j.set.audit // nothing allows it
			}
			d.ShadowPolicy, d.ShadowRule = o.names()
		}
		j.audits = false
	}
	return d
}

func (o outcome) names() (policy, rule string) {
	if o.policy != nil {
		policy = o.policy.name
	}
	if o.rule != nil {
		rule = o.rule.name
	}
	return policy, rule
}

// opinion is what the policies of one breadth say: their first rules of each sort.
type opinion struct{ deny, allow, short *rule }

// weigh is the precedence of policies: a ceiling refuses whatever else there is; then the narrowest opinion decides.
func (j *judge) weigh(plan []group) outcome {
	var opinions [breadths]opinion
	free := j.request.Subject == None && free(j.request.Method)
	for i := range plan {
		g := &plan[i]
		switch {
		case g.policy.audit && !j.audits:
			continue
		case g.barred:
			return outcome{policy: g.policy}
		}
		o := j.opinionOf(g)
		if g.policy.final && (o.deny != nil || g.policy.allows && o.allow == nil && !free && !j.grant(o.short)) {
			return outcome{policy: g.policy, rule: o.deny}
		}
		j.add(&opinions[g.policy.breadth], o)
	}
	for b := tenant; b >= all; b-- {
		switch o := opinions[b]; {
		case o.deny != nil:
			return outcome{false, o.deny.policy, o.deny}
		case o.allow != nil:
			return outcome{true, o.allow.policy, o.allow}
		case j.grant(o.short):
			return outcome{true, o.short.policy, o.short}
		}
	}
	return outcome{allowed: free || !j.set.enforced && !j.audits}
}

// add takes in what another policy of the breadth says; what came first stays.
func (j *judge) add(to *opinion, o opinion) {
	to.deny = cmp.Or(to.deny, o.deny)
	to.allow = cmp.Or(to.allow, o.allow)
	to.short = j.nearer(to.short, o.short)
}

// nearer is the rule of which the caller lacks fewer scopes; of two the first.
func (j *judge) nearer(a, b *rule) *rule {
	have := cmp.Or(j.request.Principal, anonymous).Scopes
	if a == nil || b != nil && missing(b.scopes, have) < missing(a.scopes, have) {
		return b
	}
	return a
}

// grant takes a rule's scopes for granted, where that is asked for.
func (j *judge) grant(short *rule) bool {
	if !j.lenient || short == nil {
		return false
	}
	j.needed = append(j.needed, short.scopes...)
	return true
}

// opinionOf is what one policy says.
func (j *judge) opinionOf(g *group) (o opinion) {
	for i := range g.rules {
		m := &g.rules[i]
		switch {
		case m.short:
			if j.lenient && j.nearer(o.short, m.rule) == m.rule && j.hits(m) {
				o.short = m.rule
			}
		case m.deny:
			if o.deny == nil && j.hits(m) {
				o.deny = m.rule
			}
		case o.allow == nil && j.hits(m):
			o.allow = m.rule
		}
	}
	return o
}

// hits reports whether the expression of a rule matches, too.
func (j *judge) hits(m *match) bool { return m.slot == 0 || m.rule.hits(j.eval(m)) }

// eval evaluates a live rule, once for the call.
func (j *judge) eval(m *match) expression.Result {
	if m.slot < len(j.known) && j.known[m.slot] {
		return j.outcomes[m.slot]
	}
	if j.expression == nil {
		j.expression = j.set.expressionCall(j.class, j.set.call(j.request, string(j.request.Name)))
		j.expression.ArgumentsUnknown = j.list
	}
	result, _ := j.set.evaluate(m.rule, j.expression)
	if m.slot < len(j.known) {
		j.known[m.slot], j.outcomes[m.slot] = true, result
	}
	return result
}

// missing are the scopes that the caller would need beside those it has; nil where they would change nothing, since
// something else is lacking too, or since a rule denies whoever has them.
func (j *judge) missing(plan []group) []string {
	j.lenient, j.needed = true, nil
	allowed := j.weigh(plan).allowed
	j.lenient = false
	if !allowed {
		return nil
	}
	caller := *cmp.Or(j.request.Principal, anonymous)
	needed := slices.DeleteFunc(j.needed, func(s string) bool { return slices.Contains(caller.Scopes, s) })
	slices.Sort(needed)
	needed = slices.Compact(needed)
	caller.Scopes = append(slices.Clone(caller.Scopes), needed...)
	slices.Sort(caller.Scopes)
	c := j.set.newClass(&caller)
	with := j.set.judge(c, j.request, j.list)
	again, _, _ := j.set.plan(c, j.set.call(j.request, string(j.request.Name)))
	if !with.weigh(again).allowed {
		return nil
	}
	return needed
}

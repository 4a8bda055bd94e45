package policy

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/proto/expression"
)

// Decide says whether a call is allowed. Arguments that are nil are none at all.
//
// Hot: where no rule on what is called asks for arguments or the time, a caller and a name that have been seen cost two
// look-ups and nothing is allocated (TestAllocDecide).
func (s *Set) Decide(r *Request) Decision {
	if s == nil {
		return Decision{Allowed: true}
	}
	v, c := s.verdict(r)
	if v.live {
		j := s.judge(c, r, false)
		d := j.decision(v.plan)
		d.Live = true
		return d
	}
	d := v.decision
	if v.short {
		j := s.judge(c, r, false)
		d.MissingScopes = j.missing(v.plan)
	}
	return d
}

// List says whether an entry of a list may be callable: whether Decide would allow it with some arguments.
//
// Hot: as Decide (TestAllocList).
func (s *Set) List(r *Request) bool {
	if s == nil {
		return true
	}
	v, c := s.verdict(r)
	if !v.timed {
		return v.listed
	}
	j := s.judge(c, r, true)
	return j.weigh(v.plan).allowed
}

// NeedsArguments reports whether any rule that can refuse looks at the arguments of what has this name.
func (s *Set) NeedsArguments(subject Subject, name []byte) (needed bool) {
	if s == nil {
		return false
	}
	s.index.each(subject, name, func(place int32) {
		r := s.rules[place]
		needed = needed || r.when != nil && r.when.Names(expression.NameArgs) && !r.policy.audit && r.about(subject) &&
			(!r.narrowed() || matchOne(r.names[subject], name))
	})
	return needed
}

// NeedsHints reports whether any rule asks what tools say of themselves.
func (s *Set) NeedsHints() bool { return s != nil && s.hints }

// NeedsUpstream reports whether the answer may depend on which of the binding's upstreams has what is called.
func (s *Set) NeedsUpstream() bool { return s != nil && s.upstreams }

// Failures is how many evaluations of expressions have failed. Each counted as a rule that denies, or that does not allow.
func (s *Set) Failures() uint64 {
	if s == nil {
		return 0
	}
	return s.failures.Load()
}

// verdict is what is known of a call without its arguments and the time.
type verdict struct {
	decision Decision // where not live
	short    bool     // it refuses, and some scopes might change that
	listed   bool     // where not timed
	live     bool     // whether arguments or the time decide
	timed    bool     // whether the time decides what is listed
	plan     []group  // where live or short
}

// group is the rules of a policy that a call falls under, but for expressions.
type group struct {
	policy *policy
	barred bool // it is for some upstreams, and which has the call is not known
	rules  []match
}

// match is a rule whose conditions match, but for the expression of a live one.
type match struct {
	*rule
	short bool
	slot  int // of a live one, from 1: where a judge keeps its outcome
}

// verdict looks it up, or finds it.
func (s *Set) verdict(r *Request) (*verdict, *class) {
	m, c := s.classOf(r.Principal)
	k := variant{method: r.Method, upstream: r.Upstream, subject: r.Subject}
	if s.hints {
		k.hints = hintBits(r.Hints)
	}
	if len(r.Name) > maxRemembered {
		return s.find(c, r, string(r.Name)), c
	}
	n, ok := c.names.oldMap()[string(r.Name)]
	if !ok {
		name := string(r.Name)
		if n, ok = c.names.find(name); !ok {
			n, _ = c.names.add(name, new(named))
		}
	}
	if v := n.look(k); v != nil {
		return v, c
	}
	v := s.find(c, r, string(r.Name))
	if n.add(k, v) && m.verdicts.Add(1) > maxVerdicts {
		s.memory.CompareAndSwap(m, newMemory())
	}
	return v, c
}

// call is a Request, made ready for all rules.
type call struct {
	*Request
	name     string
	upstream string
	free     bool
	hints    uint8
}

func (s *Set) call(r *Request, name string) *call {
	c := &call{Request: r, name: name, upstream: r.Upstream, free: r.Subject == None && free(r.Method), hints: hintBits(r.Hints)}
	if c.upstream == "" {
		c.upstream = s.upstream
	}
	return c
}

// find decides as far as it can be done without arguments and the time.
func (s *Set) find(c *class, r *Request, name string) *verdict {
	v := &verdict{}
	v.plan, v.live, v.timed = s.plan(c, s.call(r, name))
	j := s.judge(c, r, true)
	v.listed = j.weigh(v.plan).allowed
	if v.live {
		return v
	}
	j = s.judge(c, r, false)
	v.decision = j.outcome(v.plan)
	if !v.decision.Allowed && c.lacks {
		j.lenient = true
		v.short = j.weigh(v.plan).allowed
	}
	if !v.short {
		v.plan = nil
	}
	return v
}

// plan is the policies that a call falls under, with their rules that match it; and whether any of these are live.
func (s *Set) plan(c *class, call *call) (plan []group, live, timed bool) {
	if len(call.name) > maxSubjectName {
		return nil, false, false
	}
	slots := 0
	s.index.each(call.Subject, call.Name, func(place int32) {
		r := s.rules[place]
		if c.states[place] == out || r.matches(call) != "" || !r.policy.takes(call) {
			return
		}
		m := match{rule: r, short: c.states[place] == short}
		if call.free && call.upstream == "" && len(r.policy.upstreams) > 0 && !r.deny {
			return // what is for an upstream does not allow what goes to several
		}
		if r.live() {
			slots++
			m.slot = slots
			live = true
			timed = timed || r.when.Names(expression.NameTime)
		} else if r.when != nil && !s.static(c, call, r) {
			return
		}
		if len(plan) == 0 || plan[len(plan)-1].policy != r.policy {
			plan = append(plan, group{policy: r.policy})
		}
		plan[len(plan)-1].rules = append(plan[len(plan)-1].rules, m)
	})
	return s.ceilings(c, call, plan), live, timed
}

// takes reports whether a policy may be for the upstream of a call.
func (p *policy) takes(c *call) bool {
	return len(p.upstreams) == 0 || c.upstream == "" || slices.Contains(p.upstreams, c.upstream)
}

// ceilings adds the policies that refuse though no rule of theirs matches.
func (s *Set) ceilings(c *class, call *call, plan []group) []group {
	full := make([]group, 0, len(plan))
	for i, p := range s.policies {
		g := group{policy: p}
		if len(plan) > 0 && plan[0].policy == p {
			g, plan = plan[0], plan[1:]
		}
		falls := c.falls[i] && p.takes(call)
		g.barred = falls && len(p.upstreams) > 0 && call.upstream == "" && !call.free
		if len(g.rules) > 0 || g.barred || falls && p.final && p.allows {
			full = append(full, g)
		}
	}
	return full
}

// static evaluates an expression that is the same for every call of the name.
func (s *Set) static(c *class, call *call, r *rule) bool {
	result, _ := s.evaluate(r, s.expressionCall(c, call))
	return r.hits(result)
}

// evaluate counts what fails. An evaluation that was stopped while arguments were not known may still be possible with some.
func (s *Set) evaluate(r *rule, e *expression.Call) (expression.Result, error) {
	result, err := r.when.Eval(e)
	if result == expression.Failed {
		if err == expression.ErrCost && e.ArgumentsUnknown && r.when.Names(expression.NameArgs) {
			return expression.Unknown, nil
		}
		s.failures.Add(1)
	}
	return result, err
}

// expressionCall is what expressions see of a call.
func (s *Set) expressionCall(c *class, call *call) *expression.Call {
	e := &expression.Call{
		Principal: c.caller.expression, Tenant: c.caller.Tenant, Method: call.Method,
		Binding: s.binding, Upstream: call.upstream, Time: call.Time, Arguments: call.Arguments,
	}
	if len(e.Arguments) == 0 {
		e.Arguments = []byte("{}")
	}
	switch call.Subject {
	case Tool:
		e.Tool = toolOf(call.name, call.hints)
	case Prompt:
		e.Prompt = call.name
	case Resource:
		e.Resource = call.name
	}
	return e
}

func toolOf(name string, hints uint8) expression.Tool {
	return expression.Tool{Name: name, ReadOnly: hints&1 != 0, Destructive: hints&2 != 0, Idempotent: hints&4 != 0, OpenWorld: hints&8 != 0}
}

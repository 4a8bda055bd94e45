package policy

import (
	"cmp"
	"slices"

	"github.com/outrigger-mesh/outrigger/proto/expression"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// class is callers that all rules treat alike, and what was decided for them.
type class struct {
	caller caller  // one of them
	falls  []bool  // by policy: whether its tenants are theirs
	states []state // by rule
	lacks  bool    // whether any rule that allows lacks only scopes

	names remembered[string, *named]
}

// state is what became of a rule's conditions on the caller.
type state uint8

const (
	out   state = iota // some do not match
	in                 // all match
	short              // it allows, and all match but for scopes
)

// classOf finds a caller's class. One that has been seen costs a look-up.
func (s *Set) classOf(p *identity.Principal) (*memory, *class) {
	p = cmp.Or(p, anonymous)
	m := s.memory.Load()
	if c, ok := m.callers.oldMap()[p]; ok {
		return m, c
	}
	if c, ok := m.callers.find(p); ok {
		return m, c
	}
	if m.seen.Add(1) > maxCallers {
		s.memory.CompareAndSwap(m, newMemory())
		m = s.memory.Load()
	}
	c := s.newClass(p)
	if !s.mixed {
		c, _ = m.classes.add(c.alike(), c)
	}
	c, _ = m.callers.add(p, c)
	return m, c
}

// newClass looks at a caller's conditions of all rules.
func (s *Set) newClass(p *identity.Principal) *class {
	c := &class{caller: caller{Principal: p}, falls: make([]bool, len(s.policies)), states: make([]state, len(s.rules))}
	if s.principals {
		c.caller.expression = expression.NewPrincipal(expression.Caller{
			ID: p.ID, Issuer: p.Issuer, Subject: p.Subject, Groups: p.Groups, Scopes: p.Scopes, Claims: p.Claims,
			Key: p.Key, KeyLabels: p.KeyLabels, SPIFFEID: p.SPIFFEID, Provider: p.Provider,
		})
	}
	for i, policy := range s.policies {
		c.falls[i] = len(policy.tenants) == 0 || slices.Contains(policy.tenants, p.Tenant)
	}
	for i, r := range s.rules {
		switch r.fits(s, c.caller) {
		case "":
			c.states[i] = in
		case condScopes:
			if !r.deny {
				c.states[i] = short
				c.lacks = true
			}
		}
	}
	return c
}

// alike is the same for callers whom all rules treat alike.
func (c *class) alike() string {
	b := make([]byte, 0, len(c.falls)+len(c.states))
	for _, falls := range c.falls {
		if falls {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	for _, st := range c.states {
		b = append(b, byte(st))
	}
	return string(b)
}

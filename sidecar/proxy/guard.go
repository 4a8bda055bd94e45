package proxy

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
)

// guard is who may call what at an endpoint. A new one takes the place of the old under the calls that are under way: a
// call keeps the one that it began with. It is not changed once made.
type guard struct {
	hash     [sha256.Size]byte     // of what it was made from
	identity *outriggerv1.Identity // of callers; nil for none
	callers  *authn.Authenticator  // nil: nobody is asked who they are
	rules    *policy.Set           // nil: everything is allowed
	owners   bool                  // whether rules ask which upstream has what is called
	closed   string                // why nothing is allowed; empty: rules decide
	shape    [sha256.Size]byte     // of what rules it has, and of the tenants
}

// guarding is the sort of guard that an endpoint has.
type guarding int

const (
	unguarded  guarding = iota
	ruled               // rules, for whoever calls
	identified          // callers say who they are
)

// guardingOf is the sort of guard that a binding asks for.
func (t *table) guardingOf(binding string) guarding {
	sort := unguarded
	for _, p := range t.config.Policies {
		if !resource.Targets(p, binding) {
			continue
		}
		if p.GetIdentity() != nil {
			return identified
		}
		sort = ruled
	}
	return sort
}

// alike reports whether two guards show callers the same: the rules are the same, and who is who.
func (g *guard) alike(other *guard) bool {
	if g == nil || other == nil {
		return g == other
	}
	return g.shape == other.shape
}

// guardAll gives each of next's endpoints its guard. Endpoints that run already get theirs at once: a configuration that
// takes something away does so before it gives.
func (p *Proxy) guardAll(c *config.Config, old, next *table) (refused []config.Refusal) {
	if asksCallers(c.Policies) && !p.rechecks {
		p.rechecks = true
		p.retiring.Go(func() { p.recheck(p.every) })
	}
	all, err := p.newGuards(c)
	for _, ep := range next.endpoints {
		running := old.byName(ep.name)
		var last *guard
		if running != nil {
			last = running.guard.Load()
		}
		g := last
		if err != nil {
			g = closedGuard(err.Error())
			refused = append(refused, config.Refusal{Kind: resource.KindBinding, Name: ep.name, Reason: err.Error()})
		} else {
			var faults []config.Refusal
			g, faults = all.of(ep.spec, last)
			refused = append(refused, faults...)
		}
		if running != ep {
			ep.guard.Store(last) // so that sessions that it took over hear of a change
		}
		p.guarded(ep, g)
	}
	return refused
}

// guards makes the guards of a configuration.
type guards struct {
	p                 *Proxy
	c                 *config.Config
	policies          []*outriggerv1.Policy // with their defaults
	keys              *apikey.Index
	tenants           *tenant.Index
	ofKeys, ofTenants [sha256.Size]byte
	noPepper          error // why keys cannot be known
}

func (p *Proxy) newGuards(c *config.Config) (*guards, error) {
	g := &guards{p: p, c: c}
	for _, one := range c.Policies {
		g.policies = append(g.policies, resource.WithDefaults(one))
	}
	if !asksCallers(c.Policies) { // most configurations of thousands of keys have no use for the others' parts
		return g, nil
	}
	var pepper []byte
	if p.Pepper != nil {
		pepper, g.noPepper = p.Pepper()
	}
	g.keys, g.tenants = apikey.NewIndex(c.Keys, pepper), tenant.NewIndex(c.Tenants)
	var err error
	if g.ofKeys, err = hashAll(pepper, c.Keys); err != nil {
		return nil, err
	}
	g.ofTenants, err = hashAll(nil, c.Tenants)
	return g, err
}

// asksCallers reports whether any Policy says how callers prove who they are.
func asksCallers(policies []*outriggerv1.Policy) bool {
	return slices.ContainsFunc(policies, func(p *outriggerv1.Policy) bool { return p.GetIdentity() != nil })
}

// hashAll is over some bytes and resources, in their order.
func hashAll[M proto.Message](first []byte, all []M) (sum [sha256.Size]byte, err error) {
	digest := sha256.New()
	digest.Write(first)
	for _, m := range all {
		one, err := contentHash(m)
		if err != nil {
			return sum, err
		}
		digest.Write(one[:])
	}
	digest.Sum(sum[:0])
	return sum, nil
}

// of makes a binding's guard: the running one when nothing changed, nil where there is nothing to guard. What cannot be
// made is refused, and what ran before in its place goes on; where nothing did, nothing is allowed.
func (g *guards) of(b *outriggerv1.Binding, running *guard) (*guard, []config.Refusal) {
	policies := g.policiesFor(b)
	source := resource.IdentityOf(policies, b.GetName())
	next := &guard{identity: source.GetIdentity(), closed: g.missing(b, source.GetIdentity() != nil)}
	if g.noPepper != nil && takesKeys(next.identity) {
		next.closed = "its keys cannot be known: " + g.noPepper.Error()
	}
	if len(policies) == 0 && next.closed == "" {
		return nil, nil
	}
	var err error
	if err = g.sign(next, b, policies); err != nil {
		return closedGuard(err.Error()), []config.Refusal{{Kind: resource.KindBinding, Name: b.GetName(), Reason: err.Error()}}
	}
	if running != nil && running.hash == next.hash {
		return running, nil
	}
	var refused []config.Refusal
	if err := g.admitCallers(b, next, running); err != nil {
		refused = append(refused, config.Refusal{Kind: resource.KindPolicy, Name: source.GetName(), Reason: err.Error()})
	}
	if err := next.setRules(b, policies); err != nil {
		refused = append(refused, config.Refusal{Kind: resource.KindBinding, Name: b.GetName(), Reason: err.Error()})
	}
	return next, refused
}

// takesKeys reports whether callers may prove who they are with a key.
func takesKeys(i *outriggerv1.Identity) bool {
	return slices.ContainsFunc(i.GetProviders(), func(p *outriggerv1.Provider) bool { return p.GetKeys() != nil })
}

func closedGuard(reason string) *guard { return &guard{closed: reason} }

// policiesFor are those that have a say at a binding.
func (g *guards) policiesFor(b *outriggerv1.Binding) (of []*outriggerv1.Policy) {
	for _, p := range g.policies {
		if resource.Targets(p, b.GetName()) {
			of = append(of, p)
		}
	}
	return of
}

// missing says which Policy or Tenant that has a say at the binding has no form that can run; empty when all have.
func (g *guards) missing(b *outriggerv1.Binding, identified bool) string {
	var out []string
	for _, m := range g.c.Missing {
		bindings := m.Target.GetBindings()
		concerns := len(bindings) == 0 || slices.Contains(bindings, b.GetName())
		if m.Kind == resource.KindTenant && !identified {
			concerns = false // nobody is of a tenant here
		}
		if concerns {
			out = append(out, fmt.Sprintf("%s %q cannot run: %s", m.Kind, m.Name, m.Reason))
		}
	}
	return strings.Join(out, "; ")
}

// sign notes what a guard is made from, by which it is known again.
func (g *guards) sign(next *guard, b *outriggerv1.Binding, policies []*outriggerv1.Policy) (err error) {
	ofBinding, err := contentHash(b)
	if err != nil {
		return err
	}
	ofPolicies, err := hashAll(nil, policies)
	if err != nil {
		return err
	}
	made := append([]byte(next.closed), ofPolicies[:]...)
	if next.identity != nil {
		made = append(made, g.ofTenants[:]...)
	}
	next.shape = sha256.Sum256(made)
	made = append(made, ofBinding[:]...)
	if next.identity != nil {
		made = append(made, g.ofKeys[:]...)
	}
	next.hash = sha256.Sum256(made)
	return nil
}

// admitCallers compiles how callers prove who they are. When that fails the form that ran before is compiled in its place,
// with the keys, tenants and revocations of now.
func (g *guards) admitCallers(b *outriggerv1.Binding, next, running *guard) error {
	if next.identity == nil {
		return nil
	}
	spec := authn.Spec{Binding: b, Identity: next.identity, Keys: g.keys, Tenants: g.tenants}
	var err error
	if next.callers, err = g.p.Callers.Compile(spec); err == nil {
		return nil
	}
	if running != nil && running.callers != nil {
		last := proto.CloneOf(running.identity)
		last.Revoked = append(last.Revoked, next.identity.GetRevoked()...)
		spec.Identity = last
		if callers, lastErr := g.p.Callers.Compile(spec); lastErr == nil {
			next.callers, next.identity = callers, running.identity
			next.hash = [sha256.Size]byte{} // to be tried again
			return err
		}
	}
	next.closed = "its callers cannot be known: " + err.Error()
	return err
}

func (g *guard) setRules(b *outriggerv1.Binding, policies []*outriggerv1.Policy) error {
	var upstreams []string
	for _, ref := range b.GetUpstreams() {
		upstreams = append(upstreams, ref.GetName())
	}
	rules, err := policy.Compile(policy.Options{Binding: b.GetName(), Upstreams: upstreams, Policies: policies})
	if err != nil {
		g.closed = err.Error()
		return err
	}
	g.rules, g.owners = rules, len(upstreams) > 1 && rules.NeedsUpstream()
	return nil
}

package resource

import (
	"fmt"
	"slices"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// ValidateSet checks all Objects of a fleet against each other: names are unique within a kind, what is referred to is
// there, no sidecar would have two bindings at one path, and no binding two ways of knowing its callers. A mistake is
// reported on the later of two. Paths begin with the object's reference: "Binding/demo: spec.upstreams[0].name".
func ValidateSet(objs []Object) Errors { return validateSet(objs, true) }

// ValidatePart does the same for what one sidecar is to run of a fleet's: what a Policy targets need not be among it.
func ValidatePart(objs []Object) Errors { return validateSet(objs, false) }

func validateSet(objs []Object, whole bool) Errors {
	s := newSet(objs)
	s.whole = whole
	byPath := make(map[string]*selectorIndex)
	for _, o := range objs {
		switch o := o.(type) {
		case *outriggerv1.Upstream:
			s.upstream(o)
		case *outriggerv1.Binding:
			s.references(o, "spec.upstreams[%d].name", KindUpstream, upstreamNames(o))
			at := BindingPath(o)
			if byPath[at] == nil {
				byPath[at] = &selectorIndex{byLabel: make(map[string]map[string][]*outriggerv1.Binding)}
			}
			if other := byPath[at].sharing(o); other != nil {
				s.errs.addf(Ref(o)+": spec.path", "%q is also the path of %s, and a sidecar may match both selectors", at, Ref(other))
			}
			byPath[at].add(o)
		case *outriggerv1.Key:
			s.references(o, "spec.tenant", KindTenant, []string{o.GetTenant()})
		case *outriggerv1.Policy:
			s.policy(o)
		}
	}
	return s.errs
}

// set is Objects that are checked against each other.
type set struct {
	errs       Errors
	whole      bool                       // whether everything that there is is among them
	known      map[string]map[string]bool // names by kind
	bindings   []*outriggerv1.Binding
	identities map[string]*outriggerv1.Policy // by binding, "" for all: which policy says how its callers are known
}

func newSet(objs []Object) *set {
	s := &set{known: make(map[string]map[string]bool), identities: make(map[string]*outriggerv1.Policy)}
	for _, kind := range Kinds() {
		s.known[kind] = make(map[string]bool)
	}
	for _, o := range objs {
		names := s.known[KindOf(o)]
		if names[o.GetName()] {
			s.errs.addf(Ref(o)+": name", "%s is given twice", Ref(o))
		}
		names[o.GetName()] = true
		if b, ok := o.(*outriggerv1.Binding); ok {
			s.bindings = append(s.bindings, b)
		}
	}
	return s
}

// references checks names of other resources; a field's path may have a place for the index.
func (s *set) references(o Object, field, kind string, names []string) {
	for i, name := range names {
		if name != "" && !s.known[kind][name] {
			at := field
			if strings.Contains(field, "%d") {
				at = fmt.Sprintf(field, i)
			}
			s.errs.addf(Ref(o)+": "+at, "no %s is named %q%s", kind, name, nearest(name, s.known[kind]))
		}
	}
}

func upstreamNames(b *outriggerv1.Binding) (names []string) {
	for _, u := range b.GetUpstreams() {
		names = append(names, u.GetName())
	}
	return names
}

func (s *set) upstream(u *outriggerv1.Upstream) {
	for _, r := range SecretsOf(u) {
		s.references(u, "spec.credential", KindSecret, []string{r.GetName()})
	}
}

// SecretsOf are the values of Secrets that an Upstream names.
func SecretsOf(u *outriggerv1.Upstream) (named []*outriggerv1.SecretReference) {
	c := u.GetCredential()
	for _, r := range []*outriggerv1.SecretReference{
		c.GetSecret(),
		c.GetClientCredentials().GetEndpoint().GetClientSecret().GetSecret(),
		c.GetTokenExchange().GetEndpoint().GetClientSecret().GetSecret(),
	} {
		if r != nil {
			named = append(named, r)
		}
	}
	return named
}

// policy checks what a Policy names, and that it is the only one of its breadth to say how a binding's callers are known.
func (s *set) policy(p *outriggerv1.Policy) {
	for i, r := range p.GetRules() {
		s.references(p, fmt.Sprintf("spec.rules[%d].tenants[%%d]", i), KindTenant, r.GetTenants())
	}
	s.references(p, "spec.target.tenants[%d]", KindTenant, p.GetTarget().GetTenants())
	if s.whole {
		s.references(p, "spec.target.bindings[%d]", KindBinding, p.GetTarget().GetBindings())
		s.references(p, "spec.target.upstreams[%d]", KindUpstream, p.GetTarget().GetUpstreams())
	}
	if p.Identity == nil {
		return
	}
	targets := p.GetTarget().GetBindings()
	if len(targets) == 0 {
		targets = []string{""}
	}
	for _, binding := range targets {
		if other := s.identities[binding]; other != nil {
			s.errs.addf(Ref(p)+": spec.identity", "%s says already how callers of %s are known", Ref(other), bindingText(binding))
		}
		s.identities[binding] = p
	}
	s.audiences(p)
}

func bindingText(name string) string {
	if name == "" {
		return "all bindings"
	}
	return "Binding/" + name
}

// audiences checks that tokens are held to an audience at every binding (RFC 8707): a token for another resource is never
// taken.
func (s *set) audiences(p *outriggerv1.Policy) {
	for i, provider := range p.GetIdentity().GetProviders() {
		if provider.GetJwt() == nil || len(provider.GetJwt().GetAudiences()) > 0 {
			continue
		}
		for _, b := range s.bindings {
			if Targets(p, b.GetName()) && b.GetExternalUrl() == "" {
				s.errs.addf(fmt.Sprintf("%s: spec.identity.providers[%d].jwt.audiences", Ref(p), i), "required, since %s has no externalUrl that could be the audience", Ref(b))
				break
			}
		}
	}
}

// Targets reports whether a Policy is for calls at a binding.
func Targets(p *outriggerv1.Policy, binding string) bool {
	names := p.GetTarget().GetBindings()
	return len(names) == 0 || slices.Contains(names, binding)
}

// IdentityOf is the Policy that says how callers of a binding are known: one that names it before one that is for all.
// Nil where none does.
func IdentityOf(policies []*outriggerv1.Policy, binding string) (of *outriggerv1.Policy) {
	for _, p := range policies {
		if p.GetIdentity() == nil || !Targets(p, binding) {
			continue
		}
		if of == nil || len(p.GetTarget().GetBindings()) > 0 {
			of = p
		}
	}
	return of
}

// nearest suggests a name, or nothing when there are none or many.
func nearest(name string, known map[string]bool) string {
	if len(known) == 0 || len(known) > 100 {
		return ""
	}
	return suggest(name, sortedKeys(known))
}

// selectorIndex holds the bindings of one path by a label that their selectors name. Almost all bindings of a fleet
// share their path and differ in one label, so that comparing each with each would be most of the work of a write.
type selectorIndex struct {
	unlabelled []*outriggerv1.Binding                       // selectors that match every sidecar
	byLabel    map[string]map[string][]*outriggerv1.Binding // by a selector's first key, and its value
}

func (x *selectorIndex) add(b *outriggerv1.Binding) {
	labels := b.GetSelector().GetMatchLabels()
	if len(labels) == 0 {
		x.unlabelled = append(x.unlabelled, b)
		return
	}
	key := sortedKeys(labels)[0]
	if x.byLabel[key] == nil {
		x.byLabel[key] = make(map[string][]*outriggerv1.Binding)
	}
	x.byLabel[key][labels[key]] = append(x.byLabel[key][labels[key]], b)
}

// sharing finds a binding whose selector some sidecar could match together with b's.
func (x *selectorIndex) sharing(b *outriggerv1.Binding) *outriggerv1.Binding {
	if other := firstSharing(b, x.unlabelled); other != nil {
		return other
	}
	labels := b.GetSelector().GetMatchLabels()
	for _, key := range sortedKeys(x.byLabel) {
		values := x.byLabel[key]
		if value, named := labels[key]; named {
			if other := firstSharing(b, values[value]); other != nil {
				return other
			}
			continue // any other value contradicts
		}
		for _, value := range sortedKeys(values) {
			if other := firstSharing(b, values[value]); other != nil {
				return other
			}
		}
	}
	return nil
}

func firstSharing(b *outriggerv1.Binding, others []*outriggerv1.Binding) *outriggerv1.Binding {
	for _, other := range others {
		if other.Name != b.Name && !contradict(b.Selector, other.Selector) {
			return other
		}
	}
	return nil
}

// contradict reports whether no labels match both selectors.
func contradict(a, b *outriggerv1.Selector) bool {
	if a == nil || b == nil {
		return true // neither selects anything
	}
	for key, value := range a.MatchLabels {
		if other, ok := b.MatchLabels[key]; ok && other != value {
			return true
		}
	}
	return false
}

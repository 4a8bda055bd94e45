package config

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// compose chooses a form of everything that the wanted manifest names: the wanted version where there is one, else
// what runs. What does not fit together falls back to what runs, with the upstreams that it needs, or is left out;
// the faults say why.
func (s *state) compose() (chosen map[key]entry, faults map[key]fault) {
	chosen, faults = map[key]entry{}, map[key]fault{}
	for _, r := range s.wanted.References {
		k := key{r.TypeUrl, r.Name}
		if e := s.held[k]; e.version == r.Version {
			chosen[k] = e
		} else if e, ok := s.running[k]; ok {
			chosen[k] = e
		}
	}
	for {
		errs := s.misfits(chosen)
		if len(errs) == 0 {
			return chosen, faults
		}
		for k, reason := range errs { // each falls back, then is left out, so this ends
			if _, ok := faults[k]; !ok {
				faults[k] = fault{version: s.version(k), reason: reason, target: targetOf(chosen[k].object)}
			}
			s.fallBack(chosen, k)
		}
	}
}

// fallBack puts the form that runs in place of a chosen one, or nothing when that is the chosen one.
func (s *state) fallBack(chosen map[key]entry, k key) {
	old, ok := s.running[k]
	if !ok || old.version == chosen[k].version {
		delete(chosen, k)
		return
	}
	chosen[k] = old
	s.bring(chosen, old.object)
}

// bring adds what an object needs and runs, where nothing of that name is chosen.
func (s *state) bring(chosen map[key]entry, o resource.Object) {
	for _, need := range needs(o) {
		if e, ok := s.running[need]; ok && chosen[need].object == nil {
			chosen[need] = e
			s.bring(chosen, e.object)
		}
	}
}

// needs are the resources without which an object cannot run.
func needs(o resource.Object) (all []key) {
	need := func(kind, name string) { all = append(all, key{resource.TypeURL(kind), name}) }
	switch o := o.(type) {
	case *outriggerv1.Upstream:
		for _, ref := range resource.SecretsOf(o) {
			need(resource.KindSecret, ref.GetName())
		}
	case *outriggerv1.Binding:
		for _, u := range o.GetUpstreams() {
			need(resource.KindUpstream, u.GetName())
		}
	case *outriggerv1.Key:
		if o.GetTenant() != "" {
			need(resource.KindTenant, o.GetTenant())
		}
	case *outriggerv1.Policy:
		for _, r := range o.GetRules() {
			for _, name := range r.GetTenants() {
				need(resource.KindTenant, name)
			}
		}
		for _, name := range o.GetTarget().GetTenants() {
			need(resource.KindTenant, name)
		}
	}
	return all
}

// targetOf is what a Policy is for; nil for everything else.
func targetOf(o resource.Object) *outriggerv1.PolicyTarget {
	p, ok := o.(*outriggerv1.Policy)
	if !ok {
		return nil
	}
	if t := p.GetTarget(); t != nil {
		return t
	}
	return &outriggerv1.PolicyTarget{}
}

// without are the wanted Policies and Tenants that are not among what is to run, in any form.
func (s *state) without(next map[key]entry) (out []Missing) {
	for _, r := range s.wanted.GetReferences() {
		k := key{r.TypeUrl, r.Name}
		kind := kindOf(r.TypeUrl)
		if _, runs := next[k]; runs || kind != resource.KindPolicy && kind != resource.KindTenant {
			continue
		}
		f, ok := s.faults[k]
		if !ok {
			f = s.refused[k]
		}
		out = append(out, Missing{Refusal: Refusal{Kind: kind, Name: r.Name, Reason: f.reason}, Target: f.target})
	}
	return out
}

// misfits says what is wrong with forms as a set, by resource.
func (s *state) misfits(chosen map[key]entry) map[key]string {
	var objs []resource.Object
	byRef := map[string]key{}
	for _, k := range slices.SortedFunc(keysOf(chosen), key.compare) {
		o := chosen[k].object
		objs = append(objs, o)
		byRef[resource.Ref(o)] = k
	}
	out := map[key]string{}
	for _, e := range resource.ValidatePart(objs) {
		ref, field, _ := strings.Cut(e.Path, ": ") // ValidatePart promises this form
		k := byRef[ref]
		reason := field + ": " + cmp.Or(s.needRefused(chosen, k, e.Message), e.Message)
		if out[k] == "" {
			out[k] = reason
		} else {
			out[k] += "; " + reason
		}
	}
	return out
}

// needRefused is why a resource that another names is not among the chosen forms, if it is for having been refused. To the
// set, whose message that is about, it would look like a name that is written wrong.
func (s *state) needRefused(chosen map[key]entry, k key, message string) string {
	for _, need := range needs(chosen[k].object) {
		f, refused := s.refused[need]
		if _, ok := chosen[need]; refused && !ok && strings.HasPrefix(message, fmt.Sprintf("no %s is named %q", kindOf(need.typeURL), need.name)) {
			return fmt.Sprintf("its %s %q was refused: %s", kindOf(need.typeURL), need.name, f.reason)
		}
	}
	return ""
}

// configOf is entries as a target takes them.
func configOf(generation string, entries map[key]entry) *Config {
	c := &Config{Generation: generation}
	for _, k := range slices.SortedFunc(keysOf(entries), key.compare) {
		c.add(entries[k].object)
	}
	return c
}

func keysOf[V any](m map[key]V) iter.Seq[key] { return maps.Keys(m) }

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
				faults[k] = fault{version: s.version(k), reason: reason}
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
	b, _ := old.object.(*outriggerv1.Binding)
	for _, u := range b.GetUpstreams() {
		need := key{resource.TypeURL(resource.KindUpstream), u.Name}
		if e, ok := s.running[need]; ok && chosen[need].object == nil {
			chosen[need] = e
		}
	}
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
	for _, e := range resource.ValidateSet(objs) {
		ref, field, _ := strings.Cut(e.Path, ": ") // ValidateSet promises this form
		k := byRef[ref]
		reason := field + ": " + cmp.Or(s.upstreamRefused(chosen, k, field), e.Message)
		if out[k] == "" {
			out[k] = reason
		} else {
			out[k] += "; " + reason
		}
	}
	return out
}

// upstreamRefused is why the Upstream that a binding's field names is not among the chosen forms, if it is for having
// been refused. To the set it would look like a name that is written wrong.
func (s *state) upstreamRefused(chosen map[key]entry, binding key, field string) string {
	b, _ := chosen[binding].object.(*outriggerv1.Binding)
	for i, u := range b.GetUpstreams() {
		k := key{resource.TypeURL(resource.KindUpstream), u.Name}
		f, refused := s.refused[k]
		if _, ok := chosen[k]; refused && !ok && field == fmt.Sprintf("spec.upstreams[%d].name", i) {
			return fmt.Sprintf("its Upstream %q was refused: %s", u.Name, f.reason)
		}
	}
	return ""
}

// configOf is entries as a target takes them.
func configOf(generation string, entries map[key]entry) *Config {
	c := &Config{Generation: generation}
	for _, k := range slices.SortedFunc(keysOf(entries), key.compare) {
		switch o := entries[k].object.(type) {
		case *outriggerv1.Upstream:
			c.Upstreams = append(c.Upstreams, o)
		case *outriggerv1.Binding:
			c.Bindings = append(c.Bindings, o)
		}
	}
	return c
}

func keysOf[V any](m map[key]V) iter.Seq[key] { return maps.Keys(m) }

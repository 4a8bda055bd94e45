package resource

import (
	"fmt"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// ValidateSet checks Objects against each other: names are unique within a kind, what is referred to is there, and no
// sidecar would have two bindings at one path. A mistake is reported on the later of two. Paths begin with the
// object's reference: "Binding/demo: spec.upstreams[0].name".
func ValidateSet(objs []Object) Errors {
	var errs Errors
	seen := make(map[string]bool, len(objs))
	upstreams := make(map[string]bool)
	for _, o := range objs {
		ref := Ref(o)
		if seen[ref] {
			errs.addf(ref+": name", "%s is given twice", ref)
		}
		seen[ref] = true
		if KindOf(o) == KindUpstream {
			upstreams[o.GetName()] = true
		}
	}
	byPath := make(map[string]*selectorIndex)
	for _, o := range objs {
		b, ok := o.(*outriggerv1.Binding)
		if !ok {
			continue
		}
		errs = append(errs, checkReferences(b, upstreams)...)
		at := BindingPath(b)
		if byPath[at] == nil {
			byPath[at] = &selectorIndex{byLabel: make(map[string]map[string][]*outriggerv1.Binding)}
		}
		if other := byPath[at].sharing(b); other != nil {
			errs.addf(Ref(b)+": spec.path", "%q is also the path of %s, and a sidecar may match both selectors", at, Ref(other))
		}
		byPath[at].add(b)
	}
	return errs
}

func checkReferences(b *outriggerv1.Binding, upstreams map[string]bool) (errs Errors) {
	for i, u := range b.Upstreams {
		if name := u.GetName(); name != "" && !upstreams[name] {
			errs.addf(fmt.Sprintf("%s: spec.upstreams[%d].name", Ref(b), i), "no Upstream is named %q%s", name, nearest(name, upstreams))
		}
	}
	return errs
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

package policy

import "slices"

// index finds the rules that may be about a subject by its name, so that most of many rules are never looked at.
type index [4]struct {
	literal map[string][]int32 // rules that are for exactly this name, by their place
	other   []int32
}

func newIndex(rules []*rule) (x index) {
	for s := range x {
		x[s].literal = make(map[string][]int32)
		for i, r := range rules {
			names := r.names[s]
			if !r.narrowed() || slices.ContainsFunc(names, func(g glob) bool { return !g.literal() }) {
				x[s].other = append(x[s].other, int32(i))
				continue
			}
			for _, g := range names {
				if at := x[s].literal[g.pattern]; !slices.Contains(at, int32(i)) {
					x[s].literal[g.pattern] = append(at, int32(i))
				}
			}
		}
	}
	return x
}

// each goes through the rules that may be about it, in their order.
func (x *index) each(s Subject, name []byte, f func(place int32)) {
	a, b := x[s].literal[string(name)], x[s].other
	for len(a) > 0 || len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0] < b[0] {
			f(a[0])
			a = a[1:]
		} else {
			f(b[0])
			b = b[1:]
		}
	}
}

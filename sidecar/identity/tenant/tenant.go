// Package tenant finds the one tenant that a principal belongs to.
//
// What a selector asks for are atoms: an issuer, a group, a claim with a value, a label of a key, a SPIFFE id or what one
// begins with. An Index numbers the atoms that any selector asks for, and files each selector under its rarest atom, or
// the pair of its two rarest. A principal is then a handful of numbers, and only selectors whose rarest atoms it has are
// looked at, whatever else they ask for and however many there are. An Index is never changed, and safe for concurrent use.
package tenant

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Errors of Of. Their texts name no tenant: whoever is refused need not know of any.
var (
	ErrAmbiguous = errors.New("the caller belongs to more than one tenant")
	ErrUnknown   = errors.New("the credential names a tenant that does not exist")
	ErrDisabled  = errors.New("the caller's tenant is disabled")
)

// maxAtoms is how many atoms of one principal are looked at. One with more is refused: it may belong to several tenants
// without that being seen.
const maxAtoms = 64

// ErrTooMany is that a principal has too many groups and claims that tenants ask for.
var ErrTooMany = fmt.Errorf("the caller has more than %d groups and claims that tenants ask for", maxAtoms)

// Index is all tenants.
type Index struct {
	names    []string
	disabled []bool
	byName   map[string]int32

	// Atoms by what they are, each with its number.
	issuers  map[string]uint32
	groups   map[string]uint32
	spiffe   map[string]uint32
	prefixes map[string]uint32 // without "/*"
	claims   []attribute       // by path
	labels   []attribute       // by key

	single []int32            // by atom: the tenant of a selector that asks for nothing else, or none, or several
	first  []bool             // by atom: whether any pair begins with it
	pairs  map[uint64][]filed // by two atoms
}

// attribute is a claim or label that selectors ask for.
type attribute struct {
	name   string
	values map[string]uint32
}

// filed is a selector of two atoms or more under its two rarest.
type filed struct {
	tenant int32
	rest   []uint32
}

const (
	none    int32 = -1
	several int32 = -2
)

// NewIndex files all tenants, which have been validated. A tenant is known by its place among them.
func NewIndex(tenants []*outriggerv1.Tenant) *Index {
	x := &Index{
		byName: make(map[string]int32), issuers: make(map[string]uint32), groups: make(map[string]uint32),
		spiffe: make(map[string]uint32), prefixes: make(map[string]uint32), pairs: make(map[uint64][]filed),
	}
	var selectors []filed
	for i, t := range tenants {
		x.names = append(x.names, t.GetName())
		x.disabled = append(x.disabled, t.GetDisabled())
		x.byName[t.GetName()] = int32(i)
		for _, s := range t.GetSelectors() {
			selectors = append(selectors, filed{int32(i), x.atomsOf(s)})
		}
	}
	x.file(selectors)
	return x
}

// atomsOf numbers what a selector asks for.
func (x *Index) atomsOf(s *outriggerv1.TenantSelector) (atoms []uint32) {
	number := func(m map[string]uint32, value string) {
		id, ok := m[value]
		if !ok {
			id = uint32(len(x.single))
			m[value] = id
			x.single = append(x.single, none)
		}
		atoms = append(atoms, id)
	}
	if s.GetIssuer() != "" {
		number(x.issuers, s.GetIssuer())
	}
	for _, g := range s.GetGroups() {
		number(x.groups, g)
	}
	for path, value := range s.GetClaims() {
		number(valuesOf(&x.claims, path), value)
	}
	for key, value := range s.GetKeyLabels() {
		number(valuesOf(&x.labels, key), value)
	}
	if id := s.GetSpiffeId(); id != "" {
		if prefix, below := strings.CutSuffix(id, "/*"); below {
			number(x.prefixes, prefix)
		} else {
			number(x.spiffe, id)
		}
	}
	slices.Sort(atoms)
	return slices.Compact(atoms)
}

func valuesOf(all *[]attribute, name string) map[string]uint32 {
	for _, a := range *all {
		if a.name == name {
			return a.values
		}
	}
	values := make(map[string]uint32)
	*all = append(*all, attribute{name, values})
	return values
}

// file puts each selector under its rarest atoms.
func (x *Index) file(selectors []filed) {
	count := make([]int, len(x.single))
	x.first = make([]bool, len(x.single))
	for _, s := range selectors {
		for _, a := range s.rest {
			count[a]++
		}
	}
	for _, s := range selectors {
		if len(s.rest) == 0 {
			continue // it asks for nothing, which validation refuses: nobody is meant
		}
		slices.SortFunc(s.rest, func(a, b uint32) int { return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(a, b)) })
		if len(s.rest) == 1 {
			x.single[s.rest[0]] = join(x.single[s.rest[0]], s.tenant)
			continue
		}
		pair := pairOf(s.rest[0], s.rest[1])
		x.first[s.rest[0]] = true
		x.pairs[pair] = append(x.pairs[pair], filed{s.tenant, s.rest[2:]})
	}
}

func pairOf(first, second uint32) uint64 { return uint64(first)<<32 | uint64(second) }

// join is a tenant found beside another.
func join(found, another int32) int32 {
	switch {
	case found == none || found == another:
		return another
	case another == none:
		return found
	}
	return several
}

// Of finds the tenant of a principal, given the one that its credential names, if it does. It returns "" when it belongs
// to none, and an error when it belongs to several, or to one that is disabled or does not exist.
//
// Hot: it does not allocate.
func (x *Index) Of(p *identity.Principal, named string) (string, error) {
	found := none
	if named != "" {
		i, ok := x.byName[named]
		if !ok {
			return "", ErrUnknown
		}
		found = i
	}
	var buf [maxAtoms]uint32
	atoms, ok := x.atoms(p, buf[:0])
	if !ok {
		return "", ErrTooMany
	}
	found = x.match(atoms, found)
	switch {
	case found == several:
		return "", ErrAmbiguous
	case found == none:
		return "", nil
	case x.disabled[found]:
		return "", ErrDisabled
	}
	return x.names[found], nil
}

// match joins the tenants of all selectors whose atoms are among these.
func (x *Index) match(atoms []uint32, found int32) int32 {
	for _, a := range atoms {
		found = join(found, x.single[a])
		if !x.first[a] {
			continue
		}
		for _, b := range atoms {
			for _, s := range x.pairs[pairOf(a, b)] {
				if contains(atoms, s.rest) {
					found = join(found, s.tenant)
				}
			}
		}
	}
	return found
}

func contains(atoms, all []uint32) bool {
	for _, a := range all {
		if !slices.Contains(atoms, a) {
			return false
		}
	}
	return true
}

// atoms appends the numbers of what a principal has and any selector asks for; not ok: they are too many.
func (x *Index) atoms(p *identity.Principal, to []uint32) (atoms []uint32, ok bool) {
	most := cap(to)
	ok = true
	has := func(m map[string]uint32, value string) {
		if id, known := m[value]; known {
			if ok = ok && len(to) < most; ok {
				to = append(to, id)
			}
		}
	}
	if p.Issuer != "" {
		has(x.issuers, p.Issuer)
	}
	if len(x.groups) > 0 {
		for _, g := range p.Groups {
			has(x.groups, g)
		}
	}
	for i := range x.claims {
		if value, given := p.ClaimText[x.claims[i].name]; given {
			has(x.claims[i].values, value)
		}
	}
	for i := range x.labels {
		if value, given := p.KeyLabels[x.labels[i].name]; given {
			has(x.labels[i].values, value)
		}
	}
	if p.SPIFFEID != "" {
		has(x.spiffe, p.SPIFFEID)
		for i := strings.LastIndexByte(p.SPIFFEID, '/'); i >= len("spiffe://") && len(x.prefixes) > 0; i = strings.LastIndexByte(p.SPIFFEID[:i], '/') {
			has(x.prefixes, p.SPIFFEID[:i])
		}
	}
	return to, ok
}

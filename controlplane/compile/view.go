package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/anypb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// View is what one sidecar should run. Its fields are shared and must not be changed.
type View struct {
	// Manifest names Resources. Its version is its generation, so it is the same as long as they are.
	Manifest *Encoded
	// Resources are in the order of delivery, that of resource.Kinds, each kind by name.
	Resources []*Encoded
	// Revocations are not configuration, and the same for every sidecar. Nil as long as they are not known.
	Revocations []*Encoded
}

// maxSelections is how many distinct sets of bindings are remembered. A fleet has few; beyond that each view makes its own.
const maxSelections = 4096

// selections remembers what each set of bindings comes to, by the bindings' positions.
type selections struct {
	mu    sync.Mutex
	bySet map[string]*selection
}

// selection is the part of a view that sidecars with the same bindings share.
type selection struct {
	resources  []*Encoded
	references []*outriggerv1.Reference
	generation string
}

// View reads what the sidecar with this node id and these labels should run.
func (c *Compiled) View(nodeID string, labels map[string]string) *View {
	s := c.selections.get(c.matching(labels), c.newSelection)
	manifest := &outriggerv1.Manifest{
		Name:          nodeID,
		Generation:    s.generation,
		References:    s.references,
		StoreRevision: c.revision,
	}
	return &View{
		Manifest: &Encoded{
			TypeURL: resource.ManifestTypeURL,
			Name:    nodeID,
			Version: s.generation,
			Any:     &anypb.Any{TypeUrl: resource.ManifestTypeURL, Value: marshal(manifest)},
		},
		Resources: s.resources,
	}
}

// matching returns the positions of the bindings whose selectors match, in order.
func (c *Compiled) matching(labels map[string]string) []int {
	matches := slices.Clone(c.everywhere)
	for k, v := range labels {
		for _, i := range c.byLabel[label{k, v}] {
			if resource.Matches(c.bindings[i].selector, labels) {
				matches = append(matches, i)
			}
		}
	}
	slices.Sort(matches)
	return matches
}

// newSelection collects the bindings at these positions and what they need: the upstreams that they name and the secrets
// that these name, the policies that are for any of them and, with these, tenants and keys. An upstream or secret that does
// not exist is left out: the sidecar then refuses what names it and says so.
func (c *Compiled) newSelection(positions []int) *selection {
	var bindings []*Encoded
	upstreams, secrets := map[string]*Encoded{}, map[string]*Encoded{}
	for _, i := range positions {
		b := c.bindings[i]
		bindings = append(bindings, b.encoded)
		for _, name := range b.upstreams {
			u, ok := c.upstreams[name]
			if !ok {
				continue
			}
			upstreams[name] = u.encoded
			for _, s := range u.secrets {
				if e := c.secrets[s]; e != nil {
					secrets[s] = e
				}
			}
		}
	}
	s := &selection{resources: slices.Concat(byName(secrets), byName(upstreams), bindings, c.authority(bindings, upstreams))}
	for _, e := range s.resources {
		s.references = append(s.references, &outriggerv1.Reference{TypeUrl: e.TypeURL, Name: e.Name, Version: e.Version})
	}
	slices.SortFunc(s.references, func(a, b *outriggerv1.Reference) int {
		return cmp.Or(cmp.Compare(a.TypeUrl, b.TypeUrl), cmp.Compare(a.Name, b.Name))
	})
	s.generation = generation(s.references)
	return s
}

// authority is who may call what at these bindings: their policies, with the tenants and keys that these may be about.
func (c *Compiled) authority(bindings []*Encoded, upstreams map[string]*Encoded) (out []*Encoded) {
	var policies []*Encoded
	keys := false
	for _, p := range c.policies {
		forBinding := slices.ContainsFunc(bindings, func(b *Encoded) bool { return covers(p.target.GetBindings(), b.Name) })
		forUpstream := len(p.target.GetUpstreams()) == 0 ||
			slices.ContainsFunc(p.target.GetUpstreams(), func(name string) bool { return upstreams[name] != nil })
		if forBinding && forUpstream {
			policies = append(policies, p.encoded)
			keys = keys || p.keys
		}
	}
	if len(policies) > 0 {
		out = append(out, c.tenants...)
	}
	if keys {
		out = append(out, c.keys...)
	}
	return append(out, policies...)
}

// covers reports whether a list of a target has a name, as an empty one has every name.
func covers(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

func byName(m map[string]*Encoded) []*Encoded {
	return slices.SortedFunc(maps.Values(m), compareNames)
}

func compareNames(a, b *Encoded) int { return cmp.Compare(a.Name, b.Name) }

// generation is the SHA-256 in hex of sorted references. None of their fields holds a line end or a space.
func generation(references []*outriggerv1.Reference) string {
	h := sha256.New()
	for _, r := range references {
		h.Write([]byte(r.TypeUrl + " " + r.Name + " " + r.Version + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// get returns the selection for these positions, made by create if it is not remembered.
func (s *selections) get(positions []int, create func([]int) *selection) *selection {
	var key strings.Builder
	for _, i := range positions {
		key.WriteString(strconv.Itoa(i))
		key.WriteByte(' ')
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.bySet[key.String()]; found != nil {
		return found
	}
	made := create(positions)
	if s.bySet == nil {
		s.bySet = map[string]*selection{}
	}
	if len(s.bySet) < maxSelections {
		s.bySet[key.String()] = made
	}
	return made
}

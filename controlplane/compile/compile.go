// Package compile turns desired state into what each sidecar should run.
//
// Compile encodes every resource once and indexes bindings by what they select.
// A Compiled never changes after that; View reads out of it the resources of one
// sidecar and the manifest that names them. Views share their resources: only the
// manifest belongs to one sidecar.
//
// The same desired state compiles to the same bytes, versions and generations on
// every replica, so a sidecar that reconnects elsewhere transfers nothing. Pure:
// no clock, no I/O. A Compiled is safe for concurrent use.
package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Encoded is a resource as xDS carries it. It is shared and must not be changed.
type Encoded struct {
	TypeURL string
	Name    string
	// Version is the SHA-256 of the resource's bytes in hex; for a manifest, its generation.
	Version string
	Any     *anypb.Any
}

// Compiled is desired state at one revision, ready for views.
type Compiled struct {
	revision  int64
	secrets   map[string]*Encoded
	upstreams map[string]upstream
	bindings  []binding // ordered by name
	policies  []policy
	tenants   []*Encoded
	keys      []*Encoded

	// Which bindings to try for a sidecar: those without labels, and by one label of each other.
	everywhere []int
	byLabel    map[label][]int

	selections selections
}

// upstream is an Upstream with what a view needs of it.
type upstream struct {
	encoded *Encoded
	secrets []string
}

// binding is a Binding with what a view needs of it.
type binding struct {
	encoded   *Encoded
	selector  *outriggerv1.Selector
	upstreams []string
}

// policy is a Policy with what a view needs of it.
type policy struct {
	encoded *Encoded
	target  *outriggerv1.PolicyTarget
	keys    bool // whether it lets callers in by Keys
}

type label struct{ key, value string }

// Compile encodes objects, which must be valid as a set, as they are at a store revision.
// Kinds that no sidecar gets are passed over.
func Compile(objs []resource.Object, revision int64) *Compiled {
	c := &Compiled{
		revision:  revision,
		secrets:   map[string]*Encoded{},
		upstreams: map[string]upstream{},
		byLabel:   map[label][]int{},
	}
	for _, o := range objs {
		c.add(o, encode(o))
	}
	slices.SortFunc(c.bindings, func(a, b binding) int { return compareNames(a.encoded, b.encoded) })
	slices.SortFunc(c.policies, func(a, b policy) int { return compareNames(a.encoded, b.encoded) })
	slices.SortFunc(c.tenants, compareNames)
	slices.SortFunc(c.keys, compareNames)
	c.index()
	return c
}

// index files every binding under one of its labels, so that a view tries few: the label that the fewest bindings
// have, since one that all share tells nothing.
func (c *Compiled) index() {
	count := map[label]int{}
	for _, b := range c.bindings {
		for k, v := range b.selector.GetMatchLabels() {
			count[label{k, v}]++
		}
	}
	for i, b := range c.bindings {
		if len(b.selector.GetMatchLabels()) == 0 {
			c.everywhere = append(c.everywhere, i)
			continue
		}
		var rarest label
		for k, v := range b.selector.GetMatchLabels() {
			if l := (label{k, v}); rarest == (label{}) || count[l] < count[rarest] {
				rarest = l
			}
		}
		c.byLabel[rarest] = append(c.byLabel[rarest], i)
	}
}

// add takes one object.
func (c *Compiled) add(o resource.Object, e *Encoded) {
	switch o := o.(type) {
	case *outriggerv1.Secret:
		c.secrets[o.Name] = e
	case *outriggerv1.Upstream:
		u := upstream{encoded: e}
		for _, ref := range resource.SecretsOf(o) {
			u.secrets = append(u.secrets, ref.GetName())
		}
		c.upstreams[o.Name] = u
	case *outriggerv1.Binding:
		b := binding{encoded: e, selector: o.Selector}
		for _, ref := range o.Upstreams {
			b.upstreams = append(b.upstreams, ref.Name)
		}
		c.bindings = append(c.bindings, b)
	case *outriggerv1.Tenant:
		c.tenants = append(c.tenants, e)
	case *outriggerv1.Key:
		c.keys = append(c.keys, e)
	case *outriggerv1.Policy:
		p := policy{encoded: e, target: o.GetTarget()}
		for _, provider := range o.GetIdentity().GetProviders() {
			p.keys = p.keys || provider.GetKeys() != nil
		}
		c.policies = append(c.policies, p)
	}
}

// Revision is the store revision that was compiled.
func (c *Compiled) Revision() int64 { return c.revision }

// encode marshals a resource and names its version after the bytes.
func encode(o resource.Object) *Encoded {
	value := marshal(o)
	sum := sha256.Sum256(value)
	url := resource.TypeURL(resource.KindOf(o))
	return &Encoded{
		TypeURL: url,
		Name:    o.GetName(),
		Version: hex.EncodeToString(sum[:]),
		Any:     &anypb.Any{TypeUrl: url, Value: value},
	}
}

// marshal cannot fail: the only errors of proto.Marshal are invalid UTF-8, which no parsed message has, and extensions.
func marshal(m proto.Message) []byte {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("compile: marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return value
}

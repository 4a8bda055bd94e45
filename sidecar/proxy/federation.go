package proxy

import (
	"fmt"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// upstreamsOf are the servers that a binding names, in its order.
func (t *table) upstreamsOf(b *outriggerv1.Binding) (members []*server, err error) {
	for _, ref := range b.GetUpstreams() {
		s := t.servers[ref.GetName()]
		if s == nil {
			return nil, fmt.Errorf("upstream %q is not here", ref.GetName())
		}
		members = append(members, s)
	}
	if len(members) == 0 {
		return nil, fmt.Errorf("it names no upstream")
	}
	return members, nil
}

// federates reports whether a binding, with defaults filled in, offers something else than one server as it is.
func federates(full *outriggerv1.Binding) bool {
	return len(full.GetUpstreams()) > 1 || full.GetNames().GetPrefix() == outriggerv1.Prefix_PREFIX_ALWAYS
}

// offer is what a binding offers of the servers that it names: one of them, or one that is made of them. Stateless clients
// call it as stateless.
func (p *Proxy) offer(full *outriggerv1.Binding, members []*server) (s *server, stateless upstream.Server, err error) {
	if federates(full) {
		if s, err = p.federate(full, members); err != nil {
			return nil, nil, err
		}
		return s, s.Server, nil
	}
	if s = members[0]; p.Lone == nil {
		return s, s.Server, nil
	}
	return s, p.Lone(full, federate.Member{Name: s.name, Server: s.Server}), nil
}

// federate makes one server of several.
func (p *Proxy) federate(full *outriggerv1.Binding, members []*server) (*server, error) {
	if p.Federate == nil {
		return nil, fmt.Errorf("this sidecar cannot offer several upstreams as one")
	}
	var ms []federate.Member
	for i, ref := range full.GetUpstreams() {
		ms = append(ms, federate.Member{Name: ref.GetName(), Prefix: ref.GetPrefix(), Server: members[i].Server})
	}
	return &server{name: resource.Ref(full), Server: p.Federate(full, ms)}, nil // a name that no upstream can have
}

// upstreams are the servers that an endpoint's binding names.
func (ep *endpoint) upstreams() []*server {
	if ep.members != nil {
		return ep.members
	}
	return []*server{ep.server}
}

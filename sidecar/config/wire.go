package config

import (
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Bounds of a NACK, whose reader has an inbox of a bounded size too.
const (
	maxRefusals = 1000
	maxReason   = 1024 // bytes
	maxNamed    = 10   // refusals in the message; the details have them all
)

// subscription asks for everything of a type that is for this sidecar, but what is here in the same version.
func (x *XDS) subscription(a subscribe) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{
		Node:                    x.node(),
		TypeUrl:                 a.typeURL,
		ResourceNamesSubscribe:  []string{"*"},
		InitialResourceVersions: a.versions,
	}
}

// acknowledgement is an ACK, or a NACK that names every refused resource.
func acknowledgement(a answer) *discoveryv3.DeltaDiscoveryRequest {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: a.typeURL, ResponseNonce: a.nonce}
	if len(a.refusals) == 0 {
		return r
	}
	detail := &outriggerv1.Refusals{}
	var lines []string
	for i, f := range a.refusals {
		f = proto.CloneOf(f)
		f.Reason = strings.ToValidUTF8(f.Reason[:min(len(f.Reason), maxReason)], "")
		if i < maxRefusals {
			detail.Refusals = append(detail.Refusals, f)
		}
		if i < maxNamed {
			lines = append(lines, fmt.Sprintf("%s/%s: %s", kindOf(f.TypeUrl), f.Name, f.Reason))
		}
	}
	r.ErrorDetail = &statuspb.Status{
		Code:    int32(codes.InvalidArgument),
		Message: fmt.Sprintf("%d refused: %s", len(a.refusals), strings.Join(lines, "; ")),
	}
	if packed, err := anypb.New(detail); err == nil {
		r.ErrorDetail.Details = []*anypb.Any{packed}
	}
	return r
}

// kindOf is a type's short name, for people and metrics: there are no more than these.
func kindOf(typeURL string) string {
	if kind, ok := resource.KindOfTypeURL(typeURL); ok {
		return kind
	}
	switch typeURL {
	case resource.ManifestTypeURL:
		return "Manifest"
	case resource.RevocationsTypeURL:
		return "Revocations"
	}
	return "unknown"
}

// read makes an event of a response: every resource is checked by itself, here and by the target.
func (x *XDS) read(r *discoveryv3.DeltaDiscoveryResponse) event {
	if r.TypeUrl == resource.ManifestTypeURL {
		return x.readManifest(r)
	}
	e := received{typeURL: r.TypeUrl, nonce: r.Nonce, accepted: map[key]entry{}, refused: map[key]fault{}}
	for _, res := range r.Resources {
		k := key{r.TypeUrl, res.GetName()}
		entry, err := x.check(k, res)
		if err != nil {
			x.o.Log.Error("a resource was refused", "kind", kindOf(k.typeURL), "name", k.name, "reason", err)
			e.refused[k] = fault{version: res.GetVersion(), reason: err.Error(), target: targetOf(entry.object)}
			continue
		}
		e.accepted[k] = entry
	}
	for _, name := range r.RemovedResources {
		e.removed = append(e.removed, key{r.TypeUrl, name})
	}
	x.metrics.count(kindOf(r.TypeUrl), len(e.accepted), len(e.refused), len(e.removed))
	return e
}

// check makes an entry of a resource that could run by itself.
func (x *XDS) check(k key, r *discoveryv3.Resource) (entry, error) {
	if got := r.GetResource().GetTypeUrl(); got != k.typeURL {
		return entry{}, fmt.Errorf("its content is of type %q", got)
	}
	e, err := newEntry(k, r.Version, r.Resource.Value)
	if err == nil {
		err = x.o.Target.Check(e.object)
	}
	return e, err
}

// readManifest makes an event of a response of the manifest's type.
func (x *XDS) readManifest(r *discoveryv3.DeltaDiscoveryResponse) event {
	if len(r.RemovedResources) > 0 {
		x.o.Log.Warn("the control plane no longer has a manifest for this sidecar; what runs goes on", "node", x.o.NodeID)
	}
	if len(r.Resources) == 0 {
		return manifested{nonce: r.Nonce}
	}
	res := r.Resources[len(r.Resources)-1]
	m := &outriggerv1.Manifest{}
	err := proto.Unmarshal(res.GetResource().GetValue(), m)
	if err == nil && m.Name != x.o.NodeID {
		err = fmt.Errorf("it is the manifest of %q", m.Name)
	}
	if err == nil && m.Generation == "" {
		err = fmt.Errorf("it has no generation")
	}
	if err != nil {
		x.o.Log.Error("the manifest was refused", "reason", err)
		x.metrics.count("Manifest", 0, 1, 0)
		return received{typeURL: r.TypeUrl, nonce: r.Nonce, refused: map[key]fault{
			{r.TypeUrl, res.GetName()}: {version: res.GetVersion(), reason: err.Error()},
		}}
	}
	x.metrics.count("Manifest", 1, 0, 0)
	return manifested{nonce: r.Nonce, manifest: m}
}

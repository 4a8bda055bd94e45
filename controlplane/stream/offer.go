package stream

import (
	"context"
	"errors"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// order is the order of delivery: what is named before what names it. A manifest held back until the rest is out
// never makes a sidecar wait for what has yet to be sent. What was revoked waits for nothing.
var order = [...]string{
	resource.RevocationsTypeURL,
	resource.TypeURL(resource.KindSecret),
	resource.TypeURL(resource.KindUpstream),
	resource.TypeURL(resource.KindBinding),
	resource.TypeURL(resource.KindTenant),
	resource.TypeURL(resource.KindKey),
	resource.TypeURL(resource.KindPolicy),
	resource.ManifestTypeURL,
}

const (
	typeCount       = len(order)
	revocationsType = 0
	manifestType    = typeCount - 1
)

// typeIndex is a type URL's place in order, or -1.
func typeIndex(url string) int {
	for i, known := range order {
		if url == known {
			return i
		}
	}
	return -1
}

// requests stand for the client's in responses: the delta server reads only their type, and a client's own may be large.
var requests = func() (r [typeCount]*discovery.DeltaDiscoveryRequest) {
	for i, url := range order {
		r[i] = &discovery.DeltaDiscoveryRequest{TypeUrl: url}
	}
	return r
}()

// offer is one response: the difference between what a sidecar was offered before and its view.
type offer struct {
	index     int // in order
	view      *compile.View
	resources []*compile.Encoded // changed or new
	removed   []string
	more      bool // that there is more to say once this is answered
}

// ofType returns a view's resources of one type.
func ofType(v *compile.View, index int) []*compile.Encoded {
	switch index {
	case manifestType:
		return []*compile.Encoded{v.Manifest}
	case revocationsType:
		return v.Revocations
	}
	var of []*compile.Encoded
	for _, e := range v.Resources {
		if e.TypeURL == order[index] {
			of = append(of, e)
		}
	}
	return of
}

// difference returns what takes a sidecar from the versions it was offered, by name, to its view, in parts of at most
// maxResponseBytes or one resource.
func difference(v *compile.View, index int, offered map[string]string) *offer {
	o := &offer{index: index, view: v}
	bytes := 0
	kept := 0
	for _, e := range ofType(v, index) {
		version, ok := offered[e.Name]
		if ok {
			kept++
		}
		if version == e.Version {
			continue
		}
		if bytes += len(e.Any.Value); bytes > maxResponseBytes && len(o.resources) > 0 {
			bytes, o.more = maxResponseBytes, true // the rest waits, whatever its size
			continue
		}
		o.resources = append(o.resources, e)
	}
	if kept < len(offered) {
		o.removed = missing(v, index, offered)
	}
	return o
}

// missing returns the names that were offered and are not in the view.
func missing(v *compile.View, index int, offered map[string]string) (names []string) {
	in := map[string]bool{}
	for _, e := range ofType(v, index) {
		in[e.Name] = true
	}
	for name := range offered {
		if !in[name] {
			names = append(names, name)
		}
	}
	return names
}

func (o *offer) empty() bool { return len(o.resources) == 0 && len(o.removed) == 0 }

// note makes what o brings part of what the sidecar was offered.
func (o *offer) note(offered map[string]string) {
	for _, e := range o.resources {
		offered[e.Name] = e.Version
	}
	for _, name := range o.removed {
		delete(offered, name)
	}
}

// response is an offer as the delta server sends it.
type response struct {
	message *discovery.DeltaDiscoveryResponse
	request *discovery.DeltaDiscoveryRequest
}

var _ cache.DeltaResponse = response{}

func (o *offer) response() response {
	m := &discovery.DeltaDiscoveryResponse{
		TypeUrl:           order[o.index],
		SystemVersionInfo: o.view.Manifest.Version,
		RemovedResources:  o.removed,
		Resources:         make([]*discovery.Resource, len(o.resources)),
	}
	for i, e := range o.resources {
		m.Resources[i] = &discovery.Resource{Name: e.Name, Version: e.Version, Resource: e.Any}
	}
	return response{message: m, request: requests[o.index]}
}

// GetDeltaDiscoveryResponse is the message, to which the delta server adds a nonce.
func (r response) GetDeltaDiscoveryResponse() (*discovery.DeltaDiscoveryResponse, error) {
	if r.message == nil {
		return nil, errors.New("empty response")
	}
	return r.message, nil
}

// GetDeltaRequest tells the delta server the type.
func (r response) GetDeltaRequest() *discovery.DeltaDiscoveryRequest { return r.request }

// The delta server keeps these for caches that do not count themselves what they have offered; ours does.

func (r response) GetNextVersionMap() map[string]string    { return nil }
func (r response) GetReturnedResources() map[string]string { return nil }
func (r response) GetSystemVersion() (string, error)       { return r.message.SystemVersionInfo, nil }
func (r response) GetResponseVersion() string              { return r.message.SystemVersionInfo }
func (r response) GetContext() context.Context             { return context.Background() }

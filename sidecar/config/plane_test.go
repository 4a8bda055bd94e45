package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	upstreamType = resource.TypeURL(resource.KindUpstream)
	bindingType  = resource.TypeURL(resource.KindBinding)
)

const node = "node-1"

// plane is a control plane: go-control-plane's real delta server over a cache that holds one sidecar's view and can
// be told to misbehave. It is dialled in memory, so that it can live in a synctest bubble.
type plane struct {
	t        *testing.T
	listener *bufconn.Listener
	server   *grpc.Server

	mu      sync.Mutex // guards below
	view    map[string]map[string]*discoveryv3.Resource
	watches map[string]planeWatch // open, by type
	sent    []string              // "Upstream/u1" of every resource sent
	answers []*discoveryv3.DeltaDiscoveryRequest
	offered map[string]map[string]string // of the last stream, by type
	down    bool
}

type planeWatch struct {
	req *cache.DeltaRequest
	sub cache.Subscription
	to  chan cache.DeltaResponse
}

func newPlane(t *testing.T) *plane {
	p := &plane{t: t, view: map[string]map[string]*discoveryv3.Resource{}, offered: map[string]map[string]string{}}
	for _, typeURL := range append([]string{resource.RevocationsTypeURL}, subscribed...) {
		p.view[typeURL] = map[string]*discoveryv3.Resource{}
	}
	p.start()
	t.Cleanup(p.stop)
	return p
}

// adsServer serves only what a sidecar uses.
type adsServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	delta delta.Server
}

func (a adsServer) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.delta.DeltaStreamHandler(s, "")
}

func (p *plane) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches, p.down = map[string]planeWatch{}, false
	p.listener, p.server = bufconn.Listen(1<<20), grpc.NewServer()
	d := delta.NewServer(context.Background(), p, p)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(p.server, adsServer{delta: d})
	s, l := p.server, p.listener
	go func() { _ = s.Serve(l) }()
}

func (p *plane) stop() {
	p.mu.Lock()
	p.down = true
	s := p.server
	p.mu.Unlock()
	s.Stop()
}

// dial reaches the control plane at 127.0.0.1:1 and nobody elsewhere.
func (p *plane) dial(ctx context.Context, address string) (net.Conn, error) {
	if address != "127.0.0.1:1" {
		return nil, fmt.Errorf("nobody at %s", address)
	}
	p.mu.Lock()
	l := p.listener
	p.mu.Unlock()
	return l.DialContext(ctx)
}

func (p *plane) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }
func (p *plane) OnDeltaStreamClosed(int64, *corev3.Node)                {}
func (p *plane) OnStreamDeltaResponse(int64, *discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse) {
}

func (p *plane) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.ResponseNonce != "" {
		p.answers = append(p.answers, proto.CloneOf(r))
	} else {
		p.offered[r.TypeUrl] = r.InitialResourceVersions
	}
	return nil
}

func (p *plane) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return nil, fmt.Errorf("delta only")
}

func (p *plane) CreateDeltaWatch(req *cache.DeltaRequest, sub cache.Subscription, to chan cache.DeltaResponse) (func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[req.TypeUrl] = planeWatch{proto.CloneOf(req), sub, to}
	p.respondLocked(req.TypeUrl, req.ResponseNonce == "")
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.watches[req.TypeUrl].to == to {
			delete(p.watches, req.TypeUrl)
		}
	}, nil
}

// respondLocked sends what a watch has yet to know, if anything or if it is the first.
func (p *plane) respondLocked(typeURL string, first bool) {
	w, ok := p.watches[typeURL]
	if !ok {
		return
	}
	r := &planeResponse{req: w.req, next: map[string]string{}}
	r.out = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL}
	for name, res := range p.view[typeURL] {
		r.next[name] = res.Version
		if w.sub.ReturnedResources()[name] != res.Version {
			r.out.Resources = append(r.out.Resources, res)
			p.sent = append(p.sent, kindOf(typeURL)+"/"+name)
		}
	}
	for name := range w.sub.ReturnedResources() {
		if p.view[typeURL][name] == nil {
			r.out.RemovedResources = append(r.out.RemovedResources, name)
		}
	}
	if first || len(r.out.Resources)+len(r.out.RemovedResources) > 0 {
		delete(p.watches, typeURL)
		w.to <- r
	}
}

// planeResponse is a cache.DeltaResponse.
type planeResponse struct {
	req  *cache.DeltaRequest
	out  *discoveryv3.DeltaDiscoveryResponse
	next map[string]string
}

func (r *planeResponse) GetDeltaDiscoveryResponse() (*discoveryv3.DeltaDiscoveryResponse, error) {
	return r.out, nil
}
func (r *planeResponse) GetDeltaRequest() *discoveryv3.DeltaDiscoveryRequest { return r.req }
func (r *planeResponse) GetSystemVersion() (string, error)                   { return "", nil }
func (r *planeResponse) GetResponseVersion() string                          { return "" }
func (r *planeResponse) GetNextVersionMap() map[string]string                { return r.next }
func (r *planeResponse) GetReturnedResources() map[string]string             { return r.next }
func (r *planeResponse) GetContext() context.Context                         { return context.Background() }

// wired is a resource as it travels.
func wired(o proto.Message, name string) *discoveryv3.Resource {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(o)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(value)
	url := typeURLOf(o)
	return &discoveryv3.Resource{Name: name, Version: hex.EncodeToString(sum[:]), Resource: &anypb.Any{TypeUrl: url, Value: value}}
}

func typeURLOf(o proto.Message) string {
	return resource.TypeURL(string(o.ProtoReflect().Descriptor().Name()))
}

// put changes the view, and sends nothing yet.
func (p *plane) put(objs ...resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range objs {
		p.view[typeURLOf(o)][o.GetName()] = wired(o, o.GetName())
	}
}

// remove takes resources out of the view.
func (p *plane) remove(objs ...resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range objs {
		delete(p.view[typeURLOf(o)], o.GetName())
	}
}

// manifest makes the manifest name all of the view, and more.
func (p *plane) manifest(generation string, more ...resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &outriggerv1.Manifest{Name: node, Generation: generation}
	all := []*discoveryv3.Resource{}
	for _, typeURL := range subscribed[:len(subscribed)-1] {
		for _, r := range p.view[typeURL] {
			all = append(all, r)
		}
	}
	for _, o := range more {
		all = append(all, wired(o, o.GetName()))
	}
	for _, r := range all {
		m.References = append(m.References, &outriggerv1.Reference{TypeUrl: r.Resource.TypeUrl, Name: r.Name, Version: r.Version})
	}
	slices.SortFunc(m.References, func(a, b *outriggerv1.Reference) int {
		return key{a.TypeUrl, a.Name}.compare(key{b.TypeUrl, b.Name})
	})
	r := wired(m, node)
	r.Version = generation
	p.view[resource.ManifestTypeURL][node] = r
}

// push sends what changed, in the order of types, and waits until the sidecar has dealt with it.
func (p *plane) push(types ...string) {
	if len(types) == 0 {
		types = subscribed
	}
	for _, typeURL := range types {
		p.mu.Lock()
		p.respondLocked(typeURL, false)
		p.mu.Unlock()
		synctest.Wait()
	}
}

// taken returns what was sent since the last time.
func (p *plane) taken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.sent
	p.sent = nil
	slices.Sort(out)
	return out
}

// last is the last answer about a type.
func (p *plane) last(typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range slices.Backward(p.answers) {
		if a.TypeUrl == typeURL {
			return a
		}
	}
	p.t.Fatalf("no answer about %s", typeURL)
	return nil
}

// refusedBy reads a NACK: reasons by "Kind/name", empty for an ACK.
func refusedBy(t *testing.T, r *discoveryv3.DeltaDiscoveryRequest) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, d := range r.GetErrorDetail().GetDetails() {
		var f outriggerv1.Refusals
		if err := d.UnmarshalTo(&f); err != nil {
			t.Fatalf("detail of a NACK: %v", err)
		}
		for _, f := range f.Refusals {
			out[kindOf(f.TypeUrl)+"/"+f.Name] = f.Reason
		}
	}
	return out
}

// fakeTarget records what it is given and refuses what it is told to.
type fakeTarget struct {
	mu      sync.Mutex // guards below
	configs []*Config
	check   map[string]string // reasons by "Kind/name"
	apply   map[string]string
}

func (f *fakeTarget) Check(o resource.Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reason := f.check[resource.Ref(o)]; reason != "" {
		return fmt.Errorf("%s", reason)
	}
	return nil
}

func (f *fakeTarget) Apply(c *Config) (out []Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.configs = append(f.configs, c)
	for _, o := range objects(c) {
		if reason := f.apply[resource.Ref(o)]; reason != "" {
			out = append(out, Refusal{Kind: resource.KindOf(o), Name: o.GetName(), Reason: reason})
		}
	}
	return out
}

func objects(c *Config) (out []resource.Object) {
	for _, u := range c.Upstreams {
		out = append(out, u)
	}
	for _, b := range c.Bindings {
		out = append(out, b)
	}
	for _, p := range c.Policies {
		out = append(out, p)
	}
	return out
}

// count is how many configurations were applied.
func (f *fakeTarget) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.configs)
}

// runs is the last configuration as "Kind/name=mark", where the mark is the URL's host or the path.
func (f *fakeTarget) runs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.configs) == 0 {
		return nil
	}
	return marks(f.configs[len(f.configs)-1])
}

func marks(c *Config) (out []string) {
	for _, o := range objects(c) {
		mark := ""
		switch o := o.(type) {
		case *outriggerv1.Upstream:
			mark = o.GetHttp().GetUrl()
		case *outriggerv1.Binding:
			mark = o.Path
		}
		out = append(out, resource.Ref(o)+"="+mark)
	}
	return out
}

func up(name, url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: name, Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}}}
}

func bind(name, path, upstream string) *outriggerv1.Binding {
	return &outriggerv1.Binding{
		Name: name, Path: path, Selector: &outriggerv1.Selector{},
		Upstreams: []*outriggerv1.UpstreamReference{{Name: upstream}},
	}
}

// sidecar is a client in a test.
type sidecar struct {
	*XDS
	stop func()
}

// startSidecar runs a client of p until the test ends or stop is called.
func startSidecar(t *testing.T, p *plane, target Target, dir string, addresses ...string) *sidecar {
	t.Helper()
	return startSidecarWith(t, p, XDSOptions{Addresses: append(addresses, "127.0.0.1:1"), StateDir: dir, Target: target})
}

// startSidecarWith likewise, with options of which the rest is filled in.
func startSidecarWith(t *testing.T, p *plane, o XDSOptions) *sidecar {
	t.Helper()
	o.NodeID, o.Version = node, "test"
	o.Credentials = func() credentials.TransportCredentials { return insecure.NewCredentials() }
	o.Log, o.Reg = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	x, err := NewXDS(o)
	if err != nil {
		t.Fatal(err)
	}
	x.dial = []grpc.DialOption{grpc.WithContextDialer(p.dial)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = x.Run(ctx)
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(stop)
	synctest.Wait()
	return &sidecar{XDS: x, stop: stop}
}

func wantEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s\n got %s\nwant %s", what, g, w)
	}
}

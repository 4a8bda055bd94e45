package stream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second // for anything that should be prompt

// plane is a control plane's sidecar side: a store, an authority, and a Server behind gRPC on a real port.
type plane struct {
	*Server
	t       *testing.T
	store   *store.Store
	ca      *ca.Authority // nil in plaintext
	address string

	identified atomic.Int64 // streams whose peer was identified
}

// newPlane serves with mTLS and follows a store.
func newPlane(t *testing.T) *plane { return newPlaneWith(t, ca.Options{}) }

func newPlaneWith(t *testing.T, o ca.Options) *plane {
	t.Helper()
	p := &plane{t: t, store: openStore(t)}
	o.Log = quietLog
	var err error
	if p.ca, err = ca.Open(t.Context(), p.store, o); err != nil {
		t.Fatal(err)
	}
	identify := func(ctx context.Context) (ca.Identity, error) {
		defer p.identified.Add(1)
		return p.ca.Identify(ctx)
	}
	p.Server = New(Options{Identify: identify, Log: quietLog, Metrics: prometheus.NewRegistry()})
	p.serve(grpc.Creds(credentials.NewTLS(p.ca.ServerTLS())))
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { p.Follow(ctx, p.store) })
	following.Go(func() { p.ca.FollowRevoked(ctx, p.SetRevoked) })
	t.Cleanup(func() { cancel(); following.Wait() })
	eventually(t, "configuration", func() bool { return p.Ready() == nil })
	return p
}

// newPlaintext serves without TLS and takes what SetCompiled says.
func newPlaintext(t *testing.T, o Options) *plane {
	t.Helper()
	o.Log, o.Metrics = quietLog, prometheus.NewRegistry()
	p := &plane{t: t, Server: New(o)}
	p.SetCompiled(compile.Compile(nil, 1))
	p.serve()
	return p
}

var quietLog = slog.New(slog.DiscardHandler)

func openStore(t *testing.T) *store.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := store.Open(ctx, store.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (p *plane) serve(creds ...grpc.ServerOption) {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	s := grpc.NewServer(append(GRPCOptions(), creds...)...)
	discovery.RegisterAggregatedDiscoveryServiceServer(s, p.Server)
	if p.ca != nil {
		outriggerv1.RegisterIdentityServiceServer(s, p.ca)
	}
	go s.Serve(l)
	p.t.Cleanup(func() { p.Close(); s.Stop() })
	p.address = l.Addr().String()
}

// apply stores resources, as the management API does.
func (p *plane) apply(objs ...resource.Object) {
	p.t.Helper()
	var writes []store.Write
	for _, o := range objs {
		kind := resource.KindOf(o)
		value, err := store.EncodeResource(&outriggerv1.Resource{Kind: kind, Name: o.GetName(), Spec: resource.Encode(o)})
		if err != nil {
			p.t.Fatal(err)
		}
		writes = append(writes, store.Write{Key: store.ResourceKey(kind, o.GetName()), Value: value})
	}
	if _, err := p.store.Apply(p.t.Context(), writes); err != nil {
		p.t.Fatal(err)
	}
}

// join gets a certificate and returns a connection that presents it.
func (p *plane) join(nodeID string, labels map[string]string) *grpc.ClientConn {
	p.t.Helper()
	token, _, err := p.ca.Create(p.t.Context(), labels, time.Hour, 1)
	if err != nil {
		p.t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	res, err := outriggerv1.NewIdentityServiceClient(p.dial(nil)).IssueCertificate(ctx,
		&outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: nodeID, JoinToken: token})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.dial(&tls.Certificate{Certificate: res.Chain, PrivateKey: key})
}

// dial connects, presenting a certificate if there is one.
func (p *plane) dial(present *tls.Certificate) *grpc.ClientConn {
	p.t.Helper()
	creds := insecure.NewCredentials()
	if p.ca != nil {
		config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
		for _, der := range p.ca.Roots() {
			root, err := x509.ParseCertificate(der)
			if err != nil {
				p.t.Fatal(err)
			}
			config.RootCAs.AddCert(root)
		}
		if present != nil {
			config.Certificates = []tls.Certificate{*present}
		}
		creds = credentials.NewTLS(config)
	}
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(creds))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return conn
}

// sidecar is a client of the protocol that does as it is told.
type sidecar struct {
	t      *testing.T
	wire   discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	end    context.CancelFunc
	inbox  chan *discovery.DeltaDiscoveryResponse
	ended  chan struct{} // closed after err is set
	err    error
	held   map[string]map[string]string // type URL: name: version
	latest map[string]string            // type URL: nonce
}

// connect opens a stream. held is what the sidecar says it holds; nil is nothing.
func connect(t *testing.T, conn *grpc.ClientConn, held map[string]map[string]string) *sidecar {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	wire, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecar{
		t: t, wire: wire, end: cancel, held: held,
		inbox: make(chan *discovery.DeltaDiscoveryResponse, 64), ended: make(chan struct{}),
		latest: map[string]string{},
	}
	if s.held == nil {
		s.held = map[string]map[string]string{}
	}
	go func() {
		defer close(s.ended)
		for {
			m, err := wire.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.inbox <- m
		}
	}()
	t.Cleanup(func() { cancel(); <-s.ended })
	return s
}

// subscribe asks for every type, in the name of a node.
func (s *sidecar) subscribe(n *core.Node) *sidecar {
	s.t.Helper()
	for _, url := range order {
		s.send(&discovery.DeltaDiscoveryRequest{
			Node: n, TypeUrl: url, ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: s.held[url],
		})
		n = nil
	}
	return s
}

func (s *sidecar) send(req *discovery.DeltaDiscoveryRequest) {
	// A failed Send shows as the stream's end.
	_ = s.wire.Send(req)
}

// receive takes the next response and holds what it brings.
func (s *sidecar) receive() *discovery.DeltaDiscoveryResponse {
	s.t.Helper()
	select {
	case m := <-s.inbox:
		if s.held[m.TypeUrl] == nil {
			s.held[m.TypeUrl] = map[string]string{}
		}
		for _, r := range m.Resources {
			s.held[m.TypeUrl][r.Name] = r.Version
		}
		for _, name := range m.RemovedResources {
			delete(s.held[m.TypeUrl], name)
		}
		s.latest[m.TypeUrl] = m.Nonce
		return m
	case <-s.ended:
		s.t.Fatalf("the stream ended: %v", s.err)
	case <-time.After(patience):
		s.t.Fatal("no response came")
	}
	return nil
}

func (s *sidecar) ack(url string) {
	s.send(&discovery.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: s.latest[url]})
}

// settle receives and ACKs until a manifest has come, and returns the resources and removals that came, in order.
func (s *sidecar) settle() (came []string) {
	s.t.Helper()
	for {
		m := s.receive()
		for _, r := range m.Resources {
			came = append(came, "+"+short(m.TypeUrl)+"/"+r.Name)
		}
		for _, name := range m.RemovedResources {
			came = append(came, "-"+short(m.TypeUrl)+"/"+name)
		}
		s.ack(m.TypeUrl)
		if m.TypeUrl == resource.ManifestTypeURL {
			return came
		}
	}
}

// wantEnd waits for the stream's end and checks its status.
func (s *sidecar) wantEnd(code codes.Code, text string) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("the stream goes on, want it to end with %v", code)
	}
	if status.Code(s.err) != code || !strings.Contains(s.err.Error(), text) {
		s.t.Errorf("ended with %v, want %v with %q", s.err, code, text)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// value is what a counter or gauge shows.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var shown dto.Metric
	if err := m.Write(&shown); err != nil {
		t.Fatal(err)
	}
	return shown.GetCounter().GetValue() + shown.GetGauge().GetValue()
}

// pushes counts the responses of all types so far.
func (p *plane) pushes() (n float64) {
	for _, label := range []string{"upstream", "binding", "manifest"} {
		n += value(p.t, p.metrics.pushes.WithLabelValues(label))
	}
	return n
}

// bound is a binding for one app.
func bound(name, upstream, app string) *outriggerv1.Binding {
	return &outriggerv1.Binding{
		Name: name, Path: "/" + name, Upstreams: []*outriggerv1.UpstreamReference{{Name: upstream}},
		Selector: &outriggerv1.Selector{MatchLabels: map[string]string{"app": app}},
	}
}

// compiledFor waits until a sidecar with this app label would get something.
func (p *plane) compiledFor(app string) {
	p.t.Helper()
	eventually(p.t, "configuration for "+app, func() bool {
		return len(p.Server.compiled.Load().View("any", map[string]string{"app": app}).Resources) > 0
	})
}

// claim is a node as plaintext mode believes it.
func claim(id string, labels map[string]any) *core.Node {
	m, err := structpb.NewStruct(map[string]any{"labels": labels})
	if err != nil {
		panic(err)
	}
	return &core.Node{Id: id, Metadata: m}
}

func TestASidecarGetsItsViewOverMTLSAndReconnectsForNothing(t *testing.T) {
	p := newPlane(t)
	p.apply(httpUpstream("weather", "http://127.0.0.1/1"), httpUpstream("other", "http://127.0.0.1/1"),
		bound("demo", "weather", "demo"), bound("not-mine", "other", "else"))
	conn := p.join("team/demo-1", map[string]string{"app": "demo"})
	p.compiledFor("demo")

	self := claim("team/demo-1", map[string]any{"app": "else"})
	self.UserAgentVersionType = &core.Node_UserAgentVersion{UserAgentVersion: "v1.2.3"}
	s := connect(t, conn, nil).subscribe(self)
	equal(t, "first contact", s.settle(), []string{"+Upstream/weather", "+Binding/demo", "+Manifest/team/demo-1"})
	eventually(t, "running demo", func() bool { return p.Status("Binding", "demo").GetRunning() == 1 })
	if got := p.Status("Binding", "not-mine"); got != nil {
		t.Errorf("the sidecar's own claim of labels was believed: %v", got)
	}
	sc := p.Sidecars()[0]
	if sc.Version != "v1.2.3" || sc.RunningGeneration != sc.DesiredGeneration || !sc.Connected {
		t.Errorf("listed as %v", sc)
	}

	s.end()
	eventually(t, "disconnection", func() bool { return !p.Sidecars()[0].Connected })
	if got := p.Status("Binding", "demo"); got.GetBehind() != 1 {
		t.Errorf("while away: %v, want behind", got)
	}
	s = connect(t, conn, s.held).subscribe(nil)
	equal(t, "reconnect", s.settle(), nil)
	eventually(t, "running demo again", func() bool { return p.Status("Binding", "demo").GetRunning() == 1 })

	s.end()
	if _, err := p.store.Apply(t.Context(), []store.Write{{Key: store.ResourceKey("Binding", "demo"), Delete: true}}); err != nil {
		t.Fatal(err)
	}
	p.apply(bound("new", "weather", "demo"))
	eventually(t, "new view", func() bool { return p.Status("Binding", "new").GetBehind() == 1 })
	eventually(t, "its revision", func() bool { return p.Revision() == p.Server.compiled.Load().Revision() })
	s = connect(t, conn, s.held).subscribe(nil)
	equal(t, "reconnect after changes", s.settle(), []string{"+Binding/new", "-Binding/demo", "+Manifest/team/demo-1"})
}

// hears receives and ACKs until something of deleted sidecars has come, and returns whom that is about.
func (s *sidecar) hears() (nodes []string) {
	s.t.Helper()
	for {
		m := s.receive()
		s.ack(m.TypeUrl)
		for _, r := range m.Resources {
			group := &outriggerv1.Revocations{}
			if m.TypeUrl != resource.RevocationsTypeURL {
				continue
			}
			if err := r.Resource.UnmarshalTo(group); err != nil {
				s.t.Fatal(err)
			}
			for _, v := range group.Revoked {
				nodes = append(nodes, v.NodeId)
			}
		}
		if nodes != nil {
			return nodes
		}
	}
}

func TestTheOthersHearOfADeletedSidecarAtOnceAndOnlyOnce(t *testing.T) {
	p := newPlane(t)
	conn := p.join("stays", nil)
	s := connect(t, conn, nil).subscribe(nil)
	p.join("gone", nil)
	for range order {
		s.receive() // and answers none of them
	}
	s.ack(resource.RevocationsTypeURL)
	asked := time.Now()
	if found, err := p.ca.Revoke(t.Context(), "gone"); !found || err != nil {
		t.Fatalf("Revoke: %v, %v", found, err)
	}
	equal(t, "heard", s.hears(), []string{"gone"})
	t.Logf("heard after %v", time.Since(asked))
	s.end()

	s = connect(t, conn, s.held).subscribe(nil)
	for range order {
		if m := s.receive(); m.TypeUrl == resource.RevocationsTypeURL && len(m.Resources)+len(m.RemovedResources) > 0 {
			t.Errorf("a sidecar that knows is told again: %v", m)
		}
	}
}

func TestIdentityComesFromTheCertificate(t *testing.T) {
	p := newPlane(t)
	conn := p.join("mine", nil)
	t.Run("no certificate", func(t *testing.T) {
		connect(t, p.dial(nil), nil).subscribe(&core.Node{Id: "mine"}).wantEnd(codes.Unauthenticated, "client certificate")
	})
	t.Run("another node's id", func(t *testing.T) {
		connect(t, conn, nil).subscribe(&core.Node{Id: "yours"}).wantEnd(codes.PermissionDenied, `of node "mine", not of "yours"`)
	})
	t.Run("another node's id later", func(t *testing.T) {
		s := connect(t, conn, nil).subscribe(&core.Node{Id: "mine"})
		s.settle()
		s.send(&discovery.DeltaDiscoveryRequest{Node: &core.Node{Id: "yours"}, TypeUrl: order[1]})
		s.wantEnd(codes.PermissionDenied, `of node "mine", not of "yours"`)
	})
	t.Run("a deleted record", func(t *testing.T) {
		if _, err := p.store.Apply(t.Context(), []store.Write{{Key: "ca/sidecars/mine", Delete: true}}); err != nil {
			t.Fatal(err)
		}
		connect(t, conn, nil).subscribe(&core.Node{Id: "mine"}).wantEnd(codes.PermissionDenied, "not admitted")
	})
}

func TestWhatIsNotServedIsRefusedByName(t *testing.T) {
	p := newPlaintext(t, Options{MaxStreams: 3})
	conn := p.dial(nil)
	t.Run("state of the world", func(t *testing.T) {
		wire, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.Recv(); status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v, want Unimplemented", err)
		}
	})
	for _, tc := range []struct {
		name string
		req  *discovery.DeltaDiscoveryRequest
		want string
	}{
		{"no node id", &discovery.DeltaDiscoveryRequest{TypeUrl: order[1]}, "node.id"},
		{"a bad node id", &discovery.DeltaDiscoveryRequest{Node: claim("a b", nil), TypeUrl: order[1]}, "node.id"},
		{"bad labels", &discovery.DeltaDiscoveryRequest{Node: claim("n", map[string]any{"": "x"}), TypeUrl: order[1]}, "labels"},
		{"one name", &discovery.DeltaDiscoveryRequest{Node: claim("n", nil), TypeUrl: order[1], ResourceNamesSubscribe: []string{"a"}}, "by name"},
		{"unsubscribing", &discovery.DeltaDiscoveryRequest{Node: claim("n", nil), TypeUrl: order[1], ResourceNamesUnsubscribe: []string{"a"}}, "unsubscribe"},
		{"no type", &discovery.DeltaDiscoveryRequest{Node: claim("n", nil)}, "type URL is required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := connect(t, conn, nil)
			s.send(tc.req)
			s.wantEnd(codes.InvalidArgument, tc.want)
		})
	}
	t.Run("many unknown types", func(t *testing.T) {
		s := connect(t, conn, nil)
		for i := range maxUnknownTypes + 1 {
			s.send(&discovery.DeltaDiscoveryRequest{Node: claim("n", nil), TypeUrl: fmt.Sprint("type.googleapis.com/new.", i)})
		}
		s.wantEnd(codes.InvalidArgument, "unknown types")
	})
	t.Run("one stream too many", func(t *testing.T) {
		eventually(t, "room", func() bool { return p.streams.Load() == 0 })
		for i := range 3 {
			connect(t, conn, nil).subscribe(claim(fmt.Sprint("n", i), nil)).settle()
		}
		connect(t, conn, nil).wantEnd(codes.ResourceExhausted, "3 sidecars")
	})
}

func TestAnUnknownTypeStaysSilent(t *testing.T) {
	p := newPlaintext(t, Options{})
	s := connect(t, p.dial(nil), nil)
	s.send(&discovery.DeltaDiscoveryRequest{Node: claim("n", nil), TypeUrl: "type.googleapis.com/outrigger.v1.Policy"})
	s.subscribe(nil)
	equal(t, "what came", s.settle(), []string{"+Manifest/n"})
}

func TestASecondStreamReplacesTheFirst(t *testing.T) {
	p := newPlaintext(t, Options{})
	first := connect(t, p.dial(nil), nil).subscribe(claim("n", nil))
	first.settle()
	second := connect(t, p.dial(nil), nil).subscribe(claim("n", nil))
	second.settle()
	first.wantEnd(codes.Aborted, "another stream")
	eventually(t, "one stream", func() bool { return p.streams.Load() == 1 })
	if all := p.Sidecars(); len(all) != 1 || !all[0].Connected {
		t.Errorf("listed: %v, want one that is connected", all)
	}
	p.SetCompiled(compile.Compile(objects([]string{"u=1", "b=1:u"}), 2))
	equal(t, "the second's change", second.settle(), []string{"+Upstream/u", "+Binding/b", "+Manifest/n"})
	if got := value(t, p.metrics.connected); got != 1 {
		t.Errorf("connected sidecars: %v, want 1", got)
	}
}

func TestCloseSendsSidecarsElsewhere(t *testing.T) {
	p := newPlaintext(t, Options{})
	s := connect(t, p.dial(nil), nil).subscribe(claim("n", nil))
	s.settle()
	p.Close()
	s.wantEnd(codes.Unavailable, "stopping")
}

// Lesson L41: one bad object among 100 must not hold the others, and shows on itself only.
func TestOneRefusalAmong100ShowsOnThatObjectOnly(t *testing.T) {
	p := newPlaintext(t, Options{})
	objs := []resource.Object{httpUpstream("u", "http://127.0.0.1")}
	for i := range 100 {
		b := bound(fmt.Sprintf("b%02d", i), "u", "demo")
		objs = append(objs, b)
	}
	p.SetCompiled(compile.Compile(objs, 2))
	s := connect(t, p.dial(nil), nil).subscribe(claim("n", map[string]any{"app": "demo"}))
	for range order[1:] {
		if m := s.receive(); m.TypeUrl != resource.ManifestTypeURL {
			s.ack(m.TypeUrl)
		}
	}
	c := &conversation{t: t}
	s.send(&discovery.DeltaDiscoveryRequest{
		TypeUrl: resource.ManifestTypeURL, ResponseNonce: s.latest[resource.ManifestTypeURL],
		ErrorDetail: c.refusal(`"path /b42 is taken"`, []string{"b42"}),
	})
	eventually(t, "refusal", func() bool { return p.Status("Binding", "b42").GetRefused() == 1 })
	if got := p.Status("Binding", "b42").Sidecars[0]; got.Reason != "path /b42 is taken" || got.Sidecar != "n" {
		t.Errorf("b42 on the sidecar: %v", got)
	}
	for _, o := range objs {
		if st := p.Status(resource.KindOf(o), o.GetName()); o.GetName() != "b42" && (st.GetRunning() != 1 || st.GetRefused()+st.GetBehind() != 0) {
			t.Errorf("%s: %v, want running on one", resource.Ref(o), st)
		}
	}
	if got := value(t, p.metrics.nacks.WithLabelValues("manifest")); got != 1 {
		t.Errorf("nacks of manifests: %v, want 1", got)
	}
}

func TestASlowSidecarHoldsUpNobodyAndGetsTheLatest(t *testing.T) {
	p := newPlaintext(t, Options{})
	slow := connect(t, p.dial(nil), nil).subscribe(claim("slow", nil))
	for range order[1:] {
		slow.receive() // and never answers
	}
	quick := connect(t, p.dial(nil), nil).subscribe(claim("quick", nil))
	quick.settle()
	for i := range 50 {
		p.SetCompiled(compile.Compile(objects([]string{fmt.Sprint("u=", i), "b=1:u"}), int64(2+i)))
		quick.settle()
	}
	for _, url := range order[1:] {
		slow.ack(url)
	}
	equal(t, "the slow one's backlog", slow.settle(), []string{"+Upstream/u", "+Binding/b", "+Manifest/slow"})
	if !maps.Equal(slow.held[order[1]], quick.held[order[1]]) {
		t.Errorf("the slow one holds %v, the quick one %v", slow.held[order[1]], quick.held[order[1]])
	}
}

func TestAChangeReaches500SidecarsOnceAndOneSidecarsChangeOnlyIt(t *testing.T) {
	const fleet = 500
	p := newPlaintext(t, Options{})
	desired := func(shared, own string) []resource.Object {
		return []resource.Object{
			httpUpstream("shared", "http://127.0.0.1/"+shared), bound("all", "shared", "demo"),
			httpUpstream("own", "http://127.0.0.1/"+own), bound("one", "own", "n007"),
		}
	}
	p.SetCompiled(compile.Compile(desired("1", "1"), 2))
	var conns []*grpc.ClientConn
	for range 10 {
		conns = append(conns, p.dial(nil))
	}
	sidecars := make([]*sidecar, fleet)
	for i := range sidecars {
		app := "demo"
		if i == 7 {
			app = "n007"
		}
		sidecars[i] = connect(t, conns[i%len(conns)], nil).subscribe(claim(fmt.Sprintf("n%03d", i), map[string]any{"app": app}))
	}
	for _, s := range sidecars {
		s.settle()
	}
	eventually(t, "running fleet", func() bool { return p.Status("Binding", "all").GetRunning() == fleet-1 })

	before, start := p.pushes(), time.Now()
	p.SetCompiled(compile.Compile(desired("2", "1"), 3))
	var all sync.WaitGroup
	for i, s := range sidecars {
		if i != 7 {
			all.Go(func() {
				equal(t, "shared change", s.settle(), []string{"+Upstream/shared", fmt.Sprintf("+Manifest/n%03d", i)})
			})
		}
	}
	all.Wait()
	eventually(t, "running fleet", func() bool { return p.Status("Upstream", "shared").GetRunning() == fleet-1 })
	took := time.Since(start)
	if took > 10*time.Second {
		t.Errorf("a change of all took %v", took)
	}
	if got := p.pushes() - before; got != 2*(fleet-1) {
		t.Errorf("a change of one shared upstream was %v pushes, want %d", got, 2*(fleet-1))
	}

	before = p.pushes()
	p.SetCompiled(compile.Compile(desired("2", "2"), 4))
	equal(t, "own change", sidecars[7].settle(), []string{"+Upstream/own", "+Manifest/n007"})
	eventually(t, "running one", func() bool { return p.Status("Upstream", "own").GetRunning() == 1 })
	if got := p.pushes() - before; got != 2 {
		t.Errorf("one sidecar's change was %v pushes, want 2", got)
	}
	t.Logf("a change of %d sidecars ran on all after %v", fleet-1, took)
}

func TestALargeViewComesInParts(t *testing.T) {
	v := &compile.View{Manifest: &compile.Encoded{Version: "g1"}}
	for i := range 5 {
		e := binding(fmt.Sprint("b", i), "v1")
		e.Any = &anypb.Any{Value: make([]byte, maxResponseBytes/2)}
		v.Resources = append(v.Resources, e)
	}
	offered := map[string]string{"gone": "v1"}
	var parts []string
	for {
		o := difference(v, typeIndex(resource.TypeURL(resource.KindBinding)), offered)
		if o.empty() {
			break
		}
		o.note(offered)
		parts = append(parts, fmt.Sprintf("%d, %d removed, more %v", len(o.resources), len(o.removed), o.more))
	}
	equal(t, "parts", parts, []string{"2, 1 removed, more true", "2, 0 removed, more true", "1, 0 removed, more false"})
}

func TestTheLongestGoneAreForgotten(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	s := New(Options{MaxRemembered: 10, KeepFor: time.Hour, Now: func() time.Time { return now }, Log: quietLog, Metrics: prometheus.NewRegistry()})
	add := func(id string, st *stream, ago time.Duration) {
		sh := s.shardOf(id)
		sh.nodes[id] = &node{id: id, shard: sh, view: &compile.View{Manifest: &compile.Encoded{}}, stream: st, since: now.Add(-ago)}
		s.known.Add(1)
	}
	listed := func() (ids []string) {
		for _, sc := range s.Sidecars() {
			ids = append(ids, sc.Id)
		}
		return ids
	}
	add("connected", &stream{}, 48*time.Hour)
	add("long-gone", nil, 61*time.Minute)
	add("just-gone", nil, 59*time.Minute)
	s.forget()
	equal(t, "after an hour", listed(), []string{"connected", "just-gone"})
	for i := range 10 {
		add(fmt.Sprintf("n%02d", i), nil, time.Duration(10-i)*time.Minute)
	}
	s.forget()
	equal(t, "with eleven gone and room for ten", listed(),
		[]string{"connected", "n01", "n02", "n03", "n04", "n05", "n06", "n07", "n08", "n09"})
}

func TestAnUnreadableEntryLeavesWhatRan(t *testing.T) {
	p := newPlane(t)
	p.apply(httpUpstream("u", "http://127.0.0.1/1"), bound("b", "u", "demo"))
	conn := p.join("n", map[string]string{"app": "demo"})
	p.compiledFor("demo")
	s := connect(t, conn, nil).subscribe(nil)
	s.settle()
	if _, err := p.store.Apply(t.Context(), []store.Write{
		{Key: store.ResourceKey("Upstream", "u"), Value: []byte("\xff\xff")},
		{Key: store.ResourceKey("Future", "f"), Value: []byte("\x0a\x06Future\x12\x01f")},
	}); err != nil {
		t.Fatal(err)
	}
	p.apply(bound("c", "u", "demo"))
	equal(t, "after the unreadable write", s.settle(), []string{"+Binding/c", "+Manifest/n"})
}

func TestReadingAgainKeepsWhatCannotBeReadAndDropsWhatIsGone(t *testing.T) {
	f := follower{server: New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})}
	defer f.server.Close()
	entry := func(name, url string) store.Entry {
		value, err := store.EncodeResource(&outriggerv1.Resource{
			Kind: "Upstream", Name: name, Spec: resource.Encode(httpUpstream(name, url)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return store.Entry{Key: store.ResourceKey("Upstream", name), Value: value}
	}
	f.reset([]store.Entry{entry("a", "http://127.0.0.1/1"), entry("gone", "http://127.0.0.1/1")})
	unreadable := store.Entry{Key: store.ResourceKey("Upstream", "a"), Value: []byte("\xff")}
	f.reset([]store.Entry{unreadable, entry("b", "http://127.0.0.1/1")})
	equal(t, "objects", slices.Sorted(maps.Keys(f.objects)), []string{unreadable.Key, store.ResourceKey("Upstream", "b")})
}

// amnesiac is a store that drops the history that its watcher needs, once.
type amnesiac struct {
	lists atomic.Int32
}

func (a *amnesiac) List(context.Context, string) ([]store.Entry, int64, error) {
	n := int64(a.lists.Add(1))
	b := &outriggerv1.Binding{Name: fmt.Sprint("b", n), Selector: &outriggerv1.Selector{}}
	value, err := store.EncodeResource(&outriggerv1.Resource{Kind: "Binding", Name: b.Name, Spec: resource.Encode(b)})
	return []store.Entry{{Key: store.ResourceKey("Binding", b.Name), Value: value, Revision: n}}, n, err
}

func (a *amnesiac) Watch(ctx context.Context, _ string, _ int64) <-chan store.Batch {
	out := make(chan store.Batch, 1)
	if a.lists.Load() == 1 {
		out <- store.Batch{Err: fmt.Errorf("watch: %w", store.ErrCompacted)}
	}
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

func TestLostHistoryIsReadAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		source, start := new(amnesiac), time.Now()
		go s.Follow(ctx, source)
		synctest.Wait()
		view := s.compiled.Load().View("n", nil)
		if got := view.Resources; len(got) != 1 || got[0].Name != "b2" || time.Since(start) != 0 {
			t.Errorf("%v after %v, want b2 at once", got, time.Since(start))
		}
		cancel()
		synctest.Wait()
	})
}

func TestASilentStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plane{t: t, Server: New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})}
		p.SetCompiled(compile.Compile(nil, 1))
		l := bufconn.Listen(1 << 16)
		g := grpc.NewServer()
		discovery.RegisterAggregatedDiscoveryServiceServer(g, p.Server)
		go g.Serve(l)
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		silent := connect(t, conn, nil)
		talking := connect(t, conn, nil).subscribe(claim("n", nil))
		silent.wantEnd(codes.DeadlineExceeded, "no request")
		if took := time.Since(start); took != firstRequestTimeout {
			t.Errorf("ended after %v, want %v", took, firstRequestTimeout)
		}
		talking.settle()
		conn.Close()
		g.Stop()
	})
}

func TestAStreamEndsWithItsCertificate(t *testing.T) {
	p := newPlaneWith(t, ca.Options{SidecarLife: 2 * time.Second})
	s := connect(t, p.join("n", nil), nil).subscribe(nil)
	s.settle()
	s.wantEnd(codes.Unauthenticated, "expired")
}

func TestChangesMadeWithinTheQuietPeriodAreMerged(t *testing.T) {
	for _, tc := range []struct {
		name  string
		every time.Duration
		count int
		took  time.Duration
	}{
		{"one", 0, 1, quiet},
		{"a burst", quiet / 2, 5, 3 * quiet},
		{"without end", quiet / 2, 1000, mostQuiet},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				changes := make(chan store.Batch)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					for i := range tc.count - 1 {
						time.Sleep(tc.every)
						select {
						case changes <- store.Batch{Revision: int64(2 + i)}:
						case <-ctx.Done():
							return
						}
					}
				}()
				start := time.Now()
				f := follower{}
				if _, err := f.merge(store.Batch{Revision: 1}, changes); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("merged for %v, want %v", took, tc.took)
				}
			})
		})
	}
}

func TestARevokedSidecarsStreamEndsAndItIsForgotten(t *testing.T) {
	p := newPlane(t)
	conn := p.join("n", nil)
	s, other := connect(t, conn, nil).subscribe(nil), connect(t, p.join("other", nil), nil).subscribe(nil)
	s.settle()
	other.settle()
	if found, err := p.ca.Revoke(t.Context(), "n"); !found || err != nil {
		t.Fatalf("ca.Revoke = %v, %v", found, err)
	}
	p.Revoke("n")
	p.Revoke("n") // once more changes nothing
	s.wantEnd(codes.PermissionDenied, "deleted")
	if got := p.Sidecars(); len(got) != 1 || got[0].Id != "other" {
		t.Errorf("sidecars: %v, want only the other", got)
	}
	if got := value(t, p.metrics.connected); got != 1 {
		t.Errorf("%v connected, want 1", got)
	}
	connect(t, conn, nil).subscribe(nil).wantEnd(codes.PermissionDenied, "not admitted")
	connect(t, p.join("n", nil), nil).subscribe(nil).settle() // with a new token it may come back
}

// TestASidecarRevokedBeforeItsFirstRequestIsRefused is about a stream that Revoke cannot see yet.
func TestASidecarRevokedBeforeItsFirstRequestIsRefused(t *testing.T) {
	p := newPlane(t)
	s := connect(t, p.join("n", nil), nil)
	eventually(t, "stream", func() bool { return p.streams.Load() == 1 && p.identified.Load() == 1 })
	if found, err := p.ca.Revoke(t.Context(), "n"); !found || err != nil {
		t.Fatalf("ca.Revoke = %v, %v", found, err)
	}
	p.Revoke("n")
	s.subscribe(nil).wantEnd(codes.PermissionDenied, "deleted")
	if got := p.Sidecars(); len(got) != 0 {
		t.Errorf("sidecars: %v, want none", got)
	}
}

package config

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Bounds of a connection to the control plane.
const (
	maxResponse    = 64 << 20 // bytes
	connectTimeout = 5 * time.Second
	keepAliveEvery = 30 * time.Second
	keepAliveWait  = 10 * time.Second
	firstRetry     = 500 * time.Millisecond
	lastRetry      = 30 * time.Second
	// A stream that lived for less does not shorten the back-off: two sidecars of one node id, who end each other's
	// streams, would never slow down.
	steadyAfter = lastRetry
)

// XDSOptions say how a sidecar gets its configuration from a control plane.
type XDSOptions struct {
	// Addresses of control planes, as host:port: required. They are tried in turn, from a random one on.
	Addresses []string
	// NodeID is who this sidecar is: required.
	NodeID string
	// Labels of this sidecar. A control plane believes them in plaintext mode only.
	Labels map[string]string
	// Version of this build, and what it can do beyond the first version's features.
	Version  string
	Features []string
	// Credentials are asked for at each connection: required.
	Credentials func() credentials.TransportCredentials
	// NotAdmitted, when not nil, is called when a control plane does not admit who the credentials say this is.
	NotAdmitted func()
	// StateDir keeps the last good generations. Empty keeps none: the sidecar then cannot start without a control plane.
	StateDir string
	// Target runs what arrives: required.
	Target Target
	// Revoked is told which sidecars of the control plane were deleted: all that are known, at Restore and whenever that
	// changes. Nil: nobody is.
	Revoked func([]*outriggerv1.RevokedSidecar)
	Log     *slog.Logger          // required
	Reg     prometheus.Registerer // nil registers nothing
}

// XDS is the client half of delta ADS (envoy.service.discovery.v3). It holds one stream, over which it is sent the
// resources of this sidecar and the manifest that names them; the state machine beside it (state) decides.
type XDS struct {
	o       XDSOptions
	disk    *disk // nil without a StateDir
	metrics *metrics
	board   board
	dial    []grpc.DialOption // of tests

	// Owned by Restore, then by Run.
	state    *state
	revoked  *revocations
	clock    *time.Timer // runs while a manifest waits
	restored bool
}

// NewXDS makes a client; Restore and Run start it.
func NewXDS(o XDSOptions) (*XDS, error) {
	if len(o.Addresses) == 0 || o.NodeID == "" || o.Credentials == nil || o.Target == nil || o.Log == nil {
		return nil, errors.New("xds: addresses, node id, credentials, target and log are required")
	}
	x := &XDS{o: o, state: newState(), revoked: newRevocations(o.StateDir, o.Log), clock: stoppedTimer()}
	x.board.status = Status{Source: SourceNone, Since: time.Now()}
	x.metrics = newMetrics(o.Reg, &x.board)
	if o.StateDir != "" {
		x.disk = &disk{dir: o.StateDir, log: o.Log}
	}
	return x, nil
}

// Status is what runs now. It may be called at any time.
func (x *XDS) Status() Status { return x.board.read() }

// Run applies what is on disk unless Restore did, then follows the control plane until ctx ends, whose error it
// returns. A control plane that is away changes nothing of what runs.
func (x *XDS) Run(ctx context.Context) error {
	x.Restore()
	address, failures := rand.IntN(len(x.o.Addresses)), 0
	for {
		began := time.Now()
		answered, err := x.connection(ctx, x.o.Addresses[address])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if answered && time.Since(began) >= steadyAfter {
			failures = 0
		}
		wait := retryAfter(failures)
		failures++
		x.logLost(x.o.Addresses[address], err, wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		address = (address + 1) % len(x.o.Addresses)
	}
}

// retryAfter is full-jitter exponential back-off: anything up to a bound that doubles with each failure in a row.
func retryAfter(failures int) time.Duration {
	return rand.N(min(lastRetry, firstRetry<<min(failures, 10)))
}

// logLost says why there is no connection, to the identity too if that is why. ABORTED is how a control plane ends a stream whose place another has taken.
func (x *XDS) logLost(address string, err error, wait time.Duration) {
	log := x.o.Log.With("address", address, "error", advised(err), "retry_in", wait.Round(time.Millisecond))
	if status.Code(err) == codes.Aborted {
		log.Error("another sidecar has connected with this node id and taken over: give each its own", "node", x.o.NodeID)
		return
	}
	log.Warn("no connection to the control plane")
	if status.Code(err) == codes.PermissionDenied && x.o.NotAdmitted != nil {
		x.o.NotAdmitted()
	}
}

// Restore applies the last generation on disk, so that Status has it when it returns. It is called before Run, if at
// all; a second call does nothing.
func (x *XDS) Restore() {
	if x.disk == nil || x.restored {
		return
	}
	x.restored = true
	x.revoked.load()
	x.tellRevoked()
	saved, entries := x.disk.load()
	if saved == nil {
		return
	}
	if of := saved.Manifest.Name; of != x.o.NodeID {
		x.o.Log.Error("the configuration on disk is another sidecar's and is not used", "node", x.o.NodeID, "of", of)
		return
	}
	at := time.Unix(saved.SavedUnix, 0)
	x.o.Log.Info("configuration restored from disk", "generation", saved.Manifest.Generation, "age", time.Since(at).Round(time.Second))
	x.board.update(func(s *Status) { s.Source, s.Confirmed = SourceDisk, at })
	_ = x.handle(nil, restored{manifest: saved.Manifest, entries: entries}) // only a stream can fail
}

// adsStream is the wire's half of delta ADS.
type adsStream = grpc.BidiStreamingClient[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]

// connection dials one control plane and follows it until the stream ends. It reports whether it ever answered.
func (x *XDS) connection(ctx context.Context, address string) (answered bool, err error) {
	conn, err := grpc.NewClient("dns:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(x.o.Credentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveEvery, Timeout: keepAliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
	}, x.dial...)...)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	return x.follow(ctx, cancel, s)
}

// follow performs a stream's conversation until it ends.
func (x *XDS) follow(ctx context.Context, cancel context.CancelFunc, s adsStream) (answered bool, err error) {
	responses, ended := make(chan *discoveryv3.DeltaDiscoveryResponse), make(chan error, 1)
	go func() { ended <- receiveAll(ctx, s, responses) }()
	alive := true
	defer func() {
		cancel()
		if alive {
			<-ended
		}
		x.lost()
	}()
	why := func(err error) error {
		if errors.Is(err, io.EOF) { // of a Send: the stream has ended, and only its other half knows why
			alive, err = false, lastError(responses, ended)
		}
		return err
	}
	err = s.Send(x.subscription(subscribe{resource.RevocationsTypeURL, x.revoked.versions()}))
	if err == nil {
		err = x.handle(s, connected{})
	}
	if err != nil {
		return false, why(err)
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return answered, ctx.Err()
		case err := <-ended:
			alive = false
			return answered, err
		case <-x.clock.C:
			err = x.handle(s, overdue{})
		case r := <-responses:
			if !answered {
				answered = true
				x.found()
			}
			err = x.hear(s, r)
		}
		if err != nil {
			return answered, why(err)
		}
	}
}

// hear takes a response in. What it says of deleted sidecars counts at once; the rest is the state's.
func (x *XDS) hear(s adsStream, r *discoveryv3.DeltaDiscoveryResponse) error {
	if r.TypeUrl != resource.RevocationsTypeURL {
		return x.handle(s, x.read(r))
	}
	a := x.revoked.take(r)
	x.metrics.count(kindOf(r.TypeUrl), len(r.Resources)-len(a.refusals), len(a.refusals), len(r.RemovedResources))
	x.tellRevoked()
	x.revoked.save()
	return s.Send(acknowledgement(a))
}

// tellRevoked passes on which sidecars were deleted.
func (x *XDS) tellRevoked() {
	if x.o.Revoked != nil {
		x.o.Revoked(x.revoked.all())
	}
}

// lastError is how a stream ended whose responses nobody needs any more.
func lastError(responses <-chan *discoveryv3.DeltaDiscoveryResponse, ended <-chan error) error {
	for {
		select {
		case <-responses:
		case err := <-ended:
			return err
		}
	}
}

// receiveAll hands over a stream's responses until it ends, one at a time: what is not taken yet holds up the sender.
func receiveAll(ctx context.Context, s adsStream, to chan<- *discoveryv3.DeltaDiscoveryResponse) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// found notes that the control plane answers.
func (x *XDS) found() {
	x.o.Log.Info("connected to the control plane")
	x.board.update(func(s *Status) { s.Connected, s.Since = true, time.Now() })
}

// lost notes that it no longer does.
func (x *XDS) lost() {
	_ = x.handle(nil, disconnected{}) // sends nothing
	x.board.update(func(s *Status) {
		if s.Connected {
			s.Connected, s.Since = false, time.Now()
			if s.Source == SourceControlPlane {
				s.Confirmed = s.Since
			}
		}
	})
}

// handle lets the state take an event and performs what follows. s is nil while there is no stream, and then nothing
// asks for one.
func (x *XDS) handle(s adsStream, e event) error {
	defer x.publish()
	queue := x.state.step(e)
	for len(queue) > 0 {
		var err error
		switch a := queue[0].(type) {
		case subscribe:
			err = s.Send(x.subscription(a))
		case answer:
			err = s.Send(acknowledgement(a))
		case apply:
			queue = append(queue, x.state.step(applied{x.apply(a.config)})...)
		case save:
			x.save(a)
		case watch:
			x.clock.Stop()
			if a.on {
				x.clock.Reset(absentAfter)
			}
		}
		if err != nil {
			return err
		}
		queue = queue[1:]
	}
	return nil
}

// apply hands a configuration to the target.
func (x *XDS) apply(c *Config) []Refusal {
	refusals := x.o.Target.Apply(c)
	if len(c.Bindings) == 0 {
		x.o.Log.Warn("no Binding's selector matches this sidecar: it serves nothing. The control plane knows its labels: 'rigctl sidecars -o json'",
			"node", x.o.NodeID)
	}
	for _, r := range refusals {
		x.o.Log.Error("a resource was refused", "kind", r.Kind, "name", r.Name, "reason", r.Reason)
	}
	return refusals
}

// save keeps on disk what runs. That it cannot is no reason not to run it.
func (x *XDS) save(a save) {
	if x.disk == nil {
		return
	}
	a.config.SavedUnix = time.Now().Unix()
	if err := x.disk.save(a.config); err != nil {
		x.o.Log.Error("the configuration cannot be kept on disk", "dir", x.disk.dir, "error", err)
	}
}

// publish shows the state to others.
func (x *XDS) publish() {
	x.board.update(func(s *Status) {
		s.Generation, s.Refused = x.state.runs.GetGeneration(), refusalsOf(x.state)
		if x.state.current {
			s.Source = SourceControlPlane
		}
	})
}

// node is how this sidecar presents itself.
func (x *XDS) node() *corev3.Node {
	version := cmp.Or(x.o.Version, "unknown")
	features := make([]*structpb.Value, len(x.o.Features))
	for i, f := range x.o.Features {
		features[i] = structpb.NewStringValue(f)
	}
	labels := map[string]*structpb.Value{}
	for k, v := range x.o.Labels {
		labels[k] = structpb.NewStringValue(v)
	}
	return &corev3.Node{
		Id:                   x.o.NodeID,
		UserAgentName:        "outrigger-sidecar",
		UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: version},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"version":  structpb.NewStringValue(version),
			"features": structpb.NewListValue(&structpb.ListValue{Values: features}),
			"labels":   structpb.NewStructValue(&structpb.Struct{Fields: labels}),
		}},
	}
}

// stoppedTimer is a timer that does not run yet.
func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

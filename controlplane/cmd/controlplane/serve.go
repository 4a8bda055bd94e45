package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/controlplane/api"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	"github.com/outrigger-mesh/outrigger/controlplane/stream"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Bounds of starting and stopping.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second // for requests to finish after a signal
)

// plane is a control plane at work. Its parts are in the order in which they start.
type plane struct {
	o     *options
	log   *slog.Logger
	token string

	apiListener, xdsListener, adminListener net.Listener

	store   *store.Store
	secrets *store.Secrets // nil without a key
	ca      *ca.Authority
	fleet   *stream.Server
	api     *http.Server
	xds     *grpc.Server
	admin   *http.Server
	failed  chan error // of a server that ended by itself

	delivery delivery

	background sync.WaitGroup
}

// serve runs a control plane until ctx ends, and then stops it within stopTimeout.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	p := &plane{o: o, log: log, failed: make(chan error, 3)}
	defer p.release()
	if err := p.open(ctx); err != nil {
		return err
	}
	working, cancel := context.WithCancel(context.Background())
	defer cancel()
	p.start(working)
	log.Info("control plane started", "version", buildVersion(), "api", p.apiListener.Addr().String(),
		"xds", p.xdsListener.Addr().String(), "admin", p.adminListener.Addr().String(),
		"admin_token_file", o.adminTokenFile, "after", time.Since(started).Round(time.Millisecond).String())
	var err error
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case err = <-p.failed:
	}
	p.stop()
	cancel()
	p.background.Wait()
	return err
}

// open takes the ports, then makes every part, without serving yet.
func (p *plane) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := p.listen()
	if err != nil {
		return err
	}
	if p.store, err = store.Open(ctx, p.o.storeOptions(p.log)); err != nil {
		return err
	}
	if p.token, err = adminToken(p.o.adminTokenFile); err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	if p.secrets, err = openSecrets(ctx, p.store, p.o); err != nil {
		return fmt.Errorf("keys of Secrets: %w", err)
	}
	if p.ca, err = ca.Open(ctx, p.store, ca.Options{ServerNames: p.o.serverNames, Log: p.log}); err != nil {
		return err
	}
	if err := writeRoot(filepath.Join(p.o.dataDir, "ca.pem"), p.ca.Roots()); err != nil {
		return fmt.Errorf("authority's certificate: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(buildInfo())
	p.makeXDS(registry)
	if err := p.makeAPI(); err != nil {
		return err
	}
	// The default gatherer has the process's and etcd's own metrics.
	p.admin = adminServer(p.ready, prometheus.Gatherers{registry, prometheus.DefaultGatherer}, p.o.pprof)
	return nil
}

// listen takes the three ports, so that a wrong address shows before anything else is done.
func (p *plane) listen() error {
	for _, l := range []struct {
		to      *net.Listener
		flag    string
		address string
	}{{&p.apiListener, "api", p.o.api}, {&p.xdsListener, "xds", p.o.xds}, {&p.adminListener, "admin", p.o.admin}} {
		var err error
		if *l.to, err = net.Listen("tcp", l.address); err != nil {
			return fmt.Errorf("--%s: %w", l.flag, err)
		}
	}
	return nil
}

// makeXDS makes what sidecars dial. Without TLS there is nobody to join, so the identity service is left out.
func (p *plane) makeXDS(registry prometheus.Registerer) {
	o := stream.Options{Identify: p.ca.Identify, Secrets: p.secrets, Log: p.log, Metrics: registry}
	creds := grpc.Creds(credentials.NewTLS(p.ca.ServerTLS()))
	if p.o.xdsPlaintext {
		o.Identify, creds = nil, grpc.EmptyServerOption{}
	}
	if !p.o.deliversSecrets() {
		o.Secrets = nil
		p.log.Warn("Secrets are not delivered: in plaintext whoever reaches --xds would get them")
	}
	p.fleet = stream.New(o)
	p.xds = grpc.NewServer(append(stream.GRPCOptions(), creds)...)
	discovery.RegisterAggregatedDiscoveryServiceServer(p.xds, p.fleet)
	if !p.o.xdsPlaintext {
		outriggerv1.RegisterIdentityServiceServer(p.xds, p.ca)
	}
}

// makeAPI makes the management API, over TLS when the flags say so.
func (p *plane) makeAPI() error {
	var authority api.Authority = p.ca
	if p.o.xdsPlaintext {
		authority = unpeppered{p.ca}
	}
	a, err := api.New(p.store, p.fleet, authority, api.Options{Token: p.token, Secrets: p.secrets, Log: p.log})
	if err != nil {
		return err
	}
	p.api = a.Server(p.o.api)
	switch {
	case p.o.apiTLS:
		p.api.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: p.ca.GetCertificate}
	case p.o.apiTLSCert != "":
		pair, err := tls.LoadX509KeyPair(p.o.apiTLSCert, p.o.apiTLSKey)
		if err != nil {
			return fmt.Errorf("--api-tls-cert: %w", err)
		}
		p.api.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	}
	return nil
}

// unpeppered hashes API keys without a pepper: in plaintext sidecars have none, since it comes with a certificate.
type unpeppered struct{ api.Authority }

func (unpeppered) Pepper(context.Context) ([]byte, error) { return nil, nil }

// start begins serving. What it starts ends with ctx or with stop.
func (p *plane) start(ctx context.Context) {
	p.background.Go(func() { p.fleet.Follow(ctx, p.store) })
	p.background.Go(func() { p.fleet.Run(ctx) })
	p.background.Go(func() { p.ca.Run(ctx) })
	if !p.o.xdsPlaintext { // there, nobody is admitted
		p.background.Go(func() { p.ca.FollowRevocations(ctx, p.fleet.Revoke) })
		p.background.Go(func() { p.ca.FollowRevoked(ctx, p.fleet.SetRevoked) })
	}
	p.background.Go(func() { p.watch("admin", p.admin.Serve(p.adminListener)) })
	p.background.Go(func() { p.watch("xds", p.xds.Serve(stream.LimitConnections(p.xdsListener))) })
	p.background.Go(func() {
		if p.api.TLSConfig != nil {
			p.watch("api", p.api.ServeTLS(p.apiListener, "", ""))
		} else {
			p.watch("api", p.api.Serve(p.apiListener))
		}
	})
}

// watch notes the end of a server, unless stop ended it.
func (p *plane) watch(name string, err error) {
	if err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		p.failed <- fmt.Errorf("%s server: %w", name, err)
	}
}

// ready reports why sidecars and requests should go elsewhere, if they should.
func (p *plane) ready(r *http.Request) error {
	if err := p.fleet.Ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	e, _, err := p.store.Get(ctx, store.GenerationKey)
	if err != nil {
		p.log.Warn("not ready", "error", err)
		return errors.New("the store does not answer")
	}
	return p.delivery.check(e.Revision, p.fleet.Revision(), time.Now())
}

// stop sends sidecars elsewhere, lets requests finish within stopTimeout, and ends every server.
func (p *plane) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	p.fleet.Close()
	var all sync.WaitGroup
	all.Go(func() {
		stop := context.AfterFunc(ctx, p.xds.Stop)
		defer stop()
		p.xds.GracefulStop()
	})
	all.Go(func() {
		if err := p.api.Shutdown(ctx); err != nil {
			p.log.Warn("requests cut off", "error", err)
			p.api.Close()
		}
	})
	all.Wait()
	p.admin.Close()
}

// release gives back what open took, even when it failed half-way.
func (p *plane) release() {
	for _, l := range []net.Listener{p.apiListener, p.xdsListener, p.adminListener} {
		if l != nil {
			l.Close() // a server may have closed it
		}
	}
	if p.store == nil {
		return
	}
	if err := p.store.Close(); err != nil {
		p.log.Warn("closing the store", "error", err)
	}
}

package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/outrigger-mesh/outrigger/sidecar/admin"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/http1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// closeTimeout bounds what follows the drain: ending sessions at their servers, and stopping processes, which have 7 s
// unless their Upstreams say otherwise. With --drain-timeout's default it is done within the 30 s of Kubernetes.
const closeTimeout = 7 * time.Second

// run serves until ctx ends, then drains. Whatever is wrong with flags, files and addresses is an error before it serves.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var access *telemetry.AccessLog
	if o.accessLog {
		access = telemetry.NewAccessLog(os.Stdout)
		defer access.Close()
	}
	k, err := newKin(o, log)
	if err != nil {
		return err
	}
	credentials := credential.New(credential.Options{Log: log, Dir: o.credentialsDir, Registerer: reg})
	dialer := proxy.Dialer{
		Log: log, Credentials: credentials, Version: buildVersion(), Sealer: k.sealer, Holder: k.holder, Peers: k.peers(),
		Via: "outrigger-" + rand.Text(), Answers: budget.New(budgetBytes()), Lists: budget.New(budgetBytes()),
	}
	issuers := jwt.New(jwt.Options{Log: log, Registerer: reg})
	p := proxy.New(proxy.Options{
		Log: log, Metrics: telemetry.NewMetrics(reg, buildVersion()), Access: access,
		Dial: dialer.Dial, Outside: dialer.Outside, Federate: dialer.Federate, Lone: dialer.Lone, Via: dialer.Via,
		Callers: authn.New(authn.Options{Log: log, Issuers: issuers, Registerer: reg}), Pepper: k.saltOfKeys,
	})
	k.peppered = func() { p.Refresh() }
	reg.MustRegister(p.Upstreams(), telemetry.Budgets{"answers": dialer.Answers, "lists": dialer.Lists})
	src, err := newSource(o, p, k, reg, log)
	if err != nil {
		return err
	}
	tlsConfig, err := serverTLS(o, log)
	if err != nil {
		return err
	}
	s := &servers{
		o: o, log: log, proxy: p, kin: k, issuers: issuers, credentials: credentials, mcp: mcpServer(p, tlsConfig, log),
		hangups: hangups,
	}
	s.admin = adminServer(o, p, reg, src)
	if err := s.listen(); err != nil {
		return err
	}
	if err := src.Start(); err != nil {
		s.close()
		return err
	}
	log.Info("sidecar started", "version", buildVersion(), "mcp", address(s.mcpListener), "admin", address(s.adminListener),
		"fleet_state", "in this process: sessions are this sidecar's own")
	return s.serve(ctx, src)
}

// address is where a listener does, "" for none.
func address(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

// servers are the process's two ports and what stops with them.
type servers struct {
	o           *options
	log         *slog.Logger
	proxy       *proxy.Proxy
	kin         *kin
	issuers     *jwt.Issuers
	credentials *credential.Sources
	mcp         server
	admin       *http.Server // nil for none

	hangups       <-chan os.Signal
	mcpListener   net.Listener
	adminListener net.Listener // nil for none
}

func (s *servers) listen() (err error) {
	if s.mcpListener, err = net.Listen("tcp", s.o.listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if s.admin == nil {
		return nil
	}
	if s.adminListener, err = net.Listen("tcp", s.o.admin); err != nil {
		return errors.Join(fmt.Errorf("--admin: %w", err), s.mcpListener.Close())
	}
	return nil
}

// serve runs the ports and the configuration's source until ctx ends or one of them fails. The source goes on while
// calls finish.
func (s *servers) serve(ctx context.Context, src source) error {
	failed := make(chan error, 5)
	sourceCtx, stopSource := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	start := func(f func() error) {
		wait.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, context.Canceled) {
				failed <- err
			}
		})
	}
	start(func() error { return s.mcp.Serve(s.mcpListener) })
	if s.admin != nil {
		start(func() error { return s.admin.Serve(s.adminListener) })
	}
	start(func() error { return src.Run(sourceCtx) })
	start(func() error { return s.kin.serve(sourceCtx, s.proxy) })
	start(func() error { return s.hearHangups(sourceCtx, src) })
	var err error
	select {
	case <-ctx.Done():
		s.log.Info("draining", "for_at_most", s.o.drainTimeout)
	case err = <-failed:
	}
	s.stop()
	stopSource()
	wait.Wait()
	return err
}

// stop drains: streams end in good order and calls may finish, those that go on for other sidecars too; what is left at
// the end of the time is cut.
func (s *servers) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.drainTimeout)
	defer cancel()
	s.proxy.Drain()
	var kin sync.WaitGroup
	kin.Go(func() { s.kin.drain(ctx) })
	if err := s.mcp.Shutdown(ctx); err != nil {
		s.log.Warn("calls were still under way at the end of the drain", "error", err)
		_ = s.mcp.Close() // cuts what is left; there is nothing to do about a failure
	}
	kin.Wait()
	s.close()
}

// close ends what is behind the calls, and the listeners.
func (s *servers) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.proxy.Close(ctx)
	if err := errors.Join(s.issuers.Close(ctx), s.credentials.Close(ctx)); err != nil {
		s.log.Warn("issuers were still being asked for keys or tokens", "error", err)
	}
	s.kin.close()
	_ = s.mcpListener.Close() // it may be closed already
	if s.admin != nil {
		_ = s.admin.Close() // a scrape may be cut
		_ = s.adminListener.Close()
	}
}

// hearHangups passes on each SIGHUP until ctx ends.
func (s *servers) hearHangups(ctx context.Context, src source) error {
	for {
		select {
		case <-s.hangups:
			src.Hangup()
		case <-ctx.Done():
			return nil
		}
	}
}

// server is what carries the MCP port.
type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

// mcpServer carries plain calls by the fast path, with net/http behind it, and everything over TLS by net/http.
func mcpServer(p *proxy.Proxy, tlsConfig *tls.Config, log *slog.Logger) server {
	carrier := proxy.NewServer(p, tlsConfig, log)
	if tlsConfig != nil {
		return proxy.TLSServer{Server: carrier, MaxConns: http1.DefaultMaxConns}
	}
	return http1.New(p, carrier, http1.Options{Log: log})
}

func adminServer(o *options, p *proxy.Proxy, reg *prometheus.Registry, src source) *http.Server {
	if o.admin == "" {
		return nil
	}
	return &http.Server{
		Handler: admin.Handler(admin.Options{
			Gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { p.CountSessions(); return reg.Gather() }),
			Ready:    p.Ready, Running: p.Running, Source: func() any { return src.Status() }, Profiling: o.profiling,
		}),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
	}
}

// source is where the configuration comes from.
type source interface {
	// Start runs what is at hand, and returns when it does.
	Start() error
	// Run follows changes until its context ends.
	Run(context.Context) error
	// Hangup is what SIGHUP asks for.
	Hangup()
	// Status is what runs. It may be called at any time.
	Status() config.Status
}

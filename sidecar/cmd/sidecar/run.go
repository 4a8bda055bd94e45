package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/outrigger-mesh/outrigger/sidecar/admin"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/http1"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// run serves until ctx ends, then drains.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var access *telemetry.AccessLog
	if o.accessLog {
		access = telemetry.NewAccessLog(os.Stdout)
		defer access.Close()
	}
	p := proxy.New(proxy.Options{
		Log: log, Metrics: telemetry.NewMetrics(reg, buildVersion()), Access: access,
		Dial: proxy.Dialer{Log: log, CredentialsDir: o.credentialsDir, Version: buildVersion()}.Dial,
	})
	src, err := newSource(o, p, reg, log)
	if err != nil {
		return err
	}
	tlsConfig, err := serverTLS(o, log)
	if err != nil {
		return err
	}
	s := &servers{o: o, log: log, proxy: p, mcp: mcpServer(p, tlsConfig, log)}
	s.admin = adminServer(o, p, reg, src)
	if err := s.listen(); err != nil {
		return err
	}
	log.Info("sidecar started", "version", buildVersion(), "mcp", s.mcpAddr.String(), "admin", o.admin,
		"fleet_state", "in this process: sessions are this sidecar's own")
	return s.serve(ctx, src.Run)
}

// servers are the process's two ports and what stops with them.
type servers struct {
	o     *options
	log   *slog.Logger
	proxy *proxy.Proxy
	mcp   server
	admin *http.Server // nil for none

	mcpListener   net.Listener
	mcpAddr       net.Addr
	adminListener net.Listener
}

func (s *servers) listen() (err error) {
	if s.mcpListener, err = net.Listen("tcp", s.o.listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	s.mcpAddr = s.mcpListener.Addr()
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
func (s *servers) serve(ctx context.Context, source func(context.Context) error) error {
	failed := make(chan error, 3)
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
	start(func() error { return source(sourceCtx) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.stop()
	stopSource()
	wait.Wait()
	return err
}

// stop drains: streams end in good order and calls may finish; what is left at the end of the time is cut.
func (s *servers) stop() {
	s.log.Info("draining", "for_at_most", s.o.drainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), s.o.drainTimeout)
	defer cancel()
	s.proxy.Drain()
	if err := s.mcp.Shutdown(ctx); err != nil {
		s.log.Warn("calls were still under way at the end of the drain", "error", err)
		_ = s.mcp.Close() // cuts what is left; there is nothing to do about a failure
	}
	closing, cancelClose := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancelClose()
	s.proxy.Close(closing)
	if s.admin != nil {
		_ = s.admin.Close() // a scrape may be cut
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
		return tlsServer{carrier}
	}
	return http1.New(p, carrier, http1.Options{Log: log})
}

// tlsServer serves TLS whatever listener it is given.
type tlsServer struct{ *http.Server }

func (s tlsServer) Serve(l net.Listener) error { return s.ServeTLS(l, "", "") }

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
	Run(context.Context) error
	Status() config.Status
}

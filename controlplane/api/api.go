// Package api serves the management API: ResourceService as gRPC, gRPC-Web and
// JSON on one port, and /healthz.
//
// A write is checked against everything else that is stored, and stored only if
// nothing changed since: each one moves the generation key, on whose revision the
// next depends. So any number of replicas keep one valid whole without a leader.
// A refused request changes nothing and names every mistake at once.
//
// Every RPC needs the bearer token. An API is safe for concurrent use; it has no
// goroutines but its requests'. Not here: what a resource may say (package
// resource), and what became of it (the Fleet).
package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

// maxRequestBytes bounds a request's message.
const maxRequestBytes = 8 << 20

// Fleet knows what became of resources. Its results may be shared: they are not changed here.
type Fleet interface {
	// Status is what sidecars do with a resource, nil if none should run it.
	Status(kind, name string) *outriggerv1.Status
	// Revision is the store revision that a Status asked for after it is about, or an earlier one.
	Revision() int64
	// Sidecars are all that are known, ordered by id.
	Sidecars() []*outriggerv1.Sidecar
	// Revoke ends a sidecar's stream to this replica and forgets it.
	Revoke(nodeID string)
}

// Authority decides which sidecars are admitted.
type Authority interface {
	// Create makes a join token.
	Create(ctx context.Context, labels map[string]string, ttl time.Duration, maxUses int32) (token string, expires time.Time, err error)
	// Revoke takes back a sidecar's admission, and reports whether it had one.
	Revoke(ctx context.Context, nodeID string) (found bool, err error)
	// Pepper is with what sidecars hash API keys, to look them up.
	Pepper(ctx context.Context) ([]byte, error)
}

// Options say who may call. Token is required.
type Options struct {
	// Token is the bearer token that every RPC must carry.
	Token string
	// Origins are the Origin headers that are let in, such as "https://console.example". Default: none, so that no
	// page in a browser can call. No CORS headers are sent: this is for pages that the same host serves.
	Origins []string
	// Hosts are the Host headers accepted on a loopback listener beside localhost, 127.0.0.1 and [::1], without port.
	Hosts []string
	// Secrets seals what Secrets are given. Default nil: they are refused.
	Secrets *store.Secrets
	// Log gets failures that are not the caller's. Default: discarded.
	Log *slog.Logger
}

// API serves ResourceService.
type API struct {
	// Set by New, never changed.
	store     *store.Store
	fleet     Fleet
	authority Authority
	options   Options
	token     [sha256.Size]byte
	// bodyTimeout is the constant, but in tests.
	bodyTimeout time.Duration

	writing  chan struct{} // capacity 1: held by the request that writes
	watching chan struct{} // capacity maxWatches: one in it for each Watch
	stopped  chan struct{} // closed by Stop
	stopOnce sync.Once
}

// New makes an API over a store, which its caller closes after the last request.
func New(s *store.Store, f Fleet, au Authority, o Options) (*API, error) {
	if o.Token == "" {
		return nil, errors.New("api: no token: every caller would be let in")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &API{
		store:       s,
		fleet:       f,
		authority:   au,
		options:     o,
		token:       sha256.Sum256([]byte(o.Token)),
		writing:     make(chan struct{}, 1),
		bodyTimeout: bodyTimeout,
		watching:    make(chan struct{}, maxWatches),
		stopped:     make(chan struct{}),
	}, nil
}

// Handler serves the API's paths.
func (a *API) Handler() http.Handler {
	mux := http.NewServeMux()
	path, service := outriggerv1connect.NewResourceServiceHandler(a, connect.WithReadMaxBytes(maxRequestBytes), jsonCodecs())
	mux.Handle(path, a.authenticate(service))
	mux.HandleFunc("GET /healthz", a.health)
	return Guard(mux, a.options.Origins, a.options.Hosts)
}

// Server is an http.Server for Handler on addr, for HTTP/1.1 and HTTP/2 with or without TLS. It bounds the time of
// headers, bodies and idle or dead connections, not of answers, since a Watch goes on. Its Shutdown ends Watches.
func (a *API) Server(addr string) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Addr:              addr,
		Handler:           a.Handler(),
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: 30 * time.Second, WriteByteTimeout: 30 * time.Second},
		ErrorLog:          slog.NewLogLogger(a.options.Log.Handler(), slog.LevelWarn),
	}
	s.RegisterOnShutdown(a.Stop)
	return s
}

// Stop ends every Watch, now and later.
func (a *API) Stop() { a.stopOnce.Do(func() { close(a.stopped) }) }

// health answers whether the store can be read.
func (a *API) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if _, _, err := a.store.Get(ctx, store.GenerationKey); err != nil {
		a.options.Log.Warn("unhealthy: the store does not answer", "error", err)
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	}
	w.Write([]byte("ok\n"))
}

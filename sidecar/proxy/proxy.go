// Package proxy is the sidecar's call path: one HTTP request in, one answer out, on both wires.
//
// A request passes the steps of serve against the one endpoint it finds at the first; a configuration that lands
// meanwhile is the next request's. Nothing here waits for the control plane. Bodies are read whole, within a limit,
// and go on as the bytes they came as; answers are copied through, event by event where they stream.
//
// A Proxy is safe for concurrent use. Its goroutines are its requests', those of its endpoints' sessions, one for each
// endpoint or server that a new configuration replaced, until their last call has ended, and one once callers are asked who
// they are; Close waits for all.
// Not here: bytes (package mcp), servers (package upstream), sessions' streams (package session), how configuration
// arrives (package config).
package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Options are what a Proxy is made with. All but Access, Outside, Federate, Lone and Via are required.
type Options struct {
	Log     *slog.Logger
	Metrics *telemetry.Metrics
	Access  *telemetry.AccessLog // nil: no access lines
	// Dial makes the server that an Upstream names, without reaching for it. It fails when this sidecar lacks something
	// the resource needs, as a credential. The Secrets are nil when a resource is looked at alone.
	Dial func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error)
	// Outside is what Dial reads beside the resource, as a credential: a server is made anew when it has changed. Its
	// errors are Dial's. Nil: nothing.
	Outside func(*outriggerv1.Upstream, credential.Secrets) ([]byte, error)
	// Federate makes one server of several, for a binding with its defaults filled in. It owns none of them. Nil: a
	// binding that needs it is refused.
	Federate func(*outriggerv1.Binding, []federate.Member) upstream.Server
	// Lone offers one server by itself, for a binding with its defaults filled in, to stateless clients; it does not own it.
	// Nil: as it is.
	Lone func(*outriggerv1.Binding, federate.Member) upstream.Server
	// Via is the name of this process in Via headers, as Dial's servers send it. Empty: requests that come round are
	// not noticed.
	Via string
	// Callers compiles how callers prove who they are. Nil: a Policy that asks for it is refused, and nothing is allowed.
	Callers *authn.Authenticators
	// Pepper is what the hashes of Keys are made with. Where it fails, bindings that take keys allow nothing. Nil: nothing.
	Pepper func() ([]byte, error)
}

// Proxy serves the endpoints of the configuration last applied.
type Proxy struct {
	Options
	table     atomic.Pointer[table]
	documents atomic.Pointer[map[string][]byte] // protected-resource metadata by path; nil for none

	applying sync.Mutex     // held by Apply, Drain and Close
	retiring sync.WaitGroup // goroutines that wait for replaced endpoints and servers, and that of recheck
	rechecks bool           // whether recheck runs; guarded by applying
	every    time.Duration  // recheckEvery
	draining atomic.Bool
	closing  chan struct{} // closed by Close
}

// New makes a Proxy that serves nothing yet: every request is answered 404.
func New(o Options) *Proxy {
	p := &Proxy{Options: o, closing: make(chan struct{}), every: recheckEvery}
	p.table.Store(&table{})
	return p
}

// ServeHTTP writes exactly one answer: serve's, or its error's while nothing was written.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := exchanges.Get().(*exchange)
	defer x.release()
	x.p, x.w, x.r, x.start = p, w, r, time.Now()
	x.ctx, x.remote = r.Context(), r.RemoteAddr
	x.conclude(p.serve(x))
}

// conclude ends a request with what came of it, unless it rests.
func (x *exchange) conclude(err error) {
	if x.rests {
		return
	}
	if err != nil {
		x.refuse(err)
	}
	x.p.record(x)
	if x.aborted {
		panic(http.ErrAbortHandler) // the one way to tell a client that what it got is not whole
	}
}

// serve is a request's whole life. The order is a promise: what a stranger sends is not parsed before the request's
// head was judged, and everything after the first step sees one configuration.
func (p *Proxy) serve(x *exchange) error {
	ep, err := p.enter(x.r.URL.Path) // 1. which binding
	if err != nil {
		if x.serveMetadata() {
			return nil
		}
		return err
	}
	x.ep = ep
	if err := ep.admit(x.r); err != nil { // 2. whether it may be here
		return err
	}
	if err := x.identify(); err != nil { // and who it is
		return err
	}
	if x.r.Method != http.MethodPost {
		return x.serveBare()
	}
	if err := x.read(); err != nil { // 3. bytes become one MCP message, or a batch of them
		return err
	}
	if err := ep.comesRound(x.r); err != nil { // not before: the refusal has the request's id
		return err
	}
	if x.batch {
		return x.serveBatch()
	}
	x.era = mcp.Classify(x.r.Method, x.r.Header, &x.msg) // 4. which wire
	if x.era == mcp.Stateless {
		return x.serveStateless() // 5. to the server, and its answer back
	}
	return x.serveLegacy()
}

// serveBare answers requests without a body: the legacy wire's stream and the end of its session.
func (x *exchange) serveBare() error {
	x.era, x.label = mcp.Legacy, x.r.Method
	if err := x.ep.comesRound(x.r); err != nil {
		return err
	}
	if x.r.ContentLength != 0 { // which means nothing here, but has to be off the connection
		if err := x.readBody(); err != nil {
			return err
		}
	}
	switch x.r.Method {
	case http.MethodGet:
		return x.serveListen()
	case http.MethodDelete:
		return x.serveDelete()
	default:
		x.label = ""
		return x.notAllowed()
	}
}

// record counts the request and writes its access line.
func (p *Proxy) record(x *exchange) {
	if x.batch && x.outcome == telemetry.OK {
		return // its members were recorded
	}
	line := telemetry.Line{
		Time: x.start, Era: x.era.String(), Method: x.label, Name: x.msg.Name, Remote: x.remote, Status: x.status,
		Outcome: x.outcome, Reason: x.reason, Took: time.Since(x.start), BytesIn: int64(len(x.body)), BytesOut: x.out,
	}
	if x.ep == nil && x.reason == "" {
		return // metadata, which are no call
	}
	if x.ep == nil {
		p.Metrics.RefusalOutside(x.reason)
		line.Name = []byte(x.r.URL.Path) // what was asked for in vain
	} else {
		x.ep.metrics.Observe(x.era, x.label, x.outcome, line.Took)
		if x.outcome == telemetry.Refused || x.outcome == telemetry.Failed {
			x.ep.metrics.Refusal(x.reason)
		}
		line.Binding, line.Upstream = x.ep.name, x.ep.server.name
		line.Policy, line.Rule, line.AuditPolicy, line.AuditRule = x.decided.policy, x.decided.rule, x.shadow.policy, x.shadow.rule
		if x.who != nil {
			line.Principal, line.Tenant = x.who.ID, x.who.Tenant
		}
	}
	if p.Access == nil || x.ep != nil && !x.ep.accessLog {
		return
	}
	if id := x.msg.ID.Of(x.msg.Raw); len(id) <= maxLoggedID {
		line.ID = id
	}
	p.Access.Write(&line)
}

// maxLoggedID is the longest request id that an access line shows.
const maxLoggedID = 128

// Drain makes endpoints end their open streams in good order and refuse new sessions; calls go on. The HTTP server's
// Shutdown, which waits for them, comes after it.
func (p *Proxy) Drain() {
	p.applying.Lock()
	defer p.applying.Unlock()
	p.draining.Store(true)
	p.table.Load().drain()
}

// Close ends every session, then every server, within ctx, those of all endpoints at once. Requests must have ended, or
// be given up. It is called once.
func (p *Proxy) Close(ctx context.Context) {
	p.applying.Lock()
	defer p.applying.Unlock()
	close(p.closing)
	old := p.table.Swap(&table{})
	old.drain()
	var ends sync.WaitGroup
	for _, ep := range old.endpoints {
		ends.Go(func() { ep.sessions.Close(ctx) })
	}
	ends.Wait()
	for _, s := range old.servers {
		ends.Go(func() { p.closeServer(ctx, s) })
	}
	ends.Wait()
	p.retiring.Wait()
}

func (p *Proxy) closeServer(ctx context.Context, s *server) {
	if err := s.Close(ctx); err != nil {
		p.Log.Warn("server did not close in good order", "upstream", s.name, "error", err)
	}
}

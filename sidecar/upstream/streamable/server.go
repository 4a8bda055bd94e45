// Package streamable reaches an MCP server over Streamable HTTP, on either wire (MCP 2026-07-28 and 2025-11-25,
// basic/transports).
//
// A Server asks which eras its peer speaks, sends stateless calls one by one, and opens legacy sessions. Beneath it is a
// small HTTP/1.1 client (pool, conn, request, response, exchange) that costs little: no goroutine for a connection, one
// write for a call, an answer's head parsed in place, and bodies streamed straight from the socket. It takes less of
// HTTP than net/http does and reads nothing differently.
//
// A request is never sent twice once the server may have seen a byte of it, except after a 404 that says that a session
// is gone, or a 401 with a challenge where there is another token to present. A session that broke off in the middle of
// an event stream is resumed by event id; a broken connection is not a dead session.
//
// A Server is safe for concurrent use. Its goroutines are bounded tasks (probes, re-openings, cancellations) that Close
// waits for. Not here: what a client sees of a failure, or which client may call (package proxy).
package streamable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Options are what a Server needs beside its resource.
type Options struct {
	Log        *slog.Logger       // with the upstream's name already; default: nothing is logged
	Credential *credential.Source // what every request presents; nil for nothing
	UserAgent  string             // default "outrigger"
	ClientInfo ClientInfo         // how the sidecar's own probes and checks introduce themselves; default: name "outrigger"
	Via        string             // the name by which this process knows itself in Via (RFC 9110, 7.6.3); default: no Via is sent
}

// ClientInfo is MCP's Implementation.
type ClientInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Server is one MCP server behind Streamable HTTP. It is an upstream.Server.
type Server struct {
	// Set by New, never changed.
	client   client
	log      *slog.Logger
	timeouts upstream.Timeouts
	own      ownMessages
	tasks    *background.Tasks

	eras    eraCache
	checker checker

	mu       sync.Mutex // guards below
	sessions map[*session]struct{}
	closed   bool
}

var _ upstream.Server = (*Server)(nil)

// New makes the Server for a resource with the http transport. It connects to nothing. Errors say what in the resource
// or the options cannot be used: a URL, or a file of authorities.
func New(name string, spec *outriggerv1.Upstream, o Options) (*Server, error) {
	h := spec.GetHttp()
	if h == nil {
		return nil, errors.New("http: required")
	}
	to, err := url.Parse(h.GetUrl())
	if err != nil || to.Hostname() == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, fmt.Errorf("http.url: %q is not an absolute http or https URL", h.GetUrl())
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		log:      o.Log,
		timeouts: upstream.TimeoutsOf(spec.GetTimeouts()),
		own:      newOwnMessages(o.ClientInfo),
		tasks:    background.New(),
		eras:     eraCache{fixed: fixedEras(spec.GetEra()), probes: make(map[string]*flight[mcp.Eras])},
		checker:  checker{turn: make(chan struct{}, 1)},
		sessions: make(map[*session]struct{}),
	}
	s.client.upstream, s.client.log, s.client.tasks = name, s.log, s.tasks
	s.client.credential = o.Credential
	s.client.varies = o.Credential.Varies()
	s.client.post = fixedHead(http.MethodPost, to, o)
	s.client.get = fixedHead(http.MethodGet, to, o)
	s.client.del = fixedHead(http.MethodDelete, to, o)
	if err := s.client.pool.address(to, h, s.timeouts.Connect); err != nil {
		return nil, err
	}
	return s, nil
}

// complete fills in defaults and refuses what could not stand in a header.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.UserAgent == "" {
		o.UserAgent = "outrigger"
	}
	if o.ClientInfo.Name == "" {
		o.ClientInfo = ClientInfo{Name: "outrigger", Version: "0"}
	}
	if _, err := appendField(nil, "User-Agent", o.UserAgent); err != nil {
		return fmt.Errorf("user agent: %w", err)
	}
	return nil
}

// Call sends one stateless request or notification. A cancellation goes no further: its id could be that of another
// client's request, and the end of a stream is what cancels (2026-07-28, basic/transports/streamable-http, Cancellation).
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if c.Message.Kind == mcp.Notification && c.Message.Method == mcp.NotificationCancelled {
		return &upstream.Answer{Status: http.StatusAccepted}, nil
	}
	r := request{
		method: http.MethodPost, body: c.Message.Raw, relay: c.Header, timeout: s.timeouts.Call,
		id: idOf(c.Message), caller: c.Caller,
	}
	r.mirror(c.Message, c.Header)
	x, err := s.client.send(ctx, &r)
	if err != nil {
		return nil, err
	}
	if x.head.status >= 400 {
		return s.refused(x, c.Message)
	}
	return x.answer(c.Message, s.callEvents)
}

// refused is the Answer of a call that the server answered with an error's status.
func (s *Server) refused(x *exchange, m *mcp.Message) (*upstream.Answer, error) {
	refused, err := x.errorAnswer()
	if err != nil {
		return nil, err
	}
	if refused.deniesStateless() {
		s.eras.forget()
	}
	return refused.answer(idOf(m))
}

// callEvents are a stateless call's events. A subscription lives as long as both sides like.
func (s *Server) callEvents(x *exchange, m *mcp.Message) upstream.EventStream {
	if m.Method == mcp.MethodListen {
		s := &listened{events{stateless: true}}
		s.begin(x)
		x.conn.limitNow(time.Time{})
		s.reader.Rest(x.await, x.buffered)
		return s
	}
	e := &events{stateless: true}
	e.begin(x)
	return e
}

// Close ends the sessions, then every connection, and waits for what runs in the background. The bound is ctx.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	open := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	err := endAll(ctx, open)
	s.tasks.Stop()
	s.client.pool.close()
	return errors.Join(err, s.tasks.Wait(ctx))
}

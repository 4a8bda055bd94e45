// Package sse reaches an MCP server over HTTP+SSE, the transport of MCP 2024-11-05 that later versions deprecate.
//
// One GET is one session (link): its stream begins with an endpoint event, which names the place on the same origin
// where messages are POSTed, and everything that the server says comes on it. Responses are told apart by their ids, as
// the client chose them: a link belongs to one client. This wire does not say to which call anything else belongs; the
// rules for that stand at link.route. A session whose link ended is opened again with the client's own initialize when
// it is next used; what was in flight is lost.
//
// A Server is safe for concurrent use. Its goroutines are one for each link and bounded tasks (POSTs, re-openings,
// cancellations), which Close waits for. Not here: what a client sees of a failure, or which client may call (package
// proxy); clients of the stateless wire (package bridge/tolegacy).
package sse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/sync/errgroup"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

const (
	closingTogether = 16 // sessions ended at once when a Server closes
)

// Options are what a Server needs beside its resource.
type Options struct {
	Log        *slog.Logger          // with the upstream's name already; default: nothing is logged
	Credential *credential.Source    // what every request presents; nil for nothing
	UserAgent  string                // default "outrigger"
	Via        string                // as streamable.Options.Via; default: no Via is sent
	ClientInfo streamable.ClientInfo // how the sidecar's own checks introduce themselves; default: name "outrigger"
}

// Server is one MCP server behind HTTP+SSE. It is an upstream.Server.
type Server struct {
	// Set by New, never changed.
	name     string
	log      *slog.Logger
	timeouts upstream.Timeouts
	client   *client
	own      ownMessages
	tasks    *background.Tasks

	checker checker

	mu       sync.Mutex // guards below
	sessions map[*session]struct{}
	closed   bool
}

var _ upstream.Server = (*Server)(nil)

// New makes the Server for a resource with the sse transport. It connects to nothing. Errors say what in the resource or
// the options cannot be used: a URL, or a file of authorities.
func New(name string, spec *outriggerv1.Upstream, o Options) (*Server, error) {
	to, err := url.Parse(spec.GetSse().GetUrl())
	if err != nil || to.Hostname() == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, fmt.Errorf("sse.url: %q is not an absolute http or https URL", spec.GetSse().GetUrl())
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		name:     name,
		log:      o.Log,
		timeouts: upstream.TimeoutsOf(spec.GetTimeouts()),
		own:      newOwnMessages(o.ClientInfo),
		tasks:    background.New(),
		checker:  checker{turn: make(chan struct{}, 1)},
		sessions: make(map[*session]struct{}),
	}
	s.client, err = newClient(name, to, spec.GetSse().GetCaFile(), s.timeouts.Connect, o)
	if err != nil {
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
		o.ClientInfo = streamable.ClientInfo{Name: "outrigger", Version: "0"}
	}
	if !httpguts.ValidHeaderFieldValue(o.UserAgent) {
		return errors.New("user agent: a control character in a header")
	}
	return nil
}

// Eras implements upstream.Server. The transport itself says it: it has sessions and no other wire.
func (s *Server) Eras(context.Context) (mcp.Eras, error) { return mcp.EraSet(mcp.Legacy), nil }

// Call implements upstream.Server.
func (s *Server) Call(context.Context, *upstream.Call) (*upstream.Answer, error) {
	return nil, s.fault(upstream.WrongEra, "is reached over HTTP+SSE, which has no stateless calls", nil)
}

// Open implements upstream.Server.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	ses := newSession(s, c)
	ctx, stop := context.WithTimeout(ctx, s.timeouts.Handshake)
	defer stop()
	l, response, err := ses.connect(ctx, c.Header)
	switch {
	case err != nil:
		return nil, nil, err
	case l == nil:
		return nil, upstream.Whole(http.StatusOK, response), nil
	}
	ses.current = l
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.end(s.fault(upstream.Lost, "the upstream was removed", errClosed))
		return nil, nil, s.fault(upstream.Lost, "the upstream was removed", errClosed)
	}
	s.sessions[ses] = struct{}{}
	return ses, upstream.Whole(http.StatusOK, response), nil
}

// Close implements upstream.Server. Nothing on this wire tells of a session's end but the end of its stream, so nothing
// waits for the server.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	open := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(closingTogether)
	for ses := range open {
		g.Go(func() error { return ses.Close(ctx) })
	}
	err := g.Wait()
	s.tasks.Stop()
	err = errors.Join(err, s.tasks.Wait(ctx))
	s.client.transport.CloseIdleConnections()
	return err
}

func (s *Server) fault(kind upstream.Kind, detail string, cause error) *upstream.Error {
	return s.client.fault(kind, detail, cause)
}

// errClosed is the cause of failures that the sidecar brought about.
var errClosed = errors.New("closed")

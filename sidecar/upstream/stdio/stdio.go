// Package stdio is an MCP server that is a process, spoken with over its standard input and output.
//
// A Server starts its process when it is first needed, finds out which wires it speaks, and starts it again whenever it
// ends. Many clients share the one process: every request gets an id of the pipe's own, and what comes back goes to the
// client it belongs to, with that client's id. A process sees one wire and at most one initialize in its life; a server
// that speaks both wires runs as two processes, the second started by the first legacy session.
//
// What a server says without naming a call, log messages above all, is delivered only when it can be no other client's:
// while one legacy session is open, or one stateless call in flight. Otherwise it is dropped.
//
// With isolation "session" each legacy session has a process of its own, and the server may ask that client anything.
// The supervised process then serves stateless calls and readiness checks only.
//
// A message longer than the limit costs the call it answers, not the process (see pipe.receive).
//
// On the stateless wire each client's subscriptions/listen is one on the pipe, as the specification allows. Servers of
// go-sdk 1.8 keep only the newest listen of a process for each kind of change: with several listening clients of such a
// server, only the last one hears of it.
//
// A Server is safe for concurrent use. It runs on Linux. Not here: starting a session for a client that does not know
// sessions, or the reverse.
package stdio

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	defaultMaxMessage = 64 << 20        // bytes
	probeTime         = 3 * time.Second // for an answer to server/discover, after which the server is taken for a legacy one
)

// Options are what a Server needs beside its resource.
type Options struct {
	Log *slog.Logger // required; it names the upstream already
	// What the sidecar calls itself in handshakes of its own.
	ClientName, ClientVersion string
}

// Server implements upstream.Server.
type Server struct {
	// Set by New, never changed.
	name       string
	log        *slog.Logger
	clientInfo string // JSON
	command    command
	maxMessage int
	isolated   bool
	times      upstream.Timeouts
	fixed      mcp.Eras // as configured; 0 for auto

	primary *supervisor // finds the era; serves every call, unless the server speaks both wires
	legacy  *supervisor // serves the legacy sessions of a server that speaks both wires
	pool    *pool       // the sessions that share a process
	own     *sessions   // the sessions that do not

	mu        sync.Mutex // guards below
	eras      mcp.Eras   // the verdict; 0 while there is none
	split     bool       // it spoke both wires when last asked, so legacy has the legacy sessions
	skipProbe bool       // the last process ended, or said nothing, when it was probed
}

// New makes a Server for an Upstream whose transport is stdio. It starts nothing. It fails on other systems than Linux.
func New(name string, spec *outriggerv1.Upstream, o Options) (*Server, error) {
	if !supported {
		return nil, &upstream.Error{Kind: upstream.Unreachable, Upstream: name, Detail: "a server over stdio needs Linux"}
	}
	stdio := spec.GetStdio()
	if len(stdio.GetCommand()) == 0 {
		return nil, &upstream.Error{Kind: upstream.Unreachable, Upstream: name, Detail: "it has no command"}
	}
	info, err := json.Marshal(map[string]string{"name": o.ClientName, "version": o.ClientVersion})
	if err != nil {
		return nil, err
	}
	s := &Server{
		name: name, log: o.Log, clientInfo: string(info), command: newCommand(stdio),
		maxMessage: defaultMaxMessage, isolated: stdio.GetIsolation() == outriggerv1.Isolation_ISOLATION_SESSION,
		times: upstream.TimeoutsOf(spec.GetTimeouts()),
	}
	if n := stdio.GetMaxMessageBytes(); n > 0 {
		s.maxMessage = int(min(n, 1<<40))
	}
	switch spec.GetEra() {
	case outriggerv1.Era_ERA_LEGACY:
		s.fixed = mcp.EraSet(mcp.Legacy)
	case outriggerv1.Era_ERA_STATELESS:
		s.fixed = mcp.EraSet(mcp.Stateless)
	}
	s.eras = s.fixed
	s.primary = newSupervisor(name, s.log, s.launchPrimary)
	s.legacy = newSupervisor(name, s.log, s.launchLegacy)
	s.pool = newPool(s)
	s.own = newSessions()
	return s, nil
}

func (s *Server) fault(kind upstream.Kind, detail string, cause error) error {
	return &upstream.Error{Kind: kind, Upstream: s.name, Detail: detail, Cause: cause}
}

// Eras implements upstream.Server.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	if eras := s.known(); eras != 0 {
		return eras, nil
	}
	if _, err := s.primary.get(ctx, s.times.Connect+s.times.Handshake); err != nil {
		return 0, err
	}
	return s.known(), nil
}

// need returns an error unless the server speaks the era.
func (s *Server) need(ctx context.Context, era mcp.Era) error {
	eras, err := s.Eras(ctx)
	if err == nil && !eras.Has(era) {
		err = s.fault(upstream.WrongEra, "it does not speak the "+era.String()+" wire", nil)
	}
	return err
}

// lineFor is the supervisor of the process that serves an era.
func (s *Server) lineFor(era mcp.Era) *supervisor {
	s.mu.Lock()
	defer s.mu.Unlock()
	if era == mcp.Legacy && s.split {
		return s.legacy
	}
	return s.primary
}

// running is the pipe that serves an era now; nil when there is none.
func (s *Server) running(era mcp.Era) *pipe {
	line := s.lineFor(era)
	line.mu.Lock()
	defer line.mu.Unlock()
	return line.pipe
}

// pipeFor waits up to wait for a process that speaks the era.
func (s *Server) pipeFor(ctx context.Context, era mcp.Era, wait time.Duration) (*pipe, error) {
	p, err := s.lineFor(era).get(ctx, wait)
	if err == nil && p.era != era {
		return nil, s.fault(upstream.WrongEra, "it does not speak the "+era.String()+" wire any more", nil)
	}
	return p, err
}

// Call implements upstream.Server.
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if err := s.need(ctx, mcp.Stateless); err != nil {
		return nil, err
	}
	m := c.Message
	if m.Kind == mcp.Notification && m.Method == mcp.NotificationCancelled {
		return &upstream.Answer{Status: 202}, nil // it could be any client's id; a stateless client ends its stream instead
	}
	p, err := s.pipeFor(ctx, mcp.Stateless, s.times.Connect)
	if err != nil {
		return nil, err
	}
	if m.Kind != mcp.Request {
		if err := p.notify(m); err != nil {
			return nil, err
		}
		return &upstream.Answer{Status: 202}, nil
	}
	k, err := p.begin(ctx, m, order{timeout: s.times.Call})
	if err != nil {
		return nil, err
	}
	return k.answer()
}

// Open implements upstream.Server.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	if err := s.need(ctx, mcp.Legacy); err != nil {
		return nil, nil, err
	}
	if s.isolated {
		return s.openOwn(ctx, c.Message)
	}
	return s.pool.open(ctx, c.Message)
}

// Check implements upstream.Server: a ping on the legacy wire, server/discover on the stateless one.
func (s *Server) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.Handshake)
	defer cancel()
	p, err := s.primary.get(ctx, s.times.Handshake)
	if err != nil {
		return err
	}
	question := `{"jsonrpc":"2.0","id":0,"method":"` + mcp.MethodPing + `"}`
	if p.era == mcp.Stateless {
		question = s.discover()
	}
	_, err = p.ask(ctx, question) // whatever it says, it answers
	return err
}

// Close implements upstream.Server.
func (s *Server) Close(ctx context.Context) error {
	var all sync.WaitGroup
	all.Go(func() { s.primary.close(ctx) })
	all.Go(func() { s.legacy.close(ctx) })
	all.Go(func() { s.own.close(ctx) })
	all.Wait()
	s.pool.close()
	return nil
}

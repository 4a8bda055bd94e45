// Package tolegacy lets stateless clients (MCP 2026-07-28) use a legacy server, one that knows sessions only.
//
// A Server wraps another upstream.Server. What the wrapped one speaks itself goes straight through. When it speaks the
// legacy wire alone, a call of the stateless wire is carried by a session that is kept for its principal and for exactly
// the capabilities it declares:
//
//   - A request is rewritten into the session's wire, with an id and a progress token of our own, and its answer back.
//   - What the server asks during a call ends the client's request with input_required; the call is held open at the
//     server until the client's retry brings the answers (hold.go), and is never run a second time.
//   - server/discover is answered from the server's own initialize; subscriptions/listen is fed by the session's stream.
//   - A client that leaves cancels its call at the server.
//
// Principals never share a session. The clients of one principal that declare the same capabilities do, so a server that
// keeps something in its session, such as a cart, keeps it for all of them; principals that nobody knows are one.
//
// Not here: the other direction (package tostateless), how a sidecar finds another that holds a call (Options.Peers).
package tolegacy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Options are what a Server needs beside the one it wraps.
type Options struct {
	Log *slog.Logger // with the upstream's name already; default: nothing is logged

	// Upstream is the resource: its name, and its bridge settings and timeouts, whose defaults are filled in.
	Upstream *outriggerv1.Upstream

	Sealer *seal.Sealer // of request states; default: one with a random key of its own
	Holder Holder       // this sidecar, as states name it; default: a random ID
	Peers  Peers        // default: a state of another holder is refused

	// Budget bounds the answers that are in memory, of this Server and of whoever else has it; default: none
	Budget *budget.Budget

	// ClientInfo introduces sessions for clients that do not say who they are, and the sidecar's own: an Implementation
	// in JSON. Default: the name outrigger.
	ClientInfo []byte
}

// Holder is a sidecar that holds calls.
type Holder struct {
	ID      string // unique in the fleet
	Address string // where its PeerService listens; empty when it has none
}

// Peers reaches the other sidecars of a fleet.
type Peers interface {
	// Resume hands a retry to the sidecar that holds its call. The stream's last message is the response, with the
	// request's id. Closing it, and the end of ctx, are the client's leaving. Errors: an *upstream.Error, or any other
	// for a holder that cannot be reached.
	Resume(ctx context.Context, holder Holder, r *outriggerv1.ResumeRequest) (upstream.EventStream, error)
}

// Server is a legacy server with which stateless clients can speak. It is an upstream.Server and safe for concurrent use.
type Server struct {
	// Set by New, never changed.
	inner      upstream.Server
	name       string
	log        *slog.Logger
	sealer     *seal.Sealer
	holder     Holder
	peers      Peers
	budget     *budget.Budget
	clientInfo []byte
	settings   settings
	tasks      *background.Tasks
	pool       *pool
	held       *heldCalls
	declared   *capabilityCache
	discovery  discovery
	mirrored   mirror.Tools

	lastID atomic.Int64 // of requests at the server
}

// settings are Bridge and Timeouts as numbers.
type settings struct {
	enabled     bool
	maxSessions int
	sessionIdle time.Duration
	maxHeld     int
	heldTimeout time.Duration
	maxRounds   int
	onPipe      bool // the server is a process, which says everything in one place
	times       upstream.Timeouts
}

var _ upstream.Server = (*Server)(nil)

// New wraps inner, which it owns from then on. It asks nothing of it.
func New(inner upstream.Server, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Sealer == nil {
		o.Sealer = seal.New()
	}
	if o.Holder.ID == "" {
		o.Holder.ID = rand.Text()
	}
	if !rawjson.IsObject(o.ClientInfo) || !json.Valid(o.ClientInfo) {
		o.ClientInfo = []byte(`{"name":"outrigger","version":"0"}`)
	}
	if o.Upstream == nil {
		o.Upstream = &outriggerv1.Upstream{}
	}
	spec := resource.WithDefaults(o.Upstream)
	b := spec.GetBridge()
	s := &Server{
		inner: inner, name: spec.GetName(), log: o.Log, sealer: o.Sealer, holder: o.Holder, peers: o.Peers, budget: o.Budget,
		clientInfo: o.ClientInfo, tasks: background.New(), declared: newCapabilityCache(),
		settings: settings{
			enabled: b.GetEnabled(), maxSessions: int(b.GetMaxSessions()), sessionIdle: b.GetSessionIdle().AsDuration(),
			maxHeld: int(b.GetMaxHeldCalls()), heldTimeout: b.GetHeldTimeout().AsDuration(),
			maxRounds: int(b.GetMaxRounds()), onPipe: spec.GetStdio() != nil, times: upstream.TimeoutsOf(spec.GetTimeouts()),
		},
	}
	s.pool = newPool(s)
	s.held = newHeldCalls(s.settings.maxHeld, o.Budget)
	return s
}

// Eras implements upstream.Server: what the wrapped server speaks, and Stateless in any case.
func (s *Server) Eras(ctx context.Context) (mcp.Eras, error) {
	eras, err := s.inner.Eras(ctx)
	if err == nil && s.settings.enabled && eras.Has(mcp.Legacy) {
		eras |= mcp.EraSet(mcp.Stateless)
	}
	return eras, err
}

// translates reports whether a stateless call has to be translated.
func (s *Server) translates(ctx context.Context) (bool, error) {
	if !s.settings.enabled {
		return false, nil
	}
	eras, err := s.inner.Eras(ctx)
	return !eras.Has(mcp.Stateless) && eras.Has(mcp.Legacy), err
}

// Call implements upstream.Server.
func (s *Server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	translates, err := s.translates(ctx)
	switch {
	case err != nil:
		return nil, err
	case !translates:
		return s.inner.Call(ctx, c)
	case c.Message.Kind != mcp.Request:
		return &upstream.Answer{Status: 202}, nil // none of a stateless client's notifications has a meaning in a session
	}
	switch c.Message.Method {
	case mcp.MethodDiscover:
		return s.discover(ctx, c.Message)
	case mcp.MethodListen:
		return s.listen(ctx, c)
	case mcp.MethodToolsList, mcp.MethodToolsCall, mcp.MethodPromptsList, mcp.MethodPromptsGet, mcp.MethodResourcesList,
		mcp.MethodResourceTemplatesList, mcp.MethodResourcesRead, mcp.MethodComplete:
		return s.carry(ctx, c)
	}
	// What 2026-07-28 took away, tasks, which the two wires have in different forms, and what neither wire knows.
	return refusal(c.Message, &mcp.Error{Code: mcp.CodeMethodNotFound, Message: "this server does not have the method"}), nil
}

// Resume goes on with a call that this Server holds, for the other sidecar that its client's retry came to. Unlike Call it
// asks no other sidecar. The end of ctx is the client's leaving. Errors are Call's; a retry that cannot be used is answered
// with a JSON-RPC error.
func (s *Server) Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
	m, err := mcp.ScanAnswer(r.GetMessage())
	if err != nil {
		return nil, err
	}
	o, refused := s.read(&upstream.Call{Message: &m, Principal: r.GetPrincipal(), Binding: r.GetBinding()})
	switch {
	case refused != nil:
		return refusal(&m, refused), nil
	case o.state == "":
		return refusal(&m, invalid("a retry needs its requestState")), nil
	}
	return s.retry(ctx, o, false)
}

// Open implements upstream.Server: legacy clients speak with the wrapped server as it is.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	return s.inner.Open(ctx, c)
}

// Check implements upstream.Server.
func (s *Server) Check(ctx context.Context) error { return s.inner.Check(ctx) }

// Close implements upstream.Server: it ends the held calls, the listens and the sessions, then the wrapped server.
func (s *Server) Close(ctx context.Context) error {
	s.pool.stop()
	s.held.stop()
	s.tasks.Stop()
	return errors.Join(s.tasks.Wait(ctx), s.pool.close(ctx), s.inner.Close(ctx))
}

func (s *Server) fault(kind upstream.Kind, detail string, cause error) *upstream.Error {
	return &upstream.Error{Kind: kind, Upstream: s.name, Detail: detail, Cause: cause}
}

// brief is a context for what nobody waits for: it ends with the Server, or after a handshake's time.
func (s *Server) brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.tasks.Context(), s.settings.times.Handshake)
}

// isGone reports whether a session refused a call because it is no more: the call did not happen.
func isGone(err error) bool {
	var failed *upstream.Error
	return errors.As(err, &failed) && failed.Kind == upstream.SessionGone
}

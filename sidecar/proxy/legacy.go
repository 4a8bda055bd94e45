package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/session"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxInitialize is the longest initialize that a client may send: it is kept as long as its session.
	maxInitialize = 64 << 10
	// maxInitializeResult is the longest InitializeResult that a server may give.
	maxInitializeResult = 1 << 20
	// deleteTimeout bounds telling the server of a DELETE.
	deleteTimeout = 5 * time.Second
)

// serveLegacy carries one message of the wires with sessions.
func (x *exchange) serveLegacy() error {
	if x.msg.Kind == mcp.Request && x.msg.Method == mcp.MethodInitialize {
		return x.initialize()
	}
	s, err := x.session()
	if err != nil {
		return err
	}
	if err := x.authorise(s.Upstream); err != nil {
		return err
	}
	if x.msg.Kind == mcp.Request {
		return x.callSession(s)
	}
	return x.tellSession(s)
}

// session finds the session that the request names (2025-11-25, basic/transports, Session Management): 400 when it
// names none, 404 when the session is unknown or over.
func (x *exchange) session() (*session.Session, error) {
	if e := mcp.CheckLegacyVersion(x.r.Header); e != nil {
		return nil, e
	}
	ids := x.r.Header[mcp.HeaderSessionID]
	if len(ids) != 1 {
		return nil, &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "session_required",
			message: "exactly one Mcp-Session-Id header is required: initialize first"}
	}
	if s := x.ep.sessions.Get(ids[0], x.ownerID()); s != nil {
		return s, nil
	}
	return nil, &refusal{status: http.StatusNotFound, code: mcp.CodeInvalidRequest, reason: "session_unknown",
		message: "this session is unknown or has ended: initialize again"}
}

// ownerID is whose the sessions are that the request may open and use; empty where nobody is asked.
func (x *exchange) ownerID() string {
	if x.who == nil {
		return ""
	}
	return x.who.ID
}

// callSession carries a request. Its context is the session's: a client that leaves has not cancelled.
func (x *exchange) callSession(s *session.Session) error {
	ctx, done, err := x.begin(s)
	if err != nil {
		return err
	}
	defer done()
	a, err := s.Upstream.Call(ctx, x.call())
	if err != nil {
		return lostSession(s, err)
	}
	defer a.Close()
	if err := x.filter(a); err != nil {
		return err
	}
	if a.Events != nil {
		return x.keep(s.NewStream(), s.Version, a.Events)
	}
	return x.writeBody(a)
}

// begin registers the request as in flight in its session, until done is called.
func (x *exchange) begin(s *session.Session) (ctx context.Context, done func(), err error) {
	ctx, done, err = s.Begin(x.msg.ID.Of(x.msg.Raw))
	if err != nil {
		err = &refusal{status: http.StatusTooManyRequests, code: mcp.CodeInternalError, reason: "too_many_calls",
			message: err.Error(), retry: 1}
	}
	return ctx, done, err
}

// tellSession carries a notification, or the client's response to a request of the server's: 202 once the server has it.
func (x *exchange) tellSession(s *session.Session) error {
	if err := x.tell(s); err != nil {
		return err
	}
	return x.accepted()
}

// tell sends a message to which there is no answer.
func (x *exchange) tell(s *session.Session) error {
	if _, err := s.Upstream.Call(s.Context(), x.call()); err != nil {
		return lostSession(s, err)
	}
	if x.msg.Method == mcp.NotificationCancelled {
		s.Cancel(x.msg.RequestID.Of(x.msg.Raw))
	}
	return nil
}

// lostSession ends the client's session too when the server's is gone for good: its next use is answered 404.
func lostSession(s *session.Session, err error) error {
	s.EndIfGone(err)
	return err
}

// initialize opens a session at the server and one for the client. A server that did not name a version with sessions is
// asked all the same, unless configured: server/discover need not list what only initialize negotiates.
func (x *exchange) initialize() error {
	if len(x.msg.Raw) > maxInitialize {
		return tooLarge(maxInitialize)
	}
	if err := x.authorise(nil); err != nil {
		return err
	}
	served, err := x.ep.server.Eras(upstream.WithVia(x.ctx, x.r.Header))
	if err != nil {
		return err
	}
	if !served.Has(mcp.Legacy) && x.ep.server.spec.GetEra() == outriggerv1.Era_ERA_STATELESS {
		return x.noSessions()
	}
	if x.p.draining.Load() || x.ep.sessions.Reserve() != nil {
		return &refusal{status: http.StatusServiceUnavailable, code: mcp.CodeInternalError, reason: "sessions_full",
			message: "this sidecar takes no more sessions now", retry: 5}
	}
	x.offerLegacy()
	up, a, err := x.ep.server.Open(x.ctx, x.call())
	if err != nil {
		x.ep.sessions.Release()
		return x.eraError(err)
	}
	defer a.Close()
	if up == nil {
		x.ep.sessions.Release()
		if !served.Has(mcp.Legacy) {
			return x.noSessions()
		}
		return x.writeBody(a)
	}
	return x.welcome(up, a)
}

// offerLegacy replaces a version that has no sessions, or that nobody knows, by the newest that has: an initialize is
// never answered with a stateless version.
func (x *exchange) offerLegacy() {
	if mcp.IsLegacyVersion(string(x.msg.Version)) || !x.msg.VersionSpan.Present() {
		return
	}
	raw := mcp.Splice(nil, x.msg.Raw, mcp.Edit{Span: x.msg.VersionSpan, With: []byte(`"` + mcp.NewestLegacy + `"`)})
	if m, err := mcp.Scan(raw, x.ep.limits); err == nil {
		x.msg = m
	}
}

// welcome makes the client's session out of the server's and answers initialize with the server's own words.
func (x *exchange) welcome(up upstream.Session, a *upstream.Answer) error {
	body, version, err := readInitializeResult(a.Body)
	if err != nil {
		x.ep.sessions.Release()
		x.closeUpstream(up)
		return &upstream.Error{Kind: upstream.BadAnswer, Upstream: x.ep.server.name, Detail: err.Error()}
	}
	s := x.ep.sessions.Add(up, version, x.ownerID())
	if s == nil { // the endpoint was replaced meanwhile
		x.closeUpstream(up)
		return &refusal{status: http.StatusServiceUnavailable, code: mcp.CodeInternalError, reason: "reconfigured",
			message: "this endpoint is being reconfigured", retry: 1}
	}
	x.w.Header()[mcp.HeaderSessionID] = []string{s.ID}
	return x.writeBody(upstream.Whole(a.Status, body))
}

func (x *exchange) closeUpstream(up upstream.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	if err := up.Close(ctx); err != nil {
		x.p.Log.Debug("an upstream session did not close in good order", "upstream", x.ep.server.name, "error", err)
	}
}

func readInitializeResult(r io.Reader) (body []byte, version string, err error) {
	body, err = io.ReadAll(io.LimitReader(r, maxInitializeResult+1))
	if err != nil {
		return nil, "", errors.New("its answer to initialize broke off")
	}
	if len(body) > maxInitializeResult {
		return nil, "", errors.New("its answer to initialize is too long")
	}
	var m struct {
		Result struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	if json.Unmarshal(body, &m) != nil || !mcp.IsLegacyVersion(m.Result.ProtocolVersion) {
		return nil, "", errors.New("it answered initialize with a protocol version that has no sessions")
	}
	return body, m.Result.ProtocolVersion, nil
}

// noSessions answers initialize where the server has no wire with sessions. Its text is what such a client shows to its
// user (2026-07-28, basic/versioning: a modern server names its versions in whatever error it gives to initialize).
func (x *exchange) noSessions() error {
	return &refusal{status: http.StatusBadRequest, asRPC: true, code: mcp.CodeInvalidParams, reason: "era_unsupported",
		message: "this server speaks MCP " + mcp.Version20260728 + " only, which has no initialize",
		data:    mcp.VersionsData(mcp.SupportedVersions[:1], string(x.msg.Version))}
}

// serveListen answers GET: the stream of messages outside of calls, or one that is resumed after Last-Event-ID.
func (x *exchange) serveListen() error {
	if len(x.r.Header[mcp.HeaderSessionID]) == 0 {
		return x.notAllowed()
	}
	if !acceptsEvents(x.r.Header) {
		return noGET("accept", "GET is for streams of text/event-stream, which Accept does not list")
	}
	s, err := x.session()
	if err != nil {
		return err
	}
	if last := x.r.Header.Get(mcp.HeaderLastEventID); last != "" {
		r, err := s.Resume(last)
		if err != nil {
			return &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "not_kept",
				message: err.Error()}
		}
		return x.follow(r, mcp.Event{})
	}
	r, err := s.Listen(x.ctx)
	switch {
	case errors.Is(err, upstream.ErrNoStream):
		return noGET("no_stream", "this server offers no stream outside of calls")
	case err != nil:
		return lostSession(s, err)
	}
	return x.follow(r, priming(s.Version, r))
}

// noGET answers a GET for which there is no stream, with the other verbs.
func noGET(reason, message string) error {
	return &refusal{status: http.StatusMethodNotAllowed, code: mcp.CodeInvalidRequest, reason: reason, message: message,
		allow: "POST, DELETE"}
}

// serveDelete ends a session (2025-11-25, basic/transports, Session Management).
func (x *exchange) serveDelete() error {
	if len(x.r.Header[mcp.HeaderSessionID]) == 0 {
		return x.notAllowed()
	}
	s, err := x.session()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), deleteTimeout) // a client need not wait
	defer cancel()
	x.ep.sessions.End(ctx, s.ID)
	x.outcome = telemetry.OK
	x.writeHeader(http.StatusNoContent)
	return nil
}

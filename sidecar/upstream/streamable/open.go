package streamable

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const maxSessionID = 1 << 10 // bytes

// Open implements upstream.Server.
func (s *Server) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	in, answer, err := s.handshake(ctx, c.Message.Raw, idOf(c.Message), c.Header, c.Caller)
	if err != nil || in == nil {
		return nil, answer, err
	}
	ses := &session{server: s, current: in}
	ses.caller.Store(c.Caller)
	in.caller = &ses.caller
	ses.initialize, ses.initializeID = slices.Clone(c.Message.Raw), slices.Clone(idOf(c.Message))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, s.client.fault(upstream.Lost, "the upstream was removed", errClosed)
	}
	s.sessions[ses] = struct{}{}
	return ses, answer, nil
}

// handshake sends an initialize with that id. The incarnation is nil when the Answer is an error's.
func (s *Server) handshake(
	ctx context.Context, initialize, id []byte, header http.Header, caller *identity.Principal,
) (*incarnation, *upstream.Answer, error) {
	x, err := s.client.send(ctx, &request{
		method: http.MethodPost, body: initialize, relay: header, traceOnly: true, caller: caller,
		timeout: s.timeouts.Handshake,
	})
	if err != nil {
		return nil, nil, err
	}
	if x.head.status >= 400 {
		refused, err := x.errorAnswer()
		if err != nil {
			return nil, nil, err
		}
		if refused.deniesLegacy() {
			s.eras.forget()
		}
		answer, err := refused.answer(id)
		return nil, answer, err
	}
	return s.opened(x, id)
}

// opened reads the answer to initialize, whose id that is.
func (s *Server) opened(x *exchange, id []byte) (*incarnation, *upstream.Answer, error) {
	status, sessionID := x.head.status, string(x.head.sessionID) // which the body's bytes will overwrite
	if status >= 300 {
		return nil, nil, x.refuse(fmt.Sprintf("answered %d, a redirect, which is not followed", status))
	}
	body, err := x.response(id)
	if err != nil {
		return nil, nil, err
	}
	m, err := mcp.ScanAnswer(body)
	if err != nil || m.Kind != mcp.Response {
		return nil, nil, s.client.fault(upstream.BadAnswer, "answered initialize with something else than a response", err)
	}
	answer := upstream.Whole(http.StatusOK, m.Raw)
	if m.Error.Present() {
		if (&errorAnswer{rpc: true, code: upstream.ErrorCode(&m)}).deniesLegacy() {
			s.eras.forget()
		}
		return nil, answer, nil
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	err = json.Unmarshal(m.Result.Of(m.Raw), &result)
	if err != nil || !isVisible(result.ProtocolVersion) || sessionID != "" && !isVisible(sessionID) {
		return nil, nil, s.client.fault(upstream.BadAnswer, "answered initialize without a usable version or session id", err)
	}
	return &incarnation{server: s, id: sessionID, version: result.ProtocolVersion}, answer, nil
}

// isVisible reports whether a value of the server's can go into a header (2025-11-25, basic/transports, "Session
// Management": 0x21 to 0x7E).
func isVisible(value string) bool {
	for i := range len(value) {
		if value[i] <= ' ' || value[i] > '~' {
			return false
		}
	}
	return len(value) > 0 && len(value) <= maxSessionID
}

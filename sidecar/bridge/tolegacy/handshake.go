package tolegacy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// about is what a server says of itself when a session is opened.
type about struct {
	ProtocolVersion string                     `json:"protocolVersion"`
	Capabilities    map[string]json.RawMessage `json:"capabilities"`
	ServerInfo      json.RawMessage            `json:"serverInfo"`
	Instructions    json.RawMessage            `json:"instructions"`
}

// has reports whether a capability is declared, and with a member of it if that is not empty: a boolean that is true.
func (a *about) has(capability, member string) bool {
	value := a.Capabilities[capability]
	if member == "" {
		return value != nil
	}
	return string(fields(value)[member]) == "true"
}

// handshake opens a session (2025-11-25, basic/lifecycle). Errors are of type *upstream.Error.
func (s *Server) handshake(ctx context.Context, k key, caller *identity.Principal, clientInfo []byte) (upstream.Session, *about, error) {
	if !rawjson.IsObject(clientInfo) {
		clientInfo = s.clientInfo
	}
	initialize := message(fmt.Appendf(nil,
		`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}}`,
		s.nextID(), mcp.MethodInitialize, mcp.NewestLegacy, k.capabilities, clientInfo))
	session, answer, err := s.inner.Open(ctx, &upstream.Call{Message: initialize, Principal: k.principal, Caller: caller})
	if err != nil {
		return nil, nil, err
	}
	about, err := s.welcomed(session, answer)
	if err == nil {
		_, err = session.Call(ctx, &upstream.Call{
			Message:   message([]byte(`{"jsonrpc":"2.0","method":"` + mcp.NotificationInitialized + `"}`)),
			Principal: k.principal, Caller: caller,
		})
	}
	if err == nil {
		return session, about, nil
	}
	if session != nil {
		p := &pooled{pool: s.pool, session: session, opened: closedChannel()}
		s.tasks.Run(p.end)
	}
	return nil, nil, err
}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// welcomed reads the answer to initialize.
func (s *Server) welcomed(session upstream.Session, answer *upstream.Answer) (*about, error) {
	var a about
	code, usable := 0, false
	status := answer.Status
	err := s.readResponse(answer, func(m *mcp.Message) {
		code = upstream.ErrorCode(m)
		usable = json.Unmarshal(m.Result.Of(m.Raw), &a) == nil && mcp.IsLegacyVersion(a.ProtocolVersion)
	})
	switch {
	case session == nil && status == http.StatusLoopDetected:
		return nil, s.fault(upstream.Loop, "leads back to a sidecar that the request has passed", err)
	case err != nil:
		return nil, err
	case session == nil || code != 0:
		detail := fmt.Sprintf("refused to open a session for a stateless client (JSON-RPC error %d)", code)
		return nil, s.fault(upstream.BadAnswer, detail, nil)
	case !usable:
		return nil, s.fault(upstream.BadAnswer, "answered initialize without a protocol version that has sessions", nil)
	}
	return &a, nil
}

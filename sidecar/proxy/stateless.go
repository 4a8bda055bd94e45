package proxy

import (
	"errors"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// serveStateless carries one message of the 2026-07-28 wire to the server. The client's leaving cancels it there (basic/
// transports/streamable-http, Cancellation): the call's context is the request's.
func (x *exchange) serveStateless() error {
	invalid := mcp.CheckStateless(x.r.Header, &x.msg)
	if invalid != nil && invalid.Code != mcp.CodeUnsupportedVersion {
		return invalid
	}
	served, err := x.ep.server.Eras(upstream.WithVia(x.ctx, x.r.Header))
	if err != nil {
		return err
	}
	if invalid != nil {
		return unsupported(served, invalid.Message, x.msg.MetaVersion)
	}
	if !served.Has(mcp.Stateless) {
		return unsupported(served, "this server speaks MCP with sessions only: initialize with a version it supports",
			x.msg.MetaVersion)
	}
	if err := x.authorise(x.ep.server); err != nil {
		return err
	}
	if err := x.ep.server.mirrors.check(x); err != nil {
		return err
	}
	a, err := x.ep.stateless.Call(x.ctx, x.call())
	if err != nil {
		return x.eraError(err)
	}
	if a.Events != nil && x.msg.Method == mcp.MethodListen {
		return x.subscribe(a.Events)
	}
	defer a.Close()
	if err := x.ep.server.mirrors.learn(x, a); err != nil {
		return err
	}
	if err := x.filter(a); err != nil {
		return err
	}
	switch {
	case a.Events != nil:
		return x.relay(a.Events)
	case a.Body != nil:
		return x.writeBody(a)
	default:
		return x.accepted()
	}
}

// eraError shows a server that turned out not to speak the call's wire as what it is on that wire.
func (x *exchange) eraError(err error) error {
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != upstream.WrongEra {
		return err
	}
	if x.era == mcp.Stateless {
		return unsupported(mcp.EraSet(mcp.Legacy), e.Error(), x.msg.MetaVersion)
	}
	return x.noSessions()
}

// unsupported is -32022 with the versions that a client could use here (basic/versioning, Protocol Version Errors).
// A server that speaks both wires is named with the stateless version only: a client that asks on that wire can use it.
func unsupported(served mcp.Eras, message string, requested []byte) *mcp.Error {
	versions := mcp.SupportedVersions[:1]
	if !served.Has(mcp.Stateless) {
		versions = mcp.SupportedVersions[1:]
	}
	return &mcp.Error{Code: mcp.CodeUnsupportedVersion, Status: http.StatusBadRequest, Message: message,
		Data: mcp.VersionsData(versions, string(requested))}
}

package proxy

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// refusal is an answer that the sidecar gives itself because of what the client sent.
type refusal struct {
	status    int    // HTTP
	code      int    // JSON-RPC
	reason    string // short and stable: a metric label
	message   string // for the client
	data      []byte // raw JSON, may be nil
	allow     string // for 405
	challenge string // WWW-Authenticate, empty for none
	retry     int    // Retry-After in seconds, 0 for none
	close     bool   // the connection cannot be used again
	asRPC     bool   // on the legacy wire, answer a request with 200 as any JSON-RPC error
}

func (r *refusal) Error() string { return r.message }

// unreadTimeout bounds what the server does with a body that was refused unread: it reads some of it, to keep the
// connection.
const unreadTimeout = 5 * time.Second

// refuse turns an error of serve into the answer of the caller's wire. While nothing was written that is a status and a
// JSON-RPC error; on an open stream the error is its last event; on one already ended there is nothing left to say.
func (x *exchange) refuse(err error) {
	status, e, retry := x.show(err)
	if x.status != 0 {
		return // the stream's writer has said it
	}
	if x.pooled == nil {
		x.deadline(unreadTimeout)
	}
	h := x.w.Header()
	var r *refusal
	if errors.As(err, &r) {
		if r.allow != "" {
			h.Set("Allow", r.allow)
		}
		if r.challenge != "" {
			h.Set("WWW-Authenticate", r.challenge)
		}
		if r.close && x.r.ProtoMajor == 1 { // in HTTP/2 it would end all other streams' connection too
			h.Set("Connection", "close")
		}
	}
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(retry))
	}
	h["Content-Type"] = jsonType
	x.writeHeader(status)
	if x.r.Method != http.MethodHead {
		x.write(mcp.AppendError(nil, e.ID, e))
	}
}

// show finds how an error looks to the caller, and notes it for record.
func (x *exchange) show(err error) (status int, e *mcp.Error, retry int) {
	id := x.msg.ID.Of(x.msg.Raw)
	if x.msg.Kind == mcp.Response {
		id = nil // that id is the server's, not a request of the client's
	}
	var (
		fromScan *mcp.Error
		own      *refusal
		up       *upstream.Error
	)
	x.outcome = telemetry.Refused
	switch {
	case errors.As(err, &up): // first: its cause may be a scan of what the server sent
		return x.showUpstream(up, id)
	case errors.As(err, &fromScan):
		x.reason = scanReason(fromScan.Code)
		shown := *fromScan
		if shown.ID == nil {
			shown.ID = id
		}
		return fromScan.Status, &shown, 0
	case errors.As(err, &own):
		x.reason = own.reason
		status = own.status
		if own.asRPC && x.legacyRequest() {
			status = http.StatusOK
		}
		return status, &mcp.Error{Code: own.code, Message: own.message, Data: own.data, ID: id}, own.retry
	case errors.Is(err, context.Canceled), errors.Is(err, errClientGone):
		x.outcome, x.reason = telemetry.Cancelled, "cancelled"
		return http.StatusOK, ownError("cancelled", "the call was cancelled", id), 0
	default:
		x.outcome, x.reason = telemetry.Failed, "internal"
		x.p.Log.Error("a call failed for a reason without a name",
			"binding", x.ep.name, "method", x.label, "error", err)
		return http.StatusInternalServerError, ownError("internal", "the sidecar failed; its log says why", id), 0
	}
}

// showUpstream shows a failure between the sidecar and the server: -32603 with data that says whose it is, so that it
// cannot be taken for the server's own. On both wires a JSON-RPC error that is none of the transport's has status 200.
func (x *exchange) showUpstream(err *upstream.Error, id []byte) (int, *mcp.Error, int) {
	x.outcome, x.reason = telemetry.Failed, err.Kind.Reason()
	if x.cancelled(err) {
		x.outcome, x.reason = telemetry.Cancelled, "cancelled"
	} else {
		x.ep.server.complain(x.p.Log, err)
	}
	switch err.Kind {
	case upstream.SessionGone:
		return http.StatusNotFound, ownError(x.reason, err.Error(), id), 0
	case upstream.Loop:
		return http.StatusLoopDetected, ownError(x.reason, err.Error(), id), 0 // so that a sidecar before this one knows it too
	}
	status := http.StatusOK
	if err.Kind == upstream.BadAnswer && err.Status >= 400 && err.Status < 500 {
		status = err.Status // the server's word on what was sent, if not in JSON-RPC
		if !mcp.IsMethod(x.msg.Method) && id != nil {
			e := ownError(x.reason, "the server refused a method that MCP does not have", id)
			e.Code = mcp.CodeMethodNotFound
			return status, e, 0
		}
	}
	if id == nil && status == http.StatusOK {
		status = http.StatusBadGateway // a notification has no JSON-RPC answer to carry the error
	}
	return status, ownError(x.reason, err.Error(), id), 0
}

// cancelled reports whether a call failed because its client gave it up: by leaving on the stateless wire, by
// notifications/cancelled or by ending its session on the other.
func (x *exchange) cancelled(err *upstream.Error) bool {
	return err.Kind == upstream.Lost && errors.Is(err, context.Canceled) || x.era == mcp.Stateless && x.ctx.Err() != nil
}

// ownError is an error that names the sidecar as its source.
func ownError(reason, message string, id []byte) *mcp.Error {
	return &mcp.Error{Code: mcp.CodeInternalError, Message: message, Data: ownData(reason), ID: id}
}

func ownData(reason string) []byte {
	return append(strconv.AppendQuote([]byte(`{"source":"outrigger","reason":`), reason), '}')
}

func jsonField(name string, n int64) []byte {
	b := strconv.AppendQuote([]byte{'{'}, name)
	return append(strconv.AppendInt(append(b, ':'), n, 10), '}')
}

func scanReason(code int) string {
	switch code {
	case mcp.CodeParseError:
		return "parse_error"
	case mcp.CodeInvalidRequest:
		return "invalid_request"
	case mcp.CodeMethodNotFound:
		return "method_not_found"
	case mcp.CodeInvalidParams:
		return "invalid_params"
	case mcp.CodeHeaderMismatch:
		return "header_mismatch"
	case mcp.CodeUnsupportedVersion:
		return "unsupported_version"
	}
	return "invalid"
}

// legacyRequest reports whether the answer is one to a request of the legacy wire.
func (x *exchange) legacyRequest() bool {
	return x.era == mcp.Legacy && x.msg.Kind == mcp.Request
}

// notAllowed answers a verb that the endpoint has no use for, with those it has.
func (x *exchange) notAllowed() error {
	allow := "GET, POST, DELETE"
	if eras, err := x.ep.server.Eras(upstream.WithVia(x.ctx, x.r.Header)); err == nil && !eras.Has(mcp.Legacy) {
		allow = http.MethodPost
	}
	return &refusal{status: http.StatusMethodNotAllowed, code: mcp.CodeInvalidRequest, reason: "method_not_allowed",
		message: "this endpoint takes " + allow, allow: allow}
}

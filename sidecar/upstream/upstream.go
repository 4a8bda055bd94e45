// Package upstream is what a sidecar stands beside: one MCP server, reached in one of several ways.
//
// A Server is made when configuration names it, asked for its eras, and then either called request by request
// (stateless) or opened session by session (legacy). It lives until the configuration drops it. Each transport is a
// package below this one; all of them are safe for concurrent use and keep these promises:
//
//   - Bytes pass as they are. What a transport must change (an id on a shared pipe) it restores with its JSON type.
//   - Nothing is sent twice once a byte of it was written, except after an answer that says it was not accepted.
//   - Every wait ends with its context or a configured timeout.
//   - No client's credential is sent on; a Call's Header is looked at for the MCP headers only.
//
// Not here: what a client sees of a failure (package proxy), which server a call goes to (package proxy).
package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// Server is one MCP server.
type Server interface {
	// Eras reports which wires the server speaks. The first call asks the server; the verdict is kept, and asked for
	// again when an answer shows that it was wrong. Errors: an *Error, for instance when the server cannot be reached.
	Eras(ctx context.Context) (mcp.Eras, error)

	// Call sends one stateless request or notification. Cancelling ctx cancels it at the server as the wire has it: by
	// closing the stream (HTTP) or with notifications/cancelled (stdio).
	Call(ctx context.Context, c *Call) (*Answer, error)

	// Open starts a legacy session with c, a client's initialize. When the server answers initialize with an error
	// the Session is nil and the Answer is that error's. ctx bounds the handshake only.
	Open(ctx context.Context, c *Call) (Session, *Answer, error)

	// Check makes a true handshake (ping, server/discover or initialize, never a second initialize of one process)
	// and reports why the server is not ready, or nil. It is for readiness, not for the path of a call.
	Check(ctx context.Context) error

	// Close ends everything the server holds: sessions, connections, processes. Calls in flight fail with Lost.
	Close(ctx context.Context) error
}

// Session is one client's legacy session with the server.
type Session interface {
	// Call sends a request, a notification, or the response to a request that the server sent. A request's Answer
	// has a Body or Events; for the other two it is nil, nil when the server accepted. A session that the server has
	// forgotten is opened again with the client's own initialize, once, behind the client's back: only a call that was
	// refused with 404, and so never happened, is then sent again. Cancelling ctx sends notifications/cancelled.
	Call(ctx context.Context, c *Call) (*Answer, error)

	// Listen opens the stream of messages that belong to no call. It returns ErrNoStream when the server has none.
	// It ends with ctx or with the session.
	Listen(ctx context.Context) (EventStream, error)

	// Close tells the server that the session ends (DELETE, or the end of the process) and releases it.
	Close(ctx context.Context) error
}

// Directory is a Server made of several.
type Directory interface {
	// Owner is the name of the server that has the tool, the prompt or the resource which such a method is about, as the
	// caller of c sees it; empty where that is not known. It may wait as long as the call itself would.
	Owner(ctx context.Context, c *Call, method, name string) string
}

// Call is one JSON-RPC message on its way to a server.
type Call struct {
	// Message is what the client sent, scanned. The callee does not keep it after the Answer is closed.
	Message *mcp.Message
	// Header is the client's request header, for the MCP headers that travel on (Mcp-Method, Mcp-Name, Mcp-Param-*,
	// MCP-Protocol-Version) and Accept. May be nil. Never changed.
	Header http.Header
	// Principal is who calls, as the sidecar knows it: what is kept for one is never another's. Empty: nobody known.
	Principal string
	// Caller is the same caller with its credential, where a binding asks for one: what a server is presented may depend on
	// it. Nil: nobody known. Self: the sidecar.
	Caller *identity.Principal
	// Binding is whose endpoint was called, where that matters to what the caller is given to bring back. Empty: none.
	Binding string
}

// Self is the Caller of what the sidecar asks for itself: handshakes, checks, lists for everybody. It stands for no client.
var Self = &identity.Principal{ID: "sidecar"}

// Answer is a server's answer to a request. Exactly one of Body and Events is set, except that a notification's Answer
// on the stateless wire has neither. The receiver closes it.
type Answer struct {
	// Status is 200 for every success and from transports without one; with an error, the HTTP status the server gave.
	Status int
	// Length is Body's length in bytes, or -1 when it is not known ahead.
	Length int64
	// Body is one JSON-RPC response as bytes.
	Body io.ReadCloser
	// Events are messages of which the last is the response.
	Events EventStream
}

// Close releases what the answer holds; an answer not yet read to its end is given up.
func (a *Answer) Close() error {
	switch {
	case a == nil:
		return nil
	case a.Body != nil:
		return a.Body.Close()
	case a.Events != nil:
		return a.Events.Close()
	}
	return nil
}

// Whole is an Answer whose body is here already.
func Whole(status int, body []byte) *Answer {
	return &Answer{Status: status, Length: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}
}

// EventStream is a server's messages as they arrive.
type EventStream interface {
	// Next waits for the next message. The event's Data is one JSON-RPC message, valid until the next call of Next or
	// Ready; its ID and Retry are the server's own and mean nothing to clients. Priming events are not returned. A
	// stream that broke and can be resumed is resumed inside. io.EOF is the orderly end: for a call's stream, after its
	// response.
	Next() (mcp.Event, error)
	// Ready reports whether Next is known to return without waiting, so that what was sent on need not be flushed before
	// it is called. It may read what has arrived. It is for the goroutine that calls Next.
	Ready() bool
	// Close gives the stream up and makes a Next that waits return. It may be called from another goroutine.
	Close() error
}

// Awaiter is an EventStream on which little may happen for long.
type Awaiter interface {
	EventStream
	// Poll is Next, but for mcp.ErrIdle where that would wait for an event to begin.
	Poll() (mcp.Event, error)
	// Await waits for that. It needs little of a stack, and no buffer meanwhile. It is for the goroutine that calls Next.
	Await()
}

// ErrNoStream is Listen's answer for a server that offers no stream of its own (405 on GET).
var ErrNoStream = errors.New("the server offers no stream outside of calls")

// ErrOtherID is the cause of a BadAnswer whose only fault is the id of the request that it answers. It may be for the form
// of the client's id, so it says nothing about the server's health.
var ErrOtherID = errors.New("the response has another id than the request")

// ErrNotHere is that a sidecar has no upstream of a name, or none that does what is asked.
var ErrNotHere = errors.New("this sidecar does not have the upstream")

// Kind is a failure as a caller can act on it.
type Kind uint8

const (
	Unreachable  Kind = iota // nothing was sent; trying again later is safe
	Lost                     // sent, and the answer did not come whole: its fate is unknown
	TimedOut                 // sent, and the configured time passed
	BadAnswer                // the server answered something that is not MCP
	Unauthorized             // the server refused the sidecar's own credential
	SessionGone              // the legacy session is gone and could not be opened again
	WrongEra                 // the server does not speak the call's wire
	Overloaded               // a bound of ours is reached (pipe queue, message size)
	Loop                     // the server leads back here: the request would come round
	NoCredential             // nothing was sent: the sidecar has nothing to present to the server, or not for this caller
	notAKind                 // one past the last, for tables
)

// Reason is the kind's short stable name, used as a metric label and in errors' data.
func (k Kind) Reason() string {
	return [notAKind]string{
		"upstream_unreachable", "upstream_lost", "upstream_timeout", "upstream_bad_answer",
		"upstream_unauthorized", "upstream_session_gone", "upstream_wrong_era", "upstream_overloaded", "loop",
		"upstream_no_credential",
	}[k]
}

// Error is a failure between the sidecar and a server. Its text is for operators and is safe to show to clients: it
// names the upstream and what happened, never addresses, credentials or what the server sent.
type Error struct {
	Kind     Kind
	Upstream string // the resource's name
	Detail   string // what happened, lower case
	Status   int    // HTTP status of an answer that was refused for its body; 0 when there was none
	Cause    error  // for the log only; may be nil
}

func (e *Error) Error() string { return fmt.Sprintf("upstream %q: %s", e.Upstream, e.Detail) }

func (e *Error) Unwrap() error { return e.Cause }

// GaveUp is the *Error of a wait for the upstream of that name that ended with its context. That a client cancels is no
// fault of the server's, which the cause shows.
func GaveUp(ctx context.Context, name string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Kind: TimedOut, Upstream: name, Detail: "it did not answer in time", Cause: ctx.Err()}
	}
	return &Error{Kind: Lost, Upstream: name, Detail: "the call was cancelled", Cause: ctx.Err()}
}

package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// exchange is one HTTP request and what is known of it so far. One goroutine at a time uses it, until release, after which
// it may be another request's.
type exchange struct {
	// Set by ServeHTTP.
	p      *Proxy
	w      http.ResponseWriter
	r      *http.Request   // nil once the answer has rested: then its head was read
	ctx    context.Context // of r
	remote string          // r's RemoteAddr
	start  time.Time

	ep     *endpoint           // set by step 1
	guard  *guard              // the endpoint's, when the request came; nil for none
	who    *identity.Principal // who calls; nil where nobody is asked
	body   []byte              // the request's body; held until release
	pooled *[]byte             // where body came from; nil until its reading began, and when it has memory of its own
	batch  bool
	msg    mcp.Message
	era    mcp.Era
	label  string // the metric's method
	sent   upstream.Call

	// What record says of it.
	outcome telemetry.Outcome
	reason  string
	status  int // HTTP status written; 0 while nothing was
	out     int64
	aborted bool    // the answer broke off: the connection must not look complete
	rests   bool    // the answer goes on after this goroutine (last)
	decided decided // the rule that allowed or refused it
	shadow  decided // the rule of an audit-only policy that would have refused it
}

// keptBody is the largest body buffer that goes back to the pool.
const keptBody = 64 << 10

var (
	bodies    = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}
	exchanges = sync.Pool{New: func() any { return new(exchange) }}
)

// release gives back what the exchange held, and itself, unless it rests. Nothing may use it or its message afterwards.
func (x *exchange) release() {
	if x.rests {
		return
	}
	if x.ep != nil {
		x.ep.use.end()
	}
	x.releaseBody()
	*x = exchange{}
	exchanges.Put(x)
}

func (x *exchange) releaseBody() {
	if x.pooled != nil && cap(x.body) <= keptBody {
		*x.pooled = x.body[:0]
		bodies.Put(x.pooled)
	}
	x.pooled, x.body = nil, nil
}

// read takes the body in and scans it. It fails with an *mcp.Error or a *refusal.
func (x *exchange) read() error {
	if err := checkMedia(x.r.Header); err != nil {
		return err
	}
	if err := x.readBody(); err != nil {
		return err
	}
	if mcp.IsBatch(x.body) {
		x.batch, x.era = true, mcp.Legacy
		return nil
	}
	if err := mcp.ScanInto(&x.msg, x.body, x.ep.limits); err != nil {
		return err
	}
	x.label = methodLabel(&x.msg)
	if x.msg.Method == mcp.MethodListen {
		return x.shrink()
	}
	return nil
}

// shrink moves a message that may be held for weeks to memory of its own size. It comes before anybody else has seen it.
func (x *exchange) shrink() error {
	body := bytes.Clone(x.body)
	x.releaseBody()
	x.body = body
	return mcp.ScanInto(&x.msg, body, x.ep.limits)
}

func methodLabel(m *mcp.Message) string {
	if m.Kind == mcp.Response {
		return "response"
	}
	return m.Method
}

// readBody reads the whole body within the endpoint's size and time. When it fails the deadline stands: it also bounds
// the server's own reading of what is left, which comes after the handler.
func (x *exchange) readBody() error {
	limit := x.ep.maxBody
	if x.r.ContentLength > limit {
		return tooLarge(limit)
	}
	arrived := x.arrived()
	if !arrived {
		x.deadline(x.ep.readTimeout)
	}
	x.pooled = bodies.Get().(*[]byte)
	buf := (*x.pooled)[:0]
	if n := int(x.r.ContentLength); n >= cap(buf) {
		buf = make([]byte, 0, min(n+1, keptBody)) // more when more has come: a length is only a claim
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := x.r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		x.body = buf
		switch {
		case int64(len(buf)) > limit:
			return tooLarge(limit)
		case err == io.EOF:
			if !arrived {
				x.deadline(0)
			}
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &refusal{status: http.StatusRequestTimeout, code: mcp.CodeInvalidRequest, reason: "body_timeout",
				message: "the request's body did not arrive in time", close: true}
		case err != nil:
			return &refusal{status: http.StatusBadRequest, code: mcp.CodeParseError, reason: "body_broken",
				message: "the request's body could not be read", close: true}
		}
	}
}

// arrived reports whether the whole body is known to be in memory already, as the small body of a call usually is: then
// there is nothing to wait for.
func (x *exchange) arrived() bool {
	b, ok := x.r.Body.(interface{ Buffered() int })
	return ok && x.r.ContentLength >= 0 && int64(b.Buffered()) >= x.r.ContentLength
}

// deadline bounds reading from the client from now; 0 lifts the bound.
func (x *exchange) deadline(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	// A server without deadlines has none to set; its own timeouts bound the read.
	_ = http.NewResponseController(x.w).SetReadDeadline(at)
}

func tooLarge(limit int64) error {
	return &refusal{status: http.StatusRequestEntityTooLarge, code: mcp.CodeInvalidRequest, reason: "body_too_large",
		message: "the request's body is longer than this endpoint takes", data: jsonField("maxBodyBytes", limit), close: true}
}

// checkMedia refuses bodies that do not call themselves JSON, and clients that could read no answer. Accept should list
// both JSON and SSE, but one that lists either, or anything, is answered.
func checkMedia(h http.Header) error {
	if ct := h.Get("Content-Type"); ct != "" && ct != "application/json" {
		if t, _, err := mime.ParseMediaType(ct); err != nil || t != "application/json" {
			return &refusal{status: http.StatusUnsupportedMediaType, code: mcp.CodeInvalidRequest, reason: "content_type",
				message: "Content-Type must be application/json"}
		}
	}
	accepts := h["Accept"]
	if len(accepts) == 0 || accepts[0] == "application/json, text/event-stream" {
		return nil
	}
	if acceptsEvents(h) || lists(accepts, "application/") {
		return nil
	}
	return &refusal{status: http.StatusNotAcceptable, code: mcp.CodeInvalidRequest, reason: "accept",
		message: "Accept must list application/json and text/event-stream"}
}

// acceptsEvents reports whether a client can read SSE; one that does not say can.
func acceptsEvents(h http.Header) bool {
	return len(h["Accept"]) == 0 || lists(h["Accept"], "text/event-stream", "*/*", "text/*")
}

// lists reports whether an Accept header has one of the media ranges, or their beginnings.
func lists(accept []string, ranges ...string) bool {
	for _, a := range accept {
		a = strings.ToLower(a)
		for _, r := range ranges {
			if strings.Contains(a, r) {
				return true
			}
		}
	}
	return false
}

// call is the exchange's message as a server gets it. A listen's is memory of its own: the exchange would hold the header
// with it for as long as the answer lasts.
func (x *exchange) call() *upstream.Call {
	c := &x.sent
	if x.msg.Method == mcp.MethodListen {
		c = new(upstream.Call)
	}
	*c = upstream.Call{Message: &x.msg, Header: x.header(), Principal: x.caller(), Caller: x.who, Binding: x.ep.name}
	return c
}

// caller is who calls, as what is kept for callers is told apart. Where nobody is asked, it is what their credential is.
func (x *exchange) caller() string {
	if x.who != nil {
		return x.who.ID
	}
	return principal(x.header())
}

// header is the request's; nil of an answer that rested, for which nothing of it is kept.
func (x *exchange) header() http.Header {
	if x.r == nil {
		return nil
	}
	return x.r.Header
}

// principal tells callers apart whose requests carry a credential, by a digest of it: nothing here checks what it is
// worth, so it opens nothing but what the same credential has made. Empty without one.
func principal(h http.Header) string {
	credentials := h["Authorization"]
	if len(credentials) == 0 {
		return ""
	}
	digest := sha256.New()
	for _, c := range credentials {
		digest.Write([]byte(c))
		digest.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(digest.Sum(nil)) // text: it travels between sidecars
}

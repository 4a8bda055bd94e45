package streamable

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxRefusal   = 1 << 20 // bytes of an error's body
	maxHandshake = 4 << 20 // bytes of the answer to initialize or server/discover
)

// errorAnswer is an answer with a status of 400 or more, read whole. Such answers are rare and small, and what they mean
// depends on their body: an error of MCP has any of these statuses, and so has a server that is no MCP server at all.
type errorAnswer struct {
	client *client
	status int
	body   []byte
	rpc    bool        // the body is a JSON-RPC response
	code   int         // its error's; 0 when there is none
	said   mcp.Message // that response
}

// errorAnswer reads the rest of x.
func (x *exchange) errorAnswer() (*errorAnswer, error) {
	if x.head.status == http.StatusUnauthorized || x.head.status == http.StatusForbidden {
		x.discard()
		detail := "refused the sidecar, which has no credential for it (%d)"
		switch {
		case x.client.credential.PerCaller():
			detail = "refused the token that was got for the caller (%d)"
		case x.client.credential.Header() != "":
			detail = "refused the sidecar's credential (%d)"
		}
		return nil, x.client.fault(upstream.Unauthorized, fmt.Sprintf(detail, x.head.status), nil)
	}
	body, err := x.readAll(maxRefusal)
	if err != nil {
		return nil, err
	}
	r := &errorAnswer{client: x.client, status: x.head.status, body: body}
	if m, err := mcp.ScanAnswer(body); err == nil && m.Kind == mcp.Response {
		r.rpc, r.body, r.code, r.said = true, m.Raw, upstream.ErrorCode(&m), m
	}
	return r, nil
}

// answer relays what is MCP: an error with the id of the request, nil for a message that has none.
func (r *errorAnswer) answer(id []byte) (*upstream.Answer, error) {
	detail := fmt.Sprintf("answered %d without a JSON-RPC error", r.status)
	switch {
	case !r.rpc:
	case r.said.Result.Present():
		detail = fmt.Sprintf("answered %d with a result", r.status)
	case id != nil && !r.said.Answers(id):
		detail = anotherRequest
	default:
		return upstream.Whole(r.status, r.body), nil
	}
	err := r.client.fault(upstream.BadAnswer, detail, nil)
	err.Status = r.status
	return nil, err
}

// deniesStateless reports whether a stateless call was refused by a server that cannot have meant it: by something
// other than MCP, as servers do that want a session first, or with a list of versions that are all older.
func (r *errorAnswer) deniesStateless() bool {
	if !r.rpc {
		return r.status == http.StatusBadRequest || r.status == http.StatusNotFound ||
			r.status == http.StatusMethodNotAllowed
	}
	if r.code != mcp.CodeUnsupportedVersion {
		return false
	}
	eras, known := mcp.Verdict(r.status, r.body)
	return known && !eras.Has(mcp.Stateless)
}

// deniesLegacy is the same for initialize.
func (r *errorAnswer) deniesLegacy() bool {
	if !r.rpc {
		return r.status == http.StatusNotFound || r.status == http.StatusMethodNotAllowed
	}
	return r.code == mcp.CodeUnsupportedVersion || r.code == mcp.CodeMethodNotFound
}

// readAll reads the rest of the body, at most limit bytes of it, and finishes x. Errors are *upstream.Error.
func (x *exchange) readAll(limit int64) ([]byte, error) {
	defer x.finish(false) // does nothing when the end was reached
	body, err := io.ReadAll(io.LimitReader(x, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = x.client.fault(upstream.BadAnswer, "answered with more than the sidecar takes", errors.New("body over the limit"))
	}
	return body, err
}

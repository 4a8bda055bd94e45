package streamable

import (
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// What an answer can be besides a JSON-RPC response to its request.
const (
	noResponse     = "answered with something else than one JSON-RPC response"
	anotherRequest = "answered another request"
)

// causeOf tells what a server has answered to another id from what is no answer: an id that it cannot hold, as one beyond
// 2^53 in JavaScript, is its client's choice.
func causeOf(fault string) error {
	if fault == anotherRequest {
		return upstream.ErrOtherID
	}
	return nil
}

// idOf is what a response to m must have: the token of a request's id, nil for what has no response.
func idOf(m *mcp.Message) []byte {
	if m.Kind != mcp.Request {
		return nil
	}
	return m.ID.Of(m.Raw)
}

// jsonAnswer makes the Answer of a body, once what is known of it is a response to the request with that id. A success
// has one status, whichever of its kind the server chose.
func (x *exchange) jsonAnswer(id []byte) (*upstream.Answer, error) {
	fault, err := x.checkBody(id)
	if err != nil {
		x.finish(false)
		return nil, x.failure(unexpected(err), true)
	}
	if fault != "" {
		x.finish(false) // who knows what else comes on that connection
		return nil, x.client.fault(upstream.BadAnswer, fault, causeOf(fault))
	}
	return x.with(upstream.Answer{Status: http.StatusOK, Length: x.head.length, Body: x}), nil
}

// checkBody looks at a body of JSON and takes nothing of it away. A fault is what it is instead of a response to the
// request with that id; errors are the connection's.
//
// How much it sees depends on the length. A body that fits into the connection's buffer, by its Content-Length or in one
// chunk, is waited for and scanned whole. Of every other only the beginning is seen: the first buffer's bytes at most,
// of chunks those of the first, and no more than tell whether it is an object with a result or an error. So of a long
// body the id is checked if it comes before these, and neither the grammar nor the end is.
//
// Hot: runs on every answer in JSON and allocates nothing.
func (x *exchange) checkBody(id []byte) (fault string, err error) {
	if x.head.chunked {
		last, err := x.nextChunk()
		if err != nil || last {
			return noResponse, err
		}
	}
	for {
		b, all := x.here()
		if all {
			return faultOf(b, id), nil
		}
		if !x.fits() {
			p := mcp.PeekResponse(b)
			if fault := faultOfPrefix(&p, b, id); fault != "" || p.Settled() || !x.mayShowMore(b) {
				return fault, nil
			}
		}
		if err := x.conn.fill(readBuffer); err == io.EOF && x.left < 0 {
			return faultOf(b, id), nil // the connection's end is the body's
		} else if err != nil {
			return "", err
		}
	}
}

const lastChunk = "\r\n0\r\n\r\n" // after the chunk before it

// here is what the buffer has of the body, or of its first chunk, and whether that is known to be all of the body.
func (x *exchange) here() (b []byte, all bool) {
	b = x.conn.in[x.conn.r:x.conn.w]
	if x.left < 0 || int64(len(b)) < x.left {
		return b, false
	}
	b, rest := b[:x.left], b[x.left:]
	return b, !x.head.chunked || string(rest) == lastChunk
}

// fits reports whether waiting brings the whole body into the buffer, as far as its framing has shown.
func (x *exchange) fits() bool {
	switch room := int64(readBuffer); {
	case x.left < 0:
		return false
	case !x.head.chunked:
		return x.left <= room
	default:
		behind := max(0, int64(x.conn.w-x.conn.r)-x.left)
		return x.left+int64(len(lastChunk)) <= room && behind < int64(len(lastChunk)) &&
			string(x.conn.in[x.conn.w-int(behind):x.conn.w]) == lastChunk[:behind]
	}
}

// mayShowMore reports whether b, which is here, can grow where it is.
func (x *exchange) mayShowMore(b []byte) bool {
	return len(b) < readBuffer && (x.left < 0 || int64(len(b)) < x.left)
}

// faultOf is what a whole body is instead of a response to the request with that id; "" if it is that.
func faultOf(body, id []byte) string {
	m, err := mcp.ScanAnswer(body)
	switch {
	case err != nil || m.Kind != mcp.Response:
		return noResponse
	case !m.Answers(id):
		return anotherRequest
	}
	return ""
}

// faultOfPrefix is the same as far as the beginning of a body shows it.
func faultOfPrefix(p *mcp.Prefix, prefix, id []byte) string {
	switch {
	case p.Foreign:
		return noResponse
	case !p.Answers(prefix, id):
		return anotherRequest
	}
	return ""
}

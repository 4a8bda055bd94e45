package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// maxUnasked and maxUnaskedBytes are how many messages NextResponse reads before a response, and how many bytes of them.
const (
	maxUnasked      = 10_000
	maxUnaskedBytes = 16 << 20
)

// NextResponse reads a stream to its response, which is valid until the stream's next call of Next.
//
// It is for requests that the sidecar makes for itself: handshakes, lists, settings. What a server says before such a
// response is for nobody, so it is dropped, and bounded: a server that goes on saying it would keep the sidecar busy for
// as long as the request has time. A handshake that logs thousands of plugins stays within the bound. It is not for a
// client's call, which may last: what comes before its response goes on to the client.
//
// Errors: the stream's own, or an *Error of the upstream of that name. BadAnswer: too much came before the response. Lost:
// the stream ended before it.
func NextResponse(name string, events EventStream) ([]byte, error) {
	for unasked, size := 0, 0; unasked <= maxUnasked && size <= maxUnaskedBytes; unasked++ {
		e, err := events.Next()
		switch {
		case err == io.EOF:
			return nil, &Error{Kind: Lost, Upstream: name, Detail: "ended its answer before the response"}
		case err != nil:
			return nil, err
		case mcp.PeekOutcome(e.Data) != mcp.OutcomeUnknown:
			return e.Data, nil
		}
		size += len(e.Data)
	}
	return nil, &Error{Kind: BadAnswer, Upstream: name, Detail: "went on with other messages instead of its response"}
}

// ReadResponse reads an answer to its response, of at most limit bytes in a body, and closes it. The caller gives the bytes
// that were taken of the budget back. Of a stream it does what NextResponse does, for the same requests.
//
// Errors: those of NextResponse, Unread and ScanResponse.
func ReadResponse(name string, a *Answer, b *budget.Budget, limit int) (m mcp.Message, taken int, err error) {
	defer a.Close()
	raw, err := readResponse(name, a, b, limit)
	if err != nil {
		return mcp.Message{}, 0, Unread(name, err)
	}
	if m, err = ScanResponse(name, raw); err != nil {
		b.Give(cap(raw))
		return mcp.Message{}, 0, err
	}
	return m, cap(raw), nil
}

// readResponse is the memory of an answer's response. Its capacity was taken from the budget.
func readResponse(name string, a *Answer, b *budget.Budget, limit int) ([]byte, error) {
	switch {
	case a.Body != nil:
		return b.ReadAll(a.Body, a.Length, limit)
	case a.Events == nil:
		return nil, &Error{Kind: BadAnswer, Upstream: name, Detail: "gave a request no answer"}
	}
	data, err := NextResponse(name, a.Events)
	if err != nil {
		return nil, err
	}
	return b.ReadAll(bytes.NewReader(data), int64(len(data)), len(data))
}

// ScanResponse scans what has to be a response of the upstream of that name. Errors: *Error, BadAnswer.
func ScanResponse(name string, raw []byte) (mcp.Message, error) {
	m, err := mcp.ScanAnswer(raw)
	if err != nil || m.Kind != mcp.Response {
		return mcp.Message{}, &Error{Kind: BadAnswer, Upstream: name, Detail: "answered with something else than a response", Cause: err}
	}
	return m, nil
}

// Unread is why an answer of the upstream of that name was not read: an *Error, Overloaded, of what a budget refused, and
// any other err itself.
func Unread(name string, err error) error {
	detail := ""
	switch {
	case errors.Is(err, budget.ErrTooLong):
		detail = "answered with more than the sidecar reads"
	case errors.Is(err, budget.ErrSpent):
		detail = "gave an answer for which the sidecar has no memory now: try again later"
	default:
		return err
	}
	return &Error{Kind: Overloaded, Upstream: name, Detail: detail, Cause: err}
}

// ErrorCode is the code of a response's error; 0 when it has none that can be read.
func ErrorCode(m *mcp.Message) (code int) {
	if json.Unmarshal(rawjson.Find(m.Raw, m.Error, "code").Of(m.Raw), &code) != nil {
		return 0
	}
	return code
}

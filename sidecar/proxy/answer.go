package proxy

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Header values shared by all answers: assigning them allocates nothing.
var (
	jsonType = []string{"application/json"}
	sseType  = []string{"text/event-stream"}
	noStore  = []string{"no-cache, no-transform"}
	unbuffer = []string{"no"}
)

// chunkSize is the memory an answer of any length takes.
const chunkSize = 32 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}

// errClientGone ends an answer whose client no longer takes it. Nobody is told.
var errClientGone = errors.New("the client is gone")

func (x *exchange) writeHeader(status int) {
	x.status = status
	x.w.WriteHeader(status)
}

// write sends b to the client, which the server that carries the request gives a time to take it.
func (x *exchange) write(b []byte) error {
	n, err := x.w.Write(b)
	x.out += int64(n)
	if err != nil {
		return errClientGone
	}
	return nil
}

// accepted answers a notification or response: 202 and nothing else.
func (x *exchange) accepted() error {
	x.w.Header()["Content-Type"] = nil // not even a guess of net/http's
	x.writeHeader(http.StatusAccepted)
	return nil
}

// writeBody copies a JSON answer through with the server's status. It reads ahead only what it writes next, so that an
// answer of any length costs one chunk of memory.
func (x *exchange) writeBody(a *upstream.Answer) error {
	pooled := chunks.Get().(*[]byte)
	defer chunks.Put(pooled)
	n, err := fill(a.Body, *pooled)
	if err != nil && err != io.EOF {
		return err
	}
	first := (*pooled)[:n]
	x.outcome = outcomeOf(first)
	h := x.w.Header()
	h["Content-Type"] = jsonType
	if a.Length > int64(n) {
		h["Content-Length"] = []string{strconv.FormatInt(a.Length, 10)}
	}
	x.writeHeader(a.Status)
	for {
		if werr := x.write(first); werr != nil {
			return werr
		}
		if err == io.EOF {
			return nil
		}
		n, err = a.Body.Read(*pooled)
		if err != nil && err != io.EOF {
			x.show(err)
			x.aborted = true
			return nil
		}
		first = (*pooled)[:n]
	}
}

// fill reads until the end or until the buffer is half full: small answers in one piece, large ones without waiting.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for err == nil && n < len(buf)/2 {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

func outcomeOf(response []byte) telemetry.Outcome { return recorded(mcp.PeekOutcome(response)) }

// recorded is an outcome as metrics and the access line have it.
func recorded(o mcp.Outcome) telemetry.Outcome {
	if o == mcp.OutcomeError {
		return telemetry.RPCError
	}
	return telemetry.OK
}

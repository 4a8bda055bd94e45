package streamable

import (
	"fmt"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	typeJSON = "application/json"
	typeSSE  = "text/event-stream"
)

// answer makes m's Answer of x, whose status is below 400. events makes the stream when there is one.
func (x *exchange) answer(
	m *mcp.Message, events func(*exchange, *mcp.Message) upstream.EventStream,
) (*upstream.Answer, error) {
	h := &x.head
	switch {
	case h.status >= 300:
		return nil, x.refuse(fmt.Sprintf("answered %d, a redirect, which is not followed", h.status))
	case m.Kind != mcp.Request:
		x.discard()
		return x.with(upstream.Answer{Status: h.status}), nil
	case h.is(typeSSE) && h.status == http.StatusOK:
		return x.with(upstream.Answer{Status: h.status, Length: -1, Events: events(x, m)}), nil
	case h.is(typeJSON) && h.length != 0:
		return x.jsonAnswer(idOf(m))
	case h.length == 0:
		return nil, x.refuse(fmt.Sprintf("answered a request with %d and no body", h.status))
	}
	return nil, x.refuse(fmt.Sprintf("answered %d with neither JSON nor an event stream", h.status))
}

// with makes a the Answer of x, in x's memory.
func (x *exchange) with(a upstream.Answer) *upstream.Answer {
	x.result = a
	return &x.result
}

// refuse gives x up as an answer that is not MCP.
func (x *exchange) refuse(detail string) error {
	x.discard()
	return x.client.fault(upstream.BadAnswer, detail, nil)
}

// response reads the one JSON-RPC response of x to the request with that id, from a body or out of events, and finishes
// x. It is for handshakes, whose answers are small. A body that is no response at all is returned, for it tells of the
// server.
func (x *exchange) response(id []byte) ([]byte, error) {
	if !x.head.is(typeSSE) || x.head.status != http.StatusOK {
		body, err := x.readAll(maxHandshake)
		if err == nil && faultOf(body, id) == anotherRequest {
			err = x.client.fault(upstream.BadAnswer, anotherRequest, nil)
		}
		return body, err
	}
	e := &events{x: x, reader: mcp.NewEventReader(x, maxHandshake), id: id}
	defer e.Close()
	return upstream.NextResponse(x.client.upstream, e) // the reader goes with e, so its bytes are ours
}

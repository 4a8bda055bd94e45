package federate

import (
	"context"
	"io"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// rejoined is a body of which the beginning was read before.
type rejoined struct {
	io.Reader
	io.Closer
}

// pushedBack is a stream whose first event was taken before.
type pushedBack struct {
	upstream.EventStream
	first *mcp.Event
}

func (p *pushedBack) Next() (mcp.Event, error) {
	if first := p.first; first != nil {
		p.first = nil
		return *first, nil
	}
	return p.EventStream.Next()
}

func (p *pushedBack) Ready() bool { return p.first != nil || p.EventStream.Ready() }

// held is an answer whose call has a context of its own, which ends when the answer is closed.
func held(a *upstream.Answer, cancel context.CancelFunc) *upstream.Answer {
	switch {
	case a.Events != nil:
		a.Events = &heldEvents{a.Events, cancel}
	case a.Body != nil:
		a.Body = &heldBody{a.Body, cancel}
	default:
		cancel()
	}
	return a
}

type heldEvents struct {
	upstream.EventStream
	cancel context.CancelFunc
}

func (h *heldEvents) Close() error {
	defer h.cancel()
	return h.EventStream.Close()
}

type heldBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (h *heldBody) Close() error {
	defer h.cancel()
	return h.ReadCloser.Close()
}

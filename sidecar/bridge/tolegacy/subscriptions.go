package tolegacy

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// release gives subscriptions up, and tells the server in the background of those that nobody holds any more.
func (h *hub) release(uris []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	unused := false
	for _, uri := range uris {
		h.refs[uri]--
		unused = unused || h.refs[uri] == 0
	}
	if unused {
		h.server().tasks.Run(h.unsubscribe)
	}
}

// unsubscribe tells the server of every subscription that nobody holds.
func (h *hub) unsubscribe() {
	ctx, stop := h.server().brief()
	defer stop()
	if h.take(ctx) != nil {
		return
	}
	defer func() { <-h.turn }()
	h.mu.Lock()
	var unused []string
	for uri, refs := range h.refs {
		if refs == 0 {
			unused = append(unused, uri)
			delete(h.refs, uri)
		}
	}
	h.mu.Unlock()
	h.tell(ctx, mcp.MethodResourcesUnsubscribe, unused)
}

func (h *hub) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return upstream.GaveUp(ctx, h.server().name)
	}
}

// subscribe makes the server send updates of resources, and returns those that it grants.
func (h *hub) subscribe(ctx context.Context, uris []string) ([]string, error) {
	if err := h.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-h.turn }()
	h.mu.Lock()
	var unknown []string
	for _, uri := range uris {
		if _, known := h.refs[uri]; !known && !slices.Contains(unknown, uri) && len(h.refs)+len(unknown) < maxURIs {
			unknown = append(unknown, uri)
		}
	}
	h.mu.Unlock()
	taken := h.tell(ctx, mcp.MethodResourcesSubscribe, unknown)
	h.mu.Lock()
	for _, uri := range taken {
		h.refs[uri] = 0
	}
	var granted []string
	for _, uri := range uris {
		if _, known := h.refs[uri]; known {
			h.refs[uri]++
			granted = append(granted, uri)
		}
	}
	h.mu.Unlock()
	if ctx.Err() != nil {
		h.release(granted)
		return nil, upstream.GaveUp(ctx, h.server().name)
	}
	return granted, nil
}

// tell makes a request for each URI, several at once, and returns those that the server answered with a result.
func (h *hub) tell(ctx context.Context, method string, uris []string) (taken []string) {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	g.SetLimit(subscribingTogether)
	for _, uri := range uris {
		g.Go(func() error {
			err := h.session.ask(ctx, method, append(rawjson.AppendString([]byte(`{"uri":`), uri), '}'))
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				taken = append(taken, uri)
			}
			return nil
		})
	}
	_ = g.Wait() // no member fails
	return taken
}

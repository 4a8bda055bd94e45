package sse

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

// restore tells a new link the settings of its session: a server knows nothing of them after it lost that. If it does
// not grant them the session is gone, for a client would wait in vain for what it counts on.
func (s *session) restore(ctx context.Context, l *link) error {
	requests, ok := s.settings.Requests()
	if !ok {
		return s.gone("lost its session, which had more subscriptions than the sidecar keeps", settings.ErrNotRestored)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(settings.Together)
	for _, body := range requests {
		g.Go(func() error { return set(ctx, l, body) })
	}
	if err := g.Wait(); err != nil {
		return s.gone("lost its session and did not restore its log level and subscriptions", err)
	}
	return nil
}

// set sends one request of the sidecar's own, whose answer no client sees. Errors: the server did not grant it.
func set(ctx context.Context, l *link, body []byte) error {
	m, err := mcp.ScanAnswer(body) // of the sidecar's, but with params that may be as deep as the client's
	if err != nil {
		return err
	}
	k, err := l.begin(ctx, &m, 0, true)
	if err != nil {
		return err
	}
	k.send(nil, body)
	response, err := k.box.Response()
	if err != nil {
		return err
	}
	if m, err = mcp.ScanAnswer(response); err == nil && !m.Result.Present() {
		err = settings.ErrNotRestored
	}
	return err
}

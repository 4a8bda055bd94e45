package streamable

import (
	"context"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

// restore tells a new incarnation the settings of its session: a server knows nothing of them after it forgot that. If
// it does not grant them the session is gone, for a client would wait in vain for what it counts on.
func (s *session) restore(ctx context.Context, in *incarnation) error {
	requests, ok := s.settings.Requests()
	if !ok {
		return s.gone("forgot its session, which had more subscriptions than the sidecar keeps", settings.ErrNotRestored)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(settings.Together)
	for _, body := range requests {
		g.Go(func() error { return s.set(ctx, in, body) })
	}
	if err := g.Wait(); err != nil {
		return s.gone("forgot its session and did not restore its log level and subscriptions", err)
	}
	return nil
}

// set sends one request of the sidecar's own, whose answer no client sees. Errors: the server did not grant it.
func (s *session) set(ctx context.Context, in *incarnation, body []byte) error {
	m, err := mcp.ScanAnswer(body) // of the sidecar's, but with params that may be as deep as the client's
	if err != nil {
		return err
	}
	x, err := s.server.client.send(ctx, &request{
		method: http.MethodPost, body: body, version: in.version, session: in.id,
		timeout: s.server.timeouts.Handshake, caller: s.caller.Load(),
	})
	if err != nil {
		return err
	}
	if x.head.status >= 300 {
		return x.refuse(fmt.Sprintf("answered %d", x.head.status))
	}
	response, err := x.response(idOf(&m))
	if err == nil && !isResult(response) {
		err = settings.ErrNotRestored
	}
	return err
}

func isResult(response []byte) bool {
	m, err := mcp.ScanAnswer(response)
	return err == nil && m.Result.Present()
}

// watch makes an answer to the setting tell s when the server granted it. A body is read whole: it is small.
func (s *session) watch(set settings.Setting, x *exchange, a *upstream.Answer) (*upstream.Answer, error) {
	if a.Events != nil {
		a.Events = &watchedEvents{EventStream: a.Events, granted: func() { s.settings.Remember(set) }}
		return a, nil
	}
	body, err := x.readAll(maxHandshake)
	if err != nil {
		return nil, err
	}
	if isResult(body) {
		s.settings.Remember(set)
	}
	return upstream.Whole(a.Status, body), nil
}

// watchedEvents calls granted when the response passes and is a result.
type watchedEvents struct {
	upstream.EventStream
	granted func()
}

func (w *watchedEvents) Next() (mcp.Event, error) {
	event, err := w.EventStream.Next()
	if err == nil && isResult(event.Data) {
		w.granted()
	}
	return event, err
}

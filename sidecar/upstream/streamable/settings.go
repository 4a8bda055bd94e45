package streamable

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxSubscriptions = 1000    // of one session
	maxSetting       = 2 << 10 // bytes of the params of one
	settingTogether  = 16      // settings told at once to a session that was opened again
)

// settings are what a client asked of its session for as long as that lasts, and the server granted: the log level and
// subscriptions. A session that is opened again is told them again.
type settings struct {
	mu            sync.Mutex        // guards below
	level         []byte            // params of the last logging/setLevel; nil for none
	subscriptions map[string][]byte // params of resources/subscribe, by URI
	lost          bool              // there were more than are kept; nothing is, from then on
}

// errNotRestored is the cause when a session cannot be opened again as it was.
var errNotRestored = errors.New("a log level or a subscription of the session could not be restored")

// isSetting reports whether m is a request that settings remember.
func isSetting(m *mcp.Message) bool {
	switch m.Method {
	case mcp.MethodSetLevel, mcp.MethodResourcesSubscribe, mcp.MethodResourcesUnsubscribe:
		return m.Kind == mcp.Request
	}
	return false
}

// setting is a request as settings need it after its Message is gone.
type setting struct {
	method, uri string
	params      []byte // nil when there are more bytes than are kept
}

func newSetting(m *mcp.Message) setting {
	s := setting{method: m.Method, uri: string(m.Name)}
	if params := m.Params.Of(m.Raw); len(params) <= maxSetting {
		s.params = slices.Clone(params)
	}
	return s
}

// remember takes note of what the server granted.
func (k *settings) remember(s setting) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lost:
	case s.method == mcp.MethodResourcesUnsubscribe:
		delete(k.subscriptions, s.uri)
	case s.params == nil:
		k.giveUpLocked()
	case s.method == mcp.MethodSetLevel:
		k.level = s.params
	default:
		k.subscribeLocked(s)
	}
}

func (k *settings) subscribeLocked(s setting) {
	if k.subscriptions == nil {
		k.subscriptions = make(map[string][]byte)
	}
	if k.subscriptions[s.uri] = s.params; len(k.subscriptions) > maxSubscriptions {
		k.giveUpLocked()
	}
}

func (k *settings) giveUpLocked() { k.level, k.subscriptions, k.lost = nil, nil, true }

// requests are what sets them again, with ids of the sidecar's own. ok is false when they are not known any more.
func (k *settings) requests() (requests [][]byte, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	add := func(method string, params []byte) {
		const form = `{"jsonrpc":"2.0","id":"outrigger-again-%d","method":"%s","params":%s}`
		requests = append(requests, fmt.Appendf(nil, form, len(requests)+1, method, params))
	}
	if k.level != nil {
		add(mcp.MethodSetLevel, k.level)
	}
	for _, params := range k.subscriptions {
		add(mcp.MethodResourcesSubscribe, params)
	}
	return requests, !k.lost
}

// restore tells a new incarnation the settings of its session: a server knows nothing of them after it forgot that. If
// it does not grant them the session is gone, for a client would wait in vain for what it counts on.
func (s *session) restore(ctx context.Context, in *incarnation) error {
	requests, ok := s.settings.requests()
	if !ok {
		return s.gone("forgot its session, which had more subscriptions than the sidecar keeps", errNotRestored)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(settingTogether)
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
	m, err := scanAnswer(body) // of the sidecar's, but with params that may be as deep as the client's
	if err != nil {
		return err
	}
	x, err := s.server.client.send(ctx, &request{
		method: http.MethodPost, body: body, version: in.version, session: in.id,
		timeout: s.server.timeouts.Handshake,
	})
	if err != nil {
		return err
	}
	if x.head.status >= 300 {
		return x.refuse(fmt.Sprintf("answered %d", x.head.status))
	}
	response, err := x.response(idOf(&m))
	if err == nil && !isResult(response) {
		err = errNotRestored
	}
	return err
}

func isResult(response []byte) bool {
	m, err := scanAnswer(response)
	return err == nil && m.Result.Present()
}

// watch makes an answer to the setting tell s when the server granted it. A body is read whole: it is small.
func (s *session) watch(set setting, x *exchange, a *upstream.Answer) (*upstream.Answer, error) {
	if a.Events != nil {
		a.Events = &watchedEvents{EventStream: a.Events, granted: func() { s.settings.remember(set) }}
		return a, nil
	}
	body, err := x.readAll(maxHandshake)
	if err != nil {
		return nil, err
	}
	if isResult(body) {
		s.settings.remember(set)
	}
	return whole(a.Status, body), nil
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

package sse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
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

// restore tells a new link the settings of its session: a server knows nothing of them after it lost that. If it does
// not grant them the session is gone, for a client would wait in vain for what it counts on.
func (s *session) restore(ctx context.Context, l *link) error {
	requests, ok := s.settings.requests()
	if !ok {
		return s.gone("lost its session, which had more subscriptions than the sidecar keeps", errNotRestored)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(settingTogether)
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
	m, err := scanAnswer(body) // of the sidecar's, but with params that may be as deep as the client's
	if err != nil {
		return err
	}
	k, err := l.begin(ctx, &m, 0, true)
	if err != nil {
		return err
	}
	k.send(nil, body)
	response, err := k.response()
	if err != nil {
		return err
	}
	if m, err = scanAnswer(response); err == nil && !m.Result.Present() {
		err = errNotRestored
	}
	return err
}

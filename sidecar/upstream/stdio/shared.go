package stdio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// subscribedMost bounds the URIs that one session may subscribe to.
const subscribedMost = 1024

// sharedSession is one client of a shared process.
type sharedSession struct {
	inbox
	pool *pool

	// Guarded by the pool's lock.
	closed bool
	level  level
	uris   map[string]struct{} // subscribed to
}

// Call implements upstream.Session.
func (s *sharedSession) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	m := c.Message
	switch {
	case s.isClosed():
		return nil, s.pool.server.fault(upstream.SessionGone, "the session is closed", nil)
	case m.Kind == mcp.Response:
		return nil, nil // the process may ask nothing
	case m.Kind == mcp.Notification:
		return nil, s.notify(ctx, m)
	}
	switch m.Method {
	case mcp.MethodPing:
		return result(m), nil
	case mcp.MethodInitialize:
		return refusal(m, mcp.CodeInvalidRequest, "the session is initialized already"), nil
	case mcp.MethodSetLevel:
		return s.setLevel(ctx, m)
	case mcp.MethodResourcesSubscribe:
		return s.subscribe(ctx, m)
	case mcp.MethodResourcesUnsubscribe:
		return s.unsubscribe(ctx, m)
	}
	k, err := s.begin(ctx, m, s.pool.server.times.Call)
	if err != nil {
		return nil, err
	}
	return k.answer()
}

func (s *sharedSession) isClosed() bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.closed
}

func (s *sharedSession) begin(ctx context.Context, m *mcp.Message, timeout time.Duration) (*call, error) {
	p, err := s.pool.pipe(ctx)
	if err != nil {
		return nil, err
	}
	return p.begin(ctx, m, order{owner: s, timeout: timeout})
}

// exchange makes a call while the caller has the pool's turn, so it may take no longer than a handshake. It returns the
// response and whether that is a result.
func (s *sharedSession) exchange(ctx context.Context, m *mcp.Message) (response []byte, ok bool, err error) {
	k, err := s.begin(ctx, m, s.pool.server.times.Handshake)
	if err != nil {
		return nil, false, err
	}
	if response, err = k.box.Response(); err != nil {
		return nil, false, err
	}
	r, err := mcp.ScanAnswer(response)
	return response, err == nil && r.Result.Present(), nil
}

// notify passes a client's notification on, except those about the handshake and roots: the process knows of neither.
func (s *sharedSession) notify(ctx context.Context, m *mcp.Message) error {
	switch m.Method {
	case mcp.NotificationInitialized, mcp.NotificationRootsChanged, mcp.NotificationProgress:
		return nil
	}
	p, err := s.pool.pipe(ctx)
	if err != nil {
		return err
	}
	if m.Method == mcp.NotificationCancelled {
		p.cancel(m, s)
		return nil
	}
	return p.notify(m)
}

// setLevel gives the process the most verbose level that any session wants; each session's messages are filtered.
func (s *sharedSession) setLevel(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	want := levelOf(m.Params.Of(m.Raw))
	if want == noLevel {
		return refusal(m, mcp.CodeInvalidParams, "unknown log level"), nil
	}
	release, err := s.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	tell, changes := s.pool.levelWith(s, want)
	response := []byte(nil)
	if changes {
		told, err := mcp.Scan([]byte(setLevel(string(m.ID.Of(m.Raw)), tell)), mcp.Limits{})
		if err != nil {
			return nil, err
		}
		var ok bool
		if response, ok, err = s.exchange(ctx, &told); err != nil || !ok {
			return orBody(response, err)
		}
	}
	s.pool.mu.Lock()
	s.level, s.pool.level = want, tell
	s.pool.mu.Unlock()
	return result(m), nil
}

// subscribe asks the process for a resource's updates unless it sends them already.
func (s *sharedSession) subscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	release, err := s.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	uri := string(m.Name)
	held := s.pool.held(uri)
	if !s.remember(uri) {
		return refusal(m, mcp.CodeInvalidRequest, "too many subscriptions in this session"), nil
	}
	if held {
		return result(m), nil
	}
	response, ok, err := s.exchange(ctx, m)
	if !ok {
		s.forget(uri)
	}
	return orBody(response, err)
}

// remember adds a subscription and reports whether there was room. It comes before the process is asked, so that one
// that takes over meanwhile hears of it.
func (s *sharedSession) remember(uri string) bool {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if len(s.uris) >= subscribedMost {
		return false
	}
	if !s.closed {
		s.uris[uri] = struct{}{}
	}
	return true
}

func (s *sharedSession) forget(uri string) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	delete(s.uris, uri)
}

// unsubscribe tells the process only when nobody else holds the subscription.
func (s *sharedSession) unsubscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	release, err := s.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	uri := string(m.Name)
	s.forget(uri)
	if s.pool.held(uri) {
		return result(m), nil
	}
	response, _, err := s.exchange(ctx, m)
	return orBody(response, err)
}

func (s *sharedSession) hasPrefixOf(uri string) bool {
	for held := range s.uris {
		if strings.HasPrefix(uri, held) {
			return true
		}
	}
	return false
}

// Close implements upstream.Session. The calls in flight are cancelled, and the process is told what nobody is
// subscribed to any more.
func (s *sharedSession) Close(ctx context.Context) error {
	o := s.pool
	o.mu.Lock()
	held := s.uris
	s.closed, s.uris = true, nil
	delete(o.sessions, s)
	o.left = time.Now()
	o.mu.Unlock()
	s.box.Fail(io.EOF)

	p := o.server.running(mcp.Legacy)
	if p == nil {
		return nil
	}
	for _, k := range p.matching(func(k *call) bool { return k.owner == s }) {
		k.abandon(o.server.fault(upstream.SessionGone, "the session was closed", nil), nil)
	}
	if len(held) == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.startLocked(p, func(ctx context.Context) {
		o.tellSubscriptions(ctx, p, mcp.MethodResourcesUnsubscribe, held)
	})
	return nil
}

func result(m *mcp.Message) *upstream.Answer {
	return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID.Of(m.Raw)))
}

func refusal(m *mcp.Message, code int, text string) *upstream.Answer {
	return upstream.Whole(200, mcp.AppendError(nil, m.ID.Of(m.Raw), &mcp.Error{Code: code, Message: text}))
}

func orBody(response []byte, err error) (*upstream.Answer, error) {
	if err != nil {
		return nil, err
	}
	return upstream.Whole(200, response), nil
}

func setLevel(id string, l level) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{"level":%q}}`, id, mcp.MethodSetLevel, mcp.LogLevels[l])
}

func subscription(method, uri string) string {
	quoted, err := json.Marshal(uri)
	if err != nil {
		panic(err) // a string always has a form
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":%q,"params":{"uri":%s}}`, method, quoted)
}

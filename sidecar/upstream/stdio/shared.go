package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// subscribedMost bounds the URIs that one session may subscribe to.
const subscribedMost = 1024

// pool is the legacy sessions that share one process. What the process was told for all of them, subscriptions and
// the log level, is told again to the process that replaces it.
type pool struct {
	server *Server
	// turn is held while a subscription or the level changes, so that the process hears of them in one order.
	turn chan struct{}

	mu       sync.Mutex // guards below; taken before a pipe's
	sessions map[*sharedSession]struct{}
	welcome  *welcome
	level    level // as the process was told
}

func newPool(s *Server) *pool {
	return &pool{server: s, turn: make(chan struct{}, 1), sessions: map[*sharedSession]struct{}{}, level: noLevel}
}

// open makes a session and answers a client's initialize from the process's own.
func (o *pool) open(ctx context.Context, m *mcp.Message) (upstream.Session, *upstream.Answer, error) {
	times := o.server.times
	if _, err := o.server.pipeFor(ctx, mcp.Legacy, times.connect+times.handshake); err != nil {
		return nil, nil, err
	}
	s := &sharedSession{inbox: newInbox(o.server.log), pool: o, level: noLevel, uris: map[string]struct{}{}}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sessions[s] = struct{}{}
	return s, bodyAnswer(o.welcome.answer(m)), nil
}

// pipe returns the process's pipe for a session that is open. When the server that came back after a restart no longer
// speaks the legacy wire, its sessions are gone.
func (o *pool) pipe(ctx context.Context) (*pipe, error) {
	p, err := o.server.pipeFor(ctx, mcp.Legacy, o.server.times.connect)
	if e := (*upstream.Error)(nil); errors.As(err, &e) && e.Kind == upstream.WrongEra {
		return nil, o.server.fault(upstream.SessionGone, e.Detail, err)
	}
	return p, err
}

// move tells a new process what the one before it knew, and the clients that lists may have changed.
func (o *pool) move(p *pipe, w *welcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	restarted := o.welcome != nil
	o.welcome = w
	if o.level != noLevel {
		p.tell(setLevel("0", o.level), o.server.times.handshake)
	}
	for uri := range o.urisLocked() {
		p.tell(subscription(mcp.MethodResourcesSubscribe, uri), o.server.times.handshake)
	}
	if !restarted {
		return
	}
	for _, change := range w.changes {
		o.broadcastLocked(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, change))
	}
}

func (o *pool) urisLocked() map[string]struct{} {
	all := map[string]struct{}{}
	for s := range o.sessions {
		for uri := range s.uris {
			all[uri] = struct{}{}
		}
	}
	return all
}

func (o *pool) broadcastLocked(message []byte) {
	for s := range o.sessions {
		s.box.put(message)
	}
}

func (o *pool) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.sessions {
		s.box.fail(io.EOF)
	}
	clear(o.sessions)
}

// ended implements router.
func (o *pool) ended(*pipe) {}

// route implements router. What names no call goes to those it can be told to concern, or to nobody: never to a client
// that might not be meant.
func (o *pool) route(p *pipe, m *mcp.Message) {
	switch m.Method {
	case mcp.NotificationToolsChanged, mcp.NotificationPromptsChanged, mcp.NotificationResourcesChanged:
		o.mu.Lock()
		defer o.mu.Unlock()
		o.broadcastLocked(bytes.Clone(m.Raw))
	case mcp.NotificationResourceUpdated:
		o.updated(m)
	case mcp.NotificationCancelled: // of a request that was refused at once
	default:
		if m.Kind == mcp.Request {
			p.answer(m)
			return
		}
		o.toTheOnly(p, m)
	}
}

// updated tells the sessions that subscribed to the resource; when none did, those that subscribed to what it is
// part of.
func (o *pool) updated(m *mcp.Message) {
	uri, message := string(m.Name), bytes.Clone(m.Raw)
	o.mu.Lock()
	defer o.mu.Unlock()
	exact := false
	for s := range o.sessions {
		if _, ok := s.uris[uri]; ok {
			exact = true
			s.box.put(message)
		}
	}
	if exact {
		return
	}
	for s := range o.sessions {
		if s.hasPrefixOf(uri) {
			s.box.put(message)
		}
	}
}

// toTheOnly delivers a notification that names nobody: to the one call in flight, or to the stream of the one session
// that it can come from.
func (o *pool) toTheOnly(p *pipe, m *mcp.Message) {
	calls := p.matching(func(k *call) bool { return k.owner != nil })
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.onlyLocked(calls)
	if s == nil {
		return
	}
	if m.Method == mcp.NotificationMessage && !s.level.wants(levelOf(m.Params.Of(m.Raw))) {
		return
	}
	if len(calls) == 1 {
		calls[0].box.put(bytes.Clone(m.Raw))
		return
	}
	s.box.put(bytes.Clone(m.Raw))
}

func (o *pool) onlyLocked(calls []*call) (only *sharedSession) {
	for _, k := range calls {
		s, _ := k.owner.(*sharedSession)
		if only != nil && s != only {
			return nil
		}
		only = s
	}
	if len(calls) == 0 && len(o.sessions) == 1 {
		for only = range o.sessions {
		}
	}
	return only
}

// take waits for the turn to change what the process knows.
func (o *pool) take(ctx context.Context) (release func(), err error) {
	select {
	case o.turn <- struct{}{}:
		return func() { <-o.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

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
	k, err := s.begin(ctx, m)
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

func (s *sharedSession) begin(ctx context.Context, m *mcp.Message) (*call, error) {
	p, err := s.pool.pipe(ctx)
	if err != nil {
		return nil, err
	}
	return p.begin(ctx, m, order{owner: s, timeout: s.pool.server.times.call})
}

// exchange makes a call and returns its response and whether that is a result.
func (s *sharedSession) exchange(ctx context.Context, m *mcp.Message) (response []byte, ok bool, err error) {
	k, err := s.begin(ctx, m)
	if err != nil {
		return nil, false, err
	}
	if response, err = k.response(); err != nil {
		return nil, false, err
	}
	r, err := mcp.Scan(response, mcp.Limits{MaxDepth: answerDepth})
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

// levelWith is the level the process needs once s wants want, and whether that is news to it.
func (o *pool) levelWith(s *sharedSession, want level) (tell level, changes bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tell = want
	for other := range o.sessions {
		if other != s && other.level != noLevel {
			tell = min(tell, other.level)
		}
	}
	return tell, tell != o.level
}

// subscribe asks the process for a resource's updates unless it sends them already.
func (s *sharedSession) subscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	release, err := s.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	uri := string(m.Name)
	held, mine := s.pool.holders(uri, s)
	switch {
	case mine == subscribedMost:
		return refusal(m, mcp.CodeInvalidRequest, "too many subscriptions in this session"), nil
	case held > 0:
		s.remember(uri)
		return result(m), nil
	}
	response, ok, err := s.exchange(ctx, m)
	if ok {
		s.remember(uri)
	}
	return orBody(response, err)
}

func (s *sharedSession) remember(uri string) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if !s.closed {
		s.uris[uri] = struct{}{}
	}
}

// unsubscribe tells the process only when nobody else holds the subscription.
func (s *sharedSession) unsubscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	release, err := s.pool.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	uri := string(m.Name)
	s.pool.mu.Lock()
	delete(s.uris, uri)
	s.pool.mu.Unlock()
	if held, _ := s.pool.holders(uri, s); held > 0 {
		return result(m), nil
	}
	response, _, err := s.exchange(ctx, m)
	return orBody(response, err)
}

// holders counts the sessions that hold a subscription, and the subscriptions that s holds.
func (o *pool) holders(uri string, s *sharedSession) (held, mine int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for other := range o.sessions {
		if _, ok := other.uris[uri]; ok {
			held++
		}
	}
	return held, len(s.uris)
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
	o.mu.Unlock()
	s.box.fail(io.EOF)

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
	release, err := o.take(ctx)
	if err != nil {
		return nil // the process goes on sending updates that nobody gets
	}
	defer release()
	for uri := range held {
		if others, _ := o.holders(uri, s); others == 0 {
			p.tell(subscription(mcp.MethodResourcesUnsubscribe, uri), o.server.times.handshake)
		}
	}
	return nil
}

func result(m *mcp.Message) *upstream.Answer {
	return bodyAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID.Of(m.Raw)))
}

func refusal(m *mcp.Message, code int, text string) *upstream.Answer {
	return bodyAnswer(mcp.AppendError(nil, m.ID.Of(m.Raw), &mcp.Error{Code: code, Message: text}))
}

func orBody(response []byte, err error) (*upstream.Answer, error) {
	if err != nil {
		return nil, err
	}
	return bodyAnswer(response), nil
}

func setLevel(id string, l level) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"logging/setLevel","params":{"level":%q}}`, id, levels[l])
}

func subscription(method, uri string) string {
	quoted, err := json.Marshal(uri)
	if err != nil {
		panic(err) // a string always has a form
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":%q,"params":{"uri":%s}}`, method, quoted)
}

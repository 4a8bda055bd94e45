package sse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxEvent   = 16 << 20               // bytes of one event
	maxCalls   = 1024                   // requests in flight on one link
	maxAsked   = 1024                   // requests of the server's that wait for the client
	maxReplies = 4                      // answers of the sidecar's own to those, on their way at once
	replyTime  = 2 * time.Second        // for what nobody waits for: a reply, a cancellation
	postTail   = 250 * time.Millisecond // how long a POST may take after the answer to it
)

// link is a session as the server knows it: one event stream, and the place where messages go. It ends once, with its
// stream.
type link struct {
	// Set by session.connect before anybody else has the link, never changed.
	server   *Server
	session  *session
	endpoint *url.URL

	ctx     context.Context // ends with the link
	stop    context.CancelFunc
	over    chan struct{} // closed when the link has ended
	replies chan struct{} // capacity maxReplies

	mu     sync.Mutex          // guards below
	agreed string              // the version that the server named; empty before it answered initialize
	err    *upstream.Error     // why it ended; nil while it lives
	calls  []*call             // in flight, oldest first
	asked  map[string]struct{} // ids of the server's requests that the client has not answered
}

func newLink(s *session) *link {
	l := &link{
		server: s.server, session: s, over: make(chan struct{}), replies: make(chan struct{}, maxReplies),
		asked: make(map[string]struct{}),
	}
	l.ctx, l.stop = context.WithCancel(s.server.tasks.Context())
	return l
}

// firstEvent reads the place where messages go, which must be told first.
func (l *link) firstEvent(reader *mcp.EventReader) error {
	for {
		event, err := reader.Next()
		switch {
		case err != nil:
			return l.server.fault(upstream.BadAnswer, "ended its event stream before it named an endpoint", err)
		case len(event.Data) == 0:
			continue
		case string(event.Type) != endpointEvent:
			return l.server.fault(upstream.BadAnswer, "sent another event before its endpoint", nil)
		}
		l.endpoint, err = endpointOf(l.server.client.url, event.Data)
		if err != nil {
			return l.server.fault(upstream.BadAnswer, "sent "+err.Error(), err)
		}
		return nil
	}
}

// read is the link's task: it takes what the server says to whom it belongs, until the stream ends.
func (l *link) read(body io.ReadCloser, reader *mcp.EventReader) {
	defer body.Close()
	for {
		event, err := reader.Next()
		if err != nil {
			l.end(l.ending(err))
			return
		}
		if len(event.Data) == 0 || len(event.Type) > 0 && string(event.Type) != "message" {
			continue
		}
		m, err := mcp.ScanAnswer(event.Data)
		if err != nil {
			l.server.log.Warn("dropped an event that is not a JSON-RPC message", "error", err)
			continue
		}
		l.route(&m)
	}
}

// ending is what the end of the stream means for calls in flight.
func (l *link) ending(err error) *upstream.Error {
	if errors.Is(err, mcp.ErrEventTooLarge) {
		return l.server.fault(upstream.Overloaded, "sent an event larger than the sidecar takes", err)
	}
	return l.server.fault(upstream.Lost, "the event stream ended before the response", err)
}

// end ends the link, and with it every call in flight. The first reason counts.
func (l *link) end(why *upstream.Error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = why
	calls := l.calls
	l.calls = nil
	for _, k := range calls {
		k.disarmLocked()
	}
	l.mu.Unlock()
	l.stop()
	close(l.over)
	for _, k := range calls {
		k.box.Fail(why)
	}
}

func (l *link) version() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agreed
}

func (l *link) agreeOn(version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.agreed = version
}

func (l *link) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// route takes a message to the stream that it belongs to:
//
//   - a response to the call with its id;
//   - progress to the call that gave its token;
//   - changed lists, and updates of resources, to the session's own stream;
//   - the rest, requests of the server's among it, to the call in flight when there is exactly one. With several it goes
//     to the session's own stream if somebody reads that, and to the oldest call otherwise, for a request that nobody
//     sees would hold the server up. Without any it waits for a reader of the session's own stream.
//
// A ping is answered here: a client without a stream open could not.
func (l *link) route(m *mcp.Message) {
	switch {
	case m.Kind == mcp.Response:
		l.respond(m)
	case m.Kind == mcp.Request && m.Method == mcp.MethodPing:
		l.reply(pong(m.ID.Of(m.Raw)))
	case m.Kind == mcp.Request:
		l.ask(m)
	default:
		l.forgetCancelled(m)
		message := bytes.Clone(m.Raw)
		if k := l.callOf(m); k == nil || !k.box.Put(message) { // or the call ended just now
			l.session.box.Put(message)
		}
	}
}

// respond ends the call that a response is for. An error may lack the id, when its request could not be read; then it is
// the only call's.
func (l *link) respond(m *mcp.Message) {
	k := l.takeAnswered(m)
	if k == nil {
		l.server.log.Debug("dropped a response to no request in flight")
		return
	}
	if k.setting != nil && m.Result.Present() {
		l.session.settings.Remember(*k.setting)
	}
	k.box.Finish(bytes.Clone(m.Raw))
}

func (l *link) takeAnswered(m *mcp.Message) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := m.ID.Of(m.Raw)
	if id == nil || string(id) == "null" {
		if !m.Error.Present() || len(l.calls) != 1 {
			return nil
		}
		k := l.calls[0]
		l.removeLocked(k)
		return k
	}
	k := l.findLocked(keyOf(id))
	if k != nil {
		l.removeLocked(k)
	}
	return k
}

// ask gives the client a request of the server's, or refuses it when too many wait for the client already.
func (l *link) ask(m *mcp.Message) {
	id := m.ID.Of(m.Raw)
	message := bytes.Clone(m.Raw)
	if l.owe(id) {
		if k := l.callOf(m); k != nil && k.box.PutRequest(message) || l.session.box.PutRequest(message) {
			return
		}
		l.settle(id)
	}
	l.reply(mcp.AppendError(nil, id, &mcp.Error{
		Code: mcp.CodeInternalError, Message: "too many requests wait for the client",
	}))
}

// owe notes that the client is to answer the request with that id.
func (l *link) owe(id []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) == maxAsked {
		return false
	}
	l.asked[keyOf(id)] = struct{}{}
	return true
}

// settle reports whether the request with that id was the server's and not answered yet, and takes it for answered.
func (l *link) settle(id []byte) (owed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(id)
	_, owed = l.asked[key]
	delete(l.asked, key)
	return owed
}

func (l *link) forgetCancelled(m *mcp.Message) {
	if m.Method == mcp.NotificationCancelled && m.RequestID.Present() {
		l.settle(m.RequestID.Of(m.Raw))
	}
}

// callOf is the call whose stream a message of the server's goes to; nil for the session's own.
func (l *link) callOf(m *mcp.Message) *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch m.Method {
	case mcp.NotificationToolsChanged, mcp.NotificationPromptsChanged, mcp.NotificationResourcesChanged,
		mcp.NotificationResourceUpdated:
		return nil
	case mcp.NotificationProgress:
		return l.withTokenLocked(m.ProgressToken.Of(m.Raw))
	}
	var oldest *call
	n := 0
	for _, k := range l.calls {
		if k.own {
			continue
		}
		if n++; n == 1 {
			oldest = k
		}
	}
	if n > 1 && l.session.heard() {
		return nil
	}
	return oldest
}

func (l *link) withTokenLocked(token []byte) *call {
	if token == nil {
		return nil
	}
	key := keyOf(token)
	for _, k := range l.calls {
		if k.token == key {
			return k
		}
	}
	return nil
}

// reply sends a response of the sidecar's own, unless several are on their way already: a server that floods is not
// served faster than it reads.
func (l *link) reply(response []byte) {
	select {
	case l.replies <- struct{}{}:
	default:
		l.server.log.Warn("did not answer a request of the server's: it sends too many at once")
		return
	}
	l.server.tasks.Run(func() {
		defer func() { <-l.replies }()
		l.tell(response)
	})
}

// tell sends a message that nobody waits for.
func (l *link) tell(message []byte) {
	ctx, stop := context.WithTimeout(l.ctx, replyTime)
	defer stop()
	if err := l.server.client.post(ctx, l, nil, l.session.caller.Load(), message, nil); err != nil {
		l.server.log.Debug("a message of the sidecar's own was not taken", "error", err)
	}
}

func (l *link) findLocked(key string) *call {
	for _, k := range l.calls {
		if k.key == key {
			return k
		}
	}
	return nil
}

// removeLocked takes a call out and reports whether it was there.
func (l *link) removeLocked(k *call) bool {
	i := slices.Index(l.calls, k)
	if i < 0 {
		return false
	}
	l.calls = slices.Delete(l.calls, i, i+1)
	k.disarmLocked()
	return true
}

// refusedByServer is what a failed POST means. Errors: errNotTaken when the server does not know the session, and so has
// not taken the message.
func (l *link) refusedByServer(err error) error {
	var r *rejection
	if !errors.As(err, &r) {
		return err
	}
	switch m, scanned := mcp.ScanAnswer(r.body); {
	case r.status == 404 && scanned == nil && upstream.ErrorCode(&m) == mcp.CodeMethodNotFound:
	case r.status == 404, r.status == 410, r.status >= 400 && r.status < 500 && l.ended():
		return fmt.Errorf("%w: %d", errNotTaken, r.status)
	}
	return l.server.client.refused(r.status)
}

// errNotTaken says that a message was not taken by the server, since the session it was for is not known there.
var errNotTaken = errors.New("the server does not know the session")

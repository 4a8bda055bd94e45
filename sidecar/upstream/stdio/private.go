package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// ownMost bounds the processes of sessions that do not share one.
const ownMost = 64

// sessions are the sessions with a process of their own.
type sessions struct {
	mu     sync.Mutex // guards below
	closed bool
	places int // taken, also by sessions that are being opened
	open   map[*ownSession]struct{}
}

func newSessions() *sessions { return &sessions{open: map[*ownSession]struct{}{}} }

// reserve takes a place for one more process.
func (o *sessions) reserve() (ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.places == ownMost {
		return false
	}
	o.places++
	return true
}

// add reports whether the session may live: not when close, or the end of its process, came first.
func (o *sessions) add(s *ownSession) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || s.over {
		return false
	}
	o.open[s] = struct{}{}
	return true
}

// release gives a place back, when the process is gone.
func (o *sessions) release(s *ownSession) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.places--
	s.over = true
	delete(o.open, s)
}

func (o *sessions) close(ctx context.Context) {
	o.mu.Lock()
	o.closed = true
	var all sync.WaitGroup
	for s := range o.open {
		all.Go(func() { s.pipe.stop(ctx) })
	}
	o.mu.Unlock()
	all.Wait()
}

// ownSession is one client with a process of its own, which may ask that client anything.
type ownSession struct {
	inbox
	server *Server
	pipe   *pipe
	over   bool // its process is gone; guarded by sessions
}

// openOwn starts a process and gives it the client's own initialize.
func (s *Server) openOwn(ctx context.Context, m *mcp.Message) (upstream.Session, *upstream.Answer, error) {
	if !s.own.reserve() {
		return nil, nil, s.fault(upstream.Overloaded, fmt.Sprintf("%d sessions have a process already", ownMost), nil)
	}
	session := &ownSession{inbox: newInbox(s.log), server: s}
	p, err := s.spawn(session)
	if err != nil {
		s.own.release(session)
		return nil, nil, err
	}
	p.become(mcp.Legacy, session)
	session.pipe = p
	response, ok, err := session.initialize(ctx, m)
	if err == nil && ok && s.own.add(session) {
		return session, upstream.Whole(200, response), nil
	}
	p.proc.kill()
	p.stop(ctx)
	switch {
	case err != nil:
		return nil, nil, err
	case ok:
		return nil, nil, s.fault(upstream.Unreachable, "its process was stopped or ended right after initialize", nil)
	}
	return nil, upstream.Whole(200, response), nil
}

// initialize returns the response to the client's initialize and whether it is a result.
func (s *ownSession) initialize(ctx context.Context, m *mcp.Message) (response []byte, ok bool, err error) {
	times := s.server.times
	k, err := s.pipe.begin(ctx, m, order{owner: s, timeout: times.Handshake})
	if err != nil {
		return nil, false, err
	}
	if response, err = k.box.Response(); err != nil {
		return nil, false, err
	}
	_, err = readWelcome(response)
	return response, err == nil, nil
}

// ended implements router: the session goes with its process, since what it held in memory is lost.
func (s *ownSession) ended(*pipe) {
	s.server.own.release(s)
	s.box.Fail(io.EOF)
}

// route implements router. A request goes to the stream of the call that it can come from; list changes and resource
// updates go to the session's own stream.
func (s *ownSession) route(p *pipe, m *mcp.Message) {
	if m.Kind == mcp.Request && m.Method == mcp.MethodPing {
		p.answer(m)
		return
	}
	k, message := s.callFor(p, m), bytes.Clone(m.Raw)
	switch {
	case m.Kind == mcp.Request:
		s.askClient(p, k, m, message)
	case k == nil || !k.box.Put(message): // or the call ended just now
		s.box.Put(message)
	}
}

// askClient gives the client a request of the server's. A stream that is full of requests ends with an error; when that
// is the session's own, the request is answered here.
func (s *ownSession) askClient(p *pipe, k *call, m *mcp.Message, message []byte) {
	if k != nil && k.box.PutRequest(message) {
		return
	}
	full := p.fault(upstream.Overloaded, "too many of its requests wait for the client", nil)
	if k != nil {
		k.abandon(full, nil) // unless it ended just now
	}
	if !s.box.PutRequest(message) {
		s.box.Fail(full)
		p.answer(m)
	}
}

// callFor is the call whose stream a message goes to; nil for the session's own.
func (s *ownSession) callFor(p *pipe, m *mcp.Message) *call {
	switch m.Method {
	case mcp.NotificationToolsChanged, mcp.NotificationPromptsChanged, mcp.NotificationResourcesChanged,
		mcp.NotificationResourceUpdated:
		return nil
	}
	calls := p.matching(func(k *call) bool { return k.method != mcp.MethodInitialize })
	if len(calls) == 1 || (len(calls) > 1 && !s.heard()) {
		return calls[0]
	}
	return nil
}

// Call implements upstream.Session.
func (s *ownSession) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	m := c.Message
	var err error
	switch {
	case m.Kind == mcp.Notification && m.Method == mcp.NotificationCancelled && m.RequestID.Present():
		s.pipe.cancel(m, s)
	case m.Kind != mcp.Request:
		err = s.gone(s.pipe.notify(m))
	case m.Method == mcp.MethodInitialize:
		return refusal(m, mcp.CodeInvalidRequest, "the session is initialized already"), nil
	default:
		k, err := s.pipe.begin(ctx, m, order{owner: s, timeout: s.server.times.Call})
		if err != nil {
			return nil, s.gone(err)
		}
		return k.answer()
	}
	return nil, err
}

// gone makes the error of a process that has ended that of its session.
func (s *ownSession) gone(err error) error {
	if e := (*upstream.Error)(nil); errors.As(err, &e) && e.Kind == upstream.Unreachable {
		return s.server.fault(upstream.SessionGone, "the session's process has ended", err)
	}
	return err
}

// Close implements upstream.Session: the process is stopped.
func (s *ownSession) Close(ctx context.Context) error {
	s.pipe.stop(ctx)
	return nil
}

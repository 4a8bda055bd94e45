package tostateless

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// session is one legacy client's session with a server that knows of none. It is an upstream.Session.
type session struct {
	// Set by newSession, never changed.
	server    *Server
	principal string // whose initialize it was
	version   string // agreed on
	meta      []byte // of every request, as members
	declared  declared
	offered   offered
	feed      *feed

	caller atomic.Pointer[identity.Principal] // as it last called

	mu        sync.Mutex // guards below
	level     []byte     // of logging/setLevel, as its token; nil before the first
	calls     map[*call]struct{}
	questions map[string]question // that the client has not answered, by the id's token
	lastID    int64               // of a question
	ended     bool
}

// question is a request to the client that waits for its answer.
type question struct {
	round *round
	index int
}

func newSession(s *Server, q *upstream.Call, version string, meta []byte, d declared, o offered) *session {
	c := &session{
		server: s, principal: q.Principal, version: version, meta: meta, declared: d, offered: o,
		calls: make(map[*call]struct{}), questions: make(map[string]question),
	}
	c.caller.Store(q.Caller)
	c.feed = newFeed(c)
	return c
}

// Call implements upstream.Session.
func (c *session) Call(ctx context.Context, q *upstream.Call) (*upstream.Answer, error) {
	m := q.Message
	if q.Caller != nil && q.Caller != c.caller.Load() {
		c.caller.Store(q.Caller)
	}
	switch {
	case m.Kind == mcp.Response:
		c.deliver(m)
		return nil, nil
	case m.Kind == mcp.Notification:
		if m.Method == mcp.NotificationCancelled {
			c.cancel(m.RequestID.Of(m.Raw))
		}
		return nil, nil // no other means anything to a stateless server
	}
	switch m.Method {
	case mcp.MethodPing:
		return resultAnswer(m, []byte("{}")), nil
	case mcp.MethodSetLevel:
		return c.setLevel(m), nil
	case mcp.MethodResourcesSubscribe:
		return c.subscribe(ctx, m)
	case mcp.MethodResourcesUnsubscribe:
		return c.unsubscribe(ctx, m)
	case mcp.MethodInitialize, mcp.MethodDiscover, mcp.MethodListen, mcp.MethodTasksGet, mcp.MethodTasksUpdate,
		mcp.MethodTasksCancel, mcp.MethodTasksResult, mcp.MethodTasksList:
		return notHere(m), nil
	}
	return c.carry(ctx, q)
}

// notHere answers a method that this session does not have.
func notHere(m *mcp.Message) *upstream.Answer {
	return refusal(m, mcp.CodeMethodNotFound, "this session does not have the method "+strconv.Quote(m.Method))
}

// setLevel remembers what every later request asks for: on the stateless wire no server keeps it.
func (c *session) setLevel(m *mcp.Message) *upstream.Answer {
	level := rawjson.Find(m.Raw, m.Params, "level").Of(m.Raw)
	name, ok := rawjson.Text(level)
	switch {
	case !c.offered.logging:
		return notHere(m)
	case !ok || !slices.Contains(mcp.LogLevels[:], name):
		return refusal(m, mcp.CodeInvalidParams, "params.level is not one of the log levels")
	}
	c.mu.Lock()
	c.level = bytes.Clone(level)
	c.mu.Unlock()
	return resultAnswer(m, []byte("{}"))
}

// metaNow is what a request has in its _meta, as members.
func (c *session) metaNow() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.level == nil {
		return c.meta
	}
	b := append(slices.Clip(c.meta), `,"`+mcp.MetaKeyLogLevel+`":`...)
	return append(b, c.level...)
}

// begin keeps a call until finish. It is not ok once the session has ended.
func (c *session) begin(k *call) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.calls[k] = struct{}{}
	}
	return !c.ended
}

// finish forgets a call and what it asked.
func (c *session) finish(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, k)
	c.withdrawLocked(k.round)
}

// cancel ends the call with that id at the server, if it is in flight; other ids are nobody's (2025-11-25,
// basic/utilities/cancellation).
func (c *session) cancel(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.calls {
		if bytes.Equal(k.id, id) {
			k.stop()
		}
	}
}

// ask gives each question of a round its id, which is unique in the session, and waits for their answers from then on.
func (c *session) ask(r *round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range r.questions {
		c.lastID++
		r.questions[i].id = strconv.FormatInt(c.lastID, 10)
		c.questions[r.questions[i].id] = question{r, i}
	}
}

// deliver hands a client's answer to the call that asked. What nobody asked, or nobody waits for any more, is dropped.
func (c *session) deliver(m *mcp.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := string(m.ID.Of(m.Raw))
	q, ok := c.questions[id]
	if !ok {
		return
	}
	delete(c.questions, id)
	q.round.answers <- reply{q.index, bytes.Clone(m.Result.Of(m.Raw))} // which has room for all of them
}

// withdraw stops waiting for a round's answers, and returns the ids of those that did not come.
func (c *session) withdraw(r *round) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withdrawLocked(r)
}

func (c *session) withdrawLocked(r *round) (ids []string) {
	if r == nil {
		return nil
	}
	for i := range r.questions {
		id := r.questions[i].id // the rest of it is another goroutine's
		if _, waits := c.questions[id]; waits {
			delete(c.questions, id)
			ids = append(ids, id)
		}
	}
	return ids
}

// stop ends every wait of the session.
func (c *session) stop() {
	c.mu.Lock()
	c.ended = true
	for k := range c.calls {
		k.stop()
	}
	c.mu.Unlock()
	c.feed.close()
}

// Close implements upstream.Session. There is nobody to tell.
func (c *session) Close(ctx context.Context) error {
	c.stop()
	c.server.remove(c)
	return c.feed.wait(ctx)
}

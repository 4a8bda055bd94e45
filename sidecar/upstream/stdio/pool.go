package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// pool is the legacy sessions that share one process. What the process was told for all of them, subscriptions and
// the log level, is told again to the process that replaces it.
type pool struct {
	server *Server
	// turn is held while a subscription or the level changes, so that the process hears of them in one order.
	turn chan struct{}
	// tasks tell a process about many subscriptions. Each ends with its process; close waits for them.
	tasks sync.WaitGroup

	mu       sync.Mutex // guards below; taken before a pipe's
	sessions map[*sharedSession]struct{}
	welcome  *welcome
	level    level     // as the process was told
	left     time.Time // when a session was last closed
	closed   bool      // no more tasks
}

func newPool(s *Server) *pool {
	return &pool{server: s, turn: make(chan struct{}, 1), sessions: map[*sharedSession]struct{}{}, level: noLevel}
}

// open makes a session and answers a client's initialize from the process's own.
func (o *pool) open(ctx context.Context, m *mcp.Message) (upstream.Session, *upstream.Answer, error) {
	times := o.server.times
	if _, err := o.server.pipeFor(ctx, mcp.Legacy, times.Connect+times.Handshake); err != nil {
		return nil, nil, err
	}
	s := &sharedSession{inbox: newInbox(o.server.log), pool: o, level: noLevel, uris: map[string]struct{}{}}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sessions[s] = struct{}{}
	return s, upstream.Whole(200, o.welcome.answer(m)), nil
}

// pipe returns the process's pipe for a session that is open. When the server that came back after a restart no longer
// speaks the legacy wire, its sessions are gone.
func (o *pool) pipe(ctx context.Context) (*pipe, error) {
	p, err := o.server.pipeFor(ctx, mcp.Legacy, o.server.times.Connect)
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
	if !restarted {
		return
	}
	o.startLocked(p, func(ctx context.Context) {
		o.tellLevel(ctx, p)
		o.tellSubscriptions(ctx, p, mcp.MethodResourcesSubscribe, o.uris())
	})
	for _, change := range w.changes {
		o.broadcastLocked(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`, change))
	}
}

func (o *pool) uris() map[string]struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := map[string]struct{}{}
	for s := range o.sessions {
		maps.Copy(all, s.uris)
	}
	return all
}

func (o *pool) broadcastLocked(message []byte) {
	for s := range o.sessions {
		s.box.Put(message)
	}
}

// close comes after the end of the processes.
func (o *pool) close() {
	o.mu.Lock()
	o.closed = true
	for s := range o.sessions {
		s.box.Fail(io.EOF)
	}
	clear(o.sessions)
	o.mu.Unlock()
	o.tasks.Wait()
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
			s.box.Put(message)
		}
	}
	if exact {
		return
	}
	for s := range o.sessions {
		if s.hasPrefixOf(uri) {
			s.box.Put(message)
		}
	}
}

// toTheOnly delivers a notification that names nobody, when no other client shares the process or did just now: to the
// one call in flight, or else to the session's stream. A call says nothing about whose it is, since a server may go on
// logging for a client after it has answered.
func (o *pool) toTheOnly(p *pipe, m *mcp.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.sessions) != 1 || time.Since(o.left) < grace {
		p.drop(m)
		return
	}
	for s := range o.sessions {
		if m.Method == mcp.NotificationMessage && !s.level.wants(levelOf(m.Params.Of(m.Raw))) {
			return
		}
		box := s.box
		if calls := p.matching(func(k *call) bool { return k.owner == s }); len(calls) == 1 {
			box = calls[0].box
		}
		box.Put(bytes.Clone(m.Raw))
	}
}

// take waits for the turn to change what the process knows. A client waits no longer than for a handshake.
func (o *pool) take(ctx context.Context) (release func(), err error) {
	timer := time.NewTimer(o.server.times.Handshake)
	defer timer.Stop()
	select {
	case o.turn <- struct{}{}:
		return o.release, nil
	case <-timer.C:
		return nil, o.server.fault(upstream.Unreachable, "it has not answered another client's subscription or log level yet", nil)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (o *pool) release() { <-o.turn }

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

// held reports whether any session holds a subscription.
func (o *pool) held(uri string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for s := range o.sessions {
		if _, ok := s.uris[uri]; ok {
			return true
		}
	}
	return false
}

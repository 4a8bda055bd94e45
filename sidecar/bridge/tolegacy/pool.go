package tolegacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	endTime         = 5 * time.Second // for the end of a session that nobody waits for
	closingTogether = 16
)

// key is whose session it is: sessions are shared by the calls of one principal that declare the same.
type key struct{ principal, capabilities string }

// pool is the legacy sessions that are kept for stateless clients.
type pool struct {
	server *Server

	mu       sync.Mutex // guards below, and users, used, idle and gone of every session
	sessions map[key]*pooled
	closed   bool
}

// pooled is one session. It is in use while it has users: calls, those that are held among them, and listens.
type pooled struct {
	// Set by acquire, never changed.
	pool   *pool
	key    key
	opened chan struct{} // closed when the next three are set
	listen *hub

	session upstream.Session
	about   *about
	err     error // why there is no session

	// Guarded by the pool's lock.
	users int
	used  time.Time   // when the last user left
	idle  *time.Timer // runs while there are no users
	gone  bool        // not in the pool any more; it ends with its last user

	levels sessionLevels
	calls  calls
}

func newPool(s *Server) *pool { return &pool{server: s, sessions: make(map[key]*pooled)} }

// acquire returns the session for an order, opened by whoever comes first. release must follow. Errors: an
// *upstream.Error.
func (o *pool) acquire(ctx context.Context, r *order) (*pooled, error) {
	k := key{r.principal, r.declared.canonical}
	o.mu.Lock()
	p, err := o.sessions[k], error(nil)
	if p == nil {
		p, err = o.addLocked(k, r)
	}
	if err != nil {
		o.mu.Unlock()
		return nil, err
	}
	p.users++
	if p.idle != nil {
		p.idle.Stop()
	}
	o.mu.Unlock()
	select {
	case <-p.opened:
		err = p.err
	case <-ctx.Done():
		err = upstream.GaveUp(ctx, o.server.name)
	}
	if err != nil {
		o.release(p)
		return nil, err
	}
	return p, nil
}

// addLocked makes room for a session and starts to open it.
func (o *pool) addLocked(k key, r *order) (*pooled, error) {
	if o.closed {
		return nil, o.server.fault(upstream.Lost, "the upstream was removed", nil)
	}
	if err := o.makeRoomLocked(k.principal); err != nil {
		return nil, err
	}
	p := &pooled{pool: o, key: k, opened: make(chan struct{}), levels: newSessionLevels(), calls: newCalls()}
	p.listen = newHub(p)
	info := bytes.Clone(r.m.ClientInfo.Of(r.m.Raw)) // the client's message may be gone before the session is open
	caller, asks := r.call.Caller, r.declared.mayBeAsked() || o.server.settings.onPipe
	if !o.server.tasks.Run(func() { p.open(caller, info, asks) }) {
		return nil, o.server.fault(upstream.Lost, "the upstream was removed", nil)
	}
	o.sessions[k] = p
	return p, nil
}

// share is how much of a bound one principal can have, whoever else is there: half of it, rounded up. So no one can use up
// what is for all.
func share(most int) int { return (most + 1) / 2 }

// makeRoomLocked ends a session that is not used where there are enough: one of the principal's own when it has its share.
func (o *pool) makeRoomLocked(principal string) error {
	own := 0
	for k := range o.sessions {
		if k.principal == principal {
			own++
		}
	}
	most := o.server.settings.maxSessions
	switch {
	case own >= share(most) && !o.evictLocked(func(p *pooled) bool { return p.key.principal == principal }):
		return o.server.fault(upstream.Overloaded, fmt.Sprintf("%d sessions are in use by this caller, as many as one may have: "+
			"declare the same capabilities in every call, or try again later", own), nil)
	case len(o.sessions) >= most && !o.evictLocked(func(*pooled) bool { return true }):
		return o.server.fault(upstream.Overloaded, "every session that is kept for stateless clients is in use: try again later", nil)
	}
	return nil
}

// evictLocked ends the longest unused of the sessions that may go, or reports that all of these are in use.
func (o *pool) evictLocked(may func(*pooled) bool) bool {
	var oldest *pooled
	for _, p := range o.sessions {
		if p.users == 0 && may(p) && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	o.dropLocked(oldest)
	return true
}

// dropLocked takes a session out of the pool. Without users it ends now, otherwise with the last of them.
func (o *pool) dropLocked(p *pooled) {
	if o.sessions[p.key] == p {
		delete(o.sessions, p.key)
	}
	if p.gone {
		return
	}
	p.gone = true
	if p.idle != nil {
		p.idle.Stop()
	}
	if p.users == 0 {
		o.server.tasks.Run(p.end)
	}
}

// forget takes a session out that the server does not know any more.
func (o *pool) forget(p *pooled) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked(p)
}

// release says that a user of the session is done.
func (o *pool) release(p *pooled) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	p.used = time.Now()
	switch idle := o.server.settings.sessionIdle; {
	case p.gone:
		if !o.closed {
			o.server.tasks.Run(p.end)
		}
	case o.closed:
	case p.idle == nil:
		p.idle = time.AfterFunc(idle, p.expire)
	default:
		p.idle.Reset(idle)
	}
}

// expire ends a session that was unused for long enough.
func (p *pooled) expire() {
	o := p.pool
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed && p.users == 0 && time.Since(p.used) >= o.server.settings.sessionIdle {
		o.dropLocked(p)
	}
}

// open is the task that opens the session. Where the server may ask, its stream is opened too.
func (p *pooled) open(caller *identity.Principal, clientInfo []byte, asks bool) {
	s := p.pool.server
	ctx, stop := context.WithTimeout(s.tasks.Context(), s.settings.times.Connect+s.settings.times.Handshake)
	defer stop()
	session, about, err := s.handshake(ctx, p.key, caller, clientInfo)
	p.session, p.about, p.err = session, about, err
	if err == nil {
		s.discovery.learn(about)
		if asks {
			p.listen.pin(ctx)
		}
	} else {
		p.pool.mu.Lock()
		p.gone = true                    // there is nothing to end
		if p.pool.sessions[p.key] == p { // else it was evicted, and another has its place
			delete(p.pool.sessions, p.key)
		}
		p.pool.mu.Unlock()
	}
	close(p.opened)
}

// end tells the server that the session is over.
func (p *pooled) end() {
	<-p.opened
	if p.session == nil {
		return
	}
	if p.listen != nil {
		p.listen.close()
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(p.pool.server.tasks.Context()), endTime)
	defer stop()
	if err := p.session.Close(ctx); err != nil {
		p.pool.server.log.Debug("a session kept for stateless clients did not end in good order", "error", err)
	}
}

// stop lets no session be opened any more, and ends the listens.
func (o *pool) stop() {
	o.mu.Lock()
	o.closed = true
	var open []*pooled
	for _, p := range o.sessions {
		open = append(open, p)
		if p.idle != nil {
			p.idle.Stop()
		}
	}
	o.mu.Unlock()
	for _, p := range open {
		p.listen.endAll()
	}
}

// close ends the sessions that are left, several at once, once their users are gone.
func (o *pool) close(ctx context.Context) error {
	o.mu.Lock()
	left := o.sessions
	o.sessions = nil
	o.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(closingTogether)
	for _, p := range left {
		g.Go(func() error {
			if <-p.opened; p.session == nil {
				return nil
			}
			return p.session.Close(ctx)
		})
	}
	return errors.Join(g.Wait())
}

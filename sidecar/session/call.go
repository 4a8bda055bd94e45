package session

import (
	"context"
	"errors"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
)

const (
	// cancelGrace is how long a cancelled call may still answer before it is given up.
	cancelGrace = 5 * time.Second
	// maxCalls is how many calls one session may have in flight. Each may hold its last message beyond what is kept for
	// resumption, so without it that would be no bound.
	maxCalls = 256
)

// ErrBusy is Begin's answer when the session has its most calls in flight.
var ErrBusy = errors.New("too many calls in flight in this session")

// call is a request in flight, and its context.
type call struct {
	lazyctx.Context
	session *Session
	id      string // the request id's token
	older   *call  // with the same id, of a client that repeats it; guarded by the session's mu
	grace   *time.Timer
}

// Begin registers a call by its request id's token, until done is called. ctx ends with the session or by Cancel. It
// fails with ErrBusy.
func (c *Session) Begin(id []byte) (ctx context.Context, done func(), err error) {
	k := &call{session: c, id: string(id)}
	c.mu.Lock()
	if c.inFlight == maxCalls {
		c.mu.Unlock()
		return nil, nil, ErrBusy
	}
	c.inFlight++
	c.active.Add(1)
	if c.calls == nil {
		c.calls = make(map[string]*call)
	}
	k.older = c.calls[k.id]
	c.calls[k.id] = k
	c.mu.Unlock()
	if c.ctx.Err() != nil {
		k.Context.Cancel() // the session ended, perhaps before it could see this call
	}
	return k, k.finish, nil
}

// finish takes a call out. It leaves nothing of it behind: a session may live for weeks.
func (k *call) finish() {
	c := k.session
	c.mu.Lock()
	c.inFlight--
	c.forgetCallLocked(k)
	if k.grace != nil {
		k.grace.Stop()
	}
	c.mu.Unlock()
	k.Context.Cancel()
	c.used.Store(time.Now().UnixNano())
	c.active.Add(-1)
}

func (c *Session) forgetCallLocked(k *call) {
	if c.calls[k.id] != k {
		for newer := c.calls[k.id]; newer != nil; newer = newer.older {
			if newer.older == k {
				newer.older = k.older
			}
		}
		return
	}
	if k.older == nil {
		delete(c.calls, k.id)
	} else {
		c.calls[k.id] = k.older
	}
}

// Cancel gives the call with this id up, if it is in flight after a moment: the server may still answer. An id that the
// client repeated is its latest call's.
func (c *Session) Cancel(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.calls[string(id)]; k != nil && k.grace == nil {
		k.grace = time.AfterFunc(cancelGrace, k.Context.Cancel)
	}
}

// cancelCalls gives every call up.
func (c *Session) cancelCalls() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		for ; k != nil; k = k.older {
			k.Context.Cancel()
		}
	}
}

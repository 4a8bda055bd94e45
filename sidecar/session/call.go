package session

import (
	"bytes"
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

// call is a request in flight, and its context. The session's calls are a list, the latest first: they come and go by the
// thousand, and are looked for only when one is cancelled.
type call struct {
	lazyctx.Context
	session      *Session
	id           []byte // the request id's token; the caller's memory, which outlives the call
	grace        *time.Timer
	older, newer *call // guarded by the session's mu
}

// Begin registers a call by its request id's token, until done is called. ctx ends with the session or by Cancel. id must
// not change before done. It fails with ErrBusy.
func (c *Session) Begin(id []byte) (ctx context.Context, done func(), err error) {
	k := &call{session: c, id: id}
	c.mu.Lock()
	if c.inFlight == maxCalls {
		c.mu.Unlock()
		return nil, nil, ErrBusy
	}
	c.inFlight++
	c.active.Add(1)
	if k.older = c.latest; k.older != nil {
		k.older.newer = k
	}
	c.latest = k
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
	if k.newer != nil {
		k.newer.older = k.older
	} else {
		c.latest = k.older
	}
	if k.older != nil {
		k.older.newer = k.newer
	}
	if k.grace != nil {
		k.grace.Stop()
	}
	c.mu.Unlock()
	k.Context.Cancel()
	c.used.Store(time.Now().UnixNano())
	c.active.Add(-1)
}

// Cancel gives the call with this id up, if it is in flight after a moment: the server may still answer. An id that the
// client repeated is its latest call's.
func (c *Session) Cancel(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := c.latest; k != nil; k = k.older {
		if !bytes.Equal(k.id, id) {
			continue
		}
		if k.grace == nil {
			k.grace = time.AfterFunc(cancelGrace, k.Context.Cancel)
		}
		return
	}
}

// cancelCalls gives every call up.
func (c *Session) cancelCalls() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := c.latest; k != nil; k = k.older {
		k.Context.Cancel()
	}
}

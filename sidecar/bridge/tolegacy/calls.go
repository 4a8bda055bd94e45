package tolegacy

import (
	"bytes"
	"sync"
	"time"
)

// afterthought is how long a server may still say something of a call that was given up, before it has heard of that.
const afterthought = 10 * time.Second

// calls are those of one session that are in flight.
type calls struct {
	mu          sync.Mutex // guards all
	all         map[*call]struct{}
	givenUp     time.Time // when one last ended without its response
	askerGaveUp time.Time // the same, of those that may ask
}

func newCalls() calls { return calls{all: make(map[*call]struct{})} }

func (c *calls) add(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[k] = struct{}{}
}

func (c *calls) remove(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, k)
	if k.answered {
		return
	}
	c.givenUp = time.Now()
	if mayAsk(k.method) {
		c.askerGaveUp = c.givenUp
	}
}

// withToken is the call that has a progress token at the server; nil when it is over.
func (c *calls) withToken(token []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.all {
		if k.token != nil && bytes.Equal(k.token, token) {
			return k
		}
	}
	return nil
}

// asker is the call that a question belongs to which names none: the one in flight that may ask. It is nil when there is
// none, or another, or was just now.
func (c *calls) asker() (only *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.askerGaveUp) < afterthought {
		return nil
	}
	for k := range c.all {
		switch {
		case !mayAsk(k.method):
		case only != nil:
			return nil
		default:
			only = k
		}
	}
	return only
}

// logger is the call that a log message belongs to which names none. Any call may log, so it is the one in flight.
func (c *calls) logger() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) != 1 || time.Since(c.givenUp) < afterthought {
		return nil
	}
	for k := range c.all {
		return k
	}
	return nil
}

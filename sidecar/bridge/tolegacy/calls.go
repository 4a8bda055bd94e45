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
	mu      sync.Mutex // guards all
	all     map[*call]struct{}
	gaveUp  bool      // a call ended without its response,
	givenUp time.Time // the last one then
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
	if !k.answered {
		c.gaveUp, c.givenUp = true, time.Now()
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

// only is the call that a question or a log message belongs to which names none: the one in flight. It is nil when there is none, or
// another, or was just now, or when its client may not be asked.
func (c *calls) only() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) != 1 || c.gaveUp && time.Since(c.givenUp) < afterthought {
		return nil
	}
	for k := range c.all {
		if mayAsk(k.method) {
			return k
		}
	}
	return nil
}

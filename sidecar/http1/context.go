package http1

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// requestContext is a request's context: cancelled when the client leaves and when the handler returns. It is new for
// each request, so that nothing held from one is woken by the next.
//
// Package context asks a parent that is not its own for AfterFunc; without it, it would start a goroutine for each
// context derived from this one.
type requestContext struct {
	c *conn

	mu    sync.Mutex    // guards below
	done  chan struct{} // nil until somebody asks
	err   error
	hooks []*hook
}

// hook is a function to run at the end of a context.
type hook struct{ run func() }

// closed is what Done returns when the context ended before anybody asked.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Deadline implements context.Context: there is none.
func (x *requestContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (x *requestContext) Done() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done == nil {
		if x.err != nil {
			return closed
		}
		x.done = make(chan struct{})
	}
	return x.done
}

// Err implements context.Context.
func (x *requestContext) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// Value implements context.Context with the keys of net/http's server.
func (x *requestContext) Value(key any) any {
	switch key {
	case http.LocalAddrContextKey:
		return x.c.local
	case http.ServerContextKey:
		return x.c.s.fallback
	}
	return nil
}

// AfterFunc is context.AfterFunc for this context, at less cost.
func (x *requestContext) AfterFunc(f func()) (stop func() bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		go f()
		return func() bool { return false }
	}
	h := &hook{f}
	x.hooks = append(x.hooks, h)
	return func() bool { return x.unhook(h) }
}

// unhook reports whether h was there still.
func (x *requestContext) unhook(h *hook) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.Index(x.hooks, h)
	if i < 0 {
		return false
	}
	x.hooks = slices.Delete(x.hooks, i, i+1)
	return true
}

func (x *requestContext) cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		return
	}
	x.err = context.Canceled
	if x.done != nil {
		close(x.done)
	}
	for _, h := range x.hooks {
		go h.run()
	}
	x.hooks = nil
}

// Package lazyctx has a context.Context for the call path, where each request needs one and few are ever waited on: its
// Done channel is made when somebody asks, and a Hook to run at its end costs no memory of its own.
//
// Package context asks a parent that is not its own for AfterFunc, so a context derived from one of these starts no
// goroutine. A Context is safe for concurrent use.
package lazyctx

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Context is cancelled by Cancel only. The zero Context is ready for use.
type Context struct {
	mu    sync.Mutex    // guards below
	done  chan struct{} // nil until somebody asks
	err   error
	hooks []Hook
	first [1]Hook // where hooks lie while there is one
}

// Hook is what runs at the end of a context, in a goroutine. Hooks are told apart by ==, so one is a pointer, and on one
// Context at a time.
type Hook interface{ ContextEnded() }

// hook is a function as a Hook.
type hook struct{ run func() }

func (h *hook) ContextEnded() { h.run() }

// closed is what Done returns when the context ended before anybody asked.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Deadline implements context.Context: there is none.
func (x *Context) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context: there are none.
func (x *Context) Value(any) any { return nil }

// Done implements context.Context.
func (x *Context) Done() <-chan struct{} {
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
func (x *Context) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// Hook lets h run at the end of the context, which may be at once. It allocates nothing for the first of a context.
func (x *Context) Hook(h Hook) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err != nil {
		go h.ContextEnded()
		return
	}
	if x.hooks == nil {
		x.hooks = x.first[:0]
	}
	x.hooks = append(x.hooks, h)
}

// Unhook undoes Hook. It reports whether h was there still: if not, it has run, or runs.
func (x *Context) Unhook(h Hook) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.Index(x.hooks, h)
	if i < 0 {
		return false
	}
	x.hooks = slices.Delete(x.hooks, i, i+1)
	return true
}

// AfterFunc is context.AfterFunc for this context, at less cost.
func (x *Context) AfterFunc(f func()) (stop func() bool) {
	h := &hook{f}
	x.Hook(h)
	return func() bool { return x.Unhook(h) }
}

// Hooked is a Hook on a context of any kind.
type Hooked struct {
	own  hooker
	h    Hook
	stop func() bool // when own is nil
}

type hooker interface {
	Hook(Hook)
	Unhook(Hook) bool
}

// OnEnd lets h run at the end of ctx, at no cost in memory where that is a Context without a hook.
func OnEnd(ctx context.Context, h Hook) Hooked {
	if own, ok := ctx.(hooker); ok {
		own.Hook(h)
		return Hooked{own: own, h: h}
	}
	return Hooked{stop: context.AfterFunc(ctx, h.ContextEnded)}
}

// Undo takes the Hook off. It reports whether that was in time.
func (k Hooked) Undo() bool {
	if k.own != nil {
		return k.own.Unhook(k.h)
	}
	return k.stop()
}

// Cancel ends the context: waits on Done return, and hooks and functions given to AfterFunc run, each in a goroutine. Only
// the first call does anything.
func (x *Context) Cancel() {
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
		go h.ContextEnded()
	}
	clear(x.hooks)
	x.hooks = nil
}

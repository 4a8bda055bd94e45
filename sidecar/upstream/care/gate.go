package care

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// gate gives places to calls: as many as max at a time, and to those that wait in the order they came. While somebody
// waits every place is taken, for a place that comes free goes to the first who waits and is never free between.
//
// Hot: with a place free, entering and leaving are one atomic operation each.
type gate struct {
	// Set by limit, never changed.
	max, maxWaiting uint32
	maxWait         time.Duration

	// counts has the calls in flight in its lower half, and in its upper those that wait. The upper changes with mu held.
	counts atomic.Uint64

	mu      sync.Mutex // guards below
	waiting list.List  // of *waiter, the first to come in front
}

const oneWaiting = 1 << 32 // in gate.counts

// waiter is a call that waits for a place.
type waiter struct {
	granted chan struct{} // closed when it has one
	element *list.Element // nil when it waits no more; guarded by the gate's mu
}

func (g *gate) limit(c *outriggerv1.Concurrency) {
	g.max, g.maxWaiting, g.maxWait = c.GetMaxCalls(), c.GetMaxWaiting(), c.GetMaxWait().AsDuration()
}

// tryEnter takes a place if one is free.
func (g *gate) tryEnter() bool {
	for {
		v := g.counts.Load()
		if v >= oneWaiting || uint32(v) >= g.max {
			return false
		}
		if g.counts.CompareAndSwap(v, v+1) {
			return true
		}
	}
}

// join takes a place or a place in the queue. The waiter is nil when it has a place; ok is false when the queue is full.
func (g *gate) join() (w *waiter, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if g.tryEnter() {
			return nil, true
		}
		v := g.counts.Load()
		switch {
		case v>>32 >= uint64(g.maxWaiting):
			return nil, false
		case v < oneWaiting && uint32(v) < g.max:
			continue // one has left
		case g.counts.CompareAndSwap(v, v+oneWaiting):
			w = &waiter{granted: make(chan struct{})}
			w.element = g.waiting.PushBack(w)
			return w, true
		}
	}
}

// leave gives a place back, or on to the first who waits.
func (g *gate) leave() {
	for {
		v := g.counts.Load()
		if v < oneWaiting {
			if g.counts.CompareAndSwap(v, v-1) {
				return
			}
			continue
		}
		if g.handOver() {
			return
		}
	}
}

// handOver gives the caller's place to the first who waits, if there still is one.
func (g *gate) handOver() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.waiting.Front()
	if first == nil {
		return false
	}
	w := first.Value.(*waiter)
	g.removeLocked(w)
	close(w.granted)
	return true
}

// abandon takes w out of the queue. A place that it was given meanwhile goes on to the next.
func (g *gate) abandon(w *waiter) {
	g.mu.Lock()
	waits := w.element != nil
	if waits {
		g.removeLocked(w)
	}
	g.mu.Unlock()
	if !waits {
		g.leave()
	}
}

func (g *gate) removeLocked(w *waiter) {
	g.waiting.Remove(w.element)
	w.element = nil
	g.counts.Add(^uint64(oneWaiting - 1)) // minus oneWaiting
}

// turn is what came of waiting for a place.
type turn uint8

const (
	taken      turn = iota // there is a place
	full                   // nor is there room to wait
	tooLate                // maxWait has passed
	givenUp                // the call's context has ended
	gateClosed             // the server was closed
)

// wait takes a place, waiting for one if need be.
func (g *gate) wait(ctx context.Context, shut <-chan struct{}) (came turn) {
	w, ok := g.join()
	switch {
	case !ok:
		return full
	case w == nil:
		return taken
	}
	late := time.NewTimer(g.maxWait)
	defer late.Stop()
	select {
	case <-w.granted:
		return taken
	case <-ctx.Done():
		came = givenUp
	case <-late.C:
		came = tooLate
	case <-shut:
		came = gateClosed
	}
	g.abandon(w)
	return came
}

// load is how many calls are in flight and how many wait.
func (g *gate) load() (inFlight, waiting int) {
	v := g.counts.Load()
	return int(uint32(v)), int(v >> 32)
}

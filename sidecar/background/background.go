// Package background is goroutines that belong to somebody, a server's, that end with it, and what they wait with.
package background

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Tasks are goroutines with one context. Each ends soon after it, and their owner waits for them.
type Tasks struct {
	ctx  context.Context
	stop context.CancelFunc

	mu     sync.Mutex // guards closed, and that no task starts after Wait began
	closed bool
	wg     sync.WaitGroup
}

// New makes Tasks of which none runs yet.
func New() *Tasks {
	t := new(Tasks)
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// Context is done once Stop was called.
func (t *Tasks) Context() context.Context { return t.ctx }

// Run starts f, or reports that it is too late.
func (t *Tasks) Run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

// Stop ends the context. Tasks may still be started until Wait: they find it ended.
func (t *Tasks) Stop() { t.stop() }

// grace is how long Wait waits in any case: what was stopped may need a moment to notice.
const grace = time.Second

// Wait lets no task start any more and waits for those that run, while ctx lasts and a second at least: the bound is ctx's,
// which has to have one. Its error says that some still run; a goroutine then goes on waiting for them, and ends with them.
func (t *Tasks) Wait(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		t.wg.Wait()
		close(ended)
	}()
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case <-ended:
		return nil
	case <-patience.C:
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("what runs in the background has not ended yet: %w", ctx.Err())
	}
}

// Await waits for done to be closed, within a time and ctx. A nil done is a pause.
func Await(ctx context.Context, done <-chan struct{}, most time.Duration) {
	if most <= 0 {
		return // also since timers of no time, several at once in one synctest bubble, crash the race detector (Go 1.26)
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

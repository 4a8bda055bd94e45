package care

import (
	"context"
	"sync"
)

// tasks are the goroutines of a Server. Each ends soon after ctx, and Close waits for them.
type tasks struct {
	ctx  context.Context
	stop context.CancelFunc

	mu     sync.Mutex // guards closed, and that no task starts after wait began
	closed bool
	wg     sync.WaitGroup
}

func newTasks() *tasks {
	t := new(tasks)
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// run starts f, or reports that it is too late.
func (t *tasks) run(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.wg.Go(f)
	return true
}

func (t *tasks) wait() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.wg.Wait()
}

package streamable

import "context"

// flight is work that one task does and many callers wait for.
type flight[T any] struct {
	done  chan struct{} // closed when the fields below are set
	value T
	err   error
}

func newFlight[T any]() *flight[T] { return &flight[T]{done: make(chan struct{})} }

func (f *flight[T]) land(value T, err error) {
	f.value, f.err = value, err
	close(f.done)
}

// wait returns what the task came to, or late's error when ctx ends first. The task goes on for the others.
func (f *flight[T]) wait(ctx context.Context, late func() error) (T, error) {
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, late()
	}
}

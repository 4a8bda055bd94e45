package stdio

import (
	"io"
	"log/slog"
	"sync"
)

const (
	heldMost  = 1024    // messages that wait for a slow client
	heldBytes = 8 << 20 // and their size; a single message may be larger
)

// mailbox holds a server's messages until a client takes them. When a client is too slow the oldest notifications give
// way, since the process that sent them serves other clients too; a response never does.
type mailbox struct {
	log *slog.Logger

	mu    sync.Mutex // guards below
	ready sync.Cond
	queue [][]byte
	bytes int
	last  bool  // the end of queue is the response
	err   error // why nothing more will come
	slow  bool  // something was dropped, which was said
}

func newMailbox(log *slog.Logger) *mailbox {
	b := &mailbox{log: log}
	b.ready.L = &b.mu
	return b
}

// put adds a message and reports whether anybody may still take it. It never blocks.
func (b *mailbox) put(data []byte) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return false
	}
	for len(b.queue) > 0 && (len(b.queue) >= heldMost || b.bytes+len(data) > heldBytes) {
		b.popLocked()
		if !b.slow {
			b.log.Warn("a client is too slow for its messages: the oldest are dropped")
		}
		b.slow = true
	}
	b.queue, b.bytes = append(b.queue, data), b.bytes+len(data)
	b.ready.Broadcast()
	return true
}

// finish adds the last message: a response.
func (b *mailbox) finish(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.queue, b.bytes = append(b.queue, data), b.bytes+len(data)
	b.last, b.err = true, io.EOF
	b.ready.Broadcast()
}

// fail ends the mailbox: what it holds can still be taken, then next returns err.
func (b *mailbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.ready.Broadcast()
	}
}

// holdsAny reports whether next returns without waiting.
func (b *mailbox) holdsAny() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) > 0 || b.err != nil
}

// next waits for a message and reports whether it is the response. It returns early with errGivenUp when stop says so;
// whoever makes stop true calls wake.
func (b *mailbox) next(stop func() bool) (data []byte, last bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case stop():
			return nil, false, errGivenUp
		case len(b.queue) > 0:
			data = b.popLocked()
			return data, b.last && len(b.queue) == 0, nil
		case b.err != nil:
			return nil, false, b.err
		}
		b.ready.Wait()
	}
}

// wake makes every next look at its stop again.
func (b *mailbox) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready.Broadcast()
}

func (b *mailbox) popLocked() []byte {
	data := b.queue[0]
	b.queue[0] = nil
	b.queue, b.bytes = b.queue[1:], b.bytes-len(data)
	return data
}

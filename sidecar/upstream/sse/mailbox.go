package sse

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
)

const (
	heldMost  = 1024    // messages that wait for a slow client
	heldBytes = 4 << 20 // and their size; a single message may be larger
)

// errGivenUp is next's answer when its reader stopped.
var errGivenUp = errors.New("the stream was closed by its reader")

// mailbox holds a server's messages until a client takes them. When a client is too slow the oldest notifications give
// way, since one stream carries all that the server says and cannot wait for one call; requests and responses never do.
type mailbox struct {
	log  *slog.Logger
	wake chan struct{} // capacity 1: that there may be something to take

	mu    sync.Mutex // guards below
	queue []held
	bytes int
	last  bool  // the end of queue is the response
	err   error // why nothing more will come
	slow  bool  // something was dropped, which was said
}

// held is a message in a mailbox.
type held struct {
	data    []byte
	request bool // of the server's, so it may not be dropped
}

func newMailbox(log *slog.Logger) *mailbox {
	return &mailbox{log: log, wake: make(chan struct{}, 1)}
}

// put adds a message and reports whether it did: not when the mailbox has ended, nor when requests fill it. It never
// blocks.
func (b *mailbox) put(m held) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || !b.makeRoomLocked(len(m.data)) {
		return false
	}
	b.addLocked(m)
	return true
}

// makeRoomLocked drops the oldest notifications until there is room, and reports whether there is.
func (b *mailbox) makeRoomLocked(size int) bool {
	for len(b.queue) > 0 && (len(b.queue) >= heldMost || b.bytes+size > heldBytes) {
		if !b.slow {
			b.log.Warn("a client is too slow for its messages: the oldest notifications are dropped")
		}
		b.slow = true
		i := slices.IndexFunc(b.queue, func(m held) bool { return !m.request })
		if i < 0 {
			return false
		}
		b.removeLocked(i)
	}
	return true
}

func (b *mailbox) addLocked(m held) {
	b.queue, b.bytes = append(b.queue, m), b.bytes+len(m.data)
	b.signal()
}

// dropRequests drops the server's requests that nobody has taken.
func (b *mailbox) dropRequests() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.queue) - 1; i >= 0; i-- {
		if b.queue[i].request {
			b.removeLocked(i)
		}
	}
}

// finish adds the last message: a response.
func (b *mailbox) finish(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.last, b.err = true, io.EOF
	b.addLocked(held{data: data})
}

// fail ends the mailbox: what it holds can still be taken, then next returns err.
func (b *mailbox) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.signal()
	}
}

// signal makes a next look again.
func (b *mailbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default: // it will already
	}
}

// holdsAny reports whether next returns without waiting.
func (b *mailbox) holdsAny() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) > 0 || b.err != nil
}

// take returns a message if there is one, and whether it is the response. found is also true for an error.
func (b *mailbox) take() (data []byte, last, found bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil, false, b.err != nil, b.err
	}
	data = b.removeLocked(0)
	if len(b.queue) > 0 || b.err != nil {
		b.signal() // for another reader, or the next time
	}
	return data, b.last && len(b.queue) == 0, true, nil
}

// next waits for a message and reports whether it is the response. It returns errGivenUp when stop is closed first.
func (b *mailbox) next(stop <-chan struct{}) (data []byte, last bool, err error) {
	for {
		select {
		case <-stop:
			return nil, false, errGivenUp
		default:
		}
		if data, last, found, err := b.take(); found {
			return data, last, err
		}
		select {
		case <-b.wake:
		case <-stop:
		}
	}
}

func (b *mailbox) removeLocked(i int) []byte {
	data := b.queue[i].data
	if i == 0 {
		b.queue[0] = held{} // let go of its bytes; the rest need not move
		b.queue = b.queue[1:]
	} else {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	b.bytes -= len(data)
	return data
}

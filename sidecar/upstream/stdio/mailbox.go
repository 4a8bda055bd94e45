package stdio

import (
	"io"
	"log/slog"
	"slices"
	"sync"
)

const (
	heldMost  = 1024    // messages that wait for a slow client
	heldBytes = 8 << 20 // and their size; a single message may be larger
)

// mailbox holds a server's messages until a client takes them. When a client is too slow the oldest notifications give
// way, since the process that sent them serves other clients too; requests and responses never do.
type mailbox struct {
	log *slog.Logger

	mu    sync.Mutex // guards below
	ready sync.Cond
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
	b := &mailbox{log: log}
	b.ready.L = &b.mu
	return b
}

// put adds a notification, or drops it when it finds no room, and reports whether the mailbox is still open. It never
// blocks.
func (b *mailbox) put(data []byte) (open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && b.makeRoomLocked(len(data)) {
		b.addLocked(held{data: data})
	}
	return b.err == nil
}

// putRequest adds a request of the server's and reports whether it did: not when the mailbox has ended, nor when it is
// full of other requests. It never blocks.
func (b *mailbox) putRequest(data []byte) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || !b.makeRoomLocked(len(data)) {
		return false
	}
	b.addLocked(held{data: data, request: true})
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
	b.ready.Broadcast()
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
			data = b.removeLocked(0)
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

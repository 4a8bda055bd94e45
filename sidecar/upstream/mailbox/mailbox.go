// Package mailbox holds what a server sends on a connection that clients share until each has taken what is its own.
//
// A transport that reads one stream for many calls cannot wait for a slow client. So each call, and each session for what
// belongs to no call, has a Box: the transport puts messages in and never blocks, and readers take them out. A Box that is
// full drops its oldest notifications; requests and responses are never dropped.
//
// A Box is safe for concurrent use, and several readers share its messages: each goes to one of them.
package mailbox

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
)

// Most is how many messages wait for a slow client.
const Most = 1024

// ErrGivenUp is Next's answer when its reader stopped.
var ErrGivenUp = errors.New("the stream was closed by its reader")

// Box is one mailbox.
type Box struct {
	log       *slog.Logger
	mostBytes int
	wake      chan struct{} // capacity 1: that there may be something to take

	mu    sync.Mutex // guards below
	queue []held
	bytes int
	last  bool  // the end of queue is the response
	err   error // why nothing more will come
	slow  bool  // something was dropped, which was said
}

// held is a message in a Box.
type held struct {
	data    []byte
	request bool // of the server's, so it may not be dropped
}

// New makes a Box for so many bytes; a single message may be larger.
func New(log *slog.Logger, mostBytes int) *Box {
	return &Box{log: log, mostBytes: mostBytes, wake: make(chan struct{}, 1)}
}

// Put adds a notification, or drops it when requests leave no room, and reports whether the Box is still open.
func (b *Box) Put(data []byte) (open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && b.makeRoomLocked(len(data)) {
		b.addLocked(held{data: data})
	}
	return b.err == nil
}

// PutRequest adds a request of the server's and reports whether it did: not when the Box has ended, nor when it is full of
// other requests.
func (b *Box) PutRequest(data []byte) (taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || !b.makeRoomLocked(len(data)) {
		return false
	}
	b.addLocked(held{data: data, request: true})
	return true
}

// makeRoomLocked drops the oldest notifications until there is room, and reports whether there is.
func (b *Box) makeRoomLocked(size int) bool {
	for len(b.queue) > 0 && (len(b.queue) >= Most || b.bytes+size > b.mostBytes) {
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

func (b *Box) addLocked(m held) {
	b.queue, b.bytes = append(b.queue, m), b.bytes+len(m.data)
	b.Signal()
}

// DropRequests drops the server's requests that nobody has taken.
func (b *Box) DropRequests() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.queue) - 1; i >= 0; i-- {
		if b.queue[i].request {
			b.removeLocked(i)
		}
	}
}

// Finish adds the last message: a response.
func (b *Box) Finish(data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.last, b.err = true, io.EOF
	b.addLocked(held{data: data})
}

// Fail ends the Box: what it holds can still be taken, then readers get err.
func (b *Box) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.Signal()
	}
}

// Wake tells one reader at a time that there may be something to take.
func (b *Box) Wake() <-chan struct{} { return b.wake }

// Signal makes a reader look again. One that stops after it took from Wake signals, for another.
func (b *Box) Signal() {
	select {
	case b.wake <- struct{}{}:
	default: // it will already
	}
}

// HoldsAny reports whether Next returns without waiting.
func (b *Box) HoldsAny() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue) > 0 || b.err != nil
}

// Take returns a message if there is one, and whether it is the response. found is also true for an error.
func (b *Box) Take() (data []byte, last, found bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		if b.err != nil {
			b.Signal() // every reader sees it
		}
		return nil, false, b.err != nil, b.err
	}
	data = b.removeLocked(0)
	if len(b.queue) > 0 || b.err != nil {
		b.Signal() // for another reader, or the next time
	}
	return data, b.last && len(b.queue) == 0, true, nil
}

// Next waits for a message and reports whether it is the response. It returns ErrGivenUp when stop is closed first; nil
// never is.
func (b *Box) Next(stop <-chan struct{}) (data []byte, last bool, err error) {
	for {
		select {
		case <-stop:
			b.Signal()
			return nil, false, ErrGivenUp
		default:
		}
		if data, last, found, err := b.Take(); found {
			return data, last, err
		}
		select {
		case <-b.wake:
		case <-stop:
		}
	}
}

// Response waits for the response and drops what comes before it.
func (b *Box) Response() ([]byte, error) {
	for {
		data, last, err := b.Next(nil)
		if err != nil || last {
			return data, err
		}
	}
}

func (b *Box) removeLocked(i int) []byte {
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

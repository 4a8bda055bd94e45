package stdio

import (
	"slices"
	"sync"
)

const (
	queuedMost  = 256      // messages waiting for a process to read them
	queuedBytes = 64 << 20 // and their size; a single message may be larger
	urgentMost  = 1024     // cancellations and answers to the server's own requests
)

// parcel is one message on its way to a process.
type parcel struct {
	data []byte // with its line end
	sent bool   // a byte of it may have been written; guarded by the outbox
}

// outbox is the bounded queue in front of a process. Cancellations have a lane of their own that overtakes the rest.
type outbox struct {
	mu     sync.Mutex // guards below
	ready  sync.Cond  // something to write, or closed
	room   sync.Cond  // something left normal, or closed
	urgent []*parcel
	normal []*parcel
	bytes  int // in normal
	closed bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.ready.L, o.room.L = &o.mu, &o.mu
	return o
}

// put queues p and reports whether there was room.
func (o *outbox) put(p *parcel) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.fullLocked(len(p.data)) {
		return false
	}
	o.normal, o.bytes = append(o.normal, p), o.bytes+len(p.data)
	o.ready.Signal()
	return true
}

func (o *outbox) fullLocked(more int) bool {
	return len(o.normal) >= queuedMost || (o.bytes+more > queuedBytes && len(o.normal) > 0)
}

// awaitRoom returns when a message of this many bytes has room, though another may take it, or the outbox is closed.
func (o *outbox) awaitRoom(size int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.closed && o.fullLocked(size) {
		o.room.Wait()
	}
}

// putUrgent queues data before everything that put queued. When a process reads nothing for long, it is dropped.
func (o *outbox) putUrgent(data []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.urgent) >= urgentMost {
		return false
	}
	o.urgent = append(o.urgent, &parcel{data: data})
	o.ready.Signal()
	return true
}

// withdraw takes p back and reports whether nothing of it was sent.
func (o *outbox) withdraw(p *parcel) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := slices.Index(o.normal, p); i >= 0 {
		o.normal, o.bytes = slices.Delete(o.normal, i, i+1), o.bytes-len(p.data)
		o.room.Broadcast()
	}
	return !p.sent
}

// next waits for the next message to write; nil means that the outbox is closed.
func (o *outbox) next() *parcel {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.urgent)+len(o.normal) == 0 && !o.closed {
		o.ready.Wait()
	}
	var p *parcel
	switch {
	case o.closed:
		return nil
	case len(o.urgent) > 0:
		p, o.urgent = o.urgent[0], o.urgent[1:]
	default:
		p, o.normal = o.normal[0], o.normal[1:]
		o.bytes -= len(p.data)
		o.room.Broadcast()
	}
	p.sent = true
	return p
}

// close drops what is queued; what is put later is refused.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.urgent, o.normal = true, nil, nil
	o.ready.Broadcast()
	o.room.Broadcast()
}

package session

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

const (
	// keepEnded is how long a finished stream's messages stay for a client that lost its connection.
	keepEnded = time.Minute
	// keepStreams is how many finished streams a session keeps; for a moment it may be twice as many.
	keepStreams = 64
	// eventCost is counted for each kept message beside its bytes.
	eventCost = 64
)

var (
	// ErrReplaced ends a Reader whose stream another connection reads now.
	ErrReplaced = errors.New("another connection resumed this stream")
	// ErrNotKept answers a resumption from a message that is no longer kept, or never was.
	ErrNotKept = errors.New("the stream's messages after this event id are no longer kept")
)

// Stream is the messages of one SSE stream, numbered in the order in which they are sent. It keeps what a client may
// ask for again, within the session's bound: over it, the session's oldest messages are forgotten.
//
// One goroutine appends. At most one Reader is attached, the newest: each message goes out on one connection.
type Stream struct {
	session *Session
	number  uint64

	// Guarded by session.mu. Always first+len(events) == next and sent <= next. sent < first when messages were forgotten
	// that no Reader was handed.
	first  uint64   // number of events[0]; event numbers begin at 1, 0 is the priming event
	events [][]byte // kept messages
	next   uint64   // number of the next message
	sent   uint64   // messages below were handed to a Reader
	ended  time.Time
	reader *Reader   // nil while no connection reads
	one    [1][]byte // where events lies while there was only one: most answers are no longer
	own    Reader    // the first that was attached, which for most is the last
}

// NewStream makes a stream for one call's answer.
func (c *Session) NewStream() *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newStreamLocked()
}

func (c *Session) newStreamLocked() *Stream {
	c.numbered++
	st := &Stream{session: c, number: c.numbered, first: 1, next: 1, sent: 1}
	st.events = st.one[:0]
	c.streams = append(c.streams, st)
	if len(c.streams) > 2*keepStreams { // the sweeper does the rest, in its time
		c.forgetLocked(time.Now())
	}
	return st
}

// Append adds a message, copied, and returns its number. mine reports whether r is still the stream's Reader, which
// then has the message by this very call and must send it.
func (st *Stream) Append(data []byte, r *Reader) (number uint64, mine bool) {
	c := st.session
	c.mu.Lock()
	defer c.mu.Unlock()
	number = st.next
	st.next++
	st.events = append(st.events, bytes.Clone(data))
	c.kept += len(data) + eventCost
	if mine = r != nil && st.reader == r; mine {
		r.at = st.next
		st.sent = st.next
	} else if st.reader != nil {
		st.reader.signalLocked()
	}
	for c.kept > c.store.settings.ReplayBytes && c.dropOldestLocked() {
	}
	return number, mine
}

// End marks the stream complete. Its messages stay for a while.
func (st *Stream) End() {
	c := st.session
	c.mu.Lock()
	defer c.mu.Unlock()
	st.ended = time.Now()
	if st.reader != nil {
		st.reader.signalLocked()
	}
}

// EventID names a message of the stream among all of the session's.
func (st *Stream) EventID(number uint64) []byte {
	return st.AppendEventID(make([]byte, 0, 24), number)
}

// AppendEventID is EventID in memory of the caller's.
func (st *Stream) AppendEventID(dst []byte, number uint64) []byte {
	dst = strconv.AppendUint(dst, st.number, 10)
	return strconv.AppendUint(append(dst, '_'), number, 10)
}

// Reader hands a stream's messages to one connection.
type Reader struct {
	stream *Stream

	// Guarded by session.mu.
	wake     func() // Await's; nil when nobody waits
	at       uint64 // number of the next message to hand out
	woken    bool   // Wake was called while nobody waited
	detached bool
}

func (r *Reader) signalLocked() {
	if r.wake != nil {
		go r.wake()
		r.wake = nil
	}
}

// Attach makes the caller's connection the one that the stream's messages go to from now on, beginning with the first
// that no connection was handed. Detach must follow.
func (st *Stream) Attach() *Reader {
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	return st.attachLocked(st.sent)
}

func (st *Stream) attachLocked(at uint64) *Reader {
	r := &st.own
	if r.stream != nil {
		r = new(Reader)
	}
	r.stream, r.at = st, max(at, st.first)
	if st.reader != nil {
		st.reader.signalLocked()
	}
	st.reader = r
	st.session.active.Add(1)
	return r
}

// Resume attaches to the stream that the event id belongs to, beginning after that event. It returns ErrNotKept when
// messages after it were forgotten, or the id is not one of this session's.
func (c *Session) Resume(eventID string) (*Reader, error) {
	stream, number, ok := parseEventID(eventID)
	if !ok {
		return nil, ErrNotKept
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.number != stream {
			continue
		}
		if number+1 < st.first || number >= st.next {
			return nil, ErrNotKept
		}
		return st.attachLocked(number + 1), nil
	}
	return nil, ErrNotKept
}

func parseEventID(id string) (stream, number uint64, ok bool) {
	for i := range len(id) {
		if id[i] != '_' {
			continue
		}
		stream, err := strconv.ParseUint(id[:i], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		number, err := strconv.ParseUint(id[i+1:], 10, 64)
		return stream, number, err == nil && number < 1<<63
	}
	return 0, 0, false
}

// Stream is the stream that r reads.
func (r *Reader) Stream() *Stream { return r.stream }

// Before is the event id after which the next message comes: a client that has seen nothing resumes from it.
func (r *Reader) Before() []byte {
	r.stream.session.mu.Lock()
	defer r.stream.session.mu.Unlock()
	return r.stream.EventID(r.at - 1)
}

// Poll returns the next message, or none (nil) when it is not there yet. It returns io.EOF after the last one of a stream
// that has ended, ErrReplaced when another connection reads the stream now, and the session's context's error once that
// has ended. Messages that were forgotten before this Reader got to them are skipped.
func (r *Reader) Poll() (number uint64, data []byte, err error) {
	st := r.stream
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	if st.reader != r {
		return 0, nil, ErrReplaced
	}
	r.at = max(r.at, st.first)
	if r.at < st.next {
		number = r.at
		r.at++
		st.sent = max(st.sent, r.at)
		return number, st.events[number-st.first], nil
	}
	if !st.ended.IsZero() {
		return 0, nil, io.EOF
	}
	return 0, nil, st.session.ctx.Err()
}

// Await calls wake once, in a goroutine, when Poll has something to say, or when Wake is called or was since the last time.
// It is for whoever polls, who waits for the call.
func (r *Reader) Await(wake func()) {
	st := r.stream
	st.session.mu.Lock()
	defer st.session.mu.Unlock()
	r.wake = wake
	if r.woken || st.reader != r || max(r.at, st.first) < st.next || !st.ended.IsZero() || st.session.ctx.Err() != nil {
		r.woken = false
		r.signalLocked()
	}
}

// Wake ends what Await began, or the next one at once. Any goroutine may call it.
func (r *Reader) Wake() {
	r.stream.session.mu.Lock()
	defer r.stream.session.mu.Unlock()
	r.woken = r.wake == nil
	r.signalLocked()
}

// Detach ends the attachment: the connection is gone or done. The stream goes on, and keeps what comes. Only the first
// call does anything; any goroutine may make it.
func (r *Reader) Detach() {
	c := r.stream.session
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.detached {
		return
	}
	r.detached = true
	if r.stream.reader == r {
		r.stream.reader = nil
	}
	c.used.Store(time.Now().UnixNano())
	c.active.Add(-1)
}

// ContextEnded is Detach, for the end of a client's request (lazyctx.Hook).
func (r *Reader) ContextEnded() { r.Detach() }

// wakeReaders makes every Reader look at the session's end.
func (c *Session) wakeReaders() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.streams {
		if st.reader != nil {
			st.reader.signalLocked()
		}
	}
}

// forget drops what is kept beyond its time.
func (c *Session) forget(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked(now)
}

func (c *Session) forgetLocked(now time.Time) {
	excess := len(c.streams) - keepStreams
	live := c.streams[:0]
	for _, st := range c.streams {
		old := !st.ended.IsZero() && (now.Sub(st.ended) > keepEnded || excess > 0)
		if old && st.reader == nil {
			c.dropLocked(st, len(st.events))
			excess--
			continue
		}
		live = append(live, st)
	}
	clear(c.streams[len(live):])
	c.streams = live
}

// dropOldestLocked forgets the session's oldest kept message and reports whether there was one. A stream's last
// message stays until it was handed to somebody: it may be the answer.
func (c *Session) dropOldestLocked() bool {
	for _, st := range c.streams {
		unsent := len(st.events) == 1 && st.first >= st.sent
		if len(st.events) > 0 && !unsent {
			c.dropLocked(st, 1)
			return true
		}
	}
	return false
}

func (c *Session) dropLocked(st *Stream, n int) {
	for _, e := range st.events[:n] {
		c.kept -= len(e) + eventCost
	}
	clear(st.events[:n]) // let the bytes go though the array stays
	st.events = st.events[n:]
	st.first += uint64(n)
}

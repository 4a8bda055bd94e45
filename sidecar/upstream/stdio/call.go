package stdio

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
)

var errCancelled = fmt.Errorf("the client cancelled the call: %w", context.Canceled)

// heldBytes is how much waits for a slow client, of a call or of what a session's server says outside of calls.
const heldBytes = 8 << 20

// spliceRoom is how much longer ids and tokens usually make a message, with its line end.
const spliceRoom = 64

// order is what a call needs beside its message.
type order struct {
	owner   any           // the session it belongs to; nil on the stateless wire
	ours    bool          // it is the sidecar's own, not a client's
	timeout time.Duration // 0: none
}

// call is one request in flight.
type call struct {
	// Set by begin, never changed.
	pipe    *pipe
	seq     int64
	key     string // our id, as its token
	method  string
	owner   any
	ours    bool
	id      []byte // the client's id, as its token
	token   []byte // the client's progress token, as its token; nil when it gave none
	logs    bool   // it asked for log messages (stateless)
	listens bool   // subscriptions/listen
	parcel  *parcel
	box     *mailbox.Box

	// Set once under the pipe's lock.
	timer   *time.Timer
	unwatch func() bool
}

// encode is the line that goes to the process.
func (k *call) encode(m *mcp.Message) []byte {
	edits := []mcp.Edit{{Span: m.ID, With: []byte(k.key)}}
	if m.ProgressToken.Present() {
		edits = append(edits, mcp.Edit{Span: m.ProgressToken, With: []byte(k.key)})
	}
	return asLine(splice(m.Raw, edits...))
}

func (k *call) armLocked(ctx context.Context, timeout time.Duration) {
	k.unwatch = context.AfterFunc(ctx, func() { k.abandon(ctx.Err(), nil) })
	if timeout > 0 && !k.listens {
		k.timer = time.AfterFunc(timeout, func() {
			k.abandon(k.pipe.fault(upstream.TimedOut, fmt.Sprintf("no answer within %v", timeout), nil), nil)
		})
	}
}

// mayLog reports whether log messages may be the call's.
func (k *call) mayLog() bool { return !k.ours && (!k.listens || k.logs) }

func (k *call) disarm() {
	k.unwatch()
	if k.timer != nil {
		k.timer.Stop()
	}
}

// abandon ends a call before its response: the server is told with notice (nil: our own words), ahead of everything
// that is queued, unless the request itself is still queued and can be taken back.
func (k *call) abandon(why error, notice []byte) {
	if k.pipe.take(k.key) == nil {
		return
	}
	if !k.pipe.out.withdraw(k.parcel) && k.method != mcp.MethodInitialize {
		if notice == nil {
			notice = fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"requestId":%s}}`+"\n",
				mcp.NotificationCancelled, k.key)
		}
		k.pipe.out.putUrgent(notice)
	}
	k.box.Fail(why)
}

// answer waits for the first message: when it is the response the answer is that, otherwise a stream.
func (k *call) answer() (*upstream.Answer, error) {
	first, last, err := k.box.Next(nil)
	switch {
	case err != nil:
		return nil, err
	case last:
		return upstream.Whole(200, first), nil
	}
	return &upstream.Answer{Status: 200, Length: -1, Events: &callStream{call: k, first: first, stop: make(chan struct{})}}, nil
}

// callStream is a call's messages. Giving it up before the response cancels the call.
type callStream struct {
	call  *call
	first []byte // owned by Next
	close sync.Once
	stop  chan struct{} // closed by Close
}

func (s *callStream) Next() (mcp.Event, error) {
	if data := s.first; data != nil {
		s.first = nil
		return mcp.Event{Data: data}, nil
	}
	data, _, err := s.call.box.Next(s.stop)
	return mcp.Event{Data: data}, err
}

func (s *callStream) Ready() bool { return s.first != nil || s.call.box.HoldsAny() }

func (s *callStream) Close() error {
	s.close.Do(func() {
		close(s.stop)
		s.call.abandon(mailbox.ErrGivenUp, nil)
	})
	return nil
}

// inbox is what a session's server says outside of calls. It is held until a stream takes it.
type inbox struct {
	box       *mailbox.Box
	listeners *atomic.Int32 // streams open now
}

func newInbox(log *slog.Logger) inbox {
	return inbox{box: mailbox.New(log, heldBytes), listeners: new(atomic.Int32)}
}

// heard reports whether a stream is open.
func (i inbox) heard() bool { return i.listeners.Load() > 0 }

// Listen implements upstream.Session. Streams of one session share its messages: each goes to one of them.
func (i inbox) Listen(ctx context.Context) (upstream.EventStream, error) {
	s := &inboxStream{inbox: i, stop: make(chan struct{})}
	i.listeners.Add(1)
	s.unwatch = context.AfterFunc(ctx, s.giveUp)
	return s, nil
}

type inboxStream struct {
	inbox
	close   sync.Once
	stop    chan struct{} // closed by giveUp
	unwatch func() bool
}

func (s *inboxStream) Next() (mcp.Event, error) {
	data, _, err := s.box.Next(s.stop)
	return mcp.Event{Data: data}, err
}

func (s *inboxStream) Ready() bool { return s.box.HoldsAny() }

func (s *inboxStream) giveUp() {
	s.close.Do(func() {
		s.listeners.Add(-1)
		close(s.stop)
	})
}

func (s *inboxStream) Close() error {
	s.unwatch()
	s.giveUp()
	return nil
}

// splice copies raw with edits made, in whatever order they come.
func splice(raw []byte, edits ...mcp.Edit) []byte {
	slices.SortFunc(edits, func(a, b mcp.Edit) int { return cmp.Compare(a.Span.Start, b.Span.Start) })
	return mcp.Splice(make([]byte, 0, len(raw)+spliceRoom), raw, edits...)
}

// asLine ends a message as the pipe has it: no line break within, one after (basic/transports/stdio).
func asLine(message []byte) []byte {
	if bytes.ContainsAny(message, "\r\n") {
		message = mcp.Compact(nil, message)
	}
	return append(message, '\n')
}

func sortCalls(calls []*call) {
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.seq, b.seq) })
}

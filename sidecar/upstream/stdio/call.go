package stdio

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

var (
	errGivenUp   = errors.New("the stream was closed by its reader")
	errCancelled = fmt.Errorf("the client cancelled the call: %w", context.Canceled)
)

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
	box     *mailbox

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
	k.box.fail(why)
}

func never() bool { return false }

// answer waits for the first message: when it is the response the answer is that, otherwise a stream.
func (k *call) answer() (*upstream.Answer, error) {
	first, last, err := k.box.next(never)
	switch {
	case err != nil:
		return nil, err
	case last:
		return upstream.Whole(200, first), nil
	}
	return &upstream.Answer{Status: 200, Length: -1, Events: &callStream{call: k, first: first}}, nil
}

// response waits for the response and drops what comes before it.
func (k *call) response() ([]byte, error) {
	for {
		data, last, err := k.box.next(never)
		if err != nil || last {
			return data, err
		}
	}
}

// callStream is a call's messages. Giving it up before the response cancels the call.
type callStream struct {
	call   *call
	first  []byte // owned by Next
	closed atomic.Bool
}

func (s *callStream) Next() (mcp.Event, error) {
	if data := s.first; data != nil && !s.closed.Load() {
		s.first = nil
		return mcp.Event{Data: data}, nil
	}
	data, _, err := s.call.box.next(s.closed.Load)
	return mcp.Event{Data: data}, err
}

func (s *callStream) Ready() bool { return s.first != nil || s.call.box.holdsAny() }

func (s *callStream) Close() error {
	s.closed.Store(true)
	s.call.abandon(errGivenUp, nil)
	s.call.box.wake()
	return nil
}

// inbox is what a session's server says outside of calls. It is held until a stream takes it.
type inbox struct {
	box       *mailbox
	listeners *atomic.Int32 // streams open now
}

func newInbox(log *slog.Logger) inbox {
	return inbox{box: newMailbox(log), listeners: new(atomic.Int32)}
}

// heard reports whether a stream is open.
func (i inbox) heard() bool { return i.listeners.Load() > 0 }

// Listen implements upstream.Session. Streams of one session share its messages: each goes to one of them.
func (i inbox) Listen(ctx context.Context) (upstream.EventStream, error) {
	s := &inboxStream{inbox: i}
	i.listeners.Add(1)
	s.unwatch = context.AfterFunc(ctx, s.giveUp)
	return s, nil
}

type inboxStream struct {
	inbox
	closed  atomic.Bool
	unwatch func() bool
}

func (s *inboxStream) Next() (mcp.Event, error) {
	data, _, err := s.box.next(s.closed.Load)
	return mcp.Event{Data: data}, err
}

func (s *inboxStream) Ready() bool { return s.box.holdsAny() }

func (s *inboxStream) giveUp() {
	if !s.closed.Swap(true) {
		s.listeners.Add(-1)
		s.box.wake()
	}
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

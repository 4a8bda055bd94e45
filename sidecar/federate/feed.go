package federate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// leastRedial and mostRedial are between attempts to listen again at a member whose stream ended; askAgain before the next
// at one that said it has none. grantWithin is how long a member may take to acknowledge a listen before that is given up.
const (
	leastRedial = 500 * time.Millisecond
	mostRedial  = 30 * time.Second
	askAgain    = 5 * time.Minute
	grantWithin = 30 * time.Second
)

// feed is one stream of a member that tells which of its lists have changed, for all listens of one scope. The federation
// has one of its own for each member, which tells it of all.
type feed struct {
	// Set by join, never changed.
	s        *Server
	m        *member
	scope    scope
	stop     context.CancelFunc
	caller   atomic.Pointer[identity.Principal] // who joined last
	answered chan struct{}                      // closed when the member has granted, refused or failed for the first time

	users int // guarded by the Server's mu

	mu      sync.Mutex // guards below
	settled bool       // answered is closed
	known   bool       // the member granted or refused
	granted []bool     // by index in filters
	listens map[*listening]struct{}
}

type feedKey struct {
	m     *member
	scope scope
}

// watcher is the scope of the federation's own feeds.
var watcher = scope{capabilities: "{}"}

// watch follows the members' lists, so that what is kept of them is fresh though no client listens.
func (s *Server) watch() {
	for _, m := range s.members {
		s.join(m, asker{watcher, upstream.Self}, nil)
	}
}

// join adds a listen to a scope's feed of a member; nil for the federation itself. It is nil once the federation closes.
func (s *Server) join(m *member, by asker, l *listening) *feed {
	s.mu.Lock()
	key := feedKey{m, by.scope}
	f := s.feeds[key]
	if f == nil {
		ctx, stop := context.WithCancel(s.ctx)
		f = &feed{s: s, m: m, scope: by.scope, stop: stop, answered: make(chan struct{}), granted: make([]bool, len(filters)), listens: make(map[*listening]struct{})}
		if s.ctx.Err() != nil {
			s.mu.Unlock()
			stop()
			return nil
		}
		s.feeds[key] = f
		s.work.Go(func() { f.run(ctx) })
	}
	f.users++
	f.caller.Store(by.caller)
	s.mu.Unlock()
	if l != nil {
		f.mu.Lock()
		f.listens[l] = struct{}{}
		f.mu.Unlock()
	}
	return f
}

// leave is the reverse of join. The last to leave ends the feed.
func (f *feed) leave(l *listening) {
	f.mu.Lock()
	delete(f.listens, l)
	f.mu.Unlock()
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.users--; f.users == 0 {
		delete(f.s.feeds, feedKey{f.m, f.scope})
		f.stop()
	}
}

// run listens at the member until nobody needs it.
func (f *feed) run(ctx context.Context) {
	all := filter{lists: make([]bool, len(filters))}
	for i := range all.lists {
		all.lists[i] = true
	}
	for again := false; ctx.Err() == nil; {
		redial(ctx, func() error {
			err := f.s.subscribe(ctx, f.m, all, asker{f.scope, f.caller.Load()}, func(msg *mcp.Message) { f.take(msg, again) })
			if errors.Is(err, errNothingGranted) {
				f.grant(make([]bool, len(filters)))
			}
			f.settle()
			again = true
			return err
		})
		background.Await(ctx, nil, askAgain)
	}
}

// redial calls f until ctx ends or nothing is granted, with growing pauses while it fails at once.
func redial(ctx context.Context, f func() error) {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		if errors.Is(f(), errNothingGranted) {
			return
		}
		if time.Since(began) > mostRedial {
			failures = 0
		}
		background.Await(ctx, nil, rand.N(min(mostRedial, leastRedial<<min(failures, 10))))
	}
}

// grant notes what the member grants.
func (f *feed) grant(lists []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known, f.granted = true, lists
}

// settle lets those go on who wait for the member.
func (f *feed) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.settled {
		f.settled = true
		close(f.answered)
	}
}

// take is called with each message of the member's stream; again when it is not the first stream.
func (f *feed) take(msg *mcp.Message, again bool) {
	if msg.Method == mcp.NotificationAcknowledged {
		f.acknowledged(readFilter(msg.Raw, msg.Params).lists, again)
		return
	}
	for i := range filters {
		if msg.Method == filters[i].notification {
			f.changed(i)
		}
	}
}

// acknowledged notes what the member grants. One that comes back, or comes late, may have changed its lists unseen.
func (f *feed) acknowledged(granted []bool, again bool) {
	f.mu.Lock()
	for l := range f.listens {
		again = again || l.isOpen()
	}
	f.mu.Unlock()
	f.grant(granted)
	f.settle() // from here on listens open that are in time
	if !again {
		return
	}
	for i, yes := range granted {
		if yes {
			f.changed(i)
		}
	}
}

// changed makes the lists be fetched anew, then tells who listens.
func (f *feed) changed(i int) {
	f.s.invalidate(f.m, f.scope == watcher, f.scope, filters[i].kinds...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range f.listens {
		l.changed(i)
	}
}

// grants reports whether the member tells of a list, or may once it has said whether it does.
func (f *feed) grants(i int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.known || f.granted[i]
}

var errNothingGranted = errors.New("the member grants nothing of this")

// subscribe opens a listen at a member and hands on its messages until it ends.
func (s *Server) subscribe(ctx context.Context, m *member, f filter, by asker, take func(*mcp.Message)) error {
	b := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"`+mcp.MethodListen+`","params":{"notifications":`, s.requests.Add(1))
	b = append(f.append(b), ',')
	msg, err := mcp.ScanAnswer(append(s.appendMeta(b, by.scope), `}}`...))
	if err != nil {
		return err
	}
	header := by.header()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(grantWithin, cancel)
	defer late.Stop()
	a, err := m.Server.Call(upstream.WithVia(ctx, header), &upstream.Call{Message: &msg, Header: header, Principal: by.principal, Caller: by.caller})
	if err != nil {
		return err
	}
	defer a.Close()
	if a.Events == nil {
		return s.refusedListen(m, a)
	}
	for acknowledged := false; ; {
		ev, err := a.Events.Next()
		if err != nil {
			return err
		}
		got, err := mcp.ScanAnswer(ev.Data)
		switch {
		case err != nil:
			continue
		case got.Kind == mcp.Response:
			if got.Error.Present() && !acknowledged {
				return whyNoListen(m, &got)
			}
			return io.EOF
		case got.Method == mcp.NotificationAcknowledged:
			acknowledged = true
			late.Stop() // if it fires now, the stream ends, and another is opened
			if readFilter(got.Raw, got.Params).within(f).empty() {
				return errNothingGranted
			}
		}
		take(&got)
	}
}

// maxRefusal is the longest answer that a member may give instead of a listen, in bytes.
const maxRefusal = 64 << 10

// refusedListen is why a member answered with no stream, and closes that answer.
func (s *Server) refusedListen(m *member, a *upstream.Answer) error {
	r, taken, err := upstream.ReadResponse(m.Name, a, s.o.Answers, maxRefusal)
	defer s.o.Answers.Give(taken)
	if err != nil {
		return err
	}
	return whyNoListen(m, &r)
}

// whyNoListen is a response to a listen as an error: errNothingGranted from a member that has no listens, or not of what
// was asked. Anything else may pass.
func whyNoListen(m *member, r *mcp.Message) error {
	code := upstream.ErrorCode(r)
	if code == mcp.CodeMethodNotFound || code == mcp.CodeInvalidParams {
		return errNothingGranted
	}
	return &upstream.Error{Kind: upstream.BadAnswer, Upstream: m.Name, Detail: fmt.Sprintf("answered a listen with error %d", code)}
}

// listChanged is what tells a client that a list of a kind has changed.
func listChanged(i int, id []byte) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","method":"`+filters[i].notification+`","params":{"_meta":{"`+mcp.MetaKeySubscriptionID+`":`), id...)
	return append(b, `}}}`...)
}

// resourceUpdated is what tells a client that a resource may have changed.
func resourceUpdated(uri string, id []byte) []byte {
	b := rawjson.AppendString([]byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationResourceUpdated+`","params":{"uri":`), uri)
	b = append(append(b, `,"_meta":{"`+mcp.MetaKeySubscriptionID+`":`...), id...)
	return append(b, `}}}`...)
}

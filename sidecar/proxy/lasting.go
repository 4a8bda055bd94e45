package proxy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// tellers is how many clients are told of changed lists at a time: each may be slow to take it.
const tellers = 16

// lasting is an open answer at a guarded endpoint. It ends when its caller's credential does, or is not accepted any more.
type lasting struct {
	of     *endpoint
	who    *identity.Principal
	end    context.CancelFunc
	expiry *time.Timer // nil: never

	mu sync.Mutex // guards below; held while the client is told
	// tell is of changed lists; nil for what no list_changed belongs to, and when the answer is over.
	tell func()
	// acknowledged is whether a client that listens has been told what for; before that it is told nothing else.
	acknowledged bool
}

// tellChanged tells a client that listens of changed lists.
func (l *lasting) tellChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil && l.acknowledged {
		l.tell()
	}
}

// audience are an endpoint's lasting answers. The zero audience is ready.
type audience struct {
	mu  sync.Mutex // guards below
	all map[*lasting]struct{}
}

func (a *audience) add(l *lasting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[*lasting]struct{})
	}
	a.all[l] = struct{}{}
}

func (a *audience) remove(l *lasting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, l)
}

func (a *audience) list() (all []*lasting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.all {
		all = append(all, l)
	}
	return all
}

// last makes the answer a lasting one; drop must follow, also on nil. ended is over when the answer has to end: for a listen,
// or the stream of a session, that is also when its endpoint does. A call's is nil where there is nothing that could end it.
func (x *exchange) last(listens bool, out *eventWriter) (ended context.Context, l *lasting) {
	switch {
	case x.guard == nil && listens:
		return x.ep.ended, nil
	case x.guard == nil, x.guard.callers == nil && !listens:
		return nil, nil
	}
	return x.lastGuarded(listens, out)
}

func (x *exchange) lastGuarded(listens bool, out *eventWriter) (ended context.Context, l *lasting) {
	parent := context.Background()
	l = &lasting{of: x.ep, who: x.who}
	if listens {
		parent = x.ep.ended
	}
	if x.msg.Method == mcp.MethodListen {
		l.tell = func() { x.tellListChanged(out) }
	}
	ended, l.end = context.WithCancel(parent)
	if x.who != nil && !x.who.Expires.IsZero() {
		l.expiry = time.AfterFunc(time.Until(x.who.Expires), l.end)
	}
	x.ep.audience.add(l)
	if now := x.ep.guard.Load(); now != x.guard && !now.lets(x.who) { // it changed before the answer was there to be looked at
		l.end()
	}
	return ended, l
}

// drop is the end of a lasting answer.
func (l *lasting) drop() {
	if l == nil {
		return
	}
	l.of.audience.remove(l)
	l.mu.Lock()
	l.tell = nil // who is about to tell finds nobody
	l.mu.Unlock()
	if l.expiry != nil {
		l.expiry.Stop()
	}
	l.end()
}

// heard notes that a client that listens has been told what for.
func (l *lasting) heard() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.acknowledged = true
	l.mu.Unlock()
}

// lets reports whether a caller that was let in before still is.
func (g *guard) lets(who *identity.Principal) bool {
	switch {
	case g == nil:
		return true
	case g.closed != "":
		return false
	case g.callers == nil:
		return true
	}
	return who != nil && g.callers.Valid(who, time.Now()) == nil
}

// guarded puts a new guard in place of an endpoint's: answers end whose callers are not let in any more, and who is told
// of changed lists is told when the rules, or who is who, have changed.
func (p *Proxy) guarded(ep *endpoint, next *guard) {
	old := ep.guard.Swap(next)
	if old == next {
		return
	}
	var tell []*lasting
	for _, l := range ep.audience.list() {
		switch {
		case !next.lets(l.who):
			l.end()
		case !old.alike(next):
			tell = append(tell, l)
		}
	}
	if old.alike(next) {
		return
	}
	for _, message := range listChanges {
		ep.sessions.Announce(message.data)
	}
	p.tellAll(tell)
}

// tellAll tells clients of changed lists without waiting for them.
func (p *Proxy) tellAll(all []*lasting) {
	queue := make(chan *lasting, len(all))
	for _, l := range all {
		queue <- l
	}
	close(queue)
	for range min(tellers, len(all)) {
		p.retiring.Go(func() {
			for l := range queue {
				l.tellChanged()
			}
		})
	}
}

// listChange is a notification that a list is another now.
type listChange struct {
	method string
	wanted string // the member of a listen's notifications that asks for it
	data   []byte // for a session
}

var listChanges = func() (all []listChange) {
	for _, c := range [][2]string{
		{mcp.NotificationToolsChanged, "toolsListChanged"},
		{mcp.NotificationPromptsChanged, "promptsListChanged"},
		{mcp.NotificationResourcesChanged, "resourcesListChanged"},
	} {
		all = append(all, listChange{c[0], c[1], []byte(`{"jsonrpc":"2.0","method":"` + c[0] + `"}`)})
	}
	return all
}()

// tellListChanged sends a listen's client the changes that it asked for.
func (x *exchange) tellListChanged(out *eventWriter) {
	m := &x.msg
	for _, c := range listChanges {
		if string(rawjson.Find(m.Raw, m.Params, "notifications", c.wanted).Of(m.Raw)) != "true" {
			continue
		}
		data := append([]byte(`{"jsonrpc":"2.0","method":"`+c.method+`","params":{"_meta":{"`+mcp.MetaKeySubscriptionID+`":`), m.ID.Of(m.Raw)...)
		if out.sendNow(mcp.Event{Data: append(data, `}}}`...)}) != nil {
			return // a client that is gone
		}
	}
}

// credentialEnded ends an answer whose caller is not let in any more.
func credentialEnded() error {
	return &refusal{status: http.StatusUnauthorized, code: mcp.CodeInvalidRequest, reason: "credential_ended",
		message: "the credential of this call has ended", data: ownData("credential_ended")}
}

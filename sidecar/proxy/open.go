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

// open is an open answer at a guarded endpoint. It ends when its caller's credential does, or is not accepted any more.
type open struct {
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
func (o *open) tellChanged() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tell != nil && o.acknowledged {
		o.tell()
	}
}

// audience are an endpoint's open answers. The zero audience is ready.
type audience struct {
	mu  sync.Mutex // guards below
	all map[*open]struct{}
}

func (a *audience) add(o *open) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = make(map[*open]struct{})
	}
	a.all[o] = struct{}{}
}

func (a *audience) remove(o *open) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, o)
}

func (a *audience) list() (all []*open) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for o := range a.all {
		all = append(all, o)
	}
	return all
}

// enlist makes the answer one that its endpoint knows of; drop must follow, also on nil. ended is over when the answer has to
// end: for a listen, or the stream of a session, that is also when its endpoint does. A call's is nil where there is nothing
// that could end it.
func (x *exchange) enlist(listens bool, out *eventWriter) (ended context.Context, o *open) {
	switch {
	case x.guard == nil && listens:
		return x.ep.ended, nil
	case x.guard == nil, x.guard.callers == nil && !listens:
		return nil, nil
	}
	return x.enlistGuarded(listens, out)
}

func (x *exchange) enlistGuarded(listens bool, out *eventWriter) (ended context.Context, o *open) {
	parent := context.Background()
	o = &open{of: x.ep, who: x.who}
	if listens {
		parent = x.ep.ended
	}
	if x.msg.Method == mcp.MethodListen {
		o.tell = func() { x.tellListChanged(out) }
	}
	ended, o.end = context.WithCancel(parent)
	if x.who != nil && !x.who.Expires.IsZero() {
		o.expiry = time.AfterFunc(time.Until(x.who.Expires), o.end)
	}
	x.ep.audience.add(o)
	if now := x.ep.guard.Load(); now != x.guard && !now.lets(x.who) { // it changed before the answer was there to be looked at
		o.end()
	}
	return ended, o
}

// drop is the end of an open answer.
func (o *open) drop() {
	if o == nil {
		return
	}
	o.of.audience.remove(o)
	o.mu.Lock()
	o.tell = nil // who is about to tell finds nobody
	o.mu.Unlock()
	if o.expiry != nil {
		o.expiry.Stop()
	}
	o.end()
}

// heard notes that a client that listens has been told what for.
func (o *open) heard() {
	if o == nil {
		return
	}
	o.mu.Lock()
	o.acknowledged = true
	o.mu.Unlock()
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
	var tell []*open
	for _, o := range ep.audience.list() {
		switch {
		case !next.lets(o.who):
			o.end()
		case !old.alike(next):
			tell = append(tell, o)
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

// recheckEvery is how often the callers of open answers are judged again.
const recheckEvery = 30 * time.Second

// recheck ends the answers of callers that are not let in any more for a reason that no configuration tells of, as an issuer
// that withdraws a key. It returns when Close begins.
func (p *Proxy) recheck(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.closing:
			return
		}
		for _, ep := range p.table.Load().endpoints {
			g := ep.guard.Load()
			for _, o := range ep.audience.list() {
				if !g.lets(o.who) {
					o.end()
				}
			}
		}
	}
}

// tellAll tells clients of changed lists without waiting for them.
func (p *Proxy) tellAll(all []*open) {
	queue := make(chan *open, len(all))
	for _, o := range all {
		queue <- o
	}
	close(queue)
	for range min(tellers, len(all)) {
		p.retiring.Go(func() {
			for o := range queue {
				o.tellChanged()
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

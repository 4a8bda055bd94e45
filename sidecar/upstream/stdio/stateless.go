package stdio

import (
	"bytes"
	"fmt"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// statelessRouter takes what a server says between answers on the stateless wire: it belongs to a call, or to nobody.
type statelessRouter struct{}

func (statelessRouter) ended(*pipe) {}

func (statelessRouter) route(p *pipe, m *mcp.Message) {
	switch {
	case m.Kind == mcp.Request: // basic/transports: servers do not send any
		p.answer(m)
	case m.Method == mcp.NotificationCancelled:
		endListen(p, m)
	case m.SubscriptionID.Present():
		if k := p.find(string(m.SubscriptionID.Of(m.Raw))); k != nil && k.listens {
			k.box.Put(splice(m.Raw, mcp.Edit{Span: m.SubscriptionID, With: k.id}))
		}
	case m.Method == mcp.NotificationMessage:
		// It names no request, so it is delivered only when it can be no other's.
		if k := p.only(); k != nil && k.logs {
			k.box.Put(bytes.Clone(m.Raw))
		} else {
			p.drop(m)
		}
	}
}

// endListen gives a listen its orderly end when the server ends it with notifications/cancelled, which
// basic/patterns/cancellation asks for, rather than with the result of basic/patterns/subscriptions.
func endListen(p *pipe, m *mcp.Message) {
	key := string(m.RequestID.Of(m.Raw))
	if k := p.find(key); k == nil || !k.listens {
		return
	}
	if k := p.take(key); k != nil {
		k.box.Finish(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","_meta":{"%s":%s}}}`,
			k.id, mcp.MetaKeySubscriptionID, k.id))
	}
}

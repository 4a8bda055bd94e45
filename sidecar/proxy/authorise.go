package proxy

import (
	"context"
	"net/http"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/policy"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// identify finds out who calls, from the request's head alone: nothing of a stranger's body is read before.
func (x *exchange) identify() error {
	g := x.ep.guard.Load()
	if g == nil {
		return nil
	}
	x.guard = g
	if g.closed != "" {
		return &refusal{status: http.StatusServiceUnavailable, code: mcp.CodeInternalError, reason: "policy_missing",
			message: "nothing is allowed here until the sidecar has a policy that it can run", data: ownData("policy_missing"), retry: 5}
	}
	if g.callers == nil {
		return nil
	}
	who, refused := g.callers.Authenticate(x.ctx, x.r.Header, x.r.URL.RawQuery, x.r.TLS)
	if refused != nil {
		return refusalOf(refused)
	}
	x.who = who
	return nil
}

// refusalOf is a caller that is not let in, or not so far, as an answer.
func refusalOf(r *identity.Refusal) *refusal {
	return &refusal{status: r.Status, code: mcp.CodeInvalidRequest, reason: r.Reason, message: r.Message,
		data: ownData(r.Reason), challenge: r.Challenge, retry: r.RetryAfter}
}

// callee is where a message goes: a server, or a session with one.
type callee interface {
	Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error)
}

// authorise holds the message to the rules, before the server hears of it. Of to, where it would go, a tool may be looked up
// whose hints rules ask for.
//
// Hot: without rules it costs a look; with them a call of a name and caller that were seen before allocates nothing.
func (x *exchange) authorise(to callee) error {
	if x.guard == nil || x.guard.rules == nil || x.msg.Kind == mcp.Response {
		return nil
	}
	if x.msg.Method == mcp.MethodListen {
		if err := x.authoriseListen(); err != nil {
			return err
		}
	}
	q := questions.Get().(*policy.Request)
	defer func() {
		*q = policy.Request{}
		questions.Put(q)
	}()
	q.Principal, q.Method, q.Time = x.who, x.msg.Method, x.start
	q.Subject, q.Name = x.subject()
	if x.guard.owners && q.Subject != policy.None {
		q.Upstream = x.owner(q.Subject, q.Name)
	}
	if q.Subject == policy.Tool || q.Subject == policy.Prompt {
		q.Arguments = x.msg.Arguments.Of(x.msg.Raw)
	}
	if q.Subject == policy.Tool && x.guard.rules.NeedsHints() {
		q.Hints = x.hintsOf(to, q.Name)
	}
	d := x.guard.rules.Decide(q)
	if d.Live && x.guard.rules.NeedsArguments(q.Subject, q.Name) && !rawjson.Unique(x.msg.Raw, x.msg.Arguments) {
		return &refusal{status: http.StatusBadRequest, asRPC: true, code: mcp.CodeInvalidParams, reason: "duplicate_arguments",
			message: "the arguments have a key twice, which the rules on them do not take", data: ownData("duplicate_arguments")}
	}
	return x.judge(d)
}

// questions are what rules were asked, to be asked with again.
var questions = sync.Pool{New: func() any { return new(policy.Request) }}

// judge is what a decision means for the call.
func (x *exchange) judge(d policy.Decision) error {
	x.decided = decided{d.Policy, d.Rule}
	if d.ShadowPolicy != "" {
		x.shadow = decided{d.ShadowPolicy, d.ShadowRule}
		x.ep.metrics.Denial(d.ShadowPolicy, d.ShadowRule, false)
	}
	if d.Allowed {
		return nil
	}
	x.ep.metrics.Denial(d.Policy, d.Rule, true)
	if len(d.MissingScopes) > 0 && x.guard.callers != nil {
		return refusalOf(x.guard.callers.Insufficient(d.MissingScopes))
	}
	return denied("the rules of this endpoint do not allow this call")
}

// denied is a call that rules refuse. On the wire with sessions it is a JSON-RPC error as any: their clients take a bare 403
// for a transport that failed.
func denied(message string) *refusal {
	return &refusal{status: http.StatusForbidden, asRPC: true, code: mcp.CodeInvalidRequest, reason: "denied", message: message,
		data: ownData("denied")}
}

// decided names the rule that decided.
type decided struct{ policy, rule string }

// subject is what the message is about.
func (x *exchange) subject() (policy.Subject, []byte) {
	switch x.msg.Method {
	case mcp.MethodToolsCall:
		return policy.Tool, x.msg.Name
	case mcp.MethodPromptsGet:
		return policy.Prompt, x.msg.Name
	case mcp.MethodResourcesRead, mcp.MethodResourcesSubscribe:
		return policy.Resource, x.msg.Name
	case mcp.MethodComplete:
		return completed(&x.msg)
	}
	return policy.None, nil
}

// completed is the prompt or the resource that a completion is for (server/utilities/completion).
func completed(m *mcp.Message) (policy.Subject, []byte) {
	ref := rawjson.Find(m.Raw, m.Params, "ref")
	named := func(field string) []byte {
		token := rawjson.Find(m.Raw, ref, field).Of(m.Raw)
		if !rawjson.IsString(token) {
			return nil
		}
		return rawjson.Decoded(token)
	}
	switch string(named("type")) {
	case "ref/prompt":
		return policy.Prompt, named("name")
	case "ref/resource":
		return policy.Resource, named("uri")
	}
	return policy.None, nil
}

// authoriseListen holds each resource that a listen asks about to the rules on it: one that may not be read is not to be
// watched either.
func (x *exchange) authoriseListen() error {
	m := &x.msg
	uris := rawjson.Find(m.Raw, m.Params, "notifications", "resourceSubscriptions")
	if !rawjson.IsArray(uris.Of(m.Raw)) {
		return nil
	}
	for at := range rawjson.Elements(m.Raw, uris) {
		token := at.Of(m.Raw)
		if rawjson.IsString(token) && !x.mayWatch(x.guard.rules, rawjson.Decoded(token)) {
			return denied("the rules of this endpoint do not allow watching one of these resources")
		}
	}
	return nil
}

func (x *exchange) mayWatch(rules *policy.Set, uri []byte) bool {
	q := policy.Request{Principal: x.who, Method: mcp.MethodResourcesSubscribe, Subject: policy.Resource, Name: uri, Time: x.start}
	if x.guard.owners {
		q.Upstream = x.owner(q.Subject, uri)
	}
	return rules.Decide(&q).Allowed
}

// owner is the upstream that has a subject; empty where that is not known.
func (x *exchange) owner(s policy.Subject, name []byte) string {
	d, ok := x.ep.server.Server.(upstream.Directory)
	if !ok {
		return ""
	}
	return d.Owner(x.ctx, x.call(), callOf[s], string(name))
}

// callOf is the method that asks for an entry of a list.
var callOf = [...]string{policy.Tool: mcp.MethodToolsCall, policy.Prompt: mcp.MethodPromptsGet, policy.Resource: mcp.MethodResourcesRead}

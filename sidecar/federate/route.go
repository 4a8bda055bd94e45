package federate

import (
	"context"
	"fmt"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// callTool sends a call to the member that has the tool.
func (s *Server) callTool(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return s.callNamed(ctx, c, tools, "tool")
}

// callNamed sends a call to the member that its name leads to, or, if it is a retry, to the one that asked.
func (s *Server) callNamed(ctx context.Context, c *upstream.Call, k kind, what string) (*upstream.Answer, error) {
	call, asked, refused := s.retried(c)
	if refused != nil {
		return refused, nil
	}
	t, ok, err := s.find(ctx, c, k, string(c.Message.Name))
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return invalidParams(c, fmt.Sprintf("unknown %s %q", what, c.Message.Name)), nil
	case asked != nil && asked != t.member:
		return invalidParams(c, fmt.Sprintf("the %s %q is another server's now than the one that asked: call again without requestState", what, c.Message.Name)), nil
	}
	a, err := s.send(ctx, call, t, call.Message.NameSpan)
	if err != nil {
		return nil, err
	}
	return s.sealAnswer(c, t.member, a)
}

// getPrompt likewise.
func (s *Server) getPrompt(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return s.callNamed(ctx, c, prompts, "prompt")
}

// complete sends a completion to the member that has the prompt or the template (server/utilities/completion).
func (s *Server) complete(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	raw, ref := c.Message.Raw, rawjson.Find(c.Message.Raw, c.Message.Params, "ref")
	of := func(name string) (string, mcp.Span) {
		at := rawjson.Find(raw, ref, name)
		text, _ := rawjson.Text(at.Of(raw))
		return text, at
	}
	switch kind, _ := of("type"); kind {
	case "ref/prompt":
		name, at := of("name")
		t, ok, err := s.find(ctx, c, prompts, name)
		if err != nil {
			return nil, err
		}
		if ok {
			return s.send(ctx, c, t, at)
		}
	case "ref/resource":
		uri, _ := of("uri")
		n, err := s.snapshot(ctx, templates, askerOf(c))
		if err != nil {
			return nil, err
		}
		if t, ok := n.targets[uri]; ok {
			return t.member.Server.Call(ctx, c)
		}
		m, err := s.owner(ctx, c, uri)
		if err != nil {
			return nil, err
		}
		if m != nil {
			return m.Server.Call(ctx, c)
		}
	}
	return invalidParams(c, "ref names no prompt or resource that is known here"), nil
}

// send passes a call on under the name that the member has.
func (s *Server) send(ctx context.Context, c *upstream.Call, t target, name mcp.Span) (*upstream.Answer, error) {
	if text, _ := rawjson.Text(name.Of(c.Message.Raw)); text == t.name {
		return t.member.Server.Call(ctx, c)
	}
	call, err := rewritten(c, mcp.Edit{Span: name, With: rawjson.AppendString(nil, t.name)})
	if err != nil {
		return nil, err
	}
	return t.member.Server.Call(ctx, call)
}

const (
	maxHashed     = 1 << 16 // names that end in a hash and are remembered
	maxHashedName = 1 << 10 // bytes of what the member calls one
)

// rememberHashed keeps where a name leads that cannot be taken apart, since it leads there for ever: a client may call it
// when its list is old, or its member does not list it for now.
func (s *Server) rememberHashed(name string, t target) {
	if len(t.name) > maxHashedName {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hashed) >= maxHashed {
		clear(s.hashed)
	}
	s.hashed[name] = t
}

func (s *Server) hashedName(name string) (target, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.hashed[name]
	return t, ok
}

// find is where a tool's or prompt's name leads. With prefixes a name leads to one place only: what is at hand will do,
// even when it is old, and if it does not have the name, then the prefix tells. Without them the members' lists of now
// decide, and an old one where they do not know the name.
func (s *Server) find(ctx context.Context, c *upstream.Call, k kind, name string) (target, bool, error) {
	by := askerOf(c)
	old := s.snapshots.at(k, by.scope)
	known := target{}
	if old != nil {
		known = old.targets[name]
	}
	if s.names.mode == outriggerv1.Prefix_PREFIX_ALWAYS {
		if known.member != nil {
			return known, true, nil
		}
		if t, ok := s.names.split(name, s.members); ok {
			return t, true, nil
		}
		if t, ok := s.hashedName(name); ok {
			return t, true, nil
		}
	}
	n, err := s.snapshot(ctx, k, by)
	if err != nil {
		return target{}, false, err
	}
	if t, ok := n.targets[name]; ok {
		return t, true, nil
	}
	return known, known.member != nil, nil
}

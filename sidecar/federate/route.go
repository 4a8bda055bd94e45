package federate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/yosida95/uritemplate/v3"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxFound is how many owners of unlisted resources are remembered.
const maxFound = 4096

// callTool sends a call to the member that has the tool.
func (s *Server) callTool(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	t, ok := s.find(ctx, c, tools, string(c.Message.Name))
	if !ok {
		return invalidParams(c, fmt.Sprintf("unknown tool %q", c.Message.Name)), nil
	}
	a, err := s.send(ctx, c, t, c.Message.NameSpan)
	if err != nil || !hasExtension(c, extensionTasks) {
		return a, err
	}
	return s.wrapTask(c, t.member, a)
}

// getPrompt likewise.
func (s *Server) getPrompt(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	t, ok := s.find(ctx, c, prompts, string(c.Message.Name))
	if !ok {
		return invalidParams(c, fmt.Sprintf("unknown prompt %q", c.Message.Name)), nil
	}
	return s.send(ctx, c, t, c.Message.NameSpan)
}

// complete sends a completion to the member that has the prompt or the template (server/utilities/completion).
func (s *Server) complete(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	raw, params := c.Message.Raw, c.Message.Params
	if span := rawjson.Find(raw, params, "ref", "name"); span.Present() {
		if name, ok := rawjson.Text(span.Of(raw)); ok {
			if t, ok := s.find(ctx, c, prompts, name); ok {
				return s.send(ctx, c, t, span)
			}
		}
		return invalidParams(c, "unknown prompt in ref"), nil
	}
	uri, _ := rawjson.Text(rawjson.Find(raw, params, "ref", "uri").Of(raw))
	if t, ok := s.snapshot(ctx, templates, scopeOf(c)).targets[uri]; ok {
		return t.member.Server.Call(ctx, c)
	}
	if m := s.owner(ctx, c, uri); m != nil {
		return m.Server.Call(ctx, c)
	}
	return invalidParams(c, "unknown resource in ref"), nil
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

// find is where a tool's or prompt's name leads. What is at hand decides first, even when it is old; then, if the name
// can be taken apart by its prefix, that; and then the members' lists.
func (s *Server) find(ctx context.Context, c *upstream.Call, k kind, name string) (target, bool) {
	sc := scopeOf(c)
	if n := s.snapshots.at(k, sc); n != nil {
		if t, ok := n.targets[name]; ok {
			return t, true
		}
	}
	if m, original, ok := s.names.split(name, s.members); ok {
		return target{m, original}, true
	}
	t, ok := s.snapshot(ctx, k, sc).targets[name]
	return t, ok
}

// read sends a read to the member that has the resource: by its list, by a template, or by whoever knew it last. A
// resource that nobody lists, as those of MCP Apps may be, is asked for in the order in which members are declared until
// one has it; reading has no effect.
func (s *Server) read(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	uri := string(c.Message.Name)
	if m := s.owner(ctx, c, uri); m != nil {
		return m.Server.Call(ctx, c)
	}
	var firstFailure error
	for _, m := range s.members {
		a, err := m.Server.Call(ctx, c)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			if firstFailure == nil {
				firstFailure = err
			}
			continue
		}
		a, missing, err := unknownResource(a)
		if err != nil {
			return nil, err
		}
		if !missing {
			s.remember(uri, m)
			return a, nil
		}
	}
	if firstFailure != nil {
		return nil, firstFailure // it may be there
	}
	return invalidParams(c, fmt.Sprintf("unknown resource %q", uri)), nil
}

// owner is the member that has a resource, as far as is known; nil when it is not.
func (s *Server) owner(ctx context.Context, c *upstream.Call, uri string) *member {
	sc := scopeOf(c)
	if t, ok := s.snapshot(ctx, resources, sc).targets[uri]; ok {
		return t.member
	}
	s.mu.Lock()
	m := s.found[uri]
	s.mu.Unlock()
	if m != nil {
		return m
	}
	n := s.snapshot(ctx, templates, sc)
	for i, p := range n.parts {
		if p.list == nil {
			continue
		}
		for _, e := range p.list.entries {
			if matches(e.key, uri) {
				return s.members[i]
			}
		}
	}
	return nil
}

// matches reports whether a URI is one of a template's (RFC 6570).
func matches(template, uri string) bool {
	t, err := uritemplate.New(template)
	return err == nil && t.Match(uri) != nil
}

func (s *Server) remember(uri string, m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) >= maxFound {
		clear(s.found)
	}
	s.found[uri] = m
}

// unknownResource looks whether an answer says that there is no such resource. The answer is returned as it came.
func unknownResource(a *upstream.Answer) (_ *upstream.Answer, missing bool, err error) {
	if a.Body == nil {
		return a, false, nil
	}
	m, err := readAnswer(a, maxPage)
	if err != nil {
		return nil, false, err
	}
	if m.Error.Present() {
		switch code := string(rawjson.Find(m.Raw, m.Error, "code").Of(m.Raw)); code {
		case strconv.Itoa(mcp.CodeInvalidParams), strconv.Itoa(mcp.CodeResourceNotFound), strconv.Itoa(mcp.CodeMethodNotFound):
			missing = true
		}
	}
	return bodyOf(a.Status, m.Raw), missing, nil
}

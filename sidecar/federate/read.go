package federate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yosida95/uritemplate/v3"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxFound is how many owners of unlisted resources are remembered, and maxFoundURI the longest URI of one, in bytes.
	maxFound    = 4096
	maxFoundURI = 2048
	// peeked is how much of an answer is looked at for whether it is an error, in bytes.
	peeked = 4096
	// maxMatched is the longest URI that is held against templates, in bytes: matching takes time by its length.
	maxMatched = 4096
	// maxTemplate and maxExpressions bound the templates that are matched, in bytes and expressions.
	maxTemplate    = 1024
	maxExpressions = 8
)

// place is an unlisted resource, as a principal asked for it.
type place struct{ principal, uri string }

// read sends a read to the member that has the resource: by its list, by a tool that it shows, by a template, or by
// whoever had it last. A resource that none of these tells, as those of MCP Apps may be, is asked for in the order in which
// members are declared until one has it; reading has no effect. But what a client answers to a server is for that one only.
func (s *Server) read(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	call, asked, refused := s.retried(c)
	switch {
	case refused != nil:
		return refused, nil
	case asked != nil:
		return s.readAt(ctx, call, asked)
	}
	uri := string(c.Message.Name)
	m, err := s.owner(ctx, c, uri)
	if err != nil {
		return nil, err
	}
	if m != nil {
		return s.readAt(ctx, c, m)
	}
	a, m, err := s.try(ctx, c, s.foundAt(c.Principal, uri))
	if m == nil && err == nil {
		a, m, err = s.search(ctx, c, uri)
	}
	if err != nil || m == nil {
		return a, err
	}
	return s.sealAnswer(c, m, a)
}

// readAt reads at a member that has the resource.
func (s *Server) readAt(ctx context.Context, c *upstream.Call, m *member) (*upstream.Answer, error) {
	a, err := m.Server.Call(ctx, c)
	if err != nil {
		return nil, err
	}
	return s.sealAnswer(c, m, a)
}

// search asks one member after the other, and returns the one that has the resource with its answer; nil with the answer
// that none has it.
func (s *Server) search(ctx context.Context, c *upstream.Call, uri string) (*upstream.Answer, *member, error) {
	var failure error
	for _, m := range s.members {
		a, has, err := s.try(ctx, c, m)
		switch {
		case ctx.Err() != nil:
			a.Close()
			return nil, nil, ctx.Err()
		case err != nil:
			failure = err // it may be there
		case has != nil:
			if failure == nil { // else the first that has it is perhaps another
				s.remember(c.Principal, uri, m)
			}
			return a, has, nil
		}
	}
	if failure != nil {
		return nil, nil, failure
	}
	return invalidParams(c, fmt.Sprintf("unknown resource %q", uri)), nil, nil
}

// try reads at a member that may have the resource, and returns it with its answer if it has. It takes no longer than a
// list may to begin.
func (s *Server) try(ctx context.Context, c *upstream.Call, m *member) (*upstream.Answer, *member, error) {
	if m == nil {
		return nil, nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(s.timeout(), cancel)
	a, err := m.Server.Call(ctx, c)
	missing := false
	if err == nil {
		a, missing, err = unknownResource(a)
	}
	late := !timer.Stop()
	if err == nil && !missing && !late {
		return held(a, cancel), m, nil
	}
	a.Close()
	cancel()
	var failed *upstream.Error
	switch {
	case late:
		err = &upstream.Error{Kind: upstream.TimedOut, Upstream: m.Name, Detail: "did not say in time whether it has the resource"}
	case err != nil && !errors.As(err, &failed):
		err = &upstream.Error{Kind: upstream.Lost, Upstream: m.Name, Detail: "its answer broke off", Cause: err}
	}
	return nil, nil, err
}

// owner is the member that has a resource, as far as members tell; nil when they do not.
func (s *Server) owner(ctx context.Context, c *upstream.Call, uri string) (*member, error) {
	by := askerOf(c)
	n, err := s.snapshot(ctx, resources, by)
	if err != nil {
		return nil, err
	}
	if t, ok := n.targets[uri]; ok {
		return t.member, nil
	}
	if m := s.shower(by.scope, uri); m != nil {
		return m, nil
	}
	if n, err = s.snapshot(ctx, templates, by); err != nil {
		return nil, err
	}
	return s.memberWith(n, func(e entry) bool { return e.matches(uri) }), nil
}

// shower is the member of a tool that the resource shows, if its tools were listed.
func (s *Server) shower(sc scope, uri string) *member {
	n := s.snapshots.at(tools, sc)
	if n == nil {
		return nil
	}
	return s.memberWith(n, func(e entry) bool { return e.page != "" && e.page == uri })
}

// memberWith is the first member, as declared, with such an entry.
func (s *Server) memberWith(n *snapshot, such func(entry) bool) *member {
	for i, p := range n.parts {
		if p.list == nil {
			continue
		}
		for _, e := range p.list.entries {
			if such(e) {
				return s.members[i]
			}
		}
	}
	return nil
}

// matches reports whether a URI is one of a template's (RFC 6570).
func (e *entry) matches(uri string) bool {
	return len(uri) <= maxMatched && strings.HasPrefix(uri, e.fixed) && e.template != nil && e.template.MatchString(uri)
}

// compile makes a template ready to be matched, as a regular expression: that takes time by the length of the URI,
// whatever a server puts into its templates. One that is too long or no template matches nothing.
func (e *entry) compile() {
	if len(e.key) > maxTemplate || strings.Count(e.key, "{") > maxExpressions {
		return
	}
	if t, err := uritemplate.New(e.key); err == nil {
		e.fixed, _, _ = strings.Cut(e.key, "{")
		e.template = t.Regexp()
	}
}

func (s *Server) foundAt(principal, uri string) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found[place{principal, uri}]
}

func (s *Server) remember(principal, uri string, m *member) {
	if len(uri) > maxFoundURI {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) >= maxFound {
		clear(s.found)
	}
	s.found[place{principal, uri}] = m
}

func (s *Server) forgetFound() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.found)
}

// unknownResource looks whether an answer begins by saying that there is no such resource. The answer is returned as it
// came.
func unknownResource(a *upstream.Answer) (_ *upstream.Answer, missing bool, err error) {
	switch {
	case a.Events != nil:
		ev, err := a.Events.Next()
		if err != nil {
			return a, false, err
		}
		first := mcp.Event{Data: bytes.Clone(ev.Data)}
		a.Events = &pushedBack{EventStream: a.Events, first: &first}
		return a, saysMissing(first.Data), nil
	case a.Body != nil:
		begin := make([]byte, peeked)
		n, err := io.ReadFull(a.Body, begin)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return a, false, err
		}
		a.Body = &rejoined{Reader: io.MultiReader(bytes.NewReader(begin[:n]), a.Body), Closer: a.Body}
		return a, n < peeked && saysMissing(begin[:n]), nil
	}
	return a, false, nil
}

// saysMissing reports whether a message is the error of a server that does not have what was asked for.
func saysMissing(message []byte) bool {
	if mcp.PeekOutcome(message) == mcp.OutcomeResult {
		return false
	}
	m, err := mcp.ScanAnswer(message)
	if err != nil || !m.Error.Present() {
		return false
	}
	switch upstream.ErrorCode(&m) {
	case mcp.CodeInvalidParams, mcp.CodeResourceNotFound, mcp.CodeMethodNotFound:
		return true
	}
	return false
}

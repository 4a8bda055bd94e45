package mcp

import "bytes"

// Answers reports whether m is the response to the request with that id, which is a token as it came. An error may have
// no id or null: its sender could not read the request's (basic, "Responses").
//
// Hot: runs on every answer. The same bytes are the same id; only a string that one side wrote with escapes is decoded.
func (m *Message) Answers(id []byte) bool {
	return m.Kind == Response && isIDOf(m.ID.Of(m.Raw), id, m.Error.Present())
}

// isIDOf compares a response's id, nil when absent, with its request's.
func isIDOf(got, want []byte, isError bool) bool {
	switch {
	case isError && (got == nil || string(got) == "null"):
		return true
	case bytes.Equal(got, want):
		return got != nil
	}
	return sameString(got, want)
}

// sameString reports whether two JSON strings are the same behind their escapes.
func sameString(a, b []byte) bool {
	if bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		return false // then the bytes would be the same
	}
	if len(a) == 0 || len(b) == 0 || a[0] != '"' || b[0] != '"' {
		return false
	}
	x, ok := unescape(a[1 : len(a)-1])
	y, alsoOK := unescape(b[1 : len(b)-1])
	return ok && alsoOK && bytes.Equal(x, y)
}

// Prefix is what the first bytes of a response show, in the order in which its sender wrote them.
type Prefix struct {
	ID      Span    // absent unless it was seen whole, before result or error
	Outcome Outcome // the first of result and error
	Foreign bool    // no response begins like this: not an object, or one with a method
}

// Settled reports whether more bytes could show more.
func (p *Prefix) Settled() bool { return p.Foreign || p.Outcome != OutcomeUnknown }

// Answers reports whether the response may be one to the request with that id: what was not seen speaks for it.
func (p *Prefix) Answers(prefix, id []byte) bool {
	return !p.Foreign && (!p.ID.Present() || isIDOf(p.ID.Of(prefix), id, p.Outcome != OutcomeResult))
}

// PeekResponse looks at the first bytes of a response up to the first top-level result or error key and reads no
// further. It trusts the sender: what Scan refuses is found by Scan alone. It allocates nothing.
func PeekResponse(prefix []byte) (p Prefix) {
	s := scanner{data: prefix, maxDepth: AnswerDepth}
	s.space()
	if s.pos == len(prefix) {
		return p
	}
	if p.Foreign = s.peek() != '{'; p.Foreign {
		return p
	}
	s.enter(1)
	for {
		name, ok := s.name()
		if !ok {
			return p
		}
		k := s.find(&envelopeKeys, name.Of(prefix))
		switch k {
		case keyResult:
			p.Outcome = OutcomeResult
			return p
		case keyError:
			p.Outcome = OutcomeError
			return p
		case keyMethod:
			p.Foreign = true
			return p
		}
		if !p.member(&s, k) {
			return p
		}
	}
}

// member reads the value of one member, and reports whether another follows it.
func (p *Prefix) member(s *scanner, k key) bool {
	start := s.pos
	if !s.value(1) {
		return false
	}
	value := Span{start, s.pos}
	more, ok := s.more('}')
	if ok && k == keyID {
		p.ID = value // which a longer prefix would not make longer
	}
	return more
}

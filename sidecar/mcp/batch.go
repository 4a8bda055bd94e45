package mcp

import (
	"bytes"
	"fmt"
)

// IsBatch reports whether a body is a JSON array, as 2025-03-26 allows and later versions do not (2025-03-26,
// basic, "Batching").
func IsBatch(data []byte) bool {
	text := bytes.TrimLeft(data, " \t\r\n")
	return len(text) > 0 && text[0] == '['
}

// ScanBatch scans an array of 1 to limit messages. Its error is an *Error, as Scan's, for the first member at fault; an
// initialize inside of a batch is refused (2025-03-26, basic/lifecycle, "Initialization").
func ScanBatch(data []byte, l Limits, limit int) ([]Message, error) {
	raw := bytes.Trim(data, " \t\r\n")
	whole := scanner{data: raw, maxDepth: l.maxDepth() + 1}
	if !whole.document() {
		code, text := CodeParseError, fmt.Sprintf("not JSON: byte %d of the batch", whole.pos)
		if whole.tooDeep {
			code, text = CodeInvalidRequest, fmt.Sprintf("nested deeper than %d levels", whole.maxDepth)
		}
		return nil, refuse(code, text)
	}
	if !IsBatch(raw) {
		return nil, refuse(CodeInvalidRequest, "not a batch")
	}
	members := arrayMembers(raw, limit+1)
	switch {
	case len(members) == 0:
		return nil, refuse(CodeInvalidRequest, "an empty batch")
	case len(members) > limit:
		return nil, refuse(CodeInvalidRequest, fmt.Sprintf("a batch of more than %d messages", limit))
	}
	messages := make([]Message, 0, len(members))
	for _, member := range members {
		m, err := Scan(member, l)
		if err != nil {
			return nil, err
		}
		if m.Method == MethodInitialize {
			return nil, refuse(CodeInvalidRequest, "initialize inside of a batch")
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// arrayMembers cuts the first members, up to limit, out of a valid array.
func arrayMembers(raw []byte, limit int) (members [][]byte) {
	s := scanner{data: raw, maxDepth: len(raw)}
	s.enter(1)
	for len(members) < limit && s.peek() != ']' {
		start := s.pos
		s.value(1)
		members = append(members, raw[start:s.pos])
		if more, _ := s.more(']'); !more {
			break
		}
	}
	return members
}

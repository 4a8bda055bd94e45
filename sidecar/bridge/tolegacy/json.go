package tolegacy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// member is one member of an object, by its place in the text around it.
type member struct {
	name  []byte   // decoded
	whole mcp.Span // from the name's quote to the value's end
	value mcp.Span
}

// members walks an object that is part of raw, which mcp.Scan has found to be JSON.
func members(raw []byte, object mcp.Span) iter.Seq[member] {
	return func(yield func(member) bool) {
		for at := space(raw, object.Start+1); raw[at] != '}'; at = space(raw, at) {
			if raw[at] == ',' {
				at = space(raw, at+1)
			}
			end := skip(raw, at)
			colon := space(raw, end)
			start := space(raw, colon+1)
			m := member{name: decoded(raw[at:end]), value: mcp.Span{Start: start, End: skip(raw, start)}}
			m.whole = mcp.Span{Start: at, End: m.value.End}
			if !yield(m) {
				return
			}
			at = m.whole.End
		}
	}
}

// elements walks an array likewise.
func elements(raw []byte, array mcp.Span) iter.Seq[mcp.Span] {
	return func(yield func(mcp.Span) bool) {
		for at := space(raw, array.Start+1); raw[at] != ']'; at = space(raw, at) {
			if raw[at] == ',' {
				at = space(raw, at+1)
			}
			e := mcp.Span{Start: at, End: skip(raw, at)}
			if !yield(e) {
				return
			}
			at = e.End
		}
	}
}

// find is the value of the first member with that name; absent when there is none, or no object.
func find(raw []byte, object mcp.Span, name string) mcp.Span {
	if !isObject(object.Of(raw)) {
		return mcp.Span{}
	}
	for m := range members(raw, object) {
		if string(m.name) == name {
			return m.value
		}
	}
	return mcp.Span{}
}

// whole is the Span of a text that is one value without white space around it.
func whole(text []byte) mcp.Span { return mcp.Span{End: len(text)} }

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }
func isArray(value []byte) bool  { return len(value) > 0 && value[0] == '[' }
func isString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// decoded is what a string token says.
func decoded(token []byte) []byte {
	inside := token[1 : len(token)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return inside
	}
	var text string
	if json.Unmarshal(token, &text) != nil {
		return inside // not JSON, which callers exclude
	}
	return []byte(text)
}

// space is the next place at or behind at that is not white space.
func space(raw []byte, at int) int {
	for raw[at] == ' ' || raw[at] == '\t' || raw[at] == '\r' || raw[at] == '\n' {
		at++
	}
	return at
}

// skip is where the value at that place ends.
func skip(raw []byte, at int) int {
	switch raw[at] {
	case '"':
		return skipString(raw, at)
	case '{', '[':
		return skipNested(raw, at)
	}
	for at < len(raw) && bytes.IndexByte([]byte(",}] \t\r\n"), raw[at]) < 0 {
		at++
	}
	return at
}

func skipString(raw []byte, at int) int {
	for at++; ; at++ {
		at += bytes.IndexByte(raw[at:], '"')
		slashes := 0
		for raw[at-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return at + 1
		}
	}
}

func skipNested(raw []byte, at int) int {
	for depth := 0; ; at++ {
		switch raw[at] {
		case '"':
			at = skipString(raw, at) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
}

// rewrite appends an object without the members that f drops, and with the values that f gives: nil leaves a value as it
// is. What stays keeps its bytes and its order. It reports whether a member is left.
func rewrite(dst, raw []byte, object mcp.Span, f func(member) (with []byte, keep bool)) (_ []byte, any bool) {
	dst = append(dst, '{')
	for m := range members(raw, object) {
		with, keep := f(m)
		if !keep {
			continue
		}
		if any {
			dst = append(dst, ',')
		}
		any = true
		if with == nil {
			dst = append(dst, m.whole.Of(raw)...)
			continue
		}
		dst = append(dst, raw[m.whole.Start:m.value.Start]...)
		dst = append(dst, with...)
	}
	return append(dst, '}'), any
}

// splice copies raw with edits made, in whatever order they come.
func splice(raw []byte, edits ...mcp.Edit) []byte {
	slices.SortFunc(edits, func(a, b mcp.Edit) int { return cmp.Compare(a.Span.Start, b.Span.Start) })
	room := len(raw)
	for _, e := range edits {
		room += len(e.With)
	}
	return mcp.Splice(make([]byte, 0, room), raw, edits...)
}

// quoted appends text as a JSON string.
func quoted(dst []byte, text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always has a form
	}
	return append(dst, b...)
}

// canonical is a value in a form that does not depend on white space, on the order of keys, or on escapes; nil for what
// is not JSON. Numbers keep their digits.
func canonical(value []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var v any
	if decoder.Decode(&v) != nil {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

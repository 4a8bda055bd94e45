// Package rawjson walks and edits JSON that was found valid before, without decoding it: what is not asked for stays byte
// for byte as it came, with its order, its white space, its digits and its duplicate keys.
//
// A value is named by its mcp.Span in the text around it. Everything here is a pure function and expects what mcp.Scan
// has accepted, or a value of it: on other text results are meaningless, and a walk may panic.
package rawjson

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"iter"
	"math/bits"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// Member is one member of an object, by its place in the text around it.
type Member struct {
	Name  []byte   // decoded
	Whole mcp.Span // from the name's quote to the value's end
	Value mcp.Span
}

// Members walks an object that is part of raw.
func Members(raw []byte, object mcp.Span) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for at := space(raw, object.Start+1); raw[at] != '}'; at = space(raw, at) {
			if raw[at] == ',' {
				at = space(raw, at+1)
			}
			end := skip(raw, at)
			colon := space(raw, end)
			start := space(raw, colon+1)
			m := Member{Name: Decoded(raw[at:end]), Value: mcp.Span{Start: start, End: skip(raw, start)}}
			m.Whole = mcp.Span{Start: at, End: m.Value.End}
			if !yield(m) {
				return
			}
			at = m.Whole.End
		}
	}
}

// Elements walks an array that is part of raw.
func Elements(raw []byte, array mcp.Span) iter.Seq[mcp.Span] {
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

// Fields walks an array and looks members of its objects up: with each element come the first values of these names, in
// their order and absent where there is none. The slice is good until the next element. It costs one pass over the array,
// where Elements with Find cost one more for each name.
func Fields(raw []byte, array mcp.Span, names ...string) iter.Seq2[mcp.Span, []mcp.Span] {
	return func(yield func(mcp.Span, []mcp.Span) bool) {
		found := make([]mcp.Span, len(names))
		for at := space(raw, array.Start+1); raw[at] != ']'; at = space(raw, at) {
			if raw[at] == ',' {
				at = space(raw, at+1)
			}
			e := mcp.Span{Start: at}
			clear(found)
			if raw[at] != '{' {
				e.End = skip(raw, at)
			} else {
				e.End = lookUp(raw, at, names, found)
			}
			if !yield(e, found) {
				return
			}
			at = e.End
		}
	}
}

// lookUp notes the first values of names in the object at that place, and returns where the object ends.
func lookUp(raw []byte, at int, names []string, found []mcp.Span) (end int) {
	end = at + 1
	for m := range Members(raw, mcp.Span{Start: at}) {
		for i, name := range names {
			if string(m.Name) == name && !found[i].Present() {
				found[i] = m.Value
			}
		}
		end = m.Whole.End
	}
	return space(raw, end) + 1
}

// Find is the value at the end of a path of names, the first of each; absent when there is none.
func Find(raw []byte, object mcp.Span, path ...string) mcp.Span {
	at := object
	for _, name := range path {
		if !IsObject(at.Of(raw)) {
			return mcp.Span{}
		}
		next := mcp.Span{}
		for m := range Members(raw, at) {
			if string(m.Name) == name {
				next = m.Value
				break
			}
		}
		at = next
	}
	return at
}

// Whole is the Span of a text that is one value without white space around it.
func Whole(text []byte) mcp.Span { return mcp.Span{End: len(text)} }

// IsObject, IsArray and IsString tell what a value is by how it begins; nil is none of them.
func IsObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }
func IsArray(value []byte) bool  { return len(value) > 0 && value[0] == '[' }
func IsString(value []byte) bool { return len(value) > 0 && value[0] == '"' }

// Decoded is what a string token says. It aliases the token unless that has escapes.
func Decoded(token []byte) []byte {
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

// Text is what a value says if it is a string.
func Text(value []byte) (text string, ok bool) {
	if !IsString(value) {
		return "", false
	}
	return string(Decoded(value)), true
}

// AppendString appends text as a JSON string.
func AppendString(dst []byte, text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always has a form
	}
	return append(dst, b...)
}

// Rewrite appends an object without the members that f drops, and with the values that f gives: nil leaves a value as it
// is. What stays keeps its bytes and its order. It reports whether a member is left.
func Rewrite(dst, raw []byte, object mcp.Span, f func(Member) (with []byte, keep bool)) (_ []byte, left bool) {
	dst = append(dst, '{')
	for m := range Members(raw, object) {
		with, keep := f(m)
		if !keep {
			continue
		}
		if left {
			dst = append(dst, ',')
		}
		left = true
		if with == nil {
			dst = append(dst, m.Whole.Of(raw)...)
			continue
		}
		dst = append(dst, raw[m.Whole.Start:m.Value.Start]...)
		dst = append(dst, with...)
	}
	return append(dst, '}'), left
}

// Splice is a copy of raw with edits made, in whatever order they come; they do not overlap.
func Splice(raw []byte, edits ...mcp.Edit) []byte {
	slices.SortFunc(edits, func(a, b mcp.Edit) int { return cmp.Compare(a.Span.Start, b.Span.Start) })
	room := len(raw)
	for _, e := range edits {
		room += len(e.With)
	}
	return mcp.Splice(make([]byte, 0, room), raw, edits...)
}

// Insert is a copy of raw with a member, in JSON, at the end of one of its objects.
func Insert(raw []byte, object mcp.Span, member string) []byte {
	for range Members(raw, object) {
		member = "," + member
		break
	}
	at := object.End - 1
	return Splice(raw, mcp.Edit{Span: mcp.Span{Start: at, End: at}, With: []byte(member)})
}

// Canonical is a value in a form that does not depend on white space, on the order of keys, or on escapes; nil for what
// is not JSON. Numbers keep their digits. It is for comparing, not for sending on.
func Canonical(value []byte) []byte {
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

// skipString is where the string at that place ends. Most of a large message is inside of strings, so it looks at eight
// bytes at a time (BenchmarkSkip).
func skipString(raw []byte, at int) int {
	for at++; at+8 <= len(raw); {
		marks := quoteOrBackslash(binary.LittleEndian.Uint64(raw[at:]))
		if marks == 0 {
			at += 8
			continue
		}
		if at += bits.TrailingZeros64(marks) / 8; raw[at] == '"' {
			return at + 1
		}
		at += 2
	}
	for ; raw[at] != '"'; at++ {
		if raw[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// quoteOrBackslash has the high bit of the first such byte of w, the lowest coming first; 0 when there is none. Bits above
// the lowest one mean nothing: a borrow can set them.
func quoteOrBackslash(w uint64) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := w^(ones*'"'), w^(ones*'\\')
	return ((quote-ones)&^quote | (backslash-ones)&^backslash) & high
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

package mcp

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks one JSON text. Its methods read from pos and stand behind what they read; those that return a bool
// return false when the text is broken, with pos at the fault, and nothing may be read after that.
type scanner struct {
	data     []byte
	pos      int
	maxDepth int
	escaped  bool // the last string read holds a backslash

	found   [numKeys]Span
	fault   string // the envelope's first, "" for none
	idTwice bool
	tooDeep bool
}

// document reads one value that is all of the text.
func (s *scanner) document() bool {
	if s.peek() == '{' {
		return s.object(&envelopeKeys, 1) && s.pos == len(s.data)
	}
	return s.value(0) && s.pos == len(s.data)
}

// peek is the next byte, 0 at the end: NUL is no part of any JSON text.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.data) && s.data[s.pos] <= ' ' && isSpace(s.data[s.pos]) {
		s.pos++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// value reads any value; depth is that of the object or array around it.
func (s *scanner) value(depth int) bool {
	switch s.peek() {
	case '{':
		return s.object(nil, depth+1)
	case '[':
		return s.array(depth + 1)
	case '"':
		return s.str()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.number()
}

// object reads an object, noting the members that set knows; set may be nil.
func (s *scanner) object(set *keySet, depth int) bool {
	if !s.enter(depth) {
		return false
	}
	if s.peek() == '}' {
		s.pos++
		return true
	}
	for {
		name, ok := s.name()
		if !ok || !s.member(set, name, depth) {
			return false
		}
		if more, ok := s.more('}'); !more {
			return ok
		}
	}
}

// member reads a member's value.
func (s *scanner) member(set *keySet, name Span, depth int) bool {
	if set == nil {
		return s.value(depth)
	}
	k := s.find(set, name.Of(s.data))
	if k == noKey {
		return s.value(depth)
	}
	start, ok := s.pos, false
	if inside[k] != nil && s.peek() == '{' {
		ok = s.object(inside[k], depth+1)
	} else {
		ok = s.value(depth)
	}
	if ok {
		s.keep(set, k, Span{start, s.pos})
	}
	return ok
}

// name reads a member's name and the colon behind it. The Span is without quotes.
func (s *scanner) name() (Span, bool) {
	start := s.pos + 1
	if s.peek() != '"' || !s.str() {
		return Span{}, false
	}
	end := s.pos - 1
	s.space()
	if s.peek() != ':' {
		return Span{}, false
	}
	s.pos++
	s.space()
	return Span{start, end}, true
}

func (s *scanner) array(depth int) bool {
	if !s.enter(depth) {
		return false
	}
	if s.peek() == ']' {
		s.pos++
		return true
	}
	for {
		if !s.value(depth) {
			return false
		}
		if more, ok := s.more(']'); !more {
			return ok
		}
	}
}

// enter reads the bracket that opens the object or array at depth.
func (s *scanner) enter(depth int) bool {
	if depth > s.maxDepth {
		s.tooDeep = true
		return false
	}
	s.pos++
	s.space()
	return true
}

// more reads a comma, which promises more, or the closing bracket.
func (s *scanner) more(closing byte) (more, ok bool) {
	s.space()
	switch s.peek() {
	case ',':
		s.pos++
		s.space()
		return true, true
	case closing:
		s.pos++
		return false, true
	}
	return false, false
}

func (s *scanner) literal(word string) bool {
	for i := range len(word) {
		if s.peek() != word[i] {
			return false
		}
		s.pos++
	}
	return true
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return false
		}
	}
	if c := s.peek(); c != 'e' && c != 'E' {
		return true
	}
	s.pos++
	if c := s.peek(); c == '+' || c == '-' {
		s.pos++
	}
	return s.digits()
}

// digits reads one or more.
func (s *scanner) digits() bool {
	start := s.pos
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos > start
}

// str reads a string whose opening quote is the next byte.
func (s *scanner) str() bool {
	s.pos++
	s.escaped = false
	for {
		s.plain()
		switch s.peek() {
		case '"':
			s.pos++
			return true
		case '\\':
			s.escaped = true
			if !s.escape() {
				return false
			}
		default:
			return false // a control character, or the end
		}
	}
}

// plain skips to the next quote, backslash or control character, many bytes at a time: most of a large message is inside
// of strings.
func (s *scanner) plain() {
	data, i := s.data, s.pos
	if i+8 <= len(data) { // most strings are short
		if marks := notPlain(data[i:]); marks != 0 {
			s.pos = i + bits.TrailingZeros64(marks)/8
			return
		}
		i += 8
	}
	for ; i+32 <= len(data); i += 32 {
		b := data[i : i+32]
		if (notPlain(b) | notPlain(b[8:]) | notPlain(b[16:]) | notPlain(b[24:])) != 0 {
			break
		}
	}
	for ; i+8 <= len(data); i += 8 {
		if marks := notPlain(data[i:]); marks != 0 {
			s.pos = i + bits.TrailingZeros64(marks)/8
			return
		}
	}
	for i < len(data) && data[i] >= 0x20 && data[i] != '"' && data[i] != '\\' {
		i++
	}
	s.pos = i
}

// notPlain has the high bit of the first of eight bytes that plain stops at, the lowest being b[0]; 0 when there is none.
// Bits above the lowest one mean nothing: a borrow can set them.
func notPlain(b []byte) uint64 {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	w := binary.LittleEndian.Uint64(b)
	// A quote is 0x22, so with 2 flipped it is 0x20, and it and the control characters are what is below 0x21; the space
	// and what follows it stay above.
	low, slash := w^(ones*2), w^(ones*'\\')
	return ((low-ones*0x21)&^low | (slash-ones)&^slash) & high
}

// escape reads a backslash and what it escapes.
func (s *scanner) escape() bool {
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return true
	case 'u':
		s.pos++
		for range 4 {
			if _, ok := hexDigit(s.peek()); !ok {
				return false
			}
			s.pos++
		}
		return true
	}
	return false
}

// unescape decodes the inside of a string that was read by str. It is not ok when half of a surrogate pair stands
// alone, which becomes U+FFFD.
func unescape(raw []byte) (text []byte, ok bool) {
	text, ok = make([]byte, 0, len(raw)), true
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			text = append(text, raw[i])
			continue
		}
		i++
		if raw[i] != 'u' {
			text = append(text, unescapeByte(raw[i]))
			continue
		}
		r := hexRune(raw[i+1:])
		i += 4
		if utf16.IsSurrogate(r) {
			if pair := secondHalf(raw[i+1:], r); pair != utf8.RuneError {
				r = pair
				i += 6
			} else {
				r, ok = utf8.RuneError, false
			}
		}
		text = utf8.AppendRune(text, r)
	}
	return text, ok
}

// secondHalf completes a surrogate pair; utf8.RuneError if rest does not begin with its other half.
func secondHalf(rest []byte, first rune) rune {
	if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
		return utf8.RuneError
	}
	return utf16.DecodeRune(first, hexRune(rest[2:]))
}

func unescapeByte(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

func hexRune(digits []byte) (r rune) {
	for _, c := range digits[:4] {
		d, _ := hexDigit(c)
		r = r<<4 | d
	}
	return r
}

func hexDigit(c byte) (rune, bool) {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

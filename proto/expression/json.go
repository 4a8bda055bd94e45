package expression

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Bounds of what expressions may look at. What is beyond them fails.
const (
	maxMembers = 10_000 // of one object or list
	maxDepth   = 32     // of objects and lists
)

var (
	errSyntax  = errors.New("not valid JSON")
	errMembers = fmt.Errorf("more than %d members", maxMembers)
	errText    = errors.New("a text that is not Unicode")
)

// decode is a JSON value in CEL: a number without fraction and exponent is an int, or a uint where it is too large for
// that; any other is a double.
func decode(raw []byte, strict bool) (ref.Val, error) {
	switch raw[0] {
	case '"':
		text, err := text(raw)
		return types.String(text), err
	case '{':
		return newObject(raw, strict)
	case '[':
		return list(raw, strict)
	case 't':
		return types.True, nil
	case 'f':
		return types.False, nil
	case 'n':
		return types.NullValue, nil
	default:
		return number(string(raw))
	}
}

func list(raw []byte, strict bool) (ref.Val, error) {
	s := scanner{text: raw}
	all := []ref.Val{}
	err := s.each(']', func() error {
		if len(all) == maxMembers {
			return errMembers
		}
		element, err := s.value(0)
		if err != nil {
			return err
		}
		value, err := decode(element, strict)
		all = append(all, value)
		return err
	})
	return types.NewRefValList(types.DefaultTypeAdapter, all), err
}

func number(digits string) (ref.Val, error) {
	if i, err := strconv.ParseInt(digits, 10, 64); err == nil {
		return types.Int(i), nil
	}
	if u, err := strconv.ParseUint(digits, 10, 64); err == nil {
		return types.Uint(u), nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	return types.Double(f), err
}

// text is what a string token says. Half of a surrogate pair is refused, since others may read something else there.
func text(token []byte) (string, error) {
	inside := token[1 : len(token)-1]
	if !utf8.Valid(inside) {
		return "", errText
	}
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside), nil
	}
	var s string
	if err := json.Unmarshal(token, &s); err != nil {
		return "", errSyntax
	}
	if bytes.Count([]byte(s), []byte("\uFFFD")) != bytes.Count(inside, []byte("\uFFFD"))+bytes.Count(bytes.ToLower(inside), []byte(`\ufffd`)) {
		return "", errText
	}
	return s, nil
}

// members walks an object.
func members(raw []byte, f func(name string, value []byte) error) error {
	s := scanner{text: raw}
	if s.space(); s.next() != '{' {
		return errors.New("not a JSON object")
	}
	err := s.each('}', func() error {
		token, err := s.string()
		if err != nil {
			return err
		}
		name, err := text(token)
		if err != nil {
			return err
		}
		value, err := s.afterColon(1)
		if err != nil {
			return err
		}
		return f(name, value)
	})
	if s.space(); err == nil && s.at < len(raw) {
		return errSyntax
	}
	return err
}

// scanner goes over JSON, and fails where it is not valid.
type scanner struct {
	text []byte
	at   int
}

// next is the byte that comes; 0 at the end.
func (s *scanner) next() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *scanner) space() {
	for c := s.next(); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = s.next() {
		s.at++
	}
}

// each goes over an object or a list, from its bracket to the closing one; f takes an element.
func (s *scanner) each(closing byte, f func() error) error {
	s.at++
	if s.space(); s.next() == closing {
		s.at++
		return nil
	}
	for {
		s.space()
		if err := f(); err != nil {
			return err
		}
		s.space()
		c := s.next()
		s.at++
		switch c {
		case ',':
		case closing:
			return nil
		default:
			return errSyntax
		}
	}
}

// value takes a value, which is inside of so many others.
func (s *scanner) value(depth int) (raw []byte, err error) {
	start := s.at
	switch c := s.next(); {
	case depth > maxDepth:
		return nil, errors.New("too deep")
	case c == '"':
		return s.string()
	case c == '{':
		err = s.each('}', func() error {
			if _, err := s.string(); err != nil {
				return err
			}
			_, err := s.afterColon(depth + 1)
			return err
		})
	case c == '[':
		err = s.each(']', func() error { _, err := s.value(depth + 1); return err })
	case c == 't':
		err = s.word("true")
	case c == 'f':
		err = s.word("false")
	case c == 'n':
		err = s.word("null")
	default:
		err = s.number()
	}
	return s.text[start:min(s.at, len(s.text))], err
}

// afterColon takes a colon and the value of a member.
func (s *scanner) afterColon(depth int) ([]byte, error) {
	if s.space(); s.next() != ':' {
		return nil, errSyntax
	}
	s.at++
	s.space()
	return s.value(depth)
}

func (s *scanner) word(w string) error {
	if !bytes.HasPrefix(s.text[s.at:], []byte(w)) {
		return errSyntax
	}
	s.at += len(w)
	return nil
}

// string takes a string token. Whether its escapes are right is seen when it is read.
func (s *scanner) string() ([]byte, error) {
	start := s.at
	if s.next() != '"' {
		return nil, errSyntax
	}
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return s.text[start:s.at], nil
		case c == '\\':
			s.at++
		case c < ' ':
			return nil, errSyntax
		}
	}
	return nil, errSyntax
}

func (s *scanner) number() error {
	if s.next() == '-' {
		s.at++
	}
	if s.next() == '0' {
		s.at++
	} else if s.digits() == 0 {
		return errSyntax
	}
	if s.next() == '.' {
		s.at++
		if s.digits() == 0 {
			return errSyntax
		}
	}
	if c := s.next(); c == 'e' || c == 'E' {
		s.at++
		if c := s.next(); c == '+' || c == '-' {
			s.at++
		}
		if s.digits() == 0 {
			return errSyntax
		}
	}
	return nil
}

func (s *scanner) digits() (n int) {
	for ; s.next() >= '0' && s.next() <= '9'; s.at++ {
		n++
	}
	return n
}

package policy

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// glob is a pattern in which "*" stands for any run of characters and "?" for any one. Everything else stands for its own
// bytes: neither case nor forms of Unicode are made alike.
type glob struct {
	pattern string
	parts   [][]byte // what stands between the stars; nil where there is a "?"
}

func newGlob(pattern string) glob {
	g := glob{pattern: pattern}
	if !strings.Contains(pattern, "?") {
		g.parts = bytes.Split([]byte(pattern), []byte("*"))
	}
	return g
}

func newGlobs(patterns []string) (all []glob) {
	for _, p := range patterns {
		all = append(all, newGlob(p))
	}
	return all
}

// literal reports whether only one text matches.
func (g glob) literal() bool { return len(g.parts) == 1 }

// match takes time in proportion to the text for patterns without "?", and to the product of both for others.
//
// Hot: it allocates nothing (TestAllocGlobs).
func (g glob) match(text []byte) bool {
	if g.parts == nil {
		return matchAny(g.pattern, text)
	}
	first, last := g.parts[0], g.parts[len(g.parts)-1]
	if g.literal() {
		return bytes.Equal(first, text)
	}
	if len(text) < len(first)+len(last) || !bytes.HasPrefix(text, first) || !bytes.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range g.parts[1 : len(g.parts)-1] {
		at := bytes.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// matchAny is match for patterns with "?". After a mismatch the latest star takes one character more.
func matchAny(pattern string, text []byte) bool {
	p, t := 0, 0
	star, taken := -1, 0 // the latest star, and up to where it takes the text
	for t < len(text) {
		_, size := utf8.DecodeRune(text[t:])
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, t
			p++
		case p < len(pattern) && pattern[p] == '?':
			p++
			t += size
		case p < len(pattern) && pattern[p] == text[t]:
			p++
			t++
		case star >= 0:
			_, more := utf8.DecodeRune(text[taken:])
			taken += more
			p, t = star+1, taken
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func matchOne(globs []glob, text []byte) bool {
	return slices.ContainsFunc(globs, func(g glob) bool { return g.match(text) })
}

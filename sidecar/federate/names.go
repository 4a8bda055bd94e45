package federate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// namer gives the tools and prompts of several servers names that do not clash, that the strictest clients take, and that
// are the same after a restart. A name that had to be changed beyond its prefix ends in a hash of what it was.
type namer struct {
	mode          outriggerv1.Prefix
	maxLength     int
	anyCharacters bool
}

func newNamer(n *outriggerv1.Names) namer {
	return namer{mode: n.GetPrefix(), maxLength: int(n.GetMaxLength()), anyCharacters: n.GetAnyCharacters()}
}

// separator stands between prefix and name.
const separator = "_"

// hashLength is how many hexadecimal digits a hash has at the end of a name, behind a "-".
const hashLength = 10

// hashed reports whether a name ends like one that is not its prefix and what its server calls it.
func hashed(name string) bool {
	at := len(name) - hashLength
	if at < 1 || name[at-1] != '-' {
		return false
	}
	for _, c := range []byte(name[at:]) {
		if (c < '0' || '9' < c) && (c < 'a' || 'f' < c) {
			return false
		}
	}
	return true
}

// prefixed is the name of what a server with that prefix calls name.
func (n namer) prefixed(prefix, name string) string {
	full := prefix + separator + name
	clean := full
	if !n.anyCharacters {
		clean = strings.Map(allowed, full)
	}
	if clean == full && len(full) <= n.maxLength && !hashed(full) {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	end := "-" + hex.EncodeToString(sum[:hashLength/2])
	return cut(clean, n.maxLength-len(end)) + end
}

// allowed keeps the characters that every client takes in a name.
func allowed(r rune) rune {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
		return r
	}
	return '-'
}

// cut is the beginning of s in at most n bytes, without half a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// split takes a name apart by the prefix that it begins with, without knowing any list. It reports false for a name that
// is not to be taken apart: one that a hash ends, one that is not how its tool would be listed, and one that could be of
// several servers, which prefixes that were made of servers' names may allow.
func (n namer) split(name string, members []*member) (t target, ok bool) {
	if n.mode != outriggerv1.Prefix_PREFIX_ALWAYS || hashed(name) {
		return target{}, false
	}
	for _, m := range members {
		original, has := strings.CutPrefix(name, m.Prefix+separator)
		if !has {
			continue
		}
		if ok {
			return target{}, false
		}
		t, ok = target{m, original}, original != "" && n.prefixed(m.Prefix, original) == name
		if !ok {
			return target{}, false
		}
	}
	return t, ok
}

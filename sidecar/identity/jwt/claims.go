package jwt

import (
	"math"
	"slices"
	"strings"
	"time"
	"unicode"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Bounds of what claims may say.
const (
	maxSubject   = 1024         // bytes
	maxListed    = 1000         // groups or scopes
	maxTime      = 253402300799 // seconds: the year 9999
	maxTextDepth = 8            // of paths in ClaimText
	maxTextBytes = 64 << 10     // of paths in ClaimText, together
)

// path is a path into the claims, one name after the other.
type path []string

// parsePath reads a path of ClaimPaths.
func parsePath(s string) path {
	const dot = "\x00" // no claim path has it: they are printable
	names := strings.Split(strings.ReplaceAll(s, `\.`, dot), ".")
	for i := range names {
		names[i] = strings.ReplaceAll(names[i], dot, ".")
	}
	return names
}

// paths are ClaimPaths, read. Those that are nil name nothing.
type paths struct {
	subject, groups, tenant path
	scopes                  []path // the first that is there counts
}

func readPaths(c *outriggerv1.ClaimPaths) paths {
	p := paths{subject: parsePath(c.GetSubject()), groups: parsePath(c.GetGroups())}
	if c.GetTenant() != "" {
		p.tenant = parsePath(c.GetTenant())
	}
	if p.scopes = []path{{"scope"}, {"scp"}}; c.GetScopes() != "" {
		p.scopes = []path{parsePath(c.GetScopes())}
	}
	return p
}

// claims is a token's payload.
type claims map[string]any

// at is the value at a path; absent, and null, is nil.
func (c claims) at(p path) any {
	var value any = map[string]any(c)
	for _, name := range p {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	return value
}

// text is the string at a path, which may be absent; not ok: it is something else.
func (c claims) text(p path) (text string, ok bool) {
	if len(p) == 0 {
		return "", true
	}
	value := c.at(p)
	text, ok = value.(string)
	return text, ok || value == nil
}

// list is the strings at a path, sorted, without doubles: a list, or one with spaces between (RFC 8693, section 4.2).
func (c claims) list(p path) (list []string, ok bool) {
	switch value := c.at(p).(type) {
	case nil:
		return nil, true
	case string:
		list = strings.Fields(value)
	case []any:
		for _, element := range value {
			text, ok := element.(string)
			if !ok {
				return nil, false
			}
			list = append(list, text)
		}
	default:
		return nil, false
	}
	slices.Sort(list)
	return slices.Compact(list), len(list) <= maxListed
}

// time is a NumericDate (RFC 7519, section 2); absent is the zero time.
func (c claims) time(name string) (t time.Time, ok bool) {
	value, given := c[name]
	seconds, ok := value.(float64)
	switch {
	case !given:
		return time.Time{}, true
	case !ok || !(0 <= seconds && seconds <= maxTime):
		return time.Time{}, false
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)), true
}

// hasAudience reports whether `aud`, one string or a list, has one of these (RFC 7519, section 4.1.3).
func (c claims) hasAudience(accepted []string) bool {
	switch value := c["aud"].(type) {
	case string:
		return slices.Contains(accepted, value)
	case []any:
		for _, element := range value {
			if text, ok := element.(string); ok && slices.Contains(accepted, text) {
				return true
			}
		}
	}
	return false
}

// subject is the string at a path, which every token must have, in letters that show whose it is.
func (c claims) subject(p path) (subject string, ok bool) {
	subject, _ = c.at(p).(string)
	unclear := func(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }
	return subject, subject != "" && len(subject) <= maxSubject && !strings.ContainsFunc(subject, unclear)
}

// texts are the strings among the claims, by path, but for those that are too deep to be asked for. A name with a
// backslash is passed over: its path could be another's. Not ok: the paths are too long together.
func (c claims) texts() (all map[string]string, ok bool) {
	all, left := make(map[string]string), maxTextBytes
	var walk func(prefix string, object map[string]any, depth int)
	walk = func(prefix string, object map[string]any, depth int) {
		for name, value := range object {
			if strings.Contains(name, `\`) {
				continue
			}
			at := prefix + strings.ReplaceAll(name, ".", `\.`)
			if left -= len(at); left < 0 {
				return
			}
			switch v := value.(type) {
			case string:
				all[at] = v
			case map[string]any:
				if depth < maxTextDepth {
					walk(at+".", v, depth+1)
				}
			}
		}
	}
	walk("", c, 1)
	return all, left >= 0
}

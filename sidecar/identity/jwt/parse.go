package jwt

import (
	"bytes"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4/json"
)

// Bounds of a token.
const (
	maxToken = 16 << 10 // bytes
	maxDepth = 16       // nesting of its JSON
)

// unproved is a token that was read, of which nothing is proved yet.
type unproved struct {
	algorithm string
	kid       string // empty: none
	payload   []byte
	claims    claims // that the payload holds
}

// refusedHeaders are those that name keys, or where to get them, that the token brings itself (RFC 8725, sections 3.5 and
// 3.10), extensions that must be understood, and nested or packed content.
var refusedHeaders = []string{"jku", "jwk", "x5u", "x5c", "crit", "b64", "cty", "zip", "enc", "epk"}

// parse reads a token in compact form (RFC 7515, section 7.1): three parts of base64url. It judges no signature and no
// claim.
func parse(token []byte) (u unproved, err error) {
	if len(token) > maxToken || bytes.Count(token, []byte{'.'}) != 2 {
		return u, refuse(Malformed)
	}
	parts := bytes.Split(token, []byte{'.'})
	h, signature := readObject(decode(parts[0])), decode(parts[2])
	u.payload = decode(parts[1])
	u.claims = readObject(u.payload)
	if h == nil || u.claims == nil || signature == nil || !accessToken(h) {
		return u, refuse(Malformed)
	}
	for _, name := range refusedHeaders {
		if _, given := h[name]; given {
			return u, refuse(Malformed)
		}
	}
	u.algorithm, _ = h["alg"].(string)
	kid, given := h["kid"]
	u.kid, _ = kid.(string)
	if u.algorithm == "" || given && (u.kid == "" || len(u.kid) > maxKeyID) {
		return u, refuse(Malformed)
	}
	return u, nil
}

// accessToken reports whether typ, which is optional, is that of an access token: one of another sort, as of a logout or
// an event, is signed by the same keys (RFC 8725, section 3.11; RFC 9068, section 2.1).
func accessToken(h map[string]any) bool {
	typ, given := h["typ"]
	if !given {
		return true
	}
	text, _ := typ.(string)
	text = strings.TrimPrefix(strings.ToLower(text), "application/")
	return text == "jwt" || text == "at+jwt"
}

// decode is what a part of a token says; nil where it says nothing, or not in the one way that there is.
func decode(part []byte) []byte {
	if bytes.ContainsAny(part, "\r\n") {
		return nil // which a decoder passes over
	}
	raw, err := base64.RawURLEncoding.Strict().AppendDecode(nil, part)
	if err != nil {
		return nil
	}
	return raw
}

// readObject reads a JSON object; nil for all else, and for one that two readers could read in two ways: a name twice at
// any depth (RFC 8725 leaves which counts open), or bytes that are not UTF-8.
func readObject(raw []byte) map[string]any {
	var object map[string]any
	if !utf8.Valid(raw) || json.Unmarshal(raw, &object) != nil || deeper(object, maxDepth) {
		return nil
	}
	return object
}

// deeper reports whether a value nests arrays and objects deeper than most.
func deeper(value any, most int) bool {
	switch v := value.(type) {
	case map[string]any:
		for _, member := range v {
			if most == 0 || deeper(member, most-1) {
				return true
			}
		}
	case []any:
		for _, element := range v {
			if most == 0 || deeper(element, most-1) {
				return true
			}
		}
	}
	return false
}

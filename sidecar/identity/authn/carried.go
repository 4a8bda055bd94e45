package authn

import (
	"net/http"
	"net/url"
	"strings"
	"unsafe"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

// carried is the one credential of a request. Without either there is none.
type carried struct {
	key, token string
	bearer     string // the one of the two that came in Authorization, which is not held to its form yet
}

// carried finds a request's credential. More than one, or one in a place where it does not belong, is refused with 400
// (RFC 6750, section 3.1: invalid_request): it cannot be known which of them the caller means.
func (a *Authenticator) carried(h http.Header, query string) (c carried, refused *identity.Refusal) {
	if query != "" && inQuery(query) {
		return c, a.challenges.malformed("token_in_query", "a token does not belong in the query string: it is in logs now, and should be revoked")
	}
	authorizations := h["Authorization"]
	if len(authorizations) > 1 {
		return c, a.challenges.malformed("credentials_twice", "there is more than one Authorization header")
	}
	if a.keys != nil {
		switch values := h[a.keys.header]; {
		case len(values) == 0:
		case len(values) > 1 || len(authorizations) > 0:
			return c, a.challenges.malformed("credentials_twice", "there is more than one credential")
		case values[0] == "":
			return c, a.challenges.malformed("malformed", "the header for a key is empty")
		default:
			return carried{key: values[0]}, nil
		}
	}
	if len(authorizations) == 0 {
		return c, nil
	}
	return a.authorization(authorizations[0])
}

// authorization reads the Authorization header's value. What begins as a key is one, and all else is a token.
func (a *Authenticator) authorization(value string) (c carried, refused *identity.Refusal) {
	scheme, text, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return c, a.challenges.scheme
	}
	text = strings.TrimLeft(text, " ")
	if text == "" {
		return c, a.noBearer()
	}
	if strings.HasPrefix(text, apikey.Prefix) {
		return carried{key: text, bearer: text}, nil
	}
	return carried{token: text, bearer: text}, nil
}

func (a *Authenticator) noBearer() *identity.Refusal {
	return a.challenges.malformed("malformed", "Authorization has no bearer token")
}

// isToken68 reports whether a text is what a bearer token may be (RFC 6750, section 2.1).
func isToken68(text string) bool {
	text = strings.TrimRight(text, "=")
	for i := range len(text) {
		c := text[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '.', c == '_', c == '~', c == '+', c == '/':
		default:
			return false
		}
	}
	return text != ""
}

// inQuery reports whether a query has a token (RFC 6750, section 2.3, which MCP does not allow), however it is separated and
// escaped.
func inQuery(query string) bool {
	if !strings.Contains(query, "access_token") && !strings.Contains(query, "%") {
		return false
	}
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, _, _ := strings.Cut(pair, "=")
		if text, err := url.QueryUnescape(name); err == nil && text == "access_token" {
			return true
		}
	}
	return false
}

// bytesOf are a string's bytes, which nobody may change.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

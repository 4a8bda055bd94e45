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
	key    string
	header string // that key came in; empty for Authorization
	token  string
}

// carried finds a request's credential. More than one, or one in a place where it does not belong, is refused with 400
// (RFC 6750, section 3.1: invalid_request): it cannot be known which of them the caller means.
func (a *Authenticator) carried(h http.Header, query string) (c carried, refused *identity.Refusal) {
	if query != "" && strings.Contains(query, "token") && inQuery(query) {
		return c, a.challenges.malformed("token_in_query", "a token does not belong in the query string: it is in logs now, and should be revoked")
	}
	authorizations := h["Authorization"]
	if len(authorizations) > 1 {
		return c, a.challenges.malformed("credentials_twice", "there is more than one Authorization header")
	}
	for _, p := range a.keys {
		values := h[p.header]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 || c.key != "" || len(authorizations) > 0 {
			return c, a.challenges.malformed("credentials_twice", "there is more than one credential")
		}
		if values[0] == "" {
			return c, a.challenges.malformed("malformed", "the header for a key is empty")
		}
		c = carried{key: values[0], header: p.header}
	}
	if len(authorizations) == 0 {
		return c, nil
	}
	return a.authorization(authorizations[0])
}

// authorization reads the Authorization header's value.
func (a *Authenticator) authorization(value string) (c carried, refused *identity.Refusal) {
	scheme, text, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return c, a.challenges.invalid("scheme", "Authorization is of another scheme than Bearer")
	}
	text = strings.TrimLeft(text, " ")
	if text == "" || !isToken68(text) {
		return c, a.challenges.malformed("malformed", "Authorization has no bearer token")
	}
	if strings.HasPrefix(text, apikey.Prefix) {
		return carried{key: text}, nil
	}
	return carried{token: text}, nil
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

// inQuery reports whether a query has a token (RFC 6750, section 2.3, which MCP does not allow). One that cannot be parsed
// is looked at as far as it can.
func inQuery(query string) bool {
	values, _ := url.ParseQuery(query)
	return values.Has("access_token")
}

// bytesOf are a string's bytes, which nobody may change.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

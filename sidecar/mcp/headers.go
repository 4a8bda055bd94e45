package mcp

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Headers of the Streamable HTTP transport, in canonical form so that a lookup indexes http.Header directly.
// Notes name the section of basic/transports/streamable-http.
const (
	HeaderVersion     = "Mcp-Protocol-Version" // Protocol Version Header
	HeaderMethod      = "Mcp-Method"           // Standard Request Headers
	HeaderName        = "Mcp-Name"             // Standard Request Headers
	HeaderParamPrefix = "Mcp-Param-"           // Custom Headers from Tool Parameters
	HeaderSessionID   = "Mcp-Session-Id"       // 2025-11-25, Session Management
	HeaderLastEventID = "Last-Event-Id"        // 2025-11-25, Resumability and Redelivery
)

// A value that is not plain is wrapped in these (Value Encoding). They are case-sensitive.
const (
	encodedPrefix = "=?base64?"
	encodedSuffix = "?="
)

var (
	errNotPlain  = errors.New("a character that is not visible ASCII, space or tab")
	errBadBase64 = errors.New("not base64 of UTF-8")
)

// DecodeHeaderValue reads the value of Mcp-Name or Mcp-Param-* (Value Encoding). White space around it belongs to HTTP
// and is dropped. It fails on other characters than a plain value may have, and on an encoded value whose alphabet,
// padding or UTF-8 is wrong; a value with only one of the two markers is plain.
func DecodeHeaderValue(value string) (string, error) {
	value = strings.Trim(value, " \t")
	if !isPlain(value) {
		return "", errNotPlain
	}
	encoded, ok := cutEncoded(value)
	if !ok {
		return value, nil
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || !utf8.Valid(decoded) {
		return "", errBadBase64
	}
	return string(decoded), nil
}

// EncodeHeaderValue writes a value for Mcp-Name or Mcp-Param-*: as it is where that is allowed, in base64 otherwise.
func EncodeHeaderValue(value string) string {
	looksEncoded := strings.HasPrefix(value, encodedPrefix) && strings.HasSuffix(value, encodedSuffix)
	if isPlain(value) && strings.Trim(value, " \t") == value && !looksEncoded {
		return value
	}
	return encodedPrefix + base64.StdEncoding.EncodeToString([]byte(value)) + encodedSuffix
}

// Mirrors reports whether a header says what the body says, byte for byte (Server Validation): no case folding, no
// normalising of URIs. A malformed header mirrors nothing.
//
// Hot: runs on every stateless call. The plain form compares in place and allocates nothing
// (TestMirrorsDoesNotAllocate); only the encoded form pays for a decode.
func Mirrors(header string, body []byte) bool {
	header = strings.Trim(header, " \t")
	if _, encoded := cutEncoded(header); encoded {
		decoded, err := DecodeHeaderValue(header)
		return err == nil && decoded == string(body)
	}
	return header == string(body) && isPlain(header)
}

// cutEncoded takes the markers off an encoded value.
func cutEncoded(value string) (encoded string, ok bool) {
	rest, ok := strings.CutPrefix(value, encodedPrefix)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, encodedSuffix)
}

func isPlain(value string) bool {
	for i := range len(value) {
		if c := value[i]; c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}

// single is a header's one value. It must have at most one, for two readers may each see another; absent is not ok.
func single(h http.Header, name string) (value string, ok bool) {
	values := h[name]
	if len(values) != 1 {
		return "", false
	}
	return strings.Trim(values[0], " \t"), true
}

package mcp

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
)

// legacyDates are the revisions before 2026-07-28, whether they are served here or not.
var legacyDates = [...]string{"2024-10-07", "2024-11-05", Version20250326, Version20250618, Version20251125}

// IsLegacyVersion reports whether version is a revision with sessions.
func IsLegacyVersion(version string) bool {
	for _, date := range legacyDates {
		if version == date {
			return true
		}
	}
	return false
}

// Classify tells which wire an HTTP request is for (basic/versioning; the body decides before the headers). m is the
// scanned body of a POST, nil for a batch and for other verbs. Classify judges nothing: a request for either wire may
// still be at fault.
func Classify(verb string, h http.Header, m *Message) Era {
	switch {
	case verb != http.MethodPost || m == nil:
		return Legacy // only the legacy wire has GET and DELETE
	case m.MetaVersionSpan.Present():
		return Stateless // whatever else it carries: a session id is ignored, a removed method is "not found"
	case m.Kind == Response:
		return Legacy // a client answers requests only there
	case m.Method == MethodInitialize:
		return Legacy // even under a modern header, and even if it asks for a modern version
	case saysModern(h[HeaderVersion]):
		return Stateless // which will find its _meta missing
	case len(h[HeaderSessionID]) > 0:
		return Legacy
	case m.Method == MethodDiscover || m.Method == MethodListen:
		return Stateless // no legacy client knows these
	}
	return Legacy // as 2025-03-26 clients call, who know no version header
}

// saysModern reports whether a version header names anything else than a legacy revision; newer ones are not known yet.
func saysModern(values []string) bool {
	for _, v := range values {
		if !IsLegacyVersion(strings.Trim(v, " \t")) {
			return true
		}
	}
	return false
}

// CheckStateless validates what every message on the stateless wire must have, in the order in which servers are held
// to report it: _meta, version header, version served, Mcp-Method, Mcp-Name, method still there
// (basic/transports/streamable-http, "Server Validation"). Methods it does not know pass. Notifications need no
// headers, so theirs are not looked at.
//
// Hot: runs on every stateless call and allocates nothing unless it refuses.
func CheckStateless(h http.Header, m *Message) *Error {
	var e *Error
	switch m.Kind {
	case Request:
		e = checkRequest(h, m)
	case Response:
		e = refuse(CodeInvalidRequest, "clients send no responses to a stateless server")
	}
	if e == nil && removed(m.Method) {
		e = refuse(CodeMethodNotFound, fmt.Sprintf("no method %q in %s", m.Method, Version20260728))
		e.Status = http.StatusNotFound
	}
	if e != nil {
		e.ID = bytes.Clone(m.ID.Of(m.Raw))
	}
	return e
}

func checkRequest(h http.Header, m *Message) *Error {
	switch {
	case m.MetaVersion == nil:
		return refuse(CodeInvalidParams, "params._meta lacks "+MetaKeyVersion+", a string")
	case !isObject(m.ClientCapabilities.Of(m.Raw)):
		return refuse(CodeInvalidParams, "params._meta lacks "+MetaKeyClientCapabilities+", an object")
	}
	if name := repeated(h); name != "" {
		return refuse(CodeHeaderMismatch, "more than one value of "+name)
	}
	if version, ok := single(h, HeaderVersion); !ok || version != string(m.MetaVersion) {
		return mismatch(HeaderVersion, ok, "params._meta")
	}
	if string(m.MetaVersion) != Version20260728 {
		return versionError(CodeUnsupportedVersion, "protocol version not served here", SupportedVersions, string(m.MetaVersion))
	}
	if method, ok := single(h, HeaderMethod); !ok || method != m.Method {
		return mismatch(HeaderMethod, ok, "the body's method")
	}
	return checkName(h, m)
}

// checkName holds Mcp-Name to params.name, params.uri or params.taskId, where the method has to have it.
func checkName(h http.Header, m *Message) *Error {
	switch m.Method {
	case MethodToolsCall, MethodPromptsGet, MethodResourcesRead, MethodTasksGet, MethodTasksUpdate, MethodTasksCancel:
	default:
		return nil
	}
	place := "params." + string(paramsKeys.names[nameKey(m.Method)-keyName])
	if m.Name == nil {
		return refuse(CodeInvalidParams, place+" is not there, or not a string")
	}
	if name, ok := single(h, HeaderName); !ok || !Mirrors(name, m.Name) {
		return mismatch(HeaderName, ok, place)
	}
	return nil
}

// repeated is an MCP header with more than one value, "" for none.
func repeated(h http.Header) string {
	for name, values := range h {
		if len(values) > 1 && strings.HasPrefix(name, "Mcp-") {
			return name
		}
	}
	return ""
}

// CheckLegacyVersion validates the version header of a legacy request after initialize: absent, or one version that
// is served with sessions; anything else is 400, which lists those (2025-11-25, basic/transports, "Protocol Version
// Header").
func CheckLegacyVersion(h http.Header) *Error {
	values := h[HeaderVersion]
	if len(values) == 0 {
		return nil
	}
	version, ok := single(h, HeaderVersion)
	switch {
	case !ok:
		return refuse(CodeInvalidRequest, "more than one value of "+HeaderVersion)
	case version == Version20251125, version == Version20250618, version == Version20250326:
		return nil
	}
	return versionError(CodeInvalidRequest, "protocol version not served with sessions", versionsWithSessions, version)
}

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

// refuse makes an Error that goes with 400.
func refuse(code int, text string) *Error {
	return &Error{Code: code, Message: text, Status: http.StatusBadRequest}
}

// mismatch is a header that is not there or differs from the body. The values stay out of the text.
func mismatch(header string, present bool, place string) *Error {
	if !present {
		return refuse(CodeHeaderMismatch, header+" is missing")
	}
	return refuse(CodeHeaderMismatch, header+" differs from "+place)
}

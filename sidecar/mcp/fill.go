package mcp

import (
	"bytes"
	"strings"
)

// fill makes the message of what was found and returns the envelope's fault, or "".
func (s *scanner) fill(m *Message) (fault string) {
	if version, ok := s.text(keyJSONRPC); !ok || string(version) != "2.0" {
		return `jsonrpc is not "2.0"`
	}
	m.ID, m.Params, m.Result, m.Error = s.found[keyID], s.found[keyParams], s.found[keyResult], s.found[keyError]
	switch {
	case m.Params.Present() && m.Params.Of(m.Raw)[0] != '{':
		return "params is not an object"
	case s.found[keyMeta].Present() && s.found[keyMeta].Of(m.Raw)[0] != '{':
		return "params._meta is not an object"
	case s.found[keyMethod].Present():
		return s.fillCall(m)
	}
	return s.fillResponse(m)
}

// fillCall reads a request or a notification. An id is a string or an integer, never null (basic, "Requests").
func (s *scanner) fillCall(m *Message) (fault string) {
	method, ok := s.text(keyMethod)
	switch {
	case !ok:
		return "method is not a string"
	case m.Result.Present() || m.Error.Present():
		return "both a method and a result or an error"
	case m.ID.Present() && !isToken(m.ID.Of(m.Raw)):
		return "id is neither a string nor an integer"
	}
	m.Kind = Notification
	if m.ID.Present() {
		m.Kind = Request
	}
	m.Method = internMethod(method)
	s.fillMeta(m)
	return s.fillParams(m)
}

// fillResponse reads a response. A result needs the id of its request; an error has none, or null, when the request
// could not be read (basic, "Responses").
func (s *scanner) fillResponse(m *Message) (fault string) {
	m.Kind = Response
	id := m.ID.Of(m.Raw)
	unread := m.Error.Present() && (id == nil || string(id) == "null")
	switch {
	case !m.Result.Present() && !m.Error.Present():
		return "none of method, result and error"
	case m.Result.Present() && m.Error.Present():
		return "both a result and an error"
	case m.Error.Present() && m.Error.Of(m.Raw)[0] != '{':
		return "error is not an object"
	case !unread && !isToken(id):
		return "id is neither a string nor an integer"
	}
	m.SubscriptionID = s.token(keyResultSubscription)
	return ""
}

func (s *scanner) fillParams(m *Message) (fault string) {
	m.Arguments, m.Cursor = s.found[keyArguments], s.found[keyCursor]
	switch m.Method {
	case MethodInitialize:
		m.Version, _ = s.text(keyVersion)
		m.VersionSpan = s.found[keyVersion]
	case NotificationCancelled:
		m.RequestID = s.token(keyRequestID)
	case NotificationProgress:
		m.ProgressToken = s.token(keyProgress)
	}
	k := nameKey(m.Method)
	if k == noKey || !s.found[k].Present() {
		return ""
	}
	name, ok := s.text(k)
	switch {
	case ok:
		m.Name, m.NameSpan = name, s.found[k]
	case m.Raw[s.found[k].Start] == '"':
		return "a name holds half of a surrogate pair" // readers disagree on what that is
	}
	return ""
}

func (s *scanner) fillMeta(m *Message) {
	m.Meta = s.found[keyMeta]
	m.MetaVersionSpan = s.found[keyMetaVersion]
	m.MetaVersion, _ = s.text(keyMetaVersion)
	m.ClientInfo = s.found[keyMetaClientInfo]
	m.ClientCapabilities = s.found[keyMetaCapabilities]
	m.LogLevel = s.found[keyMetaLogLevel]
	m.SubscriptionID = s.token(keyMetaSubscription)
	m.ProgressToken = s.token(keyMetaProgress)
}

// nameKey is the member of params that a method's call is about.
func nameKey(method string) key {
	switch {
	case method == MethodToolsCall, method == MethodPromptsGet:
		return keyName
	case strings.HasPrefix(method, "resources/"), method == NotificationResourceUpdated:
		return keyURI
	case strings.HasPrefix(method, "tasks/"):
		return keyTaskID
	}
	return noKey
}

// text decodes a string; not ok when the value is absent, is no string, or holds half of a surrogate pair.
func (s *scanner) text(k key) (text []byte, ok bool) {
	token := s.found[k].Of(s.data)
	if len(token) == 0 || token[0] != '"' {
		return nil, false
	}
	text = token[1 : len(token)-1]
	if bytes.IndexByte(text, '\\') < 0 {
		return text, true
	}
	if text, ok = unescape(text); !ok {
		return nil, false
	}
	return text, true
}

// token is a value's place if it is a string or an integer; what is neither names nothing and is left as it is.
func (s *scanner) token(k key) Span {
	if isToken(s.found[k].Of(s.data)) {
		return s.found[k]
	}
	return Span{}
}

// isToken reports whether a JSON value is a string or an integer, in digits alone: what ids and progress tokens are.
func isToken(value []byte) bool {
	if len(value) == 0 {
		return false
	}
	switch c := value[0]; {
	case c == '"':
		return true
	case c == '-' || '0' <= c && c <= '9':
		return bytes.IndexByte(value, '.') < 0 && bytes.IndexByte(value, 'e') < 0 && bytes.IndexByte(value, 'E') < 0
	}
	return false
}

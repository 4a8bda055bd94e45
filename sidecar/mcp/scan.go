package mcp

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"unicode/utf8"
)

const defaultMaxDepth = 128

func (l Limits) maxDepth() int {
	if l.MaxDepth > 0 {
		return l.MaxDepth
	}
	return defaultMaxDepth
}

// Scan reads one JSON-RPC message: data is exactly one JSON object, with white space around it or none.
//
// It decodes only what routing needs and checks the grammar of the rest, so whatever Scan accepts every JSON parser
// reads, and reads alike: a key of the envelope, of params or of params._meta that Scan knows is refused when it comes
// twice, in another case, or as a duplicate behind escapes, for two readers could then see two different calls. Other
// keys are kept and never looked at; text inside of values is never taken for the envelope.
//
// The error is an *Error: CodeParseError for what is not JSON in UTF-8, CodeInvalidRequest for what is not a JSON-RPC
// 2.0 message or is nested deeper than l allows. It carries the id when there was one to read (basic, "Responses").
//
// Hot: runs on every message. An ordinary call is read in one pass without allocating (TestScanDoesNotAllocate); only
// escaped names and methods outside of the specification are copied.
func Scan(data []byte, l Limits) (m Message, err error) {
	err = ScanInto(&m, data, l)
	return m, err
}

// ScanAnswer is Scan for what a server sent, or what was written from what was scanned before.
func ScanAnswer(data []byte) (m Message, err error) {
	err = ScanInto(&m, data, Limits{MaxDepth: AnswerDepth})
	return m, err
}

// scanners are not on the stack of who scans: a goroutine that has a stream to wait for afterwards would keep what it grew.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

// ScanInto is Scan into memory of the caller's, for a Message is large. With an error the Message is empty.
func ScanInto(m *Message, data []byte, l Limits) error {
	s := scanners.Get().(*scanner)
	*s = scanner{data: trim(data), maxDepth: l.maxDepth()}
	err := s.message(m)
	s.data = nil
	scanners.Put(s)
	if err != nil {
		return err // a nil *Error would be an error that is not nil
	}
	return nil
}

// message is ScanInto for s, which is new.
func (s *scanner) message(m *Message) *Error {
	*m = Message{}
	object := s.peek() == '{'
	whole := s.document()
	switch {
	case s.tooDeep:
		return s.refusal(CodeInvalidRequest, fmt.Sprintf("nested deeper than %d levels", s.maxDepth))
	case !whole:
		return s.refusal(CodeParseError, fmt.Sprintf("not JSON: byte %d of the message", s.pos))
	case !utf8.Valid(s.data):
		return s.refusal(CodeParseError, "not UTF-8")
	case !object:
		return s.refusal(CodeInvalidRequest, "not a JSON object")
	}
	if s.fault == "" {
		m.Raw = s.data
		s.fault = s.fill(m)
	}
	if s.fault != "" {
		*m = Message{}
		return s.refusal(CodeInvalidRequest, s.fault)
	}
	return nil
}

// trim cuts white space off both ends. As a rule there is none.
func trim(data []byte) []byte {
	for len(data) > 0 && isSpace(data[0]) {
		data = data[1:]
	}
	for len(data) > 0 && isSpace(data[len(data)-1]) {
		data = data[:len(data)-1]
	}
	return data
}

// refusal makes Scan's error, with the message's id if that was read.
func (s *scanner) refusal(code int, text string) *Error {
	e := &Error{Code: code, Message: text, Status: http.StatusBadRequest}
	if id := s.found[keyID]; isToken(id.Of(s.data)) && !s.idTwice && s.ended(id) {
		e.ID = bytes.Clone(id.Of(s.data))
	}
	return e
}

// ended reports whether a member goes on as it should: of 05, which is broken, 0 was read.
func (s *scanner) ended(value Span) bool {
	rest := bytes.TrimLeft(s.data[value.End:], " \t\r\n")
	return len(rest) > 0 && (rest[0] == ',' || rest[0] == '}')
}

// key is a member that Scan knows, at its place in the message.
type key int8

const (
	noKey key = iota - 1

	keyJSONRPC // of the envelope
	keyID
	keyMethod
	keyParams
	keyResult
	keyError

	keyName // of params
	keyURI
	keyTaskID
	keyCursor
	keyArguments
	keyMeta
	keyRequestID
	keyProgress
	keyVersion
	keyCapabilities
	keyClientInfo
	keyInputResponses
	keyRequestState

	keyMetaVersion // of params._meta
	keyMetaClientInfo
	keyMetaCapabilities
	keyMetaLogLevel
	keyMetaSubscription
	keyMetaProgress

	keyResultMeta         // of result
	keyResultSubscription // of result._meta

	numKeys
)

// keySet is what Scan knows of one object.
type keySet struct {
	place string   // of the object, for texts
	first key      // the key of names[0]; the other names follow in the order of the constants
	names [][]byte // as they are written, without escapes
	loose bool     // an open object of a server: keys that come twice or in another case are its own affair
}

// Keys of params._meta and result._meta (basic, "_meta").
const (
	MetaKeyVersion            = "io.modelcontextprotocol/protocolVersion"
	MetaKeyClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaKeyClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaKeyLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaKeySubscriptionID     = "io.modelcontextprotocol/subscriptionId"
	MetaKeyServerInfo         = "io.modelcontextprotocol/serverInfo"
	MetaKeyProgressToken      = "progressToken"
)

var (
	envelopeKeys = keySet{first: keyJSONRPC, names: byteStrings(
		"jsonrpc", "id", "method", "params", "result", "error")}
	paramsKeys = keySet{place: "params.", first: keyName, names: byteStrings(
		"name", "uri", "taskId", "cursor", "arguments", "_meta", "requestId", "progressToken", "protocolVersion",
		"capabilities", "clientInfo", "inputResponses", "requestState")}
	metaKeys = keySet{place: "params._meta.", first: keyMetaVersion, names: byteStrings(
		MetaKeyVersion, MetaKeyClientInfo, MetaKeyClientCapabilities, MetaKeyLogLevel, MetaKeySubscriptionID,
		MetaKeyProgressToken)}
	resultKeys     = keySet{first: keyResultMeta, names: byteStrings("_meta"), loose: true}
	resultMetaKeys = keySet{first: keyResultSubscription, names: byteStrings(MetaKeySubscriptionID), loose: true}
)

// inside is the keySet of the object that is a key's value; nil where Scan does not look inside.
var inside = [numKeys]*keySet{
	keyParams:     &paramsKeys,
	keyMeta:       &metaKeys,
	keyResult:     &resultKeys,
	keyResultMeta: &resultMetaKeys,
}

func byteStrings(names ...string) (b [][]byte) {
	for _, n := range names {
		b = append(b, []byte(n))
	}
	return b
}

// find names a member of an object. The name is without quotes and the last string that was read.
func (s *scanner) find(set *keySet, name []byte) key {
	if s.escaped {
		name, _ = unescape(name)
	}
	for i, known := range set.names {
		if bytes.Equal(name, known) {
			return set.first + key(i)
		}
	}
	if set.loose {
		return noKey
	}
	for _, known := range set.names {
		if mayFold(name, known) && bytes.EqualFold(name, known) {
			s.noteCase(set, known)
		}
	}
	return noKey
}

// mayFold reports whether a name's first byte allows it to be known but for case: most are told apart by that. Of ASCII
// letters case is one bit; what is beyond ASCII may be any letter's other case. known is in ASCII, and not empty.
func mayFold(name, known []byte) bool {
	return len(name) > 0 && (name[0] >= utf8.RuneSelf || (name[0]^known[0])&^0x20 == 0)
}

// noteCase stands apart for the sake of find's stack: a scan is the deepest that a call goes.
//
//go:noinline
func (s *scanner) noteCase(set *keySet, known []byte) {
	s.noteFault(fmt.Sprintf("a key differs from %s%s by case only", set.place, known))
}

// keep notes where a known member's value is.
func (s *scanner) keep(set *keySet, k key, value Span) {
	if !s.found[k].Present() {
		s.found[k] = value
		return
	}
	if !set.loose {
		s.noteFault(fmt.Sprintf("the key %s%s comes twice", set.place, set.names[k-set.first]))
	}
	s.idTwice = s.idTwice || k == keyID
}

// noteFault keeps the first fault of the envelope; scanning goes on, for the id may follow.
func (s *scanner) noteFault(fault string) {
	if s.fault == "" {
		s.fault = fault
	}
}

package mcp

// Span is a part of a message's Raw bytes: Raw[Start:End]. The zero Span is an absent part.
type Span struct{ Start, End int }

// Present reports whether the part was there; a JSON null is present.
func (s Span) Present() bool { return s.End != 0 }

// Of cuts the part out of raw; nil when absent.
func (s Span) Of(raw []byte) []byte {
	if s.End == 0 {
		return nil
	}
	return raw[s.Start:s.End]
}

// Kind is what a JSON-RPC message is.
type Kind uint8

const (
	Request      Kind = iota + 1 // method and id
	Notification                 // method, no id
	Response                     // result or error
)

// Message is one JSON-RPC message, scanned. Spans index Raw; byte slices alias it unless they had to be unescaped.
type Message struct {
	Raw  []byte // the object without surrounding white space
	Kind Kind

	Method string // interned for the methods of the specification
	ID     Span   // the token as it came: a string or an integer (in a Response to unreadable input: null)
	Params Span   // the object
	Result Span   // any value
	Error  Span   // the object

	// Of params, by method.
	Name []byte // decoded: params.name (tools/call, prompts/get), params.uri
	// (resources/* and notifications/resources/updated), params.taskId (tasks/*); nil when absent or not a string
	NameSpan  Span   // its token, with quotes
	Arguments Span   // params.arguments
	Cursor    Span   // params.cursor
	RequestID Span   // params.requestId of notifications/cancelled: a token
	Version   []byte // params.protocolVersion of initialize, decoded
	// VersionSpan is the token of params.protocolVersion of initialize.
	VersionSpan Span
	// ProgressToken is params._meta.progressToken of a request, or params.progressToken of notifications/progress.
	ProgressToken Span

	// Of params._meta.
	Meta               Span   // the object
	MetaVersion        []byte // io.modelcontextprotocol/protocolVersion, decoded; nil when absent or not a string
	MetaVersionSpan    Span   // its token, whatever its type
	ClientInfo         Span   // io.modelcontextprotocol/clientInfo
	ClientCapabilities Span   // io.modelcontextprotocol/clientCapabilities
	LogLevel           Span   // io.modelcontextprotocol/logLevel
	SubscriptionID     Span   // io.modelcontextprotocol/subscriptionId, in params._meta or result._meta: a token
}

// Limits bound what Scan reads. Zero takes the default.
type Limits struct {
	MaxDepth int // nesting of arrays and objects; default 128
}

// AnswerDepth is the MaxDepth for what servers send: the default is for what strangers send.
const AnswerDepth = 10000

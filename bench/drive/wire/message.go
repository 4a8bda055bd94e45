package wire

import (
	"bytes"
	"strconv"
)

// Eras of the protocol.
const (
	Stateless = "stateless" // 2026-07-28
	Legacy    = "legacy"    // 2025-11-25
)

// NullTool is the name of the null server's tool and of its prompt, and NullURI begins its resources' URIs:
// null://OWNER/NUMBER/PAD.
const (
	NullTool = "null"
	NullURI  = "null://"
)

// FirstNumber is a caller's first call. Numbers have nine digits, so that a call is made by writing digits over those
// of the one before.
const (
	FirstNumber  = 100_000_000
	NumberDigits = 9
)

// AppendText appends what the null server says to a caller: whose call it was, which, and pad bytes more.
func AppendText(to, owner, number []byte, pad int) []byte {
	to = append(append(append(append(to, owner...), ' '), number...), ' ')
	for pad > 0 {
		n := min(pad, len(Padding))
		to = append(to, Padding[:n]...)
		pad -= n
	}
	return to
}

// Padding is some of what a text is made longer with. Nobody changes it.
var Padding = bytes.Repeat([]byte("b"), 64<<10)

// IsPadding reports whether b is nothing but padding.
func IsPadding(b []byte) bool {
	for len(b) > len(Padding) {
		if !bytes.Equal(b[:len(Padding)], Padding) {
			return false
		}
		b = b[len(Padding):]
	}
	return bytes.Equal(b, Padding[:len(b)])
}

// Result is what stands before and after the text in a result of the null server.
type Result struct{ Before, After string }

// Results of the null server's methods, by era: tools/call, resources/read and prompts/get.
var (
	CallResult   = results(`"content":[{"type":"text","text":"`, `"}]`, "")
	ReadResult   = results(`"contents":[{"uri":"null://","text":"`, `"}]`, `,"ttlMs":0,"cacheScope":"private"`)
	PromptResult = results(`"messages":[{"role":"user","content":{"type":"text","text":"`, `"}}]`, "")
)

// results are the forms of a result in both eras; cache is what the stateless one must say of caching.
func results(before, after, cache string) map[string]Result {
	return map[string]Result{
		Legacy:    {`,"result":{` + before, after + `}}`},
		Stateless: {`,"result":{` + before, after + `,"resultType":"complete"` + cache + `}}`},
	}
}

// AppendResult appends a whole answer of the null server. The id stands as it came, and so do owner and number.
func AppendResult(to []byte, r Result, id, owner, number []byte, pad int) []byte {
	to = append(append(to, `{"jsonrpc":"2.0","id":`...), id...)
	to = append(to, r.Before...)
	to = AppendText(to, owner, number, pad)
	return append(to, r.After...)
}

// AppendProgress appends the i-th of n notifications before a streamed answer. The token stands as it came.
func AppendProgress(to []byte, token, owner, number []byte, i, n int) []byte {
	to = append(append(to, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`...), token...)
	to = strconv.AppendInt(append(to, `,"progress":`...), int64(i), 10)
	to = strconv.AppendInt(append(to, `,"total":`...), int64(n), 10)
	to = AppendText(append(to, `,"message":"`...), owner, number, 0)
	return append(to, `"}}`...)
}

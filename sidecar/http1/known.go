package http1

import (
	"bytes"
	"net/http"
	"strings"
)

// maxKnown is the longest head, in bytes, that a connection remembers.
const maxKnown = 4 << 10

// knownHead is a plain head as handlers see it, remembered line by line for the next request of its connection: clients
// say most of it again, and a line that came before need not be parsed or kept anew. Its strings are never written to.
type knownHead struct {
	method     string
	path, host string
	length     int64 // Content-Length; 0 where a request has no body
	header     http.Header
	lines      []knownLine // the request line first; nil when the head is not to be remembered
	values     []string    // by line; header's values lie in it
}

// knownLine is one line of a plain head.
type knownLine struct {
	text string // as it came, CRLF included
	name string // as it came
	kind kind
}

// again reads a head that says the last one's fields in the same order, some with other values, and returns its length.
// It is 0 for any other head, which is to be read from its beginning: values may have changed by then, but not names.
//
// Hot: what came before costs a comparison, and only another value memory (TestAKnownHeadAllocatesNothing).
func (k *knownHead) again(b []byte) (end int) {
	for i := range k.lines {
		rest := b[end:]
		if text := k.lines[i].text; len(rest) >= len(text) && string(rest[:len(text)]) == text {
			end += len(text)
			continue
		}
		n := k.change(i, rest)
		if n == 0 {
			return 0
		}
		end += n
	}
	if end == 0 || !bytes.HasPrefix(b[end:], []byte("\r\n")) {
		return 0
	}
	return end + len("\r\n")
}

// change takes another value for a line's field, and returns the length of the line that b begins with; 0 when that is
// not the field, or not one that plainHead takes.
func (k *knownHead) change(i int, b []byte) int {
	l := &k.lines[i]
	n := bytes.IndexByte(b, '\n') + 1
	if i == 0 || n < 2 || b[n-2] != '\r' {
		return 0
	}
	name, value, ok := cutField(b[:n-2])
	if !ok || string(name) != l.name {
		return 0
	}
	length, ok := plainValue(l.kind, value)
	if !ok {
		return 0
	}
	l.text = string(b[:n])
	v := trim(l.text[len(name)+1 : n-2])
	switch l.kind {
	case isHost:
		k.host = v
	case isLength:
		k.length = length
	}
	k.values[i] = v
	return n
}

// learn takes a whole head that plainHead took, with its Content-Length, and remembers it unless it is long or has a field
// twice.
func (k *knownHead) learn(head string, length int64) {
	k.forget()
	if n := strings.Count(head, "\n"); cap(k.values) < n { // header's values must stay where they are
		k.lines, k.values = make([]knownLine, 0, n), make([]string, 0, n)
	}
	k.lines, k.values, k.length = k.lines[:0], append(k.values[:0], ""), length
	once := len(head) <= maxKnown
	line, rest, _ := strings.Cut(head, "\r\n")
	k.method = verb([]byte(line))
	k.path = line[len(k.method)+1 : len(line)-len(lineSuffix)]
	k.lines = append(k.lines, knownLine{text: head[:len(line)+2]})
	for len(rest) > len("\r\n") {
		head = rest
		line, rest, _ = strings.Cut(head, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		value = trim(value)
		l := knownLine{text: head[:len(line)+2], name: name, kind: kindOf([]byte(name))}
		n := len(k.values)
		k.lines, k.values = append(k.lines, l), append(k.values, value)
		if l.kind == isHost {
			k.host = value
			continue
		}
		name = http.CanonicalHeaderKey(name)
		if had := k.header[name]; had != nil {
			k.header[name], once = append(had, value), false
			continue
		}
		k.header[name] = k.values[n : n+1 : n+1]
	}
	if !once {
		k.lines = nil
	}
}

// forget leaves nothing of a head.
func (k *knownHead) forget() {
	clear(k.header)
	clear(k.lines)
	clear(k.values)
	k.lines = k.lines[:0]
}

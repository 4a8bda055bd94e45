package streamable

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

const (
	maxFields  = 128 // header fields of one answer
	maxInterim = 8   // 1xx answers before the true one
)

// malformed is an answer that is not HTTP/1.1, or not the part of it that the sidecar takes. Where readers of HTTP are
// known to disagree (two lengths, folded lines, bare line feeds) an answer is refused, so that nobody can make one
// answer look like two.
type malformed string

func (m malformed) Error() string { return string(m) }

// head is an answer's status line and header, as far as they matter here. The slices alias what was parsed.
type head struct {
	status      int
	length      int64         // of the body in bytes; -1 when it comes in chunks or ends with the connection
	chunked     bool          // the body comes in chunks
	keep        bool          // the connection is good for another request
	idle        time.Duration // how long the server keeps it then; 0 when it did not say
	contentType []byte        // lower or mixed case, with parameters
	sessionID   []byte        // Mcp-Session-Id; nil when absent

	challenged bool // it says how to authenticate

	lengthGiven, encoded, old bool // old is HTTP/1.0
}

// headEnd returns the length of the head at b's start, its empty line included, or 0 when the end is not there yet.
// Nothing before scanned is looked at twice, so that a head that drips in costs no more than another.
func headEnd(b []byte, scanned int) int {
	for i := max(0, scanned-2); i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n
		switch rest := b[i+1:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 2 // which cutLine refuses
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 3
		}
	}
	return 0
}

func indexLF(b []byte, from int) int {
	if n := bytes.IndexByte(b[from:], '\n'); n >= 0 {
		return from + n
	}
	return -1
}

// cutLine splits b after its first CRLF, which is in neither part.
func cutLine(b []byte) (line, rest []byte, err error) {
	n := bytes.IndexByte(b, '\n')
	if n < 1 || b[n-1] != '\r' {
		return nil, nil, malformed("a line that does not end with CRLF")
	}
	return b[:n-1], b[n+1:], nil
}

// parse reads a whole head, its empty line included (RFC 9112, sections 4 to 6). Whatever it accepts, net/http reads the
// same way; FuzzParseHead holds that. After an error h means nothing.
func (h *head) parse(b []byte) error {
	*h = head{length: -1}
	line, rest, err := cutLine(b)
	if err != nil {
		return err
	}
	if err := h.statusLine(line); err != nil {
		return err
	}
	for range maxFields + 1 {
		if line, rest, err = cutLine(rest); err != nil {
			return err
		}
		if len(line) == 0 {
			return h.frame()
		}
		if err := h.field(line); err != nil {
			return err
		}
	}
	return malformed("more header fields than the sidecar takes")
}

// statusLine reads "HTTP/1.1 200 OK"; the reason may be missing, with its space.
func (h *head) statusLine(line []byte) error {
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || (len(line) > 12 && line[12] != ' ') {
		return malformed("a status line that is not HTTP/1.1")
	}
	switch line[7] {
	case '1':
		h.keep = true
	case '0':
		h.old = true
	default:
		return malformed("a status line that is not HTTP/1.1")
	}
	for _, d := range line[9:12] {
		if d < '0' || d > '9' {
			return malformed("a status that is not a number")
		}
		h.status = h.status*10 + int(d-'0')
	}
	if h.status < 100 || h.status > 599 {
		return malformed("a status out of range")
	}
	return checkValue(line[12:])
}

// field reads one header line.
func (h *head) field(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 || !isToken(line[:colon]) { // a folded line begins with white space, which is no token either
		return malformed("a header line without a proper name")
	}
	name, value := line[:colon], bytes.Trim(line[colon+1:], " \t")
	if err := checkValue(value); err != nil {
		return err
	}
	switch len(name) { // the length first: most fields are none of these
	case len("Connection"):
		if equalFold(name, "connection") {
			h.connection(value)
		} else if equalFold(name, "keep-alive") {
			h.idle = keepAlive(value)
		}
	case len("Content-Type"):
		if equalFold(name, "content-type") {
			return once(&h.contentType, value, "Content-Type")
		}
	case len("Mcp-Session-Id"):
		if equalFold(name, "mcp-session-id") {
			return once(&h.sessionID, value, "Mcp-Session-Id")
		}
		if equalFold(name, "content-length") {
			return h.contentLength(value)
		}
	case len("Content-Encoding"):
		h.encoded = h.encoded || equalFold(name, "content-encoding") && !equalFold(value, "identity")
		h.challenged = h.challenged || equalFold(name, "www-authenticate")
	case len("Transfer-Encoding"):
		if equalFold(name, "transfer-encoding") {
			return h.transferEncoding(value)
		}
	}
	return nil
}

func once(to *[]byte, value []byte, name string) error {
	if *to != nil {
		return malformed("more than one " + name)
	}
	*to = value
	return nil
}

func (h *head) connection(value []byte) {
	for option := range bytes.SplitSeq(value, []byte(",")) {
		if equalFold(bytes.Trim(option, " \t"), "close") {
			h.keep = false
		}
	}
}

// keepAlive reads the timeout of "timeout=5, max=100"; 0 when there is none that makes sense.
func keepAlive(value []byte) time.Duration {
	for parameter := range bytes.SplitSeq(value, []byte(",")) {
		name, seconds, _ := bytes.Cut(bytes.Trim(parameter, " \t"), []byte("="))
		if n, err := strconv.ParseUint(string(seconds), 10, 31); err == nil && equalFold(name, "timeout") {
			return time.Duration(n) * time.Second
		}
	}
	return 0
}

// contentLength takes digits and nothing else (RFC 9110, section 8.6), once.
func (h *head) contentLength(value []byte) error {
	if h.lengthGiven || len(value) == 0 {
		return malformed("a Content-Length that is given twice, or empty")
	}
	h.lengthGiven, h.length = true, 0
	for _, d := range value {
		if d < '0' || d > '9' || h.length > math.MaxInt64/10-1 {
			return malformed("a Content-Length that is not a number")
		}
		h.length = h.length*10 + int64(d-'0')
	}
	return nil
}

func (h *head) transferEncoding(value []byte) error {
	if h.chunked || !equalFold(value, "chunked") {
		return malformed("a Transfer-Encoding other than chunked")
	}
	h.chunked = true
	return nil
}

// frame settles where the body ends (RFC 9112, section 6.3).
func (h *head) frame() error {
	if h.encoded {
		return malformed("a Content-Encoding that the sidecar did not ask for")
	}
	if h.chunked && (h.lengthGiven || h.old) {
		return malformed("a Transfer-Encoding beside a Content-Length, or in HTTP/1.0")
	}
	switch {
	case h.status < 200 || h.status == 204 || h.status == 304:
		h.length, h.chunked = 0, false
	case !h.chunked && !h.lengthGiven:
		h.keep = false
	}
	return nil
}

// checkValue refuses control characters (RFC 9110, section 5.5).
func checkValue(value []byte) error {
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return malformed("a control character in a header")
		}
	}
	return nil
}

// isToken reports whether name can be a field's (RFC 9110, section 5.6.2).
func isToken[T string | []byte](name T) bool {
	for i := range len(name) {
		if c := name[i]; c >= 0x80 || !tokenChar[c] {
			return false
		}
	}
	return len(name) > 0
}

var tokenChar = func() (is [128]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" {
		is[c] = true
	}
	return is
}()

// equalFold compares ASCII without case; lower is in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// is reports whether the answer's media type is the given one, in lower case.
func (h *head) is(mediaType string) bool {
	name, _, _ := bytes.Cut(h.contentType, []byte(";"))
	return equalFold(bytes.Trim(name, " \t"), mediaType)
}

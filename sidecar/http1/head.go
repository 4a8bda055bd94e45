package http1

import (
	"bytes"
	"net/http"
)

// maxFields is how many header lines a plain head may have.
const maxFields = 64

// maxLengthDigits bounds Content-Length: what it counts fits an int64 with room to add.
const maxLengthDigits = 15

const lineSuffix = " HTTP/1.1"

// verbs are the methods of plain requests, what is asked for most first. A POST has a body, the others have none.
var verbs = [...]struct{ method, prefix string }{
	{http.MethodPost, "POST /"}, {http.MethodGet, "GET /"}, {http.MethodDelete, "DELETE /"},
}

// verb is the plain method that a request line begins with, or may when more of it is there; "" for none.
func verb(line []byte) (method string) {
	for _, v := range verbs {
		if n := min(len(line), len(v.prefix)); string(line[:n]) == v.prefix[:n] {
			return v.method
		}
	}
	return ""
}

// What a byte may be part of. Each set is smaller than what the RFCs allow: bytes outside are net/http's to judge.
const (
	inName  = 1 << iota // a header's name: token, RFC 9110, 5.6.2
	inValue             // a header's value: visible ASCII, space and tab
	inPath              // of the request's target
	inHost
)

var class = func() (t [256]uint8) {
	for b := byte(' '); b <= '~'; b++ {
		t[b] |= inValue
	}
	t['\t'] |= inValue
	add := func(chars string, as uint8) {
		for i := range len(chars) {
			t[chars[i]] |= as
		}
	}
	const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	add(alphanumeric, inName|inPath|inHost)
	add("!#$%&'*+-.^_`|~", inName)
	add("-._~/", inPath)
	add("-._:[]", inHost)
	return t
}()

func all(b []byte, as uint8) bool {
	for _, c := range b {
		if class[c]&as == 0 {
			return false
		}
	}
	return true
}

// headEnd looks for the empty line that ends a head. It begins at the line that starts at from, and says where to begin
// when more bytes are there. ok is false once the head cannot be a plain one: it begins as none does, or a line does not
// end in CRLF.
func headEnd(b []byte, from int) (end, next int, ok bool) {
	if verb(b) == "" {
		return 0, 0, false
	}
	for {
		i := bytes.IndexByte(b[from:], '\n')
		switch {
		case i < 0:
			return 0, from, true
		case i == 0 || b[from+i-1] != '\r':
			return 0, from, false
		case i == 1:
			return from + 2, from, true
		}
		from += i + 1
	}
}

// cutLine cuts b behind its first line, which it returns without CRLF. headEnd has seen that each ends so.
func cutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	return b[:i-1], b[i+1:]
}

// plainHead reports whether a whole head is one that this package serves, and its Content-Length. There must be one
// Host, one Content-Length on a POST and none otherwise, and nothing that changes how the body or the connection is to
// be read.
func plainHead(b []byte) (length int64, ok bool) {
	line, b := cutLine(b)
	method := verb(line)
	if !plainRequestLine(line, method) {
		return 0, false
	}
	hosts, lengths, wanted := 0, 0, 0
	if method == http.MethodPost {
		wanted = 1
	}
	for fields := 0; len(b) > len("\r\n"); fields++ {
		line, b = cutLine(b)
		name, value, ok := cutField(line)
		if !ok || fields == maxFields {
			return 0, false
		}
		k := kindOf(name)
		n, ok := plainValue(k, value)
		switch {
		case !ok:
			return 0, false
		case k == isHost:
			hosts++
		case k == isLength:
			length = n
			lengths++
		}
	}
	return length, hosts == 1 && lengths == wanted
}

// plainValue reports whether a field may have a value in a plain head, and what Content-Length's is.
func plainValue(k kind, value []byte) (length int64, ok bool) {
	switch k {
	case isHost:
		return 0, len(value) > 0 && all(value, inHost)
	case isLength:
		return parseLength(value)
	case isConnection:
		return 0, fold(value, "keep-alive")
	}
	return 0, k != isUnusual
}

// plainRequestLine reports whether a line that begins with a method asks for a path that means itself: nothing escaped,
// empty or relative.
func plainRequestLine(line []byte, method string) bool {
	path, ok := bytes.CutSuffix(line, []byte(lineSuffix))
	if !ok || method == "" || len(path) < len(method)+len(" /") {
		return false
	}
	path = path[len(method)+1:]
	if !all(path, inPath) {
		return false
	}
	for i, c := range path {
		if c != '/' {
			continue
		}
		segment := path[i+1:]
		if j := bytes.IndexByte(segment, '/'); j >= 0 {
			segment = segment[:j]
			if j == 0 {
				return false
			}
		}
		if string(segment) == "." || string(segment) == ".." {
			return false
		}
	}
	return true
}

// cutField cuts a header line into its name and its value without the spaces around it.
func cutField(line []byte) (name, value []byte, ok bool) {
	i := 0
	for i < len(line) && class[line[i]]&inName != 0 {
		i++
	}
	if i == 0 || i == len(line) || line[i] != ':' || !all(line[i+1:], inValue) {
		return nil, nil, false
	}
	return line[:i], trim(line[i+1:]), true
}

// trim cuts spaces and tabs off both ends.
func trim[T string | []byte](s T) T {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for len(s) > 0 && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// kind is what a header's name means for reading the request.
type kind uint8

const (
	isOther kind = iota
	isHost
	isLength
	isConnection
	isUnusual // net/http acts on it
)

func kindOf(name []byte) kind {
	switch len(name) {
	case 2:
		return unusual(fold(name, "te"))
	case 4:
		if fold(name, "host") {
			return isHost
		}
	case 6:
		return unusual(fold(name, "expect") || fold(name, "pragma"))
	case 7:
		return unusual(fold(name, "upgrade") || fold(name, "trailer"))
	case 10:
		if fold(name, "connection") {
			return isConnection
		}
	case 14:
		if fold(name, "content-length") {
			return isLength
		}
	case 17:
		return unusual(fold(name, "transfer-encoding"))
	}
	return isOther
}

func unusual(yes bool) kind {
	if yes {
		return isUnusual
	}
	return isOther
}

// fold reports whether b is lower in some case. lower holds small letters and hyphens only, b visible ASCII.
func fold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c|0x20 != lower[i] {
			return false
		}
	}
	return true
}

func parseLength(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > maxLengthDigits {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

package streamable

import (
	"bufio"
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"
)

func parseHead(b []byte) (h head, err error) {
	err = h.parse(b)
	return h, err
}

func TestParseHeadReads(t *testing.T) {
	tests := []struct {
		name, in string
		want     head
	}{
		{"a length", "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Type: application/json\r\n\r\n",
			head{status: 200, length: 12, keep: true, contentType: []byte("application/json")}},
		{"chunks", "HTTP/1.1 200\r\ntransfer-encoding: Chunked\r\n\r\n", head{status: 200, length: -1, chunked: true, keep: true}},
		{"the connection's end", "HTTP/1.1 200 \r\n\r\n", head{status: 200, length: -1}},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", head{status: 204, keep: true}},
		{"close", "HTTP/1.1 202 Accepted\r\nContent-Length:0\r\nConnection: x, Close\r\n\r\n", head{status: 202}},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n", head{status: 200, length: 1}},
		{"a keep-alive time", "HTTP/1.1 204 x\r\nKeep-Alive: max=3, timeout=5\r\n\r\n",
			head{status: 204, keep: true, idle: 5 * time.Second}},
		{"a session", "HTTP/1.1 204 x\r\nMCP-Session-Id:  a b \r\n\r\n",
			head{status: 204, keep: true, sessionID: []byte("a b")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseHead([]byte(tt.in))
			if err != nil {
				t.Fatalf("parseHead(%q): %v", tt.in, err)
			}
			same := got.status == tt.want.status && got.length == tt.want.length && got.chunked == tt.want.chunked &&
				got.keep == tt.want.keep && got.idle == tt.want.idle &&
				bytes.Equal(got.contentType, tt.want.contentType) && bytes.Equal(got.sessionID, tt.want.sessionID)
			if !same {
				t.Errorf("parseHead(%q) = %+v, want %+v", tt.in, got, tt.want)
			}
		})
	}
}

func TestParseHeadRefuses(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	tests := map[string]string{
		"two lengths":               ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"a list of lengths":         ok + "Content-Length: 1, 1\r\n\r\n",
		"a signed length":           ok + "Content-Length: +1\r\n\r\n",
		"an empty length":           ok + "Content-Length:\r\n\r\n",
		"a length beyond numbers":   ok + "Content-Length: 99999999999999999999\r\n\r\n",
		"a length and chunks":       ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"chunks twice":              ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"gzip, chunked":             ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"chunks in HTTP/1.0":        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		"compression":               ok + "Content-Encoding: gzip\r\n\r\n",
		"a folded line":             ok + "A: b\r\n c\r\n\r\n",
		"a bare line feed":          ok + "A: b\n\r\n",
		"an empty line of one byte": ok + "\n",
		"a bare carriage return":    ok + "A: b\rc\r\n\r\n",
		"a NUL":                     ok + "A: \x00\r\n\r\n",
		"a space before the colon":  ok + "Content-Length : 1\r\n\r\n",
		"no colon":                  ok + "Content-Length\r\n\r\n",
		"no name":                   ok + ": x\r\n\r\n",
		"HTTP/2":                    "HTTP/2.0 200 OK\r\n\r\n",
		"HTTP/1.2":                  "HTTP/1.2 200 OK\r\n\r\n",
		"another protocol":          "RTSP/1.0 200 OK\r\n\r\n",
		"a status of four digits":   "HTTP/1.1 2000 OK\r\n\r\n",
		"a status of letters":       "HTTP/1.1 2xx OK\r\n\r\n",
		"a status out of range":     "HTTP/1.1 099 OK\r\n\r\n",
		"two session ids":           ok + "Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\n\r\n",
		"too many fields":           ok + strings.Repeat("A: b\r\n", maxFields+1) + "\r\n",
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			if h, err := parseHead([]byte(in)); err == nil {
				t.Errorf("parseHead(%q) = %+v, want an error", in, h)
			}
		})
	}
}

func TestHeadEndFindsTheSameEndHoweverTheHeadArrives(t *testing.T) {
	const in = "HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody\r\n\r\n"
	want := strings.Index(in, "body")
	for step := 1; step <= len(in); step++ {
		got, scanned := 0, 0
		for have := 0; got == 0 && have < len(in); {
			have = min(have+step, len(in))
			got = headEnd([]byte(in[:have]), scanned)
			scanned = have
		}
		if got != want {
			t.Errorf("in steps of %d: headEnd = %d, want %d", step, got, want)
		}
	}
}

// FuzzParseHead holds that whatever is accepted here means the same to net/http.
func FuzzParseHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 12\r\nContent-Type: application/json\r\nMcp-Session-Id: x\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 404 Not Found\r\nConnection: close\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 204\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		n := headEnd(in, 0)
		if n == 0 {
			return
		}
		got, err := parseHead(in[:n])
		if err != nil {
			return
		}
		want, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(in[:n])), nil)
		if err != nil {
			t.Fatalf("net/http refuses %q, which was accepted: %v", in[:n], err)
		}
		defer want.Body.Close()
		if got.status != want.StatusCode || got.length != want.ContentLength ||
			got.chunked != (len(want.TransferEncoding) > 0) || got.keep == want.Close && !want.ProtoAtLeast(1, 1) {
			t.Errorf("%q: got %+v; net/http has status %d, length %d, transfer encoding %v, close %v",
				in[:n], got, want.StatusCode, want.ContentLength, want.TransferEncoding, want.Close)
		}
		for name, value := range map[string][]byte{"Content-Type": got.contentType, "Mcp-Session-Id": got.sessionID} {
			if v := want.Header.Get(name); v != string(value) {
				t.Errorf("%q: %s is %q, net/http has %q", in[:n], name, value, v)
			}
		}
	})
}

func TestParsingAHeadDoesNotAllocate(t *testing.T) {
	in := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nContent-Length: 250\r\n\r\n")
	n := testing.AllocsPerRun(100, func() {
		if _, err := parseHead(in); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

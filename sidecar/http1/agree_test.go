package http1

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// seen is all that a handler can see of a request.
type seen struct {
	Method, Path, RawPath, Query, URI, Host, Proto string
	Header                                         http.Header
	Length                                         int64
	Encoding                                       []string
	Close                                          bool
	Body, BodyError                                string
}

func tellSeen(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s := seen{
		Method: r.Method, Path: r.URL.Path, RawPath: r.URL.RawPath, Query: r.URL.RawQuery, URI: r.RequestURI,
		Host: r.Host, Proto: r.Proto, Header: r.Header, Length: r.ContentLength, Encoding: r.TransferEncoding,
		Close: r.Close, Body: string(body),
	}
	if err != nil {
		s.BodyError = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s)
}

// ask sends raw bytes on a new connection, ends its side, and returns all that comes back, one string an answer.
func ask(t *testing.T, addr, raw string) (answers []string) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	go func() {
		_, _ = io.WriteString(nc, raw) // a server may refuse before it has all
		_ = nc.(*net.TCPConn).CloseWrite()
	}()
	for r := bufio.NewReader(nc); ; {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "reset") {
				return answers
			}
			t.Fatalf("reading answer %d to %.200q: %v", len(answers), raw, err)
		}
		body, err := io.ReadAll(res.Body)
		answers = append(answers, fmt.Sprintf("%s %s", res.Status, body))
		if err != nil {
			return answers // net/http resets a connection on which it refused something, now and then too early
		}
	}
}

func post(lines ...string) string {
	return "POST /mcp HTTP/1.1\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// strange are requests of which some must be refused, and all mean to both servers the same.
var strange = map[string]string{
	"plain":                          post("Host: a", "Content-Length: 2") + "{}",
	"empty body":                     post("Host: a", "Content-Length: 0"),
	"lower case names":               post("host: a", "content-length: 2", "mcp-protocol-version: x", "X-fOO: y") + "{}",
	"spaces around values":           post("Host: a", "Content-Length: \t 2 \t", "X:  a  b\t", "Y:", "Z: ") + "{}",
	"a name twice":                   post("Host: a", "X: 1", "Content-Length: 2", "x: 2", "X: 3") + "{}",
	"keep-alive":                     post("Host: a", "Connection: Keep-Alive", "Content-Length: 2") + "{}",
	"close":                          post("Host: a", "Connection: close", "Content-Length: 2") + "{}",
	"connection names a header":      post("Host: a", "Connection: keep-alive, x", "X: 1", "Content-Length: 2") + "{}",
	"two connection lines":           post("Host: a", "Connection: keep-alive", "Connection: close", "Content-Length: 2") + "{}",
	"no length":                      post("Host: a") + "{}",
	"length twice, same":             post("Host: a", "Content-Length: 2", "Content-Length: 2") + "{}",
	"length twice, other":            post("Host: a", "Content-Length: 2", "Content-Length: 3") + "{}x",
	"length as a list":               post("Host: a", "Content-Length: 2, 2") + "{}",
	"length with plus":               post("Host: a", "Content-Length: +2") + "{}",
	"length with minus":              post("Host: a", "Content-Length: -2") + "{}",
	"length in hex":                  post("Host: a", "Content-Length: 0x2") + "{}",
	"length with leading zeros":      post("Host: a", "Content-Length: 002") + "{}",
	"length with a long lead":        post("Host: a", "Content-Length: 00000000000000000002") + "{}",
	"length empty":                   post("Host: a", "Content-Length:") + "{}",
	"length with inner space":        post("Host: a", "Content-Length: 1 0") + "0123456789",
	"length too large":               post("Host: a", "Content-Length: 99999999999999999999") + "{}",
	"length beyond the body":         post("Host: a", "Content-Length: 10") + "{}",
	"length and chunked":             post("Host: a", "Content-Length: 2", "Transfer-Encoding: chunked") + "0\r\n\r\n",
	"chunked and length":             post("Host: a", "Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n",
	"chunked":                        post("Host: a", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n",
	"chunked with trailer":           post("Host: a", "Trailer: X", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\nX: 1\r\n\r\n",
	"xchunked":                       post("Host: a", "Transfer-Encoding: xchunked", "Content-Length: 2") + "{}",
	"chunked behind a tab":           post("Host: a", "Transfer-Encoding:\tchunked", "Content-Length: 2") + "{}",
	"chunked behind a form feed":     post("Host: a", "Transfer-Encoding: \x0cchunked", "Content-Length: 2") + "{}",
	"encoding with space before":     post("Host: a", "Transfer-Encoding : chunked", "Content-Length: 2") + "{}",
	"encoding behind a space":        post("Host: a", " Transfer-Encoding: chunked", "Content-Length: 2") + "{}",
	"encoding with underscore":       post("Host: a", "Transfer_Encoding: chunked", "Content-Length: 2") + "{}",
	"encoding in a folded line":      post("Host: a", "X: y", " Transfer-Encoding: chunked", "Content-Length: 2") + "{}",
	"encoding twice":                 post("Host: a", "Transfer-Encoding: chunked", "Transfer-Encoding: identity") + "0\r\n\r\n",
	"identity":                       post("Host: a", "Transfer-Encoding: identity", "Content-Length: 2") + "{}",
	"encoding behind a bare CR":      post("Host: a", "X: y\rTransfer-Encoding: chunked", "Content-Length: 2") + "{}",
	"encoding behind a bare LF":      post("Host: a", "X: y\nTransfer-Encoding: chunked", "Content-Length: 2") + "0\r\n\r\n",
	"te":                             post("Host: a", "TE: trailers", "Content-Length: 2") + "{}",
	"upgrade":                        post("Host: a", "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 2") + "{}",
	"upgrade alone":                  post("Host: a", "Upgrade: websocket", "Content-Length: 2") + "{}",
	"pragma":                         post("Host: a", "Pragma: no-cache", "Content-Length: 2") + "{}",
	"space before colon":             post("Host: a", "Content-Length : 2") + "{}",
	"obs-fold":                       post("Host: a", "X: a", " b", "Content-Length: 2") + "{}",
	"obs-fold by tab at the start":   post("\tX: a", "Host: a", "Content-Length: 2") + "{}",
	"no colon":                       post("Host: a", "X", "Content-Length: 2") + "{}",
	"no name":                        post("Host: a", ": x", "Content-Length: 2") + "{}",
	"NUL in a value":                 post("Host: a", "X: a\x00b", "Content-Length: 2") + "{}",
	"NUL in a name":                  post("Host: a", "X\x00: a", "Content-Length: 2") + "{}",
	"DEL in a value":                 post("Host: a", "X: a\x7fb", "Content-Length: 2") + "{}",
	"obs-text in a value":            post("Host: a", "X: \xc3\xa9", "Content-Length: 2") + "{}",
	"obs-text in a name":             post("Host: a", "X\xc3\xa9: y", "Content-Length: 2") + "{}",
	"no host":                        post("Content-Length: 2") + "{}",
	"empty host":                     post("Host:", "Content-Length: 2") + "{}",
	"two hosts":                      post("Host: a", "Host: b", "Content-Length: 2") + "{}",
	"two hosts, one in capitals":     post("Host: a", "HOST: a", "Content-Length: 2") + "{}",
	"host with path":                 post("Host: a/b", "Content-Length: 2") + "{}",
	"host with user":                 post("Host: u@a", "Content-Length: 2") + "{}",
	"host with list":                 post("Host: a, b", "Content-Length: 2") + "{}",
	"host of IPv6":                   post("Host: [::1]:80", "Content-Length: 2") + "{}",
	"bare LF everywhere":             "POST /mcp HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}",
	"bare LF at the end":             "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\n{}",
	"bare LF after the first line":   "POST /mcp HTTP/1.1\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"two CR":                         "POST /mcp HTTP/1.1\r\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"CR CR LF at the end":            "POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\r\n{}",
	"empty line first":               "\r\n" + post("Host: a", "Content-Length: 2") + "{}",
	"absolute form":                  "POST http://b/mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"authority form":                 "POST b:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"asterisk form":                  "POST * HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"lower case method":              "post /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"method behind a space":          " POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"two spaces before the target":   "POST  /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"two spaces behind the target":   "POST /mcp  HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"tab before the version":         "POST /mcp\tHTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"space at the line's end":        "POST /mcp HTTP/1.1 \r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.0":                       "POST /mcp HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.0 keep-alive":            "POST /mcp HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.2":                       "POST /mcp HTTP/1.2\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/2.0":                       "POST /mcp HTTP/2.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"http/1.1":                       "POST /mcp http/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/0.9":                       "POST /mcp\r\n",
	"query":                          "POST /mcp?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"empty query":                    "POST /mcp? HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"fragment":                       "POST /mcp#x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"escaped path":                   "POST /m%63p%2Fx HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"bad escape":                     "POST /m%zz HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"dot segments":                   "POST /a/../mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"dot at the end":                 "POST /a/. HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"dots that are names":            "POST /.well-known/a..b/...  HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"double slash":                   "POST //mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"double slash inside":            "POST /a//mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"slash at the end":               "POST /mcp/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"root":                           "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"backslash":                      "POST /a\\b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"obs-text in the path":           "POST /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"NUL in the path":                "POST /\x00 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"GET":                            "GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET with a body":                "GET /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"DELETE":                         "DELETE /mcp HTTP/1.1\r\nHost: a\r\n\r\n",
	"HEAD":                           "HEAD /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
	"POSTX":                          "POSTX /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"nothing":                        "",
	"half a method":                  "PO",
	"half a head":                    "POST /mcp HTTP/1.1\r\nHost: a\r\nConte",
	"garbage":                        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	"65 header lines":                post("Host: a", "Content-Length: 2", strings.TrimSuffix(strings.Repeat("X: y\r\n", 63), "\r\n")) + "{}",
	"64 header lines":                post("Host: a", "Content-Length: 2", strings.TrimSuffix(strings.Repeat("X: y\r\n", 62), "\r\n")) + "{}",
	"a head of 60 KiB":               post("Host: a", "Content-Length: 2", "X: "+strings.Repeat("y", 60<<10)) + "{}",
	"a head of 66 KiB":               post("Host: a", "Content-Length: 2", "X: "+strings.Repeat("y", 66<<10)) + "{}",
	"a head of 200 KiB":              post("Host: a", "Content-Length: 2", "X: "+strings.Repeat("y", 200<<10)) + "{}",
	"a path of 8 KiB":                "POST /" + strings.Repeat("y", 8<<10) + " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
	"a body of 100 KiB":              post("Host: a", "Content-Length: 102400") + strings.Repeat("z", 102400),
	"three in one piece":             strings.Repeat(post("Host: a", "Content-Length: 2")+"{}", 3),
	"200 in one piece":               strings.Repeat(post("Host: a", "Content-Length: 2")+"{}", 200),
	"plain, then GET, then plain":    post("Host: a", "Content-Length: 2") + "{}" + "GET / HTTP/1.1\r\nHost: a\r\n\r\n" + post("Host: a", "Content-Length: 2") + "[]",
	"plain, then chunked":            post("Host: a", "Content-Length: 2") + "{}" + post("Host: a", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n",
	"plain, then garbage":            post("Host: a", "Content-Length: 2") + "{}" + "garbage\r\n\r\n",
	"plain, then half a head":        post("Host: a", "Content-Length: 2") + "{}" + "POST /mcp HTTP/1.1\r\nHo",
	"a request in a body":            post("Host: a", "Content-Length: 51") + "POST /evil HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
	"expect":                         post("Host: a", "Expect: 100-continue", "Content-Length: 2") + "{}",
	"expect something else":          post("Host: a", "Expect: x", "Content-Length: 2") + "{}",
	"proxy-connection":               post("Host: a", "Proxy-Connection: close", "Content-Length: 2") + "{}",
	"http2-settings":                 post("Host: a", "HTTP2-Settings: x", "Content-Length: 2") + "{}",
	"a name with all token bytes":    post("Host: a", "!#$%&'*+-.^_`|~aZ09: x", "Content-Length: 2") + "{}",
	"a name with a slash":            post("Host: a", "a/b: x", "Content-Length: 2") + "{}",
	"a value with all visible bytes": post("Host: a", "X: !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "Content-Length: 2") + "{}",
}

// TestBothServersAgree sends strange bytes to net/http alone and through this package: each answer says all that the
// handler saw, so both must read the same requests out of them, or refuse them alike.
func TestBothServersAgree(t *testing.T) {
	alone := serveFor(t, "net/http", http.HandlerFunc(tellSeen))
	ours := serveFor(t, "http1", http.HandlerFunc(tellSeen))
	for name, raw := range strange {
		t.Run(name, func(t *testing.T) {
			want, got := ask(t, alone, raw), ask(t, ours, raw)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("answers differ\ngot  %.2000q\nwant %.2000q\nto   %.500q", got, want, raw)
			}
		})
	}
}

// TestALineBetweenRequestsIsRefused: net/http forgives old clients an empty line behind the body of a POST. This package
// hands the connection over there, to a server that has seen no POST on it.
func TestALineBetweenRequestsIsRefused(t *testing.T) {
	addr := serveFor(t, "http1", http.HandlerFunc(tellSeen))
	one := post("Host: a", "Content-Length: 2") + "{}"
	got := ask(t, addr, one+"\r\n"+one)
	if len(got) != 2 || !strings.HasPrefix(got[0], "200 ") || !strings.HasPrefix(got[1], "400 ") {
		t.Errorf("got %q, want 200 and 400", got)
	}
}

// TestPlainHeadsAreServedHere holds that the fast path takes what clients of MCP send.
func TestPlainHeadsAreServedHere(t *testing.T) {
	rows := map[string]string{
		"Go": callHead,
		"undici": post("host: localhost:8080", "connection: keep-alive", "content-type: application/json",
			"accept: application/json, text/event-stream", "mcp-method: tools/call", "mcp-name: x", "accept-language: *",
			"sec-fetch-mode: cors", "user-agent: node", "accept-encoding: gzip, deflate", "content-length: 2"),
		"httpx": post("Host: 127.0.0.1:8080", "Accept: application/json, text/event-stream",
			"Accept-Encoding: gzip, deflate", "Connection: keep-alive", "User-Agent: python-httpx/0.28.1",
			"content-type: application/json", "mcp-session-id: 5a", "Content-Length: 2"),
		"curl": post("Host: localhost:8080", "User-Agent: curl/8.5.0", "Accept: */*",
			"Content-Type: application/json", "Content-Length: 2"),
	}
	for name, head := range rows {
		end, _, ok := headEnd([]byte(head), 0)
		if !ok || end != len(head) {
			t.Errorf("%s: headEnd: got %d %v, want %d", name, end, ok, len(head))
			continue
		}
		if _, ok := plainHead([]byte(head)); !ok {
			t.Errorf("%s: handed over, want served: %q", name, head)
		}
	}
}

// FuzzHead holds that a head which is plain is one that net/http accepts, with the same meaning and the same end.
func FuzzHead(f *testing.F) {
	for _, raw := range strange {
		if len(raw) < 10<<10 {
			f.Add([]byte(raw), 7)
		}
	}
	f.Add([]byte(callHead), 40)
	f.Fuzz(func(t *testing.T, b []byte, split int) {
		end, _, ok := headEnd(b, 0)
		if split > 0 && split < len(b) {
			compareSplit(t, b, split, end, ok)
		}
		if !ok || end == 0 {
			return
		}
		head := bytes.Clone(b[:end])
		length, ok := plainHead(head)
		if !ok {
			return
		}
		src := bytes.NewReader(b)
		r := bufio.NewReaderSize(src, len(b)+16)
		want, err := http.ReadRequest(r)
		if err != nil {
			t.Fatalf("plain to us, but net/http says %v: %q", err, b)
		}
		canonical(head)
		h := make(http.Header)
		path, host, _ := fields(string(head), h, nil)
		got := seen{Method: "POST", Path: path, URI: path, Host: host, Proto: "HTTP/1.1", Header: h, Length: length}
		want.Header.Del("Host")
		said := seen{Method: want.Method, Path: want.URL.Path, RawPath: want.URL.RawPath, Query: want.URL.RawQuery,
			URI: want.RequestURI, Host: want.Host, Proto: want.Proto, Header: want.Header, Length: want.ContentLength,
			Encoding: want.TransferEncoding, Close: want.Close}
		if !reflect.DeepEqual(got, said) {
			t.Errorf("got  %+v\nwant %+v\nfrom %q", got, said, b)
		}
		if consumed := len(b) - src.Len() - r.Buffered(); consumed != end {
			t.Errorf("the head ends at %d, net/http says %d: %q", end, consumed, b)
		}
	})
}

// compareSplit looks at the same bytes as they come in two pieces.
func compareSplit(t *testing.T, b []byte, split, wantEnd int, wantOK bool) {
	end, next, ok := headEnd(b[:split], 0)
	if ok && end == 0 {
		end, _, ok = headEnd(b, next)
	}
	if ok != wantOK || end != wantEnd {
		t.Errorf("in two pieces: got %d %v, want %d %v, split at %d: %q", end, ok, wantEnd, wantOK, split, b)
	}
}

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
	"slices"
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
			var late net.Error
			if errors.As(err, &late) && late.Timeout() {
				t.Fatalf("reading answer %d to %.200q: %v", len(answers), raw, err)
			}
			return answers // the end, or no HTTP/1.1
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

// TestBothServersAgree sends the corpus to net/http alone and through this package: each answer says all that the handler
// saw, so both must read the same requests out of it, or refuse them alike. This package may refuse earlier.
func TestBothServersAgree(t *testing.T) {
	alone := serveFor(t, "net/http", http.HandlerFunc(tellSeen))
	ours := serveFor(t, "http1", http.HandlerFunc(tellSeen))
	for _, e := range corpus(t) {
		t.Run(e.name, func(t *testing.T) {
			want, got := ask(t, alone, string(e.raw)), ask(t, ours, string(e.raw))
			if !slices.Equal(got, want) && !refusedEarlier(got, want) {
				t.Errorf("answers differ\ngot  %.2000q\nwant %.2000q\nto   %.500q", got, want, e.raw)
			}
		})
	}
}

// refusedEarlier reports whether the answers are the other's up to one that refuses.
func refusedEarlier(got, want []string) bool {
	last := len(got) - 1
	return last >= 0 && last <= len(want) && strings.HasPrefix(got[last], "400 ") && slices.Equal(got[:last], want[:last])
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
		"Go's GET": "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: Go-http-client/1.1\r\n" +
			"Accept: text/event-stream\r\nMcp-Session-Id: 5a\r\nAccept-Encoding: gzip\r\n\r\n",
		"Go's DELETE": "DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nMcp-Session-Id: 5a\r\n\r\n",
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
	for _, e := range corpus(f) {
		if len(e.raw) < 10<<10 {
			f.Add(e.raw, 7)
		}
	}
	f.Add([]byte(callHead), 40)
	f.Add([]byte(getHead), 3)
	f.Add([]byte(strings.Replace(getHead, "GET", "DELETE", 1)), 9)
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
		k := knownHead{header: make(http.Header)}
		k.learn(string(head), length)
		got := seen{Method: k.method, Path: k.path, URI: k.path, Host: k.host, Proto: "HTTP/1.1", Header: k.header, Length: length}
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

package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// getHead is what a client of the wire with sessions asks for its stream with.
const getHead = "GET /mcp HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\nMcp-Session-Id: 5a\r\n\r\n"

var callHead = strings.ReplaceAll(`POST /mcp HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: outrigger-bench
Content-Length: 350
Accept: application/json, text/event-stream
Content-Type: application/json
Mcp-Method: tools/call
Mcp-Name: echo
Mcp-Protocol-Version: 2026-07-28
Accept-Encoding: gzip

`, "\n", "\r\n")

var (
	callBytes  = []byte(callHead + strings.Repeat("x", 350))
	callAnswer = []byte(strings.Repeat("y", 250))
	callType   = []string{"application/json"}
)

// answerCall is a handler at the least cost: it reads the body and answers with 250 bytes.
func answerCall(w http.ResponseWriter, r *http.Request) {
	var space [512]byte
	for {
		if _, err := r.Body.Read(space[:]); err != nil {
			break
		}
	}
	w.Header()["Content-Type"] = callType
	_, _ = w.Write(callAnswer)
}

// caller sends the same call again and again on one connection and checks the length of each answer.
type caller struct {
	nc   net.Conn
	r    *bufio.Reader
	want int // bytes of an answer
	got  []byte
}

func newCaller(tb testing.TB, addr string) *caller {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { nc.Close() })
	c := &caller{nc: nc, r: bufio.NewReader(nc)}
	if _, err := nc.Write(callBytes); err != nil {
		tb.Fatal(err)
	}
	for body := false; !body; {
		line, err := c.r.ReadString('\n')
		if err != nil {
			tb.Fatal(err)
		}
		c.want += len(line)
		body = line == "\r\n"
	}
	c.want += len(callAnswer)
	c.got = make([]byte, c.want)
	if _, err := c.r.Discard(len(callAnswer)); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (c *caller) call(tb testing.TB) {
	if _, err := c.nc.Write(callBytes); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.ReadFull(c.r, c.got); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkCall(b *testing.B) {
	for _, with := range []string{"net/http", "http1"} {
		b.Run(fmt.Sprintf("server=%s", with), func(b *testing.B) {
			addr := serveFor(b, with, http.HandlerFunc(answerCall))
			c := newCaller(b, addr)
			b.ReportAllocs()
			for b.Loop() {
				c.call(b)
			}
		})
	}
}

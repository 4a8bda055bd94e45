package streamable

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// BenchmarkCall is a 350 B request and a 250 B answer over loopback, to a server in the same process that does next to
// nothing; its time is in the figure, its allocations are none.
func BenchmarkCall(b *testing.B) {
	body := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 180) + `"}]}}`
	for name, answer := range map[string]string{
		"json": jsonAnswer(body),
		"sse":  sseHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk("data: "+body+"\n\n") + "0\r\n\r\n",
	} {
		c := stateless(b, "1", "echo", `{"text":"`+strings.Repeat("y", 120)+`"}`)
		b.Run("stateless/"+name, func(b *testing.B) {
			benchmarkCall(b, newServer(b, nullServer(b, answer)).Call, c)
		})
		b.Run("legacy/"+name, func(b *testing.B) {
			server := newServer(b, nullServer(b, answer))
			s := &session{
				server: server, current: &incarnation{server: server, id: "session-1", version: "2025-11-25"},
			}
			benchmarkCall(b, s.Call, c)
		})
	}
}

func benchmarkCall(b *testing.B, send func(context.Context, *upstream.Call) (*upstream.Answer, error), c *upstream.Call) {
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		ctx := new(lazyctx.Context) // as the proxy has one for each call
		a, err := send(ctx, c)
		if err != nil {
			b.Fatal(err)
		}
		if a.Body != nil {
			_, err = a.Body.Read(buf)
		} else if _, err = a.Events.Next(); err == nil {
			_, err = a.Events.Next()
		}
		if err != nil && err != io.EOF {
			b.Fatal(err)
		}
		a.Close()
	}
}

// BenchmarkTransport is the same call through net/http's client, to compare with.
func BenchmarkTransport(b *testing.B) {
	url := nullServer(b, jsonAnswer(strings.Repeat("x", 250)))
	c := stateless(b, "1", "echo", `{"text":"`+strings.Repeat("y", 120)+`"}`)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(c.Message.Raw))
		if err != nil {
			b.Fatal(err)
		}
		r.Header = c.Header.Clone()
		a, err := transport.RoundTrip(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadAtLeast(a.Body, buf, 250); err != nil {
			b.Fatal(err)
		}
		_, _ = a.Body.Read(buf) // the end
		a.Body.Close()
	}
}

// nullServer answers every request alike, without parsing more than its length.
func nullServer(b *testing.B, answer string) (url string) {
	p := newPeer(b, func(_ *peer, c net.Conn, r *bufio.Reader) {
		out, length := []byte(answer), 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if n, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
				length = 0
				for _, d := range bytes.TrimSpace(n) {
					length = length*10 + int(d-'0')
				}
			}
			if len(line) > 2 {
				continue
			}
			if _, err := r.Discard(length); err != nil {
				return
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	})
	return p.url
}

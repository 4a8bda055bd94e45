package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// discard is an answer's writer that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

// benchBody is a body that is read again and again.
type benchBody struct{ bytes.Reader }

func (b *benchBody) Close() error { return nil }

// one is a stream of one event, for ever the same.
type one struct {
	data []byte
	sent bool
}

func (o *one) Next() (mcp.Event, error) {
	if o.sent {
		return mcp.Event{}, io.EOF
	}
	o.sent = true
	return mcp.Event{Data: o.data}, nil
}
func (o *one) Ready() bool  { return false }
func (o *one) Close() error { return nil }

// benchmark is the path alone: what a call costs between an HTTP server and an upstream that cost nothing.
func benchmark(b *testing.B, h head, body string, events bool) {
	answer := []byte(response("1", strings.Repeat("x", 180)))
	f := &fake{}
	whole := &upstream.Answer{Status: 200, Length: int64(len(answer))}
	reader := &benchBody{}
	f.call = func(ctx, *upstream.Call) (*upstream.Answer, error) {
		if events {
			return &upstream.Answer{Status: 200, Length: -1, Events: &one{data: answer}}, nil
		}
		reader.Reset(answer)
		whole.Body = reader
		return whole, nil
	}
	p := inMemory(b, f)
	if h == nil {
		req := httptest.NewRequest("POST", "/mcp", strings.NewReader(initialize))
		req.Host = "localhost"
		w := httptest.NewRecorder()
		p.ServeHTTP(w, req)
		h = head{mcp.HeaderSessionID: w.Header().Get(mcp.HeaderSessionID), mcp.HeaderVersion: mcp.Version20251125}
	}
	req := httptest.NewRequest("POST", "/mcp", nil)
	req.Host = "localhost"
	for k, v := range h {
		req.Header[k] = []string{v}
	}
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header["Accept"] = []string{"application/json, text/event-stream"}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(local)))
	defer cancel()
	req = req.WithContext(ctx)
	in, w := &benchBody{}, &discard{h: http.Header{}}
	req.Body, req.ContentLength = in, int64(len(body))
	b.ReportAllocs()
	for b.Loop() {
		in.Reset([]byte(body))
		clear(w.h)
		p.ServeHTTP(w, req)
	}
}

func BenchmarkServeStateless(b *testing.B) {
	body := modernCall("1", "echo", `{"text":"`+strings.Repeat("y", 120)+`"}`)
	b.Run("json", func(b *testing.B) { benchmark(b, modern("tools/call", "echo"), body, false) })
	b.Run("events", func(b *testing.B) { benchmark(b, modern("tools/call", "echo"), body, true) })
}

func BenchmarkServeLegacy(b *testing.B) {
	body := toolCall("1", "echo", `{"text":"`+strings.Repeat("y", 120)+`"}`)
	b.Run("json", func(b *testing.B) { benchmark(b, nil, body, false) })
	b.Run("events", func(b *testing.B) { benchmark(b, nil, body, true) })
}

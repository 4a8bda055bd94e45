package streamable

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// aRequest is a stateless call as the sidecar sends it, and what all of its server's requests begin with.
func aRequest(tb testing.TB, size, params int) (r *request, fixed string) {
	to, err := url.Parse("http://127.0.0.1:3000/mcp")
	if err != nil {
		tb.Fatal(err)
	}
	r = &request{
		method: http.MethodPost, body: bytes.Repeat([]byte("x"), size), version: mcp.Version20260728, mcpMethod: "tools/call",
		mcpName: "echo", relay: http.Header{"Accept": {"*/*"}, "Content-Type": {"application/json"}, "User-Agent": {"x"}},
	}
	for i := range params {
		r.relay[http.CanonicalHeaderKey(fmt.Sprintf("%sp%d", mcp.HeaderParamPrefix, i))] = []string{"eu-west-1"}
	}
	return r, fixedHead(http.MethodPost, to, Options{UserAgent: "outrigger"})
}

func BenchmarkEncode(b *testing.B) {
	for _, row := range []struct{ size, params int }{{350, 0}, {350, 4}, {8 << 10, 0}, {64 << 10, 0}, {1 << 20, 0}} {
		b.Run(fmt.Sprintf("%dB/params=%d", row.size, row.params), func(b *testing.B) {
			r, fixed := aRequest(b, row.size, row.params)
			buf := make([]byte, 0, keptBuffer)
			b.SetBytes(int64(row.size))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.encode(&buf, fixed, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestEncodingARequestDoesNotAllocate(t *testing.T) {
	r, fixed := aRequest(t, 350, 4)
	buf := make([]byte, 0, keptBuffer)
	if n := testing.AllocsPerRun(100, func() {
		if err := r.encode(&buf, fixed, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if got := string(buf); !strings.HasPrefix(got, "POST /mcp HTTP/1.1\r\n") || strings.Count(got, "Mcp-Param-P") != 4 {
		t.Errorf("encoded %q", got)
	}
}

func BenchmarkParseHead(b *testing.B) {
	json := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nContent-Length: 250\r\n\r\n"
	for _, row := range []struct{ name, head string }{
		{"json", json},
		{"events", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\nMcp-Session-Id: 5e1f\r\n\r\n"},
		{"20 fields", strings.Replace(json, "\r\n\r\n", "\r\n"+strings.Repeat("X-Something: of no interest\r\n", 17)+"\r\n", 1)},
	} {
		b.Run(row.name, func(b *testing.B) {
			in := []byte(row.head)
			b.ReportAllocs()
			for b.Loop() {
				if end := headEnd(in, 0); end != len(in) {
					b.Fatalf("the head ends at %d, want %d", end, len(in))
				}
				if _, err := parseHead(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

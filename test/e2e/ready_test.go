package e2e

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// L12: a server that accepts and never answers is not ready, and the answer that says so comes in time. So do calls'.
func TestAServerThatNeverAnswersIsNotReady(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts; nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, _ := fileSidecar(t, nil,
		upstream("silent", `http: {url: "http://`+silent.Addr().String()+`/mcp"}, timeouts: {handshake: 0.5s, call: 0.5s}`),
		binding("silent", "/mcp", "silent", ""))
	begun := time.Now()
	status, body, err := get(t, s.admin, "/readyz")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "silent") || time.Since(begun) > 10*time.Second {
		t.Errorf("readyz answered %d %s (%v) after %v, want that the server is not ready, in time", status, body, err, time.Since(begun))
	}
	if status, _, err := get(t, s.admin, "/healthz"); status != http.StatusOK {
		t.Errorf("healthz answered %d (%v), want 200: the sidecar itself is well", status, err)
	}
	for _, era := range eras {
		begun := time.Now()
		w := newWire(t, s.url+"/mcp", era.version)
		res, err := w.post(within(t), `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}}`, "initialize", "")
		if err != nil {
			t.Fatal(err)
		}
		r, err := w.read(res, "7", nil)
		if err != nil || r.Error == nil || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: answered %+v (%v) after %v, want an error in time", era.name, r, err, time.Since(begun))
		}
	}
	if _, metrics, err := get(t, s.admin, "/metrics"); !strings.Contains(metrics, "outrigger_") {
		t.Errorf("metrics: %.200s (%v)", metrics, err)
	}
	s.stop()
}

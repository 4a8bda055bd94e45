package streamable

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestHTTPSTrustsTheConfiguredAuthorityAndKeepsItsConnections(t *testing.T) {
	var conns atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, 200, result)
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of the client that does not trust it
	srv.StartTLS()
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, srv.URL, func(u *outriggerv1.Upstream) { u.GetHttp().CaFile = ca })
	for range 5 {
		a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
		if got, _ := responseOf(t, a, err); got != result {
			t.Errorf("answer %s, want %s", got, result)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("5 calls took %d connections, want 1", n)
	}
	_, err := newServer(t, srv.URL).Call(testContext(t), stateless(t, "1", "echo", "{}"))
	wantKind(t, err, upstream.Unreachable)
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]*outriggerv1.HTTPTransport{
		"no transport":       nil,
		"no URL":             {},
		"a relative URL":     {Url: "/mcp"},
		"another scheme":     {Url: "ftp://localhost/"},
		"two lines":          {Url: "http://localhost/\r\nX: y"},
		"no file":            {Url: "https://localhost/", CaFile: "/does/not/exist"},
		"no authority in it": {Url: "https://localhost/", CaFile: empty},
	} {
		spec := &outriggerv1.Upstream{}
		if h != nil {
			spec.Transport = &outriggerv1.Upstream_Http{Http: h}
		}
		if s, err := New("weather", spec, Options{}); err == nil || s != nil {
			t.Errorf("%s: New = %v, %v; want an error alone", name, s, err)
		}
	}
}

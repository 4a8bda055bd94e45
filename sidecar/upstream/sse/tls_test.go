package sse

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestTLSTrustsTheAuthoritiesOfTheFileAlone(t *testing.T) {
	real := sdkServer(nil)
	srv := httptest.NewUnstartedServer(sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return real }, nil))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	file := filepath.Join(t.TempDir(), "ca.pem")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(file, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	trusting := newServer(t, srv.URL, func(u *outriggerv1.Upstream, _ *Options) { u.GetSse().CaFile = file })
	a, err := open(t, trusting).Call(testContext(t), message(t, toolCall("1", "echo", "hello")))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "hello") {
		t.Errorf("answer %s", got)
	}
	_, _, err = newServer(t, srv.URL).Open(testContext(t), message(t, initialize))
	wantKind(t, err, upstream.Unreachable)
}

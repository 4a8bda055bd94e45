package proxy

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

func TestACredentialReplacedInItsFileIsTakenUpByTheSameConfiguration(t *testing.T) {
	dir := t.TempDir()
	write := func(value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "token"), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	log := slog.New(slog.DiscardHandler)
	credentials := credential.New(credential.Options{Dir: dir})
	dialer := Dialer{Log: log, Credentials: credentials, Version: "test"}
	p := New(Options{Log: log, Metrics: telemetry.NewMetrics(prometheus.NewRegistry(), "test"), Dial: dialer.Dial, Outside: dialer.Outside})
	defer p.Close(testContext(t))
	u := atURL("http://127.0.0.1:1/mcp")
	u.Name = "up"
	u.Credential = &outriggerv1.Credential{Source: &outriggerv1.Credential_File{File: "token"}}
	c := &config.Config{Generation: "1", Upstreams: []*outriggerv1.Upstream{u}}
	running := func(wantRefused int) *server {
		t.Helper()
		if refused := p.Apply(c); len(refused) != wantRefused {
			t.Fatalf("refused %v, want %d", refused, wantRefused)
		}
		return p.table.Load().servers["up"]
	}
	first := running(0)
	if running(0) != first {
		t.Error("nothing changed, and the server was made anew")
	}
	write("second")
	second := running(0)
	if second == first {
		t.Error("the credential changed, and the server still has the old one")
	}
	write("third")
	if refused := p.Refresh(); len(refused) > 0 {
		t.Fatalf("refused %v", refused)
	}
	if third := p.table.Load().servers["up"]; third == second {
		t.Error("a refresh does not read the credential again")
	} else {
		second = third
	}
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if running(1) != second {
		t.Error("the credential is gone, and the last good server with it")
	}
}

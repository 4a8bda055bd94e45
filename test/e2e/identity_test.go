package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASidecarThatStartsFirstWaitsForTheControlPlane(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	token := p.join()
	p.apply(both(newPeer("peer").serve(t), "")...)
	p.stop()
	s := p.joinSidecar("edge-1", token, t.TempDir(), nil)
	s.says("joining: no control plane answers")
	if status, body, err := get(t, s.admin, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "no configuration yet") {
		t.Errorf("readyz answers %d %s (%v), want that there is no configuration", status, body, err)
	}
	p.start(t)
	p.runs("Binding", "legacy", "edge-1 running")
	s.serves()
	wantText(t, connectSDK(t, s.url+legacyPath, versionLegacy, nil), "echo", input{"late"}, "late")
	s.stop()
}

// Nobody else can read an identity; one that is damaged ends a sidecar that has nothing to serve, and is named.
func TestADamagedIdentity(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	state := t.TempDir()
	p.apply(both(newPeer("peer").serve(t), "")...)
	s := p.joinSidecar("edge-1", p.join(), state, nil)
	p.runs("Binding", "legacy", "edge-1 running")
	s.stop()
	identity := filepath.Join(state, "identity.pem")
	if info, err := os.Stat(identity); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("identity.pem has mode %v (%v), want 0600", info.Mode(), err)
	}
	bare := t.TempDir()
	writeFile(t, filepath.Join(bare, "identity.pem"), "-----BEGIN NONSENSE-----\n")
	alone := start(t, nil, "sidecar", "--listen", "127.0.0.1:0", "--admin", "", "--control-plane", p.xds, "--node-id", "edge-1", "--state-dir", bare)
	if code := alone.exit(patience); code != 1 {
		t.Errorf("with nothing to serve it ended with %d, want 1", code)
	}
	alone.says("sidecar stopped", "identity.pem")
}

// A control plane that has lost its data has another authority: sidecars serve what they had and say why they get no news.
func TestAnotherControlPlaneInThePlaceOfTheOld(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	p.apply(both(newPeer("peer").serve(t), "")...)
	s := p.joinSidecar("edge-1", p.join(), t.TempDir(), nil)
	p.runs("Binding", "legacy", "edge-1 running")
	p.stop()
	p.dir = filepath.Join(t.TempDir(), "other")
	p.start(t)
	s.says("no connection to the control plane", "certificate")
	wantText(t, connectSDK(t, s.url+legacyPath, versionLegacy, nil), "echo", input{"goes on"}, "goes on")
	if got := s.config().Source; got.Connected || got.Source != "control plane" {
		t.Errorf("the source is %+v, want that it is not connected", got)
	}
	s.stop()
}

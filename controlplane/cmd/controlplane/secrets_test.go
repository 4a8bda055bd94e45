package main

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

const planted = "s3cret-planted-0815"

// parsed are resources as their authors write them.
func parsed(t *testing.T, text string) []*outriggerv1.Resource {
	t.Helper()
	resources, mistakes := resource.Parse("test", []byte(text))
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return resources
}

// sealed is an Upstream with a Secret, and one that no sidecar of app demo needs.
const sealed = `
kind: Secret
name: idp
spec: {values: {token: ` + planted + `}}
---
kind: Secret
name: other
spec: {values: {token: ` + planted + `-other}}
---
kind: Upstream
name: weather
spec: {http: {url: "http://127.0.0.1:9000/mcp"}, credential: {secret: {name: idp, key: token}}}
---
kind: Upstream
name: elsewhere
spec: {http: {url: "http://127.0.0.1:9001/mcp"}, credential: {secret: {name: other, key: token}}}
---
kind: Binding
name: one
spec: {selector: {matchLabels: {app: demo}}, upstreams: [{name: weather}]}
---
kind: Binding
name: two
spec: {selector: {matchLabels: {app: other}}, upstreams: [{name: elsewhere}]}
`

// wantNowhere fails when a file below a directory, or what was logged, has a text.
func wantNowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			t.Errorf("%s has %q", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// end runs a control plane that does not start, and returns what it says.
func end(t *testing.T, dir string, args ...string) string {
	t.Helper()
	c := exec.Command(os.Args[0], append([]string{"--data-dir", dir, "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--xds", "127.0.0.1:0"}, args...)...)
	c.Env = append(os.Environ(), asProgram+"=1")
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() != 1 {
		t.Errorf("%q: ended with %v, want status 1\n%s", args, err, out)
	}
	return string(out)
}

func TestASecretReachesTheSidecarsThatNeedItAndIsNowhereElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	info, err := os.Stat(filepath.Join(dir, "secrets.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("secrets.key: %v (%v), want mode 0600", info, err)
	}
	c := p.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, sealed)}); err != nil {
		t.Fatal(err)
	}
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{}
	p.sidecar("demo", token.Token, tg)
	eventually(t, "secret", func() bool { return tg.secret("idp/token") == planted })
	if got := tg.secret("other/token"); got != "" {
		t.Errorf("it was given %q, which nothing of its own names", got)
	}
	for _, path := range []string{"/metrics", "/readyz"} {
		if _, page := p.get(path); strings.Contains(page, planted) {
			t.Errorf("%s has the value", path)
		}
	}
	change := strings.ReplaceAll(sealed, planted, planted+"-new")
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, change)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "new value", func() bool { return tg.secret("idp/token") == planted+"-new" })
	p.stop()
	wantNowhere(t, dir, planted)
	p = start(t, dir, "--xds", p.started.XDS) // with the key that it made
	eventually(t, "Secret after a restart", func() bool {
		res, err := p.client("http", http.DefaultTransport).Get(t.Context(), &outriggerv1.GetRequest{Kind: "Secret", Name: "idp"})
		return err == nil && res.Resource.Status.GetRunning() == 1
	})
	p.stop()
}

func TestALostKeyOfSecretsIsNoticed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(dir, "secrets.key")
	p := start(t, dir)
	if _, err := p.client("http", http.DefaultTransport).Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, sealed)}); err != nil {
		t.Fatal(err)
	}
	p.stop()
	key, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if out := end(t, dir); !strings.Contains(out, "secrets.key: no such file") || !strings.Contains(out, "sealed with its keys") {
		t.Errorf("without its file: %s", out)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another key was made in its place: %v", err)
	}
	other := strings.Repeat("ab", store.SecretKeySize)
	for content, want := range map[string]string{
		other + "\n":                 "sealed with another key",
		"not hex\n":                  "line 1 is no key",
		string(key) + other[2:] + "": "line 2 is no key",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if out := end(t, dir); !strings.Contains(out, want) || strings.Contains(out, other[2:]) || strings.Contains(out, strings.TrimSpace(string(key))) {
			t.Errorf("%q: %s; want %q and no key", content, out, want)
		}
	}
	if err := os.WriteFile(file, []byte(other+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir, "--secrets-key-lost")
	c := p.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, sealed)}); err != nil {
		t.Errorf("the values, given again: %v", err)
	}
	p.stop()
	start(t, dir).stop() // without the flag, it being the store's key now
}

func TestReplicasShareTheKeysOfSecretsAndThePepper(t *testing.T) {
	etcd := startEtcd(t)
	file := filepath.Join(t.TempDir(), "secrets.key")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old, next := strings.Repeat("01", store.SecretKeySize), strings.Repeat("02", store.SecretKeySize)
	if out := end(t, t.TempDir(), "--etcd", etcd, "--secrets-key-file", file); !strings.Contains(out, "secrets.key: no such file") {
		t.Errorf("a file that is named and missing: %s", out)
	}
	write(old)
	first := start(t, filepath.Join(t.TempDir(), "first"), "--etcd", etcd, "--secrets-key-file", file)
	if out := end(t, t.TempDir(), "--etcd", etcd); !strings.Contains(out, "sealed with its keys") {
		t.Errorf("a replica without the file: %s", out)
	}
	c := first.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, sealed)}); err != nil {
		t.Fatal(err)
	}
	write(next, old) // a new one seals from now on
	second := start(t, filepath.Join(t.TempDir(), "second"), "--etcd", etcd, "--secrets-key-file", file)
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{}
	second.sidecar("demo", token.Token, tg)
	eventually(t, "secret by the second replica", func() bool { return tg.secret("idp/token") == planted })
	first.stop()
	write(next)
	first = start(t, filepath.Join(t.TempDir(), "third"), "--etcd", etcd, "--secrets-key-file", file)

	// A key of one replica is of the other: both hash with the one pepper.
	hashes := map[string]string{}
	for name, p := range map[string]*process{"a": first, "b": second} {
		made, err := p.client("http", http.DefaultTransport).CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		hash := made.Resource.Spec.Fields["hash"].GetStringValue()
		if hash == apikey.Hash(made.Key, nil) {
			t.Error("a key is hashed without a pepper")
		}
		hashes[made.Key] = hash
	}
	ring := keyRing(t, second)
	for key, hash := range hashes {
		if apikey.Hash(key, ring.Pepper) != hash {
			t.Error("a replica's key is not hashed with the pepper that sidecars have")
		}
	}
	first.stop()
	second.stop()
}

func TestWithoutAKeyAClusterTakesNoSecrets(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "data"), "--etcd", startEtcd(t))
	c := p.client("http", http.DefaultTransport)
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parsed(t, sealed)})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "--secrets-key-file") {
		t.Errorf("%v, want that a key is needed", err)
	}
	p.stop()
}

func TestInPlaintextSecretsStayOnThisHostAndKeysHaveNoPepper(t *testing.T) {
	for _, row := range []struct {
		xds       string
		plaintext bool
		want      bool
	}{
		{"127.0.0.1:7601", false, true}, {":7601", false, true}, {"127.0.0.1:7601", true, true},
		{":7601", true, false}, {"0.0.0.0:7601", true, false}, {"10.0.0.1:7601", true, false},
	} {
		if got := (&options{xds: row.xds, xdsPlaintext: row.plaintext}).deliversSecrets(); got != row.want {
			t.Errorf("--xds %s, plaintext %v: delivered %v, want %v", row.xds, row.plaintext, got, row.want)
		}
	}
	p := start(t, filepath.Join(t.TempDir(), "data"), "--xds-plaintext")
	made, err := p.client("http", http.DefaultTransport).CreateKey(t.Context(), &outriggerv1.CreateKeyRequest{Name: "nightly"})
	if err != nil || made.Resource.Spec.Fields["hash"].GetStringValue() != apikey.Hash(made.Key, nil) {
		t.Errorf("%v, %v; want the plain hash, which is what sidecars in plaintext know it by", made.GetResource(), err)
	}
	p.stop()
}

func TestAPolicyThatASidecarRefusesShowsOnIt(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "data"))
	c := p.client("http", http.DefaultTransport)
	resources := append(demo(t), parsed(t, `
kind: Policy
name: who
spec: {identity: {providers: [{name: mesh, certificate: {caFile: /nowhere.pem}}]}}
---
kind: Policy
name: rules
spec: {rules: [{action: allow}]}
---
kind: Policy
name: elsewhere
spec: {target: {bindings: [far]}, rules: [{action: allow}]}
---
kind: Binding
name: far
spec: {selector: {matchLabels: {app: far}}, upstreams: [{name: weather}]}
`)...)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: resources}); err != nil {
		t.Fatal(err)
	}
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	p.sidecar("demo", token.Token, &target{refusePolicy: "who"})
	status := func(name string) *outriggerv1.Status {
		t.Helper()
		res, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Policy", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return res.Resource.Status
	}
	eventually(t, "refusal of who", func() bool { return status("who").GetRefused() == 1 })
	if got := status("who").Sidecars[0]; got.Sidecar != "demo" || got.Reason != "no such CA file" {
		t.Errorf("who: %v, want the sidecar and its reason", got)
	}
	if got := status("rules"); got.GetRunning() != 1 || got.GetRefused() != 0 {
		t.Errorf("rules: %v, want it running", got)
	}
	if got := status("elsewhere"); got.GetRunning()+got.GetRefused()+got.GetBehind() != 0 {
		t.Errorf("a policy of another binding: %v, want that no sidecar should run it", got)
	}
	p.stop()
}

// keyRing is what a sidecar that joins is given with its certificate.
func keyRing(t *testing.T, p *process) (ring *outriggerv1.KeyRing) {
	t.Helper()
	token, err := p.client("http", http.DefaultTransport).CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = config.OpenIdentity(t.Context(), config.IdentityOptions{
		Addresses: []string{p.started.XDS}, NodeID: "ring", Token: token.Token, StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Sealing: func(r *outriggerv1.KeyRing) error { ring = r; return nil },
	})
	if err != nil || ring == nil {
		t.Fatalf("join: %v, with a ring: %v", err, ring != nil)
	}
	return ring
}

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestACallGoesThroughOnBothWires(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	s := p.joinSidecar("edge-1", p.join("--label", "app=demo"), t.TempDir(), nil)
	p.apply(both(newPeer("first").serve(t), "app: demo")...)
	for _, name := range []string{"legacy", "stateless"} {
		p.runs("Upstream", name, "edge-1 running")
		p.runs("Binding", name, "edge-1 running")
	}
	s.serves()
	for _, era := range eras {
		c := connectSDK(t, s.url+era.path, era.version, nil)
		tools, err := c.ListTools(t.Context(), nil)
		if err != nil || len(tools.Tools) != 5 {
			t.Errorf("%s: tools %+v (%v), want 5", era.name, tools, err)
		}
		wantText(t, c, "echo", input{"hello " + era.name}, "hello "+era.name)
	}
	if out := p.must("sidecars", "-o", "json"); !containsAll(out, []string{`"edge-1"`, `"app": "demo"`, `"connected": true`, `"running"`}) || strings.Contains(out, "behind") {
		t.Errorf("rigctl sidecars says %s", out)
	}
	aChangedServer(t, p, s)
	aDeletedBinding(t, p, s)
	s.stop()
	p.stop()
}

// aChangedServer checks that from the moment at which a change is reported as running, calls go where it says.
func aChangedServer(t *testing.T, p *plane, s *sidecar) {
	stateless := connectSDK(t, s.url+statelessPath, versionStateless, nil)
	client := p.client()
	for n := range 10 {
		name := fmt.Sprintf("server-%d", n)
		p.apply(httpUpstream("stateless", newPeer(name).serve(t)+statelessPath))
		eventually(t, "the change runs", func() error {
			res, err := client.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Upstream", Name: "stateless"})
			if err == nil && res.Resource.Status.GetRunning() != 1 {
				err = fmt.Errorf("status %v", res.Resource.Status)
			}
			return err
		})
		wantText(t, stateless, "name", nil, fmt.Sprintf("%s %d", name, os.Getpid()))
	}
}

func aDeletedBinding(t *testing.T, p *plane, s *sidecar) {
	if _, errs, status := p.rigctl("delete", "upstream", "legacy"); status != 1 || !strings.Contains(errs, "Binding/legacy") {
		t.Errorf("deleting an upstream in use ended with %d and said %q, want 1 and who uses it", status, errs)
	}
	p.must("delete", "binding", "legacy")
	p.must("delete", "upstream", "legacy")
	eventually(t, "the path answers 404", func() error {
		res, err := newWire(t, s.url+legacyPath, versionLegacy).post(t.Context(), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "", "")
		if err != nil {
			return err
		}
		res.Body.Close()
		return wantStatus(res, http.StatusNotFound)
	})
	_, err := p.client().Get(t.Context(), &outriggerv1.GetRequest{Kind: "Upstream", Name: "legacy"})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("the deleted upstream: %v, want not found", err)
	}
	if _, errs, status := p.rigctl("get", "upstream", "legacy"); status != 1 || !strings.Contains(errs, "legacy") {
		t.Errorf("rigctl get of it ended with %d and said %q, want 1 and its name", status, errs)
	}
	wantText(t, connectSDK(t, s.url+statelessPath, versionStateless, nil), "echo", input{"still here"}, "still here")
}

// L41: what one sidecar cannot run is said on the object itself, and everything else runs, there and elsewhere.
func TestARefusedResourceSaysSoOnItsOwnObject(t *testing.T) {
	t.Parallel()
	const others = 100
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	token := p.join("--uses", "2")
	with := p.joinSidecar("with", token, t.TempDir(), []string{"OUTRIGGER_CREDENTIAL_PEER=secret-of-peer"})
	without := p.joinSidecar("without", token, t.TempDir(), nil)
	url := newPeer("peer").serve(t) + statelessPath
	var good []string
	for i := range others {
		name := fmt.Sprintf("good-%d", i)
		good = append(good, httpUpstream(name, url), binding(name, "/"+name, name, ""))
	}
	p.apply(append(good,
		upstream("secured", fmt.Sprintf("http: {url: %q}, credential: {env: OUTRIGGER_CREDENTIAL_PEER, prefix: 'Bearer '}", url)),
		binding("secured", "/secured", "secured", ""))...)

	r := p.runs("Upstream", "secured", "with running", "without refused")
	if reason := r.Status.Sidecars[1].Reason; !containsAll(reason, []string{"OUTRIGGER_CREDENTIAL_PEER", "not set"}) {
		t.Errorf("the reason is %q, want the variable that is missing", reason)
	}
	p.runs("Binding", "secured", "with running", "without refused")
	for i := range others {
		p.runs("Binding", fmt.Sprintf("good-%d", i), "with running", "without running")
	}
	if out := p.must("get", "upstream", "secured", "-o", "wide"); !containsAll(out, []string{"without", "refused", "OUTRIGGER_CREDENTIAL_PEER"}) {
		t.Errorf("rigctl get says %s", out)
	}
	wantText(t, connectSDK(t, with.url+"/secured", versionStateless, nil), "credential", nil, "Bearer secret-of-peer")
	wantText(t, connectSDK(t, without.url+"/good-99", versionStateless, nil), "echo", input{"runs"}, "runs")
	if got := without.config().Source.Refused; len(got) != 2 || got[0].Name != "secured" || got[1].Name != "secured" {
		t.Errorf("the sidecar itself says it refused %+v, want the upstream and the binding", got)
	}
	for _, log := range []string{with.output(), without.output(), p.output()} {
		if strings.Contains(log, "secret-of-peer") {
			t.Error("the credential is in a log")
		}
	}
}

// L42: a selector that matches nothing is seen on the object, and its path is an error that ends.
func TestASelectorThatMatchesNothing(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	s := p.joinSidecar("edge-1", p.join("--label", "app=demo"), t.TempDir(), nil)
	p.apply(both(newPeer("peer").serve(t), "app: other")...)
	p.runs("Binding", "legacy")
	for _, era := range eras {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		_, err := tryConnectSDK(t, s.url+era.path, era.version, nil)
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s: connected with %v after %v, want an error at once", era.name, err, ctx.Err())
		}
		cancel()
	}
	if _, errs, status := p.rigctl("apply", "-f", writeFile(t, filepath.Join(t.TempDir(), "none.yaml"),
		"kind: Binding\nname: none\nspec: {selector: {}, upstreams: []}\n")); status != 1 || !strings.Contains(errs, "spec.upstreams") {
		t.Errorf("a binding without upstreams ended with %d and said %q, want 1 and its path", status, errs)
	}
}

func TestWhoMayJoin(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	spent, state := p.join(), t.TempDir()
	s := p.joinSidecar("edge-1", spent, state, nil)
	s.says("certificate issued")
	s.stop()
	good, err := os.ReadFile(p.join())
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimSpace(string(good)), "_")
	parts[2] = strings.Repeat("ab", len(parts[2])/2)
	expired := p.join("--ttl", "1s")
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(2100 * time.Millisecond))) // it is the time that is tested
	token := func(content string) string { return writeFile(t, filepath.Join(t.TempDir(), "token"), content) }
	for _, tc := range []struct {
		name, node, token, state string
		want                     []string
	}{
		{"another secret", "edge-2", token(strings.Join(parts, "_")), "", []string{"Unauthenticated", "unknown"}},
		{"no token at all", "edge-2", token(""), "", []string{"edge-2", "no join token"}},
		{"not a token", "edge-2", token("swordfish"), "", []string{"join token: not of the form"}},
		{"a token cut short", "edge-2", token(string(good[:len(good)-9])), "", []string{"was it cut?"}},
		{"a spent token", "edge-2", spent, "", []string{"Unauthenticated", "spent"}},
		{"an expired token", "edge-2", expired, "", []string{"Unauthenticated", "expired"}},
		{"a node id that is taken", "edge-1", token(string(good)), "", []string{"PermissionDenied", "edge-1"}},
		{"the state of another node", "edge-2", token(string(good)), state, []string{"edge-1", "edge-2", "another state directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.state == "" {
				tc.state = t.TempDir()
			}
			s := start(t, nil, "sidecar", "--listen", "127.0.0.1:0", "--admin", "", "--control-plane", p.xds,
				"--node-id", tc.node, "--join-token-file", tc.token, "--state-dir", tc.state)
			if status := s.exit(patience); status != 1 {
				t.Errorf("it ended with status %d, want 1", status)
			}
			last := s.says("sidecar stopped")
			if !containsAll(last, tc.want) {
				t.Errorf("it said %s, want %q", last, tc.want)
			}
			if strings.Contains(s.output(), parts[2]) {
				t.Error("the token's secret is in the log")
			}
		})
	}
	t.Run("a token of another control plane", func(t *testing.T) {
		other := startPlane(t, filepath.Join(t.TempDir(), "data"))
		s := other.joinSidecar("edge-3", token(string(good)), t.TempDir(), nil)
		if status := s.exit(patience); status != 1 {
			t.Errorf("it ended with status %d, want 1", status)
		}
		s.says("sidecar stopped", "does not present the authority that the join token names")
	})
	t.Run("a node id that is none", func(t *testing.T) {
		s := start(t, nil, "sidecar", "--control-plane", p.xds, "--node-id", "edge 2")
		if status := s.exit(patience); status != 2 || !strings.Contains(s.output(), "--node-id") {
			t.Errorf("it ended with status %d and said %s, want 2 and which flag", status, s.output())
		}
	})
}

func TestPlaintextNeedsBothSides(t *testing.T) {
	t.Parallel()
	sealed := startPlane(t, filepath.Join(t.TempDir(), "sealed"))
	open := startPlane(t, filepath.Join(t.TempDir(), "open"), "--xds-plaintext")
	url := newPeer("peer").serve(t)
	for _, p := range []*plane{sealed, open} {
		p.apply(both(url, "app: demo")...)
	}
	plain := []string{"--control-plane-plaintext", "--label", "app=demo"}
	only := sealed.joinSidecar("edge", sealed.join(), t.TempDir(), nil, plain...)
	only.says("no connection to the control plane")
	refused := open.joinSidecar("sealed-edge", sealed.join("--uses", "2"), t.TempDir(), nil)
	refused.says("joining: no control plane answers")
	for _, s := range []*sidecar{only, refused} {
		if got := s.config(); got.Source.Connected || got.Source.Source != "none" {
			t.Errorf("one side alone in plaintext: %+v, want nothing", got.Source)
		}
		s.stop()
	}

	s := open.joinSidecar("edge", sealed.join(), t.TempDir(), nil, plain...)
	open.runs("Binding", "stateless", "edge running")
	s.says("without TLS")
	wantText(t, connectSDK(t, s.url+statelessPath, versionStateless, nil), "echo", input{"in clear"}, "in clear")
}

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

// asProgram makes the test binary the program itself, so that tests run what users run, race detector included.
const asProgram = "CONTROLPLANE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = 30 * time.Second // for anything that should be prompt

// process is a control plane as a process.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	dir     string
	started line
	logged  chan struct{} // closed when its log ends
}

// line is the one that tells that it started.
type line struct {
	Msg   string
	API   string
	XDS   string
	Admin string
	After string
	Token string `json:"admin_token_file"`
}

// start runs a control plane on a data directory and waits for its first line.
func start(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	p := &process{t: t, dir: dir, logged: make(chan struct{})}
	args = append([]string{"--data-dir", dir, "--log-format", "json", "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--xds", "127.0.0.1:0"}, args...)
	p.cmd = exec.Command(os.Args[0], args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.logged
	})
	begun := make(chan line, 1)
	go p.read(stderr, begun)
	select {
	case p.started = <-begun:
	case <-p.logged:
		t.Fatal("the control plane ended before it started")
	case <-time.After(patience):
		t.Fatal("the control plane did not start")
	}
	return p
}

// read copies the log to the test's and passes on the line that tells of the start.
func (p *process) read(stderr io.Reader, begun chan<- line) {
	defer close(p.logged)
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.t.Log(lines.Text())
		var l line
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "control plane started" {
			begun <- l
		}
	}
}

// stop asks the process to end and checks that it does, well.
func (p *process) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	asked := time.Now()
	<-p.logged
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("ended with %v, want status 0", err)
	}
	if took := time.Since(asked); took > stopTimeout+5*time.Second {
		p.t.Errorf("took %v to stop", took)
	}
}

// client calls the management API with the token that the process made.
func (p *process) client(scheme string, base http.RoundTripper) outriggerv1connect.ResourceServiceClient {
	p.t.Helper()
	token, err := os.ReadFile(p.started.Token)
	if err != nil {
		p.t.Fatal(err)
	}
	h := &http.Client{Transport: bearer{strings.TrimSpace(string(token)), base}, Timeout: patience}
	return outriggerv1connect.NewResourceServiceClient(h, scheme+"://"+p.started.API)
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// get reads a page of the admin port.
func (p *process) get(path string) (int, string) {
	p.t.Helper()
	res, err := http.Get("http://" + p.started.Admin + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// target runs what it is given, but refuses what it is told to.
type target struct {
	refuse       string // a binding's name
	refusePolicy string // a policy's

	mu      sync.Mutex // guards below
	runs    []string
	secrets map[string]string // "NAME/KEY": value
	deleted []string          // node ids of other sidecars
}

func (tg *target) revoked(all []*outriggerv1.RevokedSidecar) {
	tg.mu.Lock()
	defer tg.mu.Unlock()
	tg.deleted = nil
	for _, r := range all {
		tg.deleted = append(tg.deleted, r.NodeId)
	}
}

func (tg *target) gone() []string {
	tg.mu.Lock()
	defer tg.mu.Unlock()
	return slices.Clone(tg.deleted)
}

func (tg *target) Check(resource.Object) error { return nil }

func (tg *target) Apply(c *config.Config) (refused []config.Refusal) {
	tg.mu.Lock()
	defer tg.mu.Unlock()
	tg.runs, tg.secrets = nil, map[string]string{}
	for _, s := range c.Secrets {
		for key, value := range s.Values {
			tg.secrets[s.Name+"/"+key] = value
		}
	}
	for _, p := range c.Policies {
		if p.Name == tg.refusePolicy {
			refused = append(refused, config.Refusal{Kind: resource.KindPolicy, Name: p.Name, Reason: "no such CA file"})
		}
	}
	for _, b := range c.Bindings {
		if b.Name == tg.refuse {
			refused = append(refused, config.Refusal{Kind: resource.KindBinding, Name: b.Name, Reason: "its path is taken here"})
		} else {
			tg.runs = append(tg.runs, b.Name)
		}
	}
	return refused
}

func (tg *target) running() []string {
	tg.mu.Lock()
	defer tg.mu.Unlock()
	return slices.Clone(tg.runs)
}

// secret is a value that it was given, as "NAME/KEY".
func (tg *target) secret(of string) string {
	tg.mu.Lock()
	defer tg.mu.Unlock()
	return tg.secrets[of]
}

// sidecar joins with a token and follows the control plane until the test ends.
func (p *process) sidecar(nodeID, token string, tg *target) *config.XDS {
	p.t.Helper()
	dir := p.t.TempDir()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	id, err := config.OpenIdentity(ctx, config.IdentityOptions{
		Addresses: []string{p.started.XDS}, NodeID: nodeID, Token: token, StateDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return p.follow(config.XDSOptions{
		NodeID: nodeID, Version: "v1.2.3", StateDir: dir, Target: tg, Revoked: tg.revoked,
		Credentials: func() credentials.TransportCredentials { return id.Credentials() },
	})
}

// follow runs a sidecar's client until the test ends, of this process unless o says of which.
func (p *process) follow(o config.XDSOptions) *config.XDS {
	p.t.Helper()
	if o.Addresses == nil {
		o.Addresses = []string{p.started.XDS}
	}
	o.Log = slog.New(slog.DiscardHandler)
	x, err := config.NewXDS(o)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.Run(ctx) // returns ctx's error
	}()
	p.t.Cleanup(func() { stop(); <-done })
	return x
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// written is a resource as an author writes it.
func written(t *testing.T, kind, name string, spec map[string]any) *outriggerv1.Resource {
	t.Helper()
	s, err := structpb.NewStruct(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &outriggerv1.Resource{Kind: kind, Name: name, Spec: s}
}

func demo(t *testing.T) []*outriggerv1.Resource {
	resources := []*outriggerv1.Resource{
		written(t, "Upstream", "weather", map[string]any{"http": map[string]any{"url": "http://127.0.0.1:9000/mcp"}}),
	}
	for _, name := range []string{"one", "two", "three"} {
		resources = append(resources, written(t, "Binding", name, map[string]any{
			"selector":  map[string]any{"matchLabels": map[string]any{"app": "demo"}},
			"path":      "/" + name,
			"upstreams": []any{map[string]any{"name": "weather"}},
		}))
	}
	return resources
}

func TestASidecarFollowsAControlPlaneOverItsRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	eventually(t, "readiness", func() bool { code, _ := p.get("/readyz"); return code == http.StatusOK })
	c := p.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: demo(t)}); err != nil {
		t.Fatal(err)
	}
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}, MaxUses: 2})
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{refuse: "two"}
	x := p.sidecar("team/demo-1", token.Token, tg)
	wantTwoRefusedAlone(t, c)
	if got := tg.running(); !slices.Equal(got, []string{"one", "three"}) {
		t.Errorf("the sidecar runs %v, want one and three", got)
	}
	if _, metrics := p.get("/metrics"); !strings.Contains(metrics, "outrigger_controlplane_connected_sidecars 1") {
		t.Error("/metrics does not show the sidecar")
	}
	root, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}

	p.stop()
	eventually(t, "loss of the control plane", func() bool { return !x.Status().Connected })
	if got := tg.running(); !slices.Equal(got, []string{"one", "three"}) {
		t.Errorf("without a control plane the sidecar runs %v, want one and three", got)
	}
	p = start(t, dir, "--xds", p.started.XDS)
	c = p.client("http", http.DefaultTransport)
	wantTwoRefusedAlone(t, c)
	if again, err := os.ReadFile(filepath.Join(dir, "ca.pem")); err != nil || string(again) != string(root) {
		t.Errorf("the authority changed over a restart (%v)", err)
	}
	second := &target{}
	p.sidecar("team/demo-2", token.Token, second)
	eventually(t, "second sidecar", func() bool { return statusOf(t, c, "two").GetRunning() == 1 })

	if _, err := c.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Binding", Name: "three"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "removal of three", func() bool {
		return slices.Equal(tg.running(), []string{"one"}) && slices.Equal(second.running(), []string{"one", "two"})
	})
	list, err := c.ListSidecars(t.Context(), &outriggerv1.ListSidecarsRequest{})
	if err != nil || len(list.Sidecars) != 2 || list.Sidecars[0].Labels["app"] != "demo" || list.Sidecars[0].Version != "v1.2.3" {
		t.Errorf("sidecars: %v (%v), want two of app demo at v1.2.3", list, err)
	}
	p.stop()
}

func TestInPlaintextASidecarIsWhoItSays(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "data"), "--xds-plaintext")
	c := p.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: demo(t)}); err != nil {
		t.Fatal(err)
	}
	tg := &target{}
	p.follow(config.XDSOptions{
		NodeID: "demo", Labels: map[string]string{"app": "demo"}, StateDir: t.TempDir(), Target: tg,
		Credentials: func() credentials.TransportCredentials { return insecure.NewCredentials() },
	})
	eventually(t, "configuration", func() bool { return slices.Equal(tg.running(), []string{"one", "three", "two"}) })
	p.stop()
}

func TestAKilledControlPlaneLosesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	c := p.client("http", http.DefaultTransport)
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: demo(t)}); err != nil {
		t.Fatal(err)
	}
	token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{}
	p.sidecar("demo", token.Token, tg)
	eventually(t, "configuration", func() bool { return len(tg.running()) == 3 })
	p.cmd.Process.Kill()
	<-p.logged
	p.cmd.Wait() // it was killed

	p = start(t, dir, "--xds", p.started.XDS)
	c = p.client("http", http.DefaultTransport)
	eventually(t, "running again", func() bool { return statusOf(t, c, "one").GetRunning() == 1 })
	p.stop()
}

// wantTwoRefusedAlone waits until the first sidecar refuses binding two, and checks that it runs the others.
func wantTwoRefusedAlone(t *testing.T, c outriggerv1connect.ResourceServiceClient) {
	t.Helper()
	eventually(t, "refusal of two", func() bool { return statusOf(t, c, "two").GetRefused() == 1 })
	if got := statusOf(t, c, "two").Sidecars[0]; got.Reason != "its path is taken here" || got.Sidecar != "team/demo-1" {
		t.Errorf("two on the sidecar: %v", got)
	}
	for _, name := range []string{"one", "three"} {
		if got := statusOf(t, c, name); got.GetRunning() != 1 || got.GetRefused()+got.GetBehind() != 0 {
			t.Errorf("%s: %v, want running on one", name, got)
		}
	}
}

// statusOf reads what became of a binding.
func statusOf(t *testing.T, c outriggerv1connect.ResourceServiceClient, binding string) *outriggerv1.Status {
	t.Helper()
	res, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Binding", Name: binding})
	if err != nil {
		t.Fatal(err)
	}
	return res.Resource.Status
}

func TestTheAPIIsServedOverTLSByTheOwnAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir, "--api-tls")
	pem, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	if _, err := p.client("https", transport).List(t.Context(), &outriggerv1.ListRequest{}); err != nil {
		t.Errorf("over TLS: %v", err)
	}
	if _, err := p.client("http", http.DefaultTransport).List(t.Context(), &outriggerv1.ListRequest{}); err == nil {
		t.Error("served in clear text too")
	}
	t.Run("to curl", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil && os.Getenv("CI") == "" {
			t.Skip("no curl")
		}
		url := "https://" + p.started.API + "/healthz"
		out, err := exec.Command("curl", "-sS", "--max-time", "10", "--cacert", filepath.Join(dir, "ca.pem"), url).CombinedOutput()
		if err != nil || string(out) != "ok\n" {
			t.Errorf("curl %s: %v, %s; want ok", url, err, out)
		}
	})
	p.stop()
}

func TestOneDataDirectoryIsOfOneProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := start(t, dir)
	second := exec.Command(os.Args[0], "--data-dir", dir, "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--xds", "127.0.0.1:0")
	second.Env = append(os.Environ(), asProgram+"=1")
	out, err := second.CombinedOutput()
	if second.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "in use by another process") {
		t.Errorf("the second ended with %v and said %q", err, out)
	}
	p.stop()
}

func TestTheAdminTokenIsNeeded(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "data"))
	anonymous := outriggerv1connect.NewResourceServiceClient(http.DefaultClient, "http://"+p.started.API)
	_, err := anonymous.List(t.Context(), &outriggerv1.ListRequest{})
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("without a token: %v, want unauthenticated", err)
	}
	info, err := os.Stat(p.started.Token)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("token file: mode %v (%v), want 0600", info.Mode(), err)
	}
	p.stop()
}

func TestAShortAdminTokenIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.token")
	first, err := adminToken(path)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := adminToken(path); err != nil || second != first {
		t.Errorf("read again as %q (%v), want %q", second, err, first)
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := adminToken(path); err == nil || !strings.Contains(err.Error(), "at least 16") {
		t.Errorf("a token of five characters: %v", err)
	}
}

func TestFlagsAreCheckedAllAtOnce(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string // parts of the error; none is no error
	}{
		{"", nil},
		{"--api :7600", []string{"--api :7600 can be reached from other hosts"}},
		{"--api 0.0.0.0:7600", []string{"can be reached from other hosts"}},
		{"--api :7600 --api-insecure", nil},
		{"--api :7600 --api-tls", nil},
		{"--api [::1]:7600", nil},
		{"--api localhost:7600", nil},
		{"--api :7600 --api-tls-cert a --api-tls-key b", nil},
		{"--api-tls --api-tls-cert a --api-tls-key b", []string{"exclude each other"}},
		{"--api-tls-cert a", []string{"--api-tls-cert and --api-tls-key"}},
		{"--xds nowhere --admin 1 --log-level loud --log-format xml --etcd-key k", []string{
			`--xds "nowhere"`, `--admin "1"`, `--log-level "loud"`, `--log-format "xml"`, "--etcd-cert and --etcd-key",
		}},
	} {
		t.Run(fmt.Sprintf("flags %q", tc.args), func(t *testing.T) {
			o := &options{}
			c := newCommand()
			c.ResetFlags()
			o.register(c.Flags())
			if err := c.ParseFlags(strings.Fields(tc.args)); err != nil {
				t.Fatal(err)
			}
			err := o.check()
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want also %q", err, want)
				}
			}
		})
	}
}

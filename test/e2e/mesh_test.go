package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

// plane is a control plane at work.
type plane struct {
	*process
	dir             string
	args            []string
	api, xds, admin string
}

// startPlane runs a control plane on a data directory, on ports of its choice, and waits until it serves.
func startPlane(t testing.TB, dir string, args ...string) *plane {
	t.Helper()
	return (&plane{dir: dir, args: args, api: "127.0.0.1:0", xds: "127.0.0.1:0", admin: "127.0.0.1:0"}).start(t)
}

// start runs it on its addresses, which are the same ones when it ran before.
func (p *plane) start(t testing.TB) *plane {
	t.Helper()
	p.process = start(t, nil, "controlplane", append([]string{"--log-format", "json", "--data-dir", p.dir,
		"--api", p.api, "--xds", p.xds, "--admin", p.admin}, p.args...)...)
	line := p.says("control plane started")
	p.api, p.xds, p.admin = p.field(line, "api"), p.field(line, "xds"), p.field(line, "admin")
	return p
}

// rigctl runs the command line against the control plane.
func (p *plane) rigctl(args ...string) (stdout, stderr string, status int) {
	p.t.Helper()
	return command(p.t, []string{"RIGCTL_SERVER=http://" + p.api, "RIGCTL_TOKEN_FILE=" + filepath.Join(p.dir, "admin.token")},
		"rigctl", args...)
}

// must runs rigctl, which has to succeed.
func (p *plane) must(args ...string) string {
	p.t.Helper()
	out, errs, status := p.rigctl(args...)
	if status != 0 {
		p.t.Fatalf("rigctl %q ended with %d: %s", args, status, errs)
	}
	return out
}

// apply stores resources.
func (p *plane) apply(resources ...string) {
	p.t.Helper()
	p.must("apply", "-f", writeFile(p.t, filepath.Join(p.t.TempDir(), "resources.yaml"), strings.Join(resources, "---\n")))
}

// join makes a token, in a file.
func (p *plane) join(args ...string) (file string) {
	p.t.Helper()
	return writeFile(p.t, filepath.Join(p.t.TempDir(), "join.token"), p.must(append([]string{"token", "create"}, args...)...))
}

// adminToken is the secret of the management API.
func (p *plane) adminToken() string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "admin.token"))
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// client calls the management API.
func (p *plane) client(options ...connect.ClientOption) outriggerv1connect.ResourceServiceClient {
	p.t.Helper()
	return outriggerv1connect.NewResourceServiceClient(httpClient(p.t, p.adminToken()), "http://"+p.api, options...)
}

// httpClient has connections of its own, which end with the test, and sends a bearer token if there is one.
func httpClient(t testing.TB, token string) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: bearer{token, transport}}
}

type bearer struct {
	token string
	next  *http.Transport
}

func (b bearer) CloseIdleConnections() { b.next.CloseIdleConnections() }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// runs waits until a resource is in these states on its sidecars, each as "sidecar state".
func (p *plane) runs(kind, name string, want ...string) *outriggerv1.Resource {
	p.t.Helper()
	client := p.client()
	var r *outriggerv1.Resource
	eventually(p.t, kind+"/"+name, func() error {
		res, err := client.Get(p.t.Context(), &outriggerv1.GetRequest{Kind: kind, Name: name})
		if err != nil {
			return err
		}
		r = res.Resource
		var got []string
		for _, s := range r.Status.GetSidecars() {
			got = append(got, s.Sidecar+" "+strings.ToLower(strings.TrimPrefix(s.State.String(), "STATE_")))
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			return fmt.Errorf("status %v, want %q", r.Status, want)
		}
		return nil
	})
	return r
}

// sidecar is a sidecar at work.
type sidecar struct {
	*process
	url   string // of MCP, without a path
	admin string
}

// startSidecar runs a sidecar on ports of its choice and waits until it listens.
func startSidecar(t testing.TB, env []string, args ...string) *sidecar {
	t.Helper()
	s := &sidecar{admin: freeAddress(t)}
	s.process = start(t, env, "sidecar", append([]string{"--listen", "127.0.0.1:0", "--admin", s.admin}, args...)...)
	s.url = "http://" + s.field(s.says("sidecar started"), "mcp")
	return s
}

// joinSidecar runs a sidecar of a control plane.
func (p *plane) joinSidecar(node, tokenFile, stateDir string, env []string, args ...string) *sidecar {
	p.t.Helper()
	return startSidecar(p.t, env, append([]string{"--control-plane", p.xds, "--node-id", node,
		"--join-token-file", tokenFile, "--state-dir", stateDir}, args...)...)
}

// fileSidecar runs a sidecar of a file.
func fileSidecar(t testing.TB, args []string, resources ...string) (s *sidecar, file string) {
	t.Helper()
	file = writeFile(t, filepath.Join(t.TempDir(), "sidecar.yaml"), strings.Join(resources, "---\n"))
	s = startSidecar(t, nil, append([]string{"--config", file, "--access-log=false"}, args...)...)
	s.says("configuration applied")
	return s, file
}

// get reads a page of an admin port.
func get(t testing.TB, address, path string) (status int, body string, err error) {
	t.Helper()
	c := httpClient(t, "")
	c.Timeout = patience
	defer c.CloseIdleConnections()
	res, err := c.Get("http://" + address + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// running is a sidecar's own word on what runs.
type running struct {
	Source struct {
		Source, Generation string
		Connected          bool
		Confirmed          time.Time
		Refused            []struct{ Kind, Name, Reason string }
	}
	Running struct {
		Generation string
		Resources  []struct{ Kind, Name string }
	}
}

func (s *sidecar) config() (r running) {
	s.t.Helper()
	status, body, err := get(s.t, s.admin, "/config")
	if err == nil {
		err = json.Unmarshal([]byte(body), &r)
	}
	if err != nil || status != http.StatusOK {
		s.t.Fatalf("/config: %d %s (%v)", status, body, err)
	}
	return r
}

// serves waits until the sidecar is ready.
func (s *sidecar) serves() {
	s.t.Helper()
	eventually(s.t, "the sidecar is ready", func() error {
		status, body, err := get(s.t, s.admin, "/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
}

// upstream is a resource of a server; spec is in YAML's flow form, without braces.
func upstream(name, spec string) string {
	return fmt.Sprintf("kind: Upstream\nname: %s\nspec: {%s}\n", name, spec)
}

// httpUpstream is a server at a URL.
func httpUpstream(name, url string) string {
	return upstream(name, fmt.Sprintf("http: {url: %q}", url))
}

// binding exposes a server at a path on the sidecars with a label, or on all if it is empty.
func binding(name, path, upstream, label string) string {
	return fmt.Sprintf("kind: Binding\nname: %s\nspec: {path: %s, selector: {matchLabels: {%s}}, upstreams: [{name: %s}]}\n",
		name, path, label, upstream)
}

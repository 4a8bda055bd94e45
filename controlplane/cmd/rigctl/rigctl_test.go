package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outrigger-mesh/outrigger/controlplane/api"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// binary is rigctl as users run it.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rigctl")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "rigctl")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build rigctl: %v\n%s", err, out))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		os.RemoveAll(dir)
		os.Exit(status)
	}))
}

// fleet has one sidecar, which refuses bindings and runs the rest.
type fleet struct{}

const reason = "credential file weather.key: no such file"

func (fleet) Status(kind, name string) *outriggerv1.Status {
	state := &outriggerv1.SidecarResourceState{Sidecar: "pod-1", State: outriggerv1.State_STATE_RUNNING, Since: timestamppb.Now()}
	s := &outriggerv1.Status{Running: 1, Sidecars: []*outriggerv1.SidecarResourceState{state}}
	if kind == "Binding" {
		s.Running, s.Refused = 0, 1
		state.State, state.Reason = outriggerv1.State_STATE_REFUSED, reason
	}
	return s
}

func (fleet) Revision() int64 { return math.MaxInt64 }

func (fleet) Revoke(string) {}

func (fleet) Sidecars() []*outriggerv1.Sidecar {
	return []*outriggerv1.Sidecar{{
		Id: "pod-1", Connected: true, Version: "v1", Since: timestamppb.Now(), RunningGeneration: "a", DesiredGeneration: "b",
		Resources: []*outriggerv1.SidecarResource{{Kind: "Binding", Name: "demo", State: outriggerv1.State_STATE_REFUSED, Reason: reason}},
	}}
}

type authority struct{}

func (authority) Create(_ context.Context, labels map[string]string, ttl time.Duration, uses int32) (string, time.Time, error) {
	return fmt.Sprintf("token-%s-%v-%d", labels["app"], ttl, uses), time.Unix(1e9, 0), nil
}

func (authority) Pepper(context.Context) ([]byte, error) { return []byte("pepper"), nil }

// Revoke knows one sidecar.
func (authority) Revoke(_ context.Context, nodeID string) (bool, error) {
	return nodeID == "pod-1", nil
}

func newAPI(t *testing.T) *api.API {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	secrets, err := store.NewSecrets([][]byte{make([]byte, store.SecretKeySize)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := api.New(s, fleet{}, authority{}, api.Options{Token: "secret", Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// rig is a control plane's API and a directory with files for rigctl.
type rig struct {
	t   *testing.T
	dir string
	env []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := newAPI(t).Server("")
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	r := &rig{t: t, dir: t.TempDir()}
	r.write("token", "secret\n")
	r.env = []string{"RIGCTL_SERVER=http://" + l.Addr().String(), "RIGCTL_TOKEN_FILE=token"}
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// command is rigctl with arguments, in the rig's directory.
func (r *rig) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, binary, args...)
	c.Dir = r.dir
	c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, r.env...)
	return c
}

// try runs rigctl and returns its exit status and outputs.
func (r *rig) try(stdin string, args ...string) (status int, stdout, stderr string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	c := r.command(ctx, args...)
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatalf("rigctl %v: %v", args, err)
	}
	return c.ProcessState.ExitCode(), out.String(), errs.String()
}

// run is try for what must succeed.
func (r *rig) run(stdin string, args ...string) string {
	r.t.Helper()
	status, stdout, stderr := r.try(stdin, args...)
	if status != 0 {
		r.t.Fatalf("rigctl %v: exit %d\n%s%s", args, status, stdout, stderr)
	}
	return stdout
}

// guarded is who may call what, with a value that nobody is shown.
const guarded = `kind: Secret
name: idp
spec: {values: {token: s3cret-planted}}
---
kind: Tenant
name: acme
spec: {selectors: [{groups: [acme]}]}
---
kind: Policy
name: who
spec:
  identity:
    anonymous: true
    providers: [{name: keys, keys: {}}, {name: idp, jwt: {issuer: "https://idp.example", audiences: [x], clockSkew: 1m}}]
---
kind: Policy
name: rules
spec:
  rules:
    - {name: staff, action: allow, tools: ["get_*"], groups: [staff]}
    - {name: acme, action: allow, tools: [put], tenants: [acme], scopes: [write]}
    - {name: srv, action: allow, tools: [read_file], when: 'args.path.startsWith("/srv/")'}
    - {name: safe, action: allow, hints: {readOnly: true}}
    - {name: never, action: deny, tools: ["*secret*"]}
---
kind: Policy
name: trial
spec: {auditOnly: true, rules: [{name: no-srv, action: deny, tools: [read_file]}]}
`

const (
	upstream = `kind: Upstream
name: weather
labels: {team: sky}
spec:
  http: {url: "http://127.0.0.1:1/mcp"}
`
	binding = `kind: Binding
name: demo
spec:
  selector: {matchLabels: {app: weather}}
  upstreams: [{name: weather}]
  limits: {maxBodyBytes: 100000000}
`
)

// fields splits a table into rows of its columns.
func fields(table string) [][]string {
	var rows [][]string
	for line := range strings.Lines(table) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

func TestAResourcesLife(t *testing.T) {
	r := newRig(t)
	r.write("conf/upstream.yaml", upstream)
	r.write("conf/binding.yml", binding)
	r.write("conf/README.md", "not a resource")

	if out := r.run("", "apply", "-f", "conf", "--dry-run"); !strings.Contains(out, "Binding/demo valid, not stored") {
		t.Errorf("dry run: %s", out)
	}
	if out := r.run("", "get"); len(fields(out)) != 1 {
		t.Errorf("after a dry run:\n%s", out)
	}
	if out := r.run("", "apply", "-f", "conf"); !strings.Contains(out, "Upstream/weather applied, revision ") {
		t.Errorf("apply: %s", out)
	}
	rows := fields(r.run("", "get", "BINDINGS"))
	if len(rows) != 2 || strings.Join(rows[0], " ") != "KIND NAME REVISION RUNNING REFUSED BEHIND" ||
		rows[1][1] != "demo" || strings.Join(rows[1][3:], " ") != "0 1 0" {
		t.Errorf("table of bindings: %v", rows)
	}
	if out := r.run("", "get", "binding", "demo", "-o", "wide"); !strings.Contains(out, "pod-1") || !strings.Contains(out, reason) {
		t.Errorf("no sidecar with its reason in:\n%s", out)
	}
	if rows := fields(r.run("", "get", "-l", "team=sky")); len(rows) != 2 || rows[1][1] != "weather" {
		t.Errorf("resources with a label: %v", rows)
	}
	if out := r.run("", "sidecars", "-o", "wide"); !strings.Contains(out, reason) {
		t.Errorf("no reason in:\n%s", out)
	}
	if out := r.run("", "sidecars"); !strings.Contains(out, "pod-1") || !strings.Contains(out, "partial") {
		t.Errorf("sidecars:\n%s", out)
	}
	if out := r.run("", "delete", "sidecar", "pod-1"); out != "Sidecar/pod-1 deleted\n" {
		t.Errorf("delete of a sidecar: %s", out)
	}
	status, _, stderr := r.try("", "delete", "upstream", "weather")
	if status != 1 || !strings.Contains(stderr, "Upstream/weather is named by Binding/demo") {
		t.Errorf("delete of what is named: exit %d, %s", status, stderr)
	}
	if out := r.run("", "delete", "-f", "conf"); out != "Binding/demo deleted\nUpstream/weather deleted\n" {
		t.Errorf("delete of both: %s", out)
	}
}

func TestWhatGetWritesCanBeApplied(t *testing.T) {
	r := newRig(t)
	r.run(upstream+"---\n"+binding+"---\n"+guarded, "apply", "-f", "-")
	r.run("", "create", "key", "nightly", "--tenant", "acme", "--label", "team=sky", "--ttl", "1h")
	before := r.run("", "get", "-o", "yaml")
	if strings.Contains(before, "e+0") {
		t.Errorf("whole numbers written as fractions:\n%s", before)
	}
	for _, args := range [][]string{
		{"get", "-o", "yaml"}, {"get", "-o", "json"}, {"get", "secrets", "-o", "yaml"}, {"get", "upstream", "weather", "-o", "yaml"}, {"get", "binding", "demo", "-o", "json"},
	} {
		out := r.run("", args...)
		r.run(out, "apply", "-f", "-")
		if after := r.run("", "get", "-o", "yaml"); after != before {
			t.Errorf("%v | apply changed\n%s\nto\n%s", args, before, after)
		}
	}
	all := r.run("", "get", "upstreams", "-o", "yaml") + "---\n" + r.run("", "get", "bindings", "-o", "yaml")
	r.run("", "delete", "binding", "demo")
	r.run("", "delete", "upstream", "weather")
	status, _, stderr := r.try(all, "apply", "-f", "-")
	if status != 1 || !strings.Contains(stderr, "it does not exist") {
		t.Errorf("apply at the revision of what is gone: exit %d, %s; want a conflict", status, stderr)
	}
}

func TestEveryMistakeIsOnItsLineWithFileAndDocument(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", strings.Replace(upstream, "http://127", "ftp://127", 1))
	r.write("b.yaml", strings.Replace(binding, "weather}]", "nothing}]", 1)+"  colour: red\n")
	for _, command := range []string{"apply", "validate"} {
		status, _, stderr := r.try("", command, "-f", "a.yaml", "-f", "b.yaml")
		for _, want := range []string{"\n  a.yaml: Upstream/weather: spec.http.url: ", "\n  b.yaml: Binding/demo: spec.colour: "} {
			if status != 1 || !strings.Contains(stderr, want) {
				t.Errorf("%s: exit %d, no line %q in:\n%s", command, status, want, stderr)
			}
		}
	}
	r.write("b.yaml", strings.Replace(binding, "weather}]", "nothing}]", 1))
	for _, command := range []string{"apply", "validate"} {
		status, _, stderr := r.try("", command, "-f", "b.yaml")
		if want := "b.yaml: Binding/demo: spec.upstreams[0].name: "; status != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, no %q in:\n%s", command, status, want, stderr)
		}
	}
	r.write("a.yaml", upstream)
	r.write("b.yaml", binding)
	if out := r.run("", "validate", "-f", "a.yaml", "-f", "b.yaml"); out != "2 resources are valid\n" {
		t.Errorf("validate: %s", out)
	}
}

func TestCertificatesAreChecked(t *testing.T) {
	r := newRig(t)
	srv := httptest.NewTLSServer(newAPI(t).Handler())
	t.Cleanup(srv.Close)
	r.env[0] = "RIGCTL_SERVER=" + srv.URL
	r.write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	r.run(upstream, "apply", "-f", "-", "--ca-file", "ca.pem")
	status, _, stderr := r.try("", "get")
	if status != 3 || !strings.Contains(stderr, "certificate") {
		t.Errorf("without --ca-file: exit %d, %s; want 3 and why", status, stderr)
	}
}

func TestExitStatuses(t *testing.T) {
	r := newRig(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r.write("good.yaml", upstream)
	r.write("empty.yaml", "")
	r.write("broken.yaml", "kind: [")
	r.write("wrong", "not the token")
	r.write("none", "kind: Upstream\nname: demo\n")
	for name, row := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"not found":         {[]string{"get", "binding", "x"}, 1, "Binding/x does not exist"},
		"no such sidecar":   {[]string{"delete", "sidecar", "pod-2"}, 1, "Sidecar/pod-2 does not exist"},
		"delete of what":    {[]string{"delete", "gadget", "x"}, 2, "Policy, Sidecar"},
		"wrong token":       {[]string{"get", "--token-file", "wrong"}, 1, "--token-file"},
		"broken YAML":       {[]string{"apply", "-f", "broken.yaml"}, 1, "broken.yaml"},
		"no command":        {[]string{"frobnicate"}, 2, "unknown command"},
		"unknown flag":      {[]string{"get", "--colour"}, 2, "--colour"},
		"no file flag":      {[]string{"apply"}, 2, "filename"},
		"missing file":      {[]string{"apply", "-f", "missing.yaml"}, 2, "missing.yaml"},
		"empty file":        {[]string{"apply", "-f", "empty.yaml"}, 2, "no resources"},
		"unknown kind":      {[]string{"get", "gadgets"}, 2, "Upstream, Binding, Tenant"},
		"unknown format":    {[]string{"get", "-o", "xml"}, 2, "table, wide, yaml, json"},
		"delete nothing":    {[]string{"delete"}, 2, "kind and a name"},
		"delete both ways":  {[]string{"delete", "binding", "x", "-f", "good.yaml"}, 2, "kind and a name"},
		"no token in it":    {[]string{"get", "--token-file", "none"}, 2, "holds no token"},
		"no token file":     {[]string{"get", "--token-file", "missing"}, 2, "missing"},
		"no URL":            {[]string{"get", "--server", "example"}, 2, "URL"},
		"bad label":         {[]string{"token", "create", "--label", "app"}, 2, "KEY=VALUE"},
		"no uses":           {[]string{"token", "create", "--uses", "0"}, 2, "--uses"},
		"watch as yaml":     {[]string{"watch", "-o", "yaml"}, 2, "yaml"},
		"key without name":  {[]string{"create", "key"}, 2, "arg"},
		"key for when":      {[]string{"create", "key", "k", "--ttl", "1h", "--expires", "2027-01-31T12:00:00Z"}, 2, "only one of --ttl and --expires"},
		"key till what":     {[]string{"create", "key", "k", "--expires", "tomorrow"}, 2, "2027-01-31T12:00:00Z"},
		"key of the past":   {[]string{"create", "key", "k", "--ttl", "-1h"}, 2, "over already"},
		"key of nobody":     {[]string{"create", "key", "k", "--tenant", "none"}, 1, `spec.tenant: no Tenant is named "none"`},
		"explain nothing":   {[]string{"explain", "--binding", "demo"}, 2, "--call, --prompt, --read or --method"},
		"explain nowhere":   {[]string{"explain", "--call", "x"}, 2, "binding"},
		"explain elsewhere": {[]string{"explain", "--binding", "demo", "--call", "x"}, 1, "Binding/demo does not exist"},
		"explain whom":      {[]string{"explain", "--binding", "demo", "--call", "x", "--as", "jo"}, 2, "ISSUER|SUBJECT"},
		"explain what":      {[]string{"explain", "--binding", "demo", "--call", "x", "--args", "[1]"}, 2, "--args is not a JSON object"},
		"explain twice":     {[]string{"explain", "--binding", "demo", "--call", "x", "--args", `{"a":1,"a":2}`}, 2, "--args is not a JSON object"},
		"explain hints":     {[]string{"explain", "--binding", "demo", "--call", "x", "--hint", "readonly=true"}, 2, "readOnly, destructive"},
		"bad CA file":       {[]string{"get", "--ca-file", "good.yaml"}, 2, "PEM"},
		"clear text":        {[]string{"get", "--server", "http://192.0.2.1:7600"}, 2, "--insecure"},
		"clear text, name":  {[]string{"watch", "--server", "http://localhost.example"}, 2, "--insecure"},
		"nobody there":      {[]string{"get", "--server", "http://127.0.0.1:1"}, 3, "http://127.0.0.1:1"},
		"no answer":         {[]string{"get", "--server", "http://" + silent.Addr().String(), "--timeout", "100ms"}, 3, "deadline"},
		"no answer, stream": {[]string{"watch", "--server", "http://" + silent.Addr().String(), "--timeout", "100ms"}, 3, "timeout"},
	} {
		status, stdout, stderr := r.try("", row.args...)
		if status != row.status || !strings.Contains(stderr, row.want) || stdout != "" {
			t.Errorf("%s: rigctl %v: exit %d\n%s%s; want exit %d and %q on standard error",
				name, row.args, status, stdout, stderr, row.status, row.want)
		}
	}
}

func TestATokenIsAloneOnStandardOutput(t *testing.T) {
	r := newRig(t)
	if out := r.run("", "token", "create", "--label", "app=weather", "--ttl", "2h", "--uses", "3"); out != "token-weather-2h0m0s-3\n" {
		t.Errorf("standard output %q, want the token", out)
	}
	var made struct{ Token, Expires string }
	out := r.run("", "token", "create", "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Token != "token--1h0m0s-1" || made.Expires != "2001-09-09T01:46:40Z" {
		t.Errorf("%s (%v), want the token and its end", out, err)
	}
	r.env[1] = "RIGCTL_TOKEN=secret"
	r.run("", "sidecars", "-o", "json")
}

func TestAWatchShowsChangesUntilInterrupted(t *testing.T) {
	r := newRig(t)
	r.run(upstream+"---\n"+binding, "apply", "-f", "-")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := r.command(ctx, "watch", "bindings", "-o", "json")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("watch wrote %q (%v), want %s …", lines.Text(), lines.Err(), want)
		}
	}
	expect(`{"change":"put","resource":{"kind":"Binding","name":"demo"`)
	r.run("", "delete", "binding", "demo")
	expect(`{"change":"deleted","resource":{"kind":"Binding","name":"demo"`)
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("watch after an interrupt: %v, want exit 0", err)
	}
}

func TestTheTokenIsSentInClearTextOnlyWhenAskedTo(t *testing.T) {
	for name, row := range map[string]struct {
		o    options
		sent bool
	}{
		"loopback":         {options{server: "http://127.0.0.2:7600"}, true},
		"IPv6":             {options{server: "http://[::1]:7600"}, true},
		"localhost":        {options{server: "http://LocalHost:7600"}, true},
		"https":            {options{server: "https://control.example"}, true},
		"other host":       {options{server: "http://control.example"}, false},
		"any address":      {options{server: "http://0.0.0.0:7600"}, false},
		"asked to":         {options{server: "http://control.example", insecure: true}, true},
		"userinfo is none": {options{server: "http://127.0.0.1@control.example"}, false},
	} {
		t.Setenv("RIGCTL_TOKEN", "secret")
		if _, err := row.o.client(); (err == nil) != row.sent {
			t.Errorf("%s: %s: %v, want it sent: %v", name, row.o.server, err, row.sent)
		}
		t.Setenv("RIGCTL_TOKEN", "")
		if _, err := row.o.client(); err != nil {
			t.Errorf("%s: without a token: %v", name, err)
		}
	}
}

func TestTheTokenDoesNotFollowARedirect(t *testing.T) {
	asked := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
	}))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	r := newRig(t)
	if status, _, stderr := r.try("", "get", "--server", first.URL); status == 0 {
		t.Errorf("a redirect was taken for an answer: %s", stderr)
	}
	select {
	case got := <-asked:
		t.Errorf("the other server was asked with Authorization %q", got)
	default:
	}
}

func TestAGenerationIsPartialOnlyWhenRefusalsExplainIt(t *testing.T) {
	running, refused, behind := outriggerv1.State_STATE_RUNNING, outriggerv1.State_STATE_REFUSED, outriggerv1.State_STATE_BEHIND
	for _, row := range []struct {
		runs   string
		states []outriggerv1.State
		want   string
	}{
		{"b", []outriggerv1.State{running}, "current"},
		{"a", []outriggerv1.State{running, refused}, "partial"},
		{"a", []outriggerv1.State{refused, behind}, "behind"},
		{"a", []outriggerv1.State{running}, "behind"},
		{"", nil, "behind"},
	} {
		s := &outriggerv1.Sidecar{RunningGeneration: row.runs, DesiredGeneration: "b"}
		for _, state := range row.states {
			s.Resources = append(s.Resources, &outriggerv1.SidecarResource{State: state})
		}
		if got := sidecarRows([]*outriggerv1.Sidecar{s})[1][4]; got != row.want {
			t.Errorf("running %q of b with %v: %s, want %s", row.runs, row.states, got, row.want)
		}
	}
}

func TestTheVersionIsToldInOneLine(t *testing.T) {
	if out := newRig(t).run("", "--version"); !strings.HasPrefix(out, "rigctl version ") || strings.Count(out, "\n") != 1 {
		t.Errorf("--version: %q", out)
	}
}

func TestEveryCommandWritesWhatProgramsRead(t *testing.T) {
	r := newRig(t)
	r.write("all.yaml", upstream+"---\n"+binding)
	for _, command := range []string{
		"validate -f all.yaml", "apply -f all.yaml --dry-run", "apply -f all.yaml", "get", "get binding demo",
		"sidecars", "token create", "explain --binding demo --call x", "delete sidecar pod-1", "delete -f all.yaml",
	} {
		args := strings.Fields(command)
		var fromJSON, fromYAML map[string]any
		out := r.run("", append(args, "-o", "json")...)
		if err := json.Unmarshal([]byte(out), &fromJSON); err != nil || len(fromJSON) == 0 {
			t.Errorf("%s -o json: %v in\n%s", command, err, out)
		}
		if args[0] == "delete" && args[1] == "-f" {
			r.run("", "apply", "-f", "all.yaml") // to delete it again
		}
		out = r.run("", append(args, "-o", "yaml")...)
		if err := yaml.Unmarshal([]byte(out), &fromYAML); err != nil || len(fromYAML) == 0 {
			t.Errorf("%s -o yaml: %v in\n%s", command, err, out)
		}
	}
}

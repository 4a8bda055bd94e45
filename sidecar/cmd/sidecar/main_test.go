package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
)

// asSidecar makes the test binary be the command instead.
const asSidecar = "SIDECAR_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asSidecar) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestFlagsAreCheckedTogether(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--config a.yaml", ""},
		{"--control-plane a:1,b:1", ""},
		{"--version", ""},
		{"", "exactly one of --config and --control-plane"},
		{"--config a --control-plane b:1", "exactly one of --config and --control-plane"},
		{"--config a --tls-cert c", "--tls-cert and --tls-key go together"},
		{"--config a --tls-client-ca c", "--tls-client-ca needs --tls-cert"},
		{"--config a --log-format xml", "--log-format is json or text"},
		{"--config a --log-level loud", "log-level"},
		{"--config a --label x", "want key=value"},
		{"--config a --label =x", "want key=value"},
		{"--config a --label x=a&b", `"a&b" is not a label's value`},
		{"--config a --drain-timeout -1s", "--drain-timeout is -1s"},
		{"--control-plane a", "--control-plane: address a: missing port in address, expected host:port"},
		{"--control-plane a:1 --node-id a&b", `--node-id is "a&b"`},
		{"--control-plane a:1 --node-id=", `--node-id is ""`},
		{"--config a b", `unexpected argument "b"`},
		{"--no-such-flag", "no-such-flag"},
	} {
		_, err := parseFlags(strings.Fields(tt.args), io.Discard)
		if got := fmt.Sprint(err); (tt.want == "") != (err == nil) || !strings.Contains(got, tt.want) {
			t.Errorf("%q: %v, want %q", tt.args, err, tt.want)
		}
	}
	o, err := parseFlags([]string{"--control-plane", "a:1,b:1", "--label", "x=1", "--label", "y=a"}, io.Discard)
	if err != nil || len(o.controlPlanes) != 2 || o.labels["x"] != "1" || o.labels["y"] != "a" {
		t.Errorf("%+v, %v", o, err)
	}
}

// command is the sidecar as a process.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, self, args...)
	c.Env = append(os.Environ(), asSidecar+"=1", "GORACE=atexit_sleep_ms=0")
	return c
}

func TestExitStatusTellsWrongUsageFromFailure(t *testing.T) {
	missing, wrong := filepath.Join(t.TempDir(), "missing.yaml"), filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("kind: Upstream\nname: A\nspec: {era: modern, http: {url: 'http://h'}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, tt := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--version"}, 0, "sidecar "},
		{[]string{"--help"}, 0, "-drain-timeout"},
		{[]string{"--no-such-flag"}, 2, "-no-such-flag\nsidecar --help lists the flags\n"},
		{[]string{"--log-format", "xml"}, 2, "exactly one of"},
		{[]string{"--config", missing, "--listen", "127.0.0.1:0", "--admin", ""}, 1, "missing.yaml"},
		{[]string{"--config", missing, "--listen", busy.Addr().String(), "--admin", ""}, 1, "--listen"},
		{[]string{"--config", missing, "--tls-cert", missing, "--tls-key", missing}, 1, "--tls-cert"},
		{[]string{"--config", wrong, "--listen", "127.0.0.1:0", "--admin", ""}, 1, "the configuration file has 2 mistakes"},
		{[]string{"--control-plane", "127.0.0.1:1", "--join-token-file", missing}, 1, "--join-token-file"},
	} {
		c := command(t, tt.args...)
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := c.ProcessState.ExitCode(); got != tt.status || !strings.Contains(string(out), tt.says) {
			t.Errorf("%v: status %d, %s; want %d and %q", tt.args, got, out, tt.status, tt.says)
		}
		for _, never := range []string{"help requested", "sidecar started", "draining", `\n`} {
			if strings.Contains(string(out), never) {
				t.Errorf("%v: %s; want no %q", tt.args, out, never)
			}
		}
	}
}

func TestDurationsAreLoggedAsText(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		newLogger(&options{logFormat: format}, &out).Info("m", "wait", 25*time.Second)
		if !strings.Contains(out.String(), "25s") {
			t.Errorf("%s: %s, want 25s", format, out.String())
		}
	}
}

// savedState is a state directory whose configuration is good, and which has no certificate.
func savedState(t *testing.T) string {
	t.Helper()
	body, err := proto.Marshal(&outriggerv1.SavedConfig{
		Manifest: &outriggerv1.Manifest{Name: "n", Generation: "g"}, SavedUnix: time.Now().Unix(),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir, sum := t.TempDir(), sha256.Sum256(body)
	if err := os.WriteFile(filepath.Join(dir, "g.pb"), append(sum[:], body...), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhatWasOnDiskGoesOnWithoutAnIdentity(t *testing.T) {
	log := &logged{}
	c := command(t, "--control-plane", "127.0.0.1:1", "--node-id", "n", "--state-dir", savedState(t), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	c.Env, c.Stderr = append(c.Env, "OUTRIGGER_JOIN_TOKEN="), log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	log.wait(t, regexp.MustCompile("no identity: the last good configuration goes on"))
	admin := log.wait(t, regexp.MustCompile(`"admin":"([^"]+)"`))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + admin + "/config")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); !strings.Contains(string(body), `"source": "disk"`) {
		t.Errorf("/config: %s, %v", body, err)
	}
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.wait(t, regexp.MustCompile("credentials are read again"))
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("exit: %v, want status 0; log:\n%s", err, log)
	}
}

// logged is a log that is read while written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var started = regexp.MustCompile(`"mcp":"([^"]+)"`)

// wait returns what the pattern's group matches, once it does.
func (l *logged) wait(t *testing.T, pattern *regexp.Regexp) string {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); time.Now().Before(late); time.Sleep(time.Millisecond) {
		if m := pattern.FindStringSubmatch(l.String()); m != nil {
			return m[len(m)-1]
		}
	}
	t.Fatalf("the log never had %v:\n%s", pattern, l)
	return ""
}

// slow answers each call when the test says so.
func slow(t *testing.T) (url string, begun chan struct{}, release chan struct{}) {
	begun, release = make(chan struct{}, 8), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"slow":true}}`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, begun, release
}

const document = `
kind: Upstream
name: up
spec:
  http: {url: %q}
  era: stateless
---
kind: Binding
name: main
spec:
  selector: {}
  path: %s
  upstreams: [{name: up}]
`

func writeConfig(t *testing.T, path, url, at string) {
	t.Helper()
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, document, url, at), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func call(client *http.Client, url string) (status int, body string) {
	const text = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	r, _ := http.NewRequest("POST", url, strings.NewReader(text))
	r.Header = http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"x"}, "Content-Type": {"application/json"}}
	res, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

func TestWithoutAnIdentityAnotherJoinIsTried(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("none yet"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := parseFlags([]string{"--control-plane", "127.0.0.1:1", "--node-id", "n", "--state-dir", savedState(t), "--join-token-file", token}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	out := &logged{}
	log := slog.New(slog.NewTextHandler(out, nil))
	c, err := newControlPlane(o, proxy.New(proxy.Options{Log: log}), prometheus.NewRegistry(), log)
	if err != nil {
		t.Fatal(err)
	}
	c.rejoinAfter = 10 * time.Millisecond
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	out.wait(t, regexp.MustCompile("no identity.*rig1_"))
	if err := os.WriteFile(token, []byte("rig1_00_00_"+strings.Repeat("00", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	out.wait(t, regexp.MustCompile("joining: no control plane answers"))
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

func TestAStoppedSidecarFinishesItsCalls(t *testing.T) {
	url, begun, release := slow(t)
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	writeConfig(t, path, url, "/mcp")
	o, err := parseFlags([]string{"--config", path, "--listen", "127.0.0.1:0", "--admin", "", "--access-log=false"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log := &logged{}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- run(ctx, o, slog.New(slog.NewJSONHandler(log, nil))) }()
	addr := log.wait(t, started)
	log.wait(t, regexp.MustCompile("configuration applied"))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answer := make(chan string, 1)
	go func() {
		status, body := call(client, "http://"+addr+"/mcp")
		answer <- fmt.Sprint(status, " ", body)
	}()
	<-begun
	stop()
	log.wait(t, regexp.MustCompile("draining"))
	close(release)
	if got := <-answer; !strings.Contains(got, `200 {"jsonrpc":"2.0","id":1,"result":{"slow":true}}`) {
		t.Errorf("the call in flight: %s", got)
	}
	if err := <-stopped; err != nil {
		t.Errorf("run: %v, want nil", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("the port is still open")
	}
}

func TestSIGHUPReadsTheFileAgainAndSIGTERMExitsWith0(t *testing.T) {
	url, _, release := slow(t)
	close(release)
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	writeConfig(t, path, url, "/mcp")
	log := &logged{}
	c := command(t, "--config", path, "--listen", "127.0.0.1:0", "--admin", "", "--access-log=false")
	c.Stderr = log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	addr := log.wait(t, started)
	log.wait(t, regexp.MustCompile("configuration applied"))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	if status, body := call(client, "http://"+addr+"/mcp"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if n := strings.Count(log.String(), "configuration applied"); n != 1 {
		t.Errorf("configuration applied %d times, want once:\n%s", n, log)
	}
	writeConfig(t, path, url, "/moved")
	if err := c.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	log.wait(t, regexp.MustCompile(`(?s)configuration applied.*configuration applied`))
	if status, body := call(client, "http://"+addr+"/moved"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("exit: %v, want status 0; log:\n%s", err, log)
	}
}

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() Options {
	return Options{
		Gatherer: prometheus.NewRegistry(),
		Ready:    func(context.Context) []error { return nil },
		Running:  func() *config.Config { return &config.Config{} },
		Source:   func() any { return nil },
	}
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func TestHealthIsTheProcesssOwn(t *testing.T) {
	o := options()
	o.Ready = func(context.Context) []error { return []error{errors.New("no")} }
	if w := get(Handler(o), "/healthz"); w.Code != 200 {
		t.Errorf("%d, want 200 whatever the servers do", w.Code)
	}
	w := httptest.NewRecorder()
	Handler(o).ServeHTTP(w, httptest.NewRequest("POST", "/healthz", nil))
	if w.Code != 405 {
		t.Errorf("POST: %d, want 405", w.Code)
	}
}

func TestReadinessSaysWhyNot(t *testing.T) {
	o := options()
	if w := get(Handler(o), "/readyz"); w.Code != 200 || !strings.Contains(w.Body.String(), `"ready": true`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	o.Ready = func(context.Context) []error {
		return []error{errors.New("no configuration yet"), errors.New("upstream is away")}
	}
	w := get(Handler(o), "/readyz")
	var got struct {
		Ready    bool
		Problems []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 503 || got.Ready || len(got.Problems) != 2 {
		t.Errorf("%d %s, %v; want 503 and both problems", w.Code, w.Body, err)
	}
}

// L12
func TestAHangingServerIsNotReadyInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		o.Ready = func(ctx context.Context) []error { <-ctx.Done(); return []error{errors.New("it never answers")} }
		begun := time.Now()
		if w := get(Handler(o), "/readyz"); w.Code != 503 || time.Since(begun) != readyTimeout {
			t.Errorf("%d after %v, want 503 after %v", w.Code, time.Since(begun), readyTimeout)
		}
	})
}

func TestAStormOfProbesIsOneCheck(t *testing.T) {
	var checks atomic.Int32
	release := make(chan struct{})
	o := options()
	o.Ready = func(context.Context) []error { checks.Add(1); <-release; return nil }
	h := Handler(o)
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			if w := get(h, "/readyz"); w.Code != 200 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	close(release)
	wait.Wait()
	if n := checks.Load(); n != 1 {
		t.Errorf("%d checks, want 1", n)
	}
}

func TestAVerdictIsFreshForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		o := options()
		o.Ready = func(context.Context) []error { checks++; return nil }
		h := Handler(o)
		for range 5 {
			get(h, "/readyz")
		}
		time.Sleep(readyFresh)
		get(h, "/readyz")
		if checks != 2 {
			t.Errorf("%d checks, want 2", checks)
		}
	})
}

// Dashboards and alerts read these names: see package telemetry.
func TestMetricsHaveTheirNamesAndLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := telemetry.NewMetrics(reg, "v1")
	b := m.Binding("main")
	b.Observe(mcp.Stateless, "tools/call", telemetry.OK, 70*time.Microsecond)
	b.Refusal("host_refused")
	b.Sessions.Set(3)
	b.Streams[0].Inc()
	o := options()
	o.Gatherer = reg
	text := get(Handler(o), "/metrics").Body.String()
	for _, want := range []string{
		`outrigger_call_duration_seconds_bucket{binding="main",era="stateless",method="tools/call",outcome="ok",le="5e-05"} 0`,
		`outrigger_call_duration_seconds_bucket{binding="main",era="stateless",method="tools/call",outcome="ok",le="0.0001"} 1`,
		`outrigger_refusals_total{binding="main",reason="host_refused"} 1`,
		`outrigger_sessions{binding="main"} 3`,
		`outrigger_open_streams{binding="main",era="legacy"} 1`,
		`outrigger_build_info{version="v1"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

func TestTheDumpShowsWhatRunsWithoutWhatIsSecret(t *testing.T) {
	const secret = "planted-secret"
	running := &config.Config{Generation: "g1",
		Upstreams: []*outriggerv1.Upstream{
			{Name: "web", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: "https://user:" + secret + "@x.example/mcp?key=" + secret}},
				Credential: &outriggerv1.Credential{Source: &outriggerv1.Credential_Env{Env: "OUTRIGGER_CREDENTIAL_X"}}},
			{Name: "broken", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: "http://user:" + secret + "@[bad"}}},
			{Name: "process", Transport: &outriggerv1.Upstream_Stdio{Stdio: &outriggerv1.StdioTransport{
				Command: []string{"server"}, Env: map[string]string{"TOKEN": secret}}}},
		},
		Bindings: []*outriggerv1.Binding{{Name: "main", Path: "/mcp", Selector: &outriggerv1.Selector{}}},
		Policies: []*outriggerv1.Policy{{Name: "rules", Rules: []*outriggerv1.Rule{{Action: outriggerv1.Action_ACTION_ALLOW}}}},
		Tenants:  []*outriggerv1.Tenant{{Name: "acme"}},
		Keys:     []*outriggerv1.Key{{Name: "ci", Hash: "00"}},
		Secrets:  []*outriggerv1.Secret{{Name: "vault", Values: map[string]string{"password": secret}}},
	}
	o := options()
	o.Running = func() *config.Config { return running }
	o.Source = func() any { return map[string]string{"file": "sidecar.yaml"} }
	w := get(Handler(o), "/config")
	body := w.Body.String()
	if strings.Contains(body, secret) {
		t.Errorf("the secret is shown:\n%s", body)
	}
	for _, want := range []string{`"g1"`, `"web"`, `"OUTRIGGER_CREDENTIAL_X"`, `"TOKEN": "***"`, `"sidecar.yaml"`, `"kind": "Binding"`, "user",
		`"rules"`, `"acme"`, `"ci"`, `"vault"`, `"password": ""`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in\n%s", want, body)
		}
	}
	if got := running.Secrets[0].GetValues()["password"]; got != secret {
		t.Errorf("the running Secret was changed: %q", got)
	}
	if got := running.Upstreams[2].GetStdio().Env["TOKEN"]; got != secret {
		t.Errorf("the running configuration was changed: %q", got)
	}
}

func TestProfilesAreServedOnlyWhenAsked(t *testing.T) {
	o := options()
	if w := get(Handler(o), "/debug/pprof/"); w.Code != 404 {
		t.Errorf("%d, want 404", w.Code)
	}
	o.Profiling = true
	srv := httptest.NewServer(Handler(o))
	defer srv.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	res, err := client.Get(srv.URL + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || !strings.Contains(string(body), "goroutine profile") {
		t.Errorf("%d %.100s", res.StatusCode, body)
	}
}

func TestArgumentsThatMayBeSecretAreMasked(t *testing.T) {
	got := maskedCommand([]string{"/bin/server", "--root", "/data", "--api-key", "abc", "--Token=xyz", "PASSWORD=1", "-v"})
	want := []string{"/bin/server", "--root", "/data", "--api-key", "***", "--Token=***", "PASSWORD=***", "-v"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheAdminPortIsNoWebPagesOnLoopback(t *testing.T) {
	s := httptest.NewServer(guarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer s.Close()
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"127.0.0.1:15020", "", 200}, {"localhost", "", 200}, {"LOCALHOST:1", "", 200}, {"[::1]:15020", "", 200},
		{"evil.example", "", 403}, {"localhost.evil.example:15020", "", 403}, {"localhost", "http://evil.example", 403},
	} {
		r, err := http.NewRequest(http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("Host %q, Origin %q: %d, want %d", c.host, c.origin, res.StatusCode, c.status)
		}
	}
}

func TestABodyThatNeverComesHoldsNoAnswer(t *testing.T) {
	s := httptest.NewServer(guarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * bodyTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("got %q, %v; want an answer and the end of the connection", answer, err)
	}
}

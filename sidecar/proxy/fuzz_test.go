package proxy

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// inMemory is a proxy whose server is in memory, called as a handler.
func inMemory(t testing.TB, f *fake, change ...func(*bindingSpec)) *Proxy {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p := New(Options{Log: log, Metrics: telemetry.NewMetrics(prometheus.NewRegistry(), "test"), Dial: func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error) {
		return f, nil
	}})
	p.Apply(&config.Config{Generation: "1", Upstreams: []*outriggerv1.Upstream{{Name: "up"}}, Bindings: []*bindingSpec{binding(change...)}})
	t.Cleanup(func() { p.Close(testContext(t)) })
	return p
}

// onceWriter counts the status lines.
type onceWriter struct {
	*httptest.ResponseRecorder
	heads int
}

func (w *onceWriter) WriteHeader(status int) { w.heads++; w.ResponseRecorder.WriteHeader(status) }

// FuzzServe sends strangers' requests: there is one answer to each, and an error is one of JSON-RPC.
func FuzzServe(f *testing.F) {
	call := modernCall("1", "echo", `{"text":"a"}`)
	f.Add("POST", "", "", "", initialize, false)
	f.Add("POST", "2026-07-28", "tools/call", "echo", call, false)
	f.Add("POST", "2026-07-28", "tools/call", "=?base64?ZWNobw==?=", call, false)
	f.Add("POST", "2025-11-25", "", "", toolCall(`"7"`, "echo", "{}"), true)
	f.Add("POST", "2025-03-26", "", "", "["+toolCall("1", "echo", "{}")+","+initialized+"]", true)
	f.Add("POST", "", "", "", initialized, true)
	f.Add("POST", "", "", "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, true)
	f.Add("POST", "", "", "", `{"jsonrpc":"2.0","id":1,"result":{}}`, true)
	f.Add("GET", "", "", "1_0", "", true)
	f.Add("DELETE", "", "", "", "", false)
	f.Add("OPTIONS", "x", "y", "z", "{", false)
	f.Fuzz(func(t *testing.T, verb, version, method, name, body string, session bool) {
		req, err := http.NewRequest("POST", "/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Method, req.Host = verb, "localhost"
		for k, v := range map[string]string{mcp.HeaderVersion: version, mcp.HeaderMethod: method, mcp.HeaderName: name, mcp.HeaderLastEventID: name} {
			if v != "" {
				req.Header[k] = []string{v}
			}
		}
		p := inMemory(t, &fake{})
		if session {
			w := httptest.NewRecorder()
			first := httptest.NewRequest("POST", "/mcp", strings.NewReader(strings.Replace(initialize, "2025-11-25", "2025-03-26", 1)))
			first.Host = "localhost"
			p.ServeHTTP(w, first)
			req.Header[mcp.HeaderSessionID] = []string{w.Header().Get(mcp.HeaderSessionID)}
		}
		w := &onceWriter{ResponseRecorder: httptest.NewRecorder()}
		p.ServeHTTP(w, req)
		if w.heads != 1 {
			t.Errorf("%d status lines", w.heads)
		}
		checkAnswer(t, verb, w)
	})
}

func checkAnswer(t *testing.T, verb string, w *onceWriter) {
	t.Helper()
	body := w.Body.Bytes()
	switch w.Code {
	case http.StatusAccepted, http.StatusNoContent:
		if len(body) > 0 {
			t.Errorf("%d with a body %q", w.Code, body)
		}
		return
	}
	if w.Header().Get("Content-Type") == "text/event-stream" {
		for _, e := range parseEvents(string(body)) {
			if !json.Valid([]byte(e.data)) {
				t.Errorf("an event that is not JSON: %q", e.data)
			}
		}
		return
	}
	if verb == http.MethodHead && len(body) == 0 {
		return
	}
	var m struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  json.RawMessage `json:"result"`
		Error   *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &m); err != nil || m.Version != "2.0" || (m.Error == nil) == (m.Result == nil) {
		t.Fatalf("%d %q is no JSON-RPC answer: %v", w.Code, body, err)
	}
	if m.Error != nil && (m.Error.Code == 0 || m.Error.Message == "") || m.Error == nil && w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, body)
	}
	if string(m.ID) == "null" || w.Code >= 500 {
		t.Errorf("%d %s: an id null, or a fault of ours", w.Code, body)
	}
}

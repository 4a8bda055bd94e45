package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// script is a server of one era by hand, whose answers are, to the byte, what a test wrote.
type script struct {
	version      string
	capabilities string // JSON
	url          string
	answers      map[string]func(q *scripted) string // by method: the member result or error of a response

	mu  sync.Mutex // guards below
	got []string   // requests that answers has, as they came
}

// scripted is a request to a script.
type scripted struct {
	ID     json.RawMessage
	Method string
	Params struct{ Name, URI, TaskID string }
	raw    string
}

// always is an answer to whatever is asked.
func always(response string) func(*scripted) string {
	return func(*scripted) string { return response }
}

// serve runs the script within the test.
func (s *script) serve(t testing.TB) *script {
	server := httptest.NewServer(s)
	s.url = server.URL
	t.Cleanup(server.Close)
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	q := &scripted{raw: string(body)}
	if err == nil {
		err = json.Unmarshal(body, q)
	}
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case q.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	case q.Method == "initialize" && s.version != versionStateless:
		w.Header().Set("Mcp-Session-Id", "session")
	}
	status, response := s.answer(q, r.Header.Get("Mcp-Name"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, q.ID, response)
}

func (s *script) answer(q *scripted, header string) (status int, response string) {
	answer := s.answers[q.Method]
	switch {
	case q.Method == "initialize" && s.version != versionStateless:
		return http.StatusOK, fmt.Sprintf(`"result":{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":"script","version":"1"}}`, s.version, s.capabilities)
	case q.Method == "server/discover" && s.version == versionStateless:
		return http.StatusOK, fmt.Sprintf(`"result":{"resultType":"complete","supportedVersions":[%q],"capabilities":%s,"ttlMs":60000,"cacheScope":"public"}`, s.version, s.capabilities)
	case answer == nil:
		return http.StatusOK, `"error":{"code":-32601,"message":"method not found"}`
	}
	if name := q.Params.Name + q.Params.URI + q.Params.TaskID; s.version == versionStateless && header != name {
		return http.StatusBadRequest, fmt.Sprintf(`"error":{"code":-32020,"message":"Mcp-Name is not %s"}`, name)
	}
	s.mu.Lock()
	s.got = append(s.got, q.raw)
	s.mu.Unlock()
	return http.StatusOK, answer(q)
}

// heardOf is how many requests have come that contain all the words.
func (s *script) heardOf(words ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, raw := range s.got {
		if containsAll(raw, words) {
			n++
		}
	}
	return n
}

// result is what a response says, to the byte.
func (a *answered) result(t testing.TB) string {
	t.Helper()
	var r struct{ Result json.RawMessage }
	if err := json.Unmarshal([]byte(a.raw), &r); err != nil || r.Result == nil {
		t.Fatalf("the answer is %v (%v), want a result", a, err)
	}
	return string(r.Result)
}

// asks makes a request whose answer is there to be looked at, whatever it is.
func (a *asker) asks(t testing.TB, method, name, params string) *answered {
	t.Helper()
	r, err := a.send(within(t), "1", method, name, params)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// raw makes a request by hand and returns the answer as it came. params are JSON without braces and _meta.
func (w *wire) raw(t testing.TB, method, name, params string) string {
	t.Helper()
	if params != "" {
		params += ","
	}
	res, err := w.post(within(t), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, params, meta), method, name)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

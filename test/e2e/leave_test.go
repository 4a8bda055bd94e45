package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// silent is a server of both eras, at a path each, whose calls say nothing until they are released. A call of the tool
// "stream" has begun an event stream by then, one of "hold" has not answered at all.
type silent struct {
	release chan struct{}

	mu     sync.Mutex // guards below
	notes  []string   // what clients notify of, besides notifications/initialized
	begun  []*silentCall
	opened int // sessions
}

// silentCall is a call that arrived.
type silentCall struct {
	era  string
	gone chan time.Time // capacity 1: when its connection ended before its answer
	done chan error     // capacity 1: how answering it went
}

func (s *silent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name, ProtocolVersion string }
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed) // neither streams nor ends of sessions
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch m.Method {
	case "initialize":
		s.mu.Lock()
		s.opened++
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", s.opened))
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"silent","version":"1"}}}`, m.ID, m.Params.ProtocolVersion)
	case "tools/call":
		s.call(w, r, m.ID, m.Params.Name)
	default:
		if m.Method != "notifications/initialized" {
			s.mu.Lock()
			s.notes = append(s.notes, m.Method)
			s.mu.Unlock()
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

// call holds a call until its release or its end, whichever is first.
func (s *silent) call(w http.ResponseWriter, r *http.Request, id json.RawMessage, tool string) {
	c := &silentCall{era: strings.TrimPrefix(r.URL.Path, "/"), gone: make(chan time.Time, 1), done: make(chan error, 1)}
	flush := http.NewResponseController(w).Flush
	if tool == "stream" {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"p\",\"progress\":1}}\n\n")
		_ = flush() // its failure is the client's leaving, which the context tells
	}
	s.mu.Lock()
	s.begun = append(s.begun, c)
	s.mu.Unlock()
	select {
	case <-r.Context().Done():
		c.gone <- time.Now()
		return
	case <-s.release:
	}
	result := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"late"}]}}`, id)
	if tool == "stream" {
		result = "data: " + result + "\n\n"
	} else {
		w.Header().Set("Content-Type", "application/json")
	}
	_, err := io.WriteString(w, result)
	if err == nil {
		err = flush()
	}
	if err == nil {
		err = r.Context().Err()
	}
	c.done <- err
}

// calls are those that have begun, of an era.
func (s *silent) calls(era string) (of []*silentCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.begun {
		if c.era == era {
			of = append(of, c)
		}
	}
	return of
}

// callAndWait sends a call on a connection of its own. When the call's answer is a stream it waits for the first event.
func callAndWait(ctx context.Context, w *wire, tool string) (*net.TCPConn, error) {
	address, path, _ := strings.Cut(strings.TrimPrefix(w.url, "http://"), "/")
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{},%s}}`, tool, meta)
	head := "Mcp-Method: tools/call\r\nMcp-Name: " + tool + "\r\n"
	if w.version != versionStateless {
		body = strings.Replace(body, meta, `"_meta":{"progressToken":"p"}`, 1)
		head = "Mcp-Session-Id: " + w.session + "\r\n"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	nc := conn.(*net.TCPConn)
	_ = nc.SetDeadline(time.Now().Add(patience))
	_, err = fmt.Fprintf(nc, "POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"Mcp-Protocol-Version: %s\r\n%sContent-Length: %d\r\n\r\n%s", path, address, w.version, head, len(body), body)
	if err != nil || tool != "stream" {
		return nc, err
	}
	for lines := bufio.NewReader(nc); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nc, fmt.Errorf("waiting for the first event: %w", err)
		}
		if strings.HasPrefix(line, "data: {") {
			return nc, nil
		}
	}
}

// leave goes away in one of the ways that clients do.
func leave(nc *net.TCPConn, way int) {
	if way%2 == 1 {
		_ = nc.SetLinger(0) // a reset, as of a process that was killed with bytes unread
	}
	_ = nc.Close()
}

// Whose leaving cancels a call (docs/architecture.md, "Whose clock"): a stateless client's does, a legacy one's does not.
func TestThreeHundredClientsLeaveSilentCallsAtOnce(t *testing.T) {
	for _, form := range []struct{ name, tool string }{{"begun as event streams", "stream"}, {"not answered yet", "hold"}} {
		t.Run(form.name, func(t *testing.T) { leaveAtOnce(t, form.tool) })
	}
}

func leaveAtOnce(t *testing.T, tool string) {
	const clients, least = 300, time.Second
	server := &silent{release: make(chan struct{})}
	behind := httptest.NewServer(server)
	t.Cleanup(behind.Close)
	release := sync.OnceFunc(func() { close(server.release) })
	t.Cleanup(release)
	s, _ := fileSidecar(t, nil,
		upstream("legacy", fmt.Sprintf("era: legacy, http: {url: %q}", behind.URL+legacyPath)), binding("legacy", legacyPath, "legacy", ""),
		upstream("stateless", fmt.Sprintf("era: stateless, http: {url: %q}", behind.URL+statelessPath)), binding("stateless", statelessPath, "stateless", ""))
	conns := connectAll(t, s.url, tool, clients)
	eventually(t, "every call is at the server", func() error {
		if l, m := len(server.calls("legacy")), len(server.calls("stateless")); l != clients/2 || m != clients/2 {
			return fmt.Errorf("%d legacy and %d stateless, want %d each", l, m, clients/2)
		}
		return nil
	})

	left := time.Now()
	for i, nc := range conns {
		leave(nc, i/2)
	}
	wantCancelled(t, server.calls("stateless"), left)
	<-time.After(time.Until(left.Add(least))) // legacy ones would be cancelled by now, if they were
	release()
	wantAnswered(t, server.calls("legacy"))
	server.mu.Lock()
	defer server.mu.Unlock()
	if len(server.notes) > 0 {
		t.Errorf("the server was notified of %q, want nothing", server.notes)
	}
}

// wantCancelled checks that all calls are cancelled soon.
func wantCancelled(t *testing.T, calls []*silentCall, left time.Time) {
	t.Helper()
	var last time.Duration
	late := 0
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, c := range calls {
		select {
		case at := <-c.gone:
			last = max(last, at.Sub(left))
		case <-ctx.Done():
			late++
		}
	}
	if late > 0 {
		t.Errorf("%d of %d stateless calls were not cancelled within %v", late, len(calls), time.Since(left))
	}
	t.Logf("the last of the others was cancelled after %v", last)
}

// wantAnswered checks that no call was cancelled and that each can be answered, now that all are released.
func wantAnswered(t *testing.T, calls []*silentCall) {
	t.Helper()
	for i, c := range calls {
		select {
		case <-c.gone:
			t.Fatalf("legacy call %d was cancelled by its client's leaving", i)
		case err := <-c.done:
			if err != nil {
				t.Errorf("answering legacy call %d: %v", i, err)
			}
		case <-time.After(patience):
			t.Fatalf("legacy call %d did not end", i)
		}
	}
}

// connectAll makes clients of both eras, in turn, each with a call under way.
func connectAll(t *testing.T, url, tool string, clients int) []*net.TCPConn {
	t.Helper()
	ctx, transport := within(t), httpClient(t, "").Transport
	conns, errs := make([]*net.TCPConn, clients), make([]error, clients)
	var wait sync.WaitGroup
	for i := range conns {
		wait.Go(func() {
			w := &wire{http: &http.Client{Transport: transport}, url: url + eras[i%2].path, version: eras[i%2].version}
			if errs[i] = w.initialize(ctx); errs[i] == nil {
				conns[i], errs[i] = callAndWait(ctx, w, tool)
			}
		})
	}
	wait.Wait()
	for i, err := range errs {
		if conns[i] != nil {
			t.Cleanup(func() { conns[i].Close() })
		}
		if err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	return conns
}

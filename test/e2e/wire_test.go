package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// wire is a client that speaks one era by hand, so that a test sees every answer as it came.
type wire struct {
	http    *http.Client
	url     string
	version string
	session string // legacy only
	able    string // likewise: its capabilities, in JSON; empty for none
}

// reply is a JSON-RPC response and the HTTP status that it came with.
type reply struct {
	Status int             `json:"-"`
	ID     json.RawMessage `json:"id"`
	Result *struct {
		Content []struct{ Text string }
	} `json:"result"`
	Error *struct {
		Code    int
		Message string
		Data    struct{ Source, Reason string }
	} `json:"error"`
}

// text is a tool's.
func (r *reply) text() string {
	if r.Result == nil || len(r.Result.Content) == 0 {
		return ""
	}
	return r.Result.Content[0].Text
}

func newWire(t testing.TB, url, version string) *wire {
	return &wire{http: httpClient(t, ""), url: url, version: version}
}

// dialWire makes a client; a legacy one initializes.
func dialWire(t testing.TB, url, version string) *wire {
	t.Helper()
	return dialWireOver(t, httpClient(t, "").Transport, url, version)
}

// dialWireOver makes a client with connections that others may share.
func dialWireOver(t testing.TB, transport http.RoundTripper, url, version string) *wire {
	t.Helper()
	w := &wire{http: &http.Client{Transport: transport}, url: url, version: version}
	if err := w.initialize(within(t)); err != nil {
		t.Fatal(err)
	}
	return w
}

// initialize opens a session, where the era has them.
func (w *wire) initialize(ctx context.Context) error {
	if w.version == versionStateless {
		return nil
	}
	w.session = ""
	res, err := w.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":"open","method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"e2e","version":"1"}}}`, w.version, cmp.Or(w.able, "{}")), "initialize", "")
	if err != nil {
		return err
	}
	session := res.Header.Get("Mcp-Session-Id")
	if r, err := w.read(res, `"open"`, nil); err != nil || r.Error != nil || session == "" {
		return fmt.Errorf("initialize: %d %+v (%v)", res.StatusCode, r, err)
	}
	w.session = session
	res, err = w.post(ctx, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "notifications/initialized", "")
	if err != nil {
		return err
	}
	return errors.Join(res.Body.Close(), wantStatus(res, http.StatusAccepted))
}

func wantStatus(res *http.Response, want int) error {
	if res.StatusCode != want {
		return fmt.Errorf("status %d, want %d", res.StatusCode, want)
	}
	return nil
}

// meta is what a stateless request says of itself.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"e2e","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},"progressToken":"p"}`

// call calls a tool. event, if not nil, gets each message but the response.
func (w *wire) call(ctx context.Context, id, tool, text string, event func(string)) (*reply, error) {
	res, err := w.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{"text":%q},%s}}`, id, tool, text, meta), "tools/call", tool)
	if err != nil {
		return nil, err
	}
	return w.read(res, id, event)
}

// post sends a message.
func (w *wire) post(ctx context.Context, body, method, name string) (*http.Response, error) {
	if w.version != versionStateless { // whose wire has no such header
		body = strings.Replace(body, meta, `"_meta":{"progressToken":"p"}`, 1)
		method, name = "", ""
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for header, value := range map[string]string{
		"Mcp-Protocol-Version": w.version, "Mcp-Session-Id": w.session, "Mcp-Method": method, "Mcp-Name": name,
	} {
		if value != "" {
			r.Header.Set(header, value)
		}
	}
	return w.http.Do(r)
}

// read takes an answer in, of JSON or of events, and checks that it is one to the request with an id.
func (w *wire) read(res *http.Response, id string, event func(string)) (*reply, error) {
	defer res.Body.Close()
	r := &reply{Status: res.StatusCode}
	var last []byte
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err := events(res.Body, func(data string) {
			var m struct{ Method string }
			if last = []byte(data); event != nil && json.Unmarshal(last, &m) == nil && m.Method != "" {
				event(data)
			}
		})
		if err != nil {
			return r, err
		}
	} else {
		var err error
		if last, err = io.ReadAll(res.Body); err != nil {
			return r, err
		}
	}
	if err := json.Unmarshal(last, r); err != nil {
		return r, fmt.Errorf("%d %q: %w", res.StatusCode, last, err)
	}
	if string(r.ID) != id || (r.Result == nil) == (r.Error == nil) {
		return r, fmt.Errorf("%d %s: want a response to %s", res.StatusCode, last, id)
	}
	return r, nil
}

// events reads a stream of events to its orderly end.
func events(from io.Reader, each func(data string)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(data)) > 0 {
			each(string(bytes.TrimSpace(data)))
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// load is clients that call without pause, until it is stopped.
type load struct {
	t       testing.TB
	stopped chan struct{}
	clients sync.WaitGroup
	done    atomic.Int64 // calls that went well

	mu     sync.Mutex // guards below
	failed []error
}

// errDone ends a client of a load.
var errDone = errors.New("done")

// underLoad starts clients. call is client's n-th.
func underLoad(t testing.TB, clients int, call func(ctx context.Context, client, n int) error) *load {
	l := &load{t: t, stopped: make(chan struct{})}
	for client := range clients {
		l.clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-l.stopped:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := call(ctx, client, n)
				cancel()
				switch {
				case err == nil:
					l.done.Add(1)
					continue
				case errors.Is(err, errDone):
					return
				}
				l.mu.Lock()
				l.failed = append(l.failed, fmt.Errorf("client %d, call %d: %w", client, n, err))
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

// more waits until that many more calls went well.
func (l *load) more(n int64) {
	l.t.Helper()
	want := l.done.Load() + n
	eventually(l.t, fmt.Sprintf("%d more calls", n), func() error {
		if got := l.done.Load(); got < want {
			return fmt.Errorf("%d of %d, and failures %v", got, want, l.failures())
		}
		return nil
	})
}

// stop ends the load once its calls have ended.
func (l *load) stop() {
	select {
	case <-l.stopped:
	default:
		close(l.stopped)
	}
	l.clients.Wait()
}

func (l *load) failures() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]error(nil), l.failed...)
}

// wireLoad makes clients of both eras in turn call echo, each with a text of its own, and checks what they get.
func wireLoad(t testing.TB, url string, clients int) *load {
	wires := make([]*wire, clients)
	for i := range wires {
		era := eras[i%len(eras)]
		wires[i] = dialWire(t, url+era.path, era.version)
	}
	return underLoad(t, clients, func(ctx context.Context, client, n int) error {
		text := fmt.Sprintf("client %d call %d", client, n)
		r, err := wires[client].call(ctx, fmt.Sprint(n), "echo", text, nil)
		switch {
		case err != nil:
			return err
		case r.Error != nil:
			return fmt.Errorf("%d %+v", r.Status, *r.Error)
		case r.text() != text:
			return fmt.Errorf("another's answer: %q, want %q", r.text(), text)
		}
		return nil
	})
}

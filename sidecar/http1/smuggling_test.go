package http1

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
)

// request is what a server made of some of the bytes: where it begins and ends, and what it asks for.
type request struct{ method, target, body string }

func (r request) String() string {
	if len(r.body) > 200 {
		return fmt.Sprintf("%s %s %d bytes", r.method, shorten(r.target), len(r.body))
	}
	return fmt.Sprintf("%s %s %q", r.method, shorten(r.target), r.body)
}

func shorten(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%s... of %d bytes", s[:20], len(s))
	}
	return s
}

// recorder is a handler that notes the requests that arrived whole, by the client's address. It answers 200 without a
// body, and 400 when a body's end was not to be found.
type recorder struct {
	mu   sync.Mutex // guards below
	seen map[string][]request
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Length", "0")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	target := r.RequestURI
	if r.URL.Host != "" && r.Method != http.MethodConnect {
		target = r.URL.RequestURI() // a proxy passes it on so
	}
	client := r.RemoteAddr
	if through := r.Header.Get(clientHeader); through != "" {
		client = through
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.seen[client] = append(rec.seen[client], request{strings.Clone(r.Method), strings.Clone(target), string(body)})
}

func newRecorder() *recorder { return &recorder{seen: map[string][]request{}} }

// clientHeader is how nginx tells the client's address. A client cannot: nginx sets it anew.
const clientHeader = "X-Smuggling-Client"

// take returns what came from a client.
func (rec *recorder) take(client string) []request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	defer delete(rec.seen, client)
	return rec.seen[client]
}

// outcome is what a server made of a connection's bytes.
type outcome struct {
	requests []request
	answers  []string // status of each, "100" included; "reset" for a connection that was
	closing  bool     // an answer said that it is the last
}

var (
	answerLine = regexp.MustCompile(`(?m)^HTTP/1\.[01] (\d{3})`)
	closeLine  = regexp.MustCompile(`(?mi)^connection: close\r$`)
)

// lines is what of an outcome the corpus holds.
func (o outcome) lines() (lines []string) {
	for _, r := range o.requests {
		lines = append(lines, r.String())
	}
	for _, a := range o.answers {
		if a >= "400" && a != "reset" {
			lines = append(lines, a)
		}
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing")
	}
	return lines
}

// refused reports whether the server said, or showed, that it takes no more of what was sent.
func (o outcome) refused() bool {
	return o.closing || slices.ContainsFunc(o.answers, func(a string) bool { return a >= "400" })
}

// target is a server under comparison.
type target struct {
	name string
	addr string
	seen *recorder
}

// feed sends raw on one connection, ends the client's side, and waits for the server's end.
func (s target) feed(t testing.TB, raw []byte) outcome {
	t.Helper()
	return s.feedBy(t, raw, func(nc *net.TCPConn) { _, _ = nc.Write(raw) }) // a server may refuse before it has all
}

// feedBy is feed with a way to send.
func (s target) feedBy(t testing.TB, raw []byte, send func(*net.TCPConn)) (o outcome) {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	nc := conn.(*net.TCPConn)
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(nc)
		_ = nc.CloseWrite()
	}()
	got, err := io.ReadAll(nc)
	nc.Close()
	<-sent
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("%s did not end the connection within %v of %.500q; it sent %.500q", s.name, patience, raw, got)
	}
	for _, m := range answerLine.FindAllSubmatch(got, -1) {
		o.answers = append(o.answers, string(m[1]))
	}
	if err != nil {
		o.answers = append(o.answers, "reset")
	}
	o.closing = closeLine.Match(got)
	o.requests = s.seen.take(nc.LocalAddr().String())
	return o
}

// disagreement says what a has seen otherwise than b although neither refused it, "" for nothing.
func disagreement(a, b outcome) string {
	both := min(len(a.requests), len(b.requests))
	for i := range both {
		if a.requests[i] != b.requests[i] {
			return fmt.Sprintf("request %d is another", i)
		}
	}
	if len(a.requests) > both && !b.refused() || len(b.requests) > both && !a.refused() {
		return fmt.Sprintf("%d requests and %d, and who saw fewer refused none", len(a.requests), len(b.requests))
	}
	return ""
}

// sidecarStack serves as the sidecar does without TLS.
func sidecarStack(tb testing.TB) target {
	rec := newRecorder()
	l := listen(tb)
	run(tb, l, New(rec, proxy.NewServer(rec, nil, quiet()), Options{Log: quiet()}))
	return target{"the sidecar", l.Addr().String(), rec}
}

// standardStack serves by net/http alone, as it comes.
func standardStack(tb testing.TB) target {
	rec := newRecorder()
	l := listen(tb)
	s := standard(rec)
	s.DisableGeneralOptionsHandler = true
	run(tb, l, s)
	return target{"net/http", l.Addr().String(), rec}
}

const nginxConf = `daemon off; worker_processes 1;
pid DIR/pid; error_log DIR/log;
events {}
http {
    access_log off;
    client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi;
    uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
    large_client_header_buffers 4 64k;
    client_body_buffer_size 1m;
    proxy_http_version 1.1;
    proxy_ignore_client_abort on;
    proxy_set_header CLIENT $remote_addr:$remote_port;
    server {
        listen LISTEN;
        location / { proxy_pass http://UPSTREAM; }
    }
}
`

// nginxStack is nginx with little but its defaults, in front of net/http. Where CI runs there must be one.
func nginxStack(t *testing.T) target {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no nginx to compare with")
		}
		t.Skip("there is no nginx to compare with")
	}
	behind := standardStack(t)
	l := listen(t)
	dir := t.TempDir()
	conf := strings.NewReplacer("DIR", dir, "CLIENT", clientHeader, "LISTEN", l.Addr().String(), "UPSTREAM", behind.addr).Replace(nginxConf)
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	c := exec.Command(program, "-c", filepath.Join(dir, "conf"), "-e", filepath.Join(dir, "log"))
	c.Env = append(os.Environ(), "NGINX=3;") // it takes the socket over, as at an upgrade of its own
	c.ExtraFiles = []*os.File{socket}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM) // which ends its worker too
		late := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
		defer late.Stop()
		_ = c.Wait() // its status says nothing
		if log, err := os.ReadFile(filepath.Join(dir, "log")); t.Failed() && err == nil {
			t.Logf("the end of nginx's log:\n%s", log[max(0, len(log)-4<<10):])
		}
	})
	return target{"nginx", l.Addr().String(), behind.seen}
}

// TestNoBytesMeanOtherRequestsToOthers sends each example to the sidecar, to net/http and to nginx. Whatever the sidecar
// accepts the others must see in the same way, or refuse; and what the sidecar makes of it is what the corpus says.
func TestNoBytesMeanOtherRequestsToOthers(t *testing.T) {
	ours := sidecarStack(t)
	t.Run("net/http", func(t *testing.T) { compareCorpus(t, ours, standardStack(t)) })
	t.Run("nginx", func(t *testing.T) { compareCorpus(t, ours, nginxStack(t)) })
}

func compareCorpus(t *testing.T, ours, peer target) {
	alike := 0
	for _, e := range corpus(t) {
		t.Run(e.name, func(t *testing.T) {
			got, theirs := ours.feed(t, e.raw), peer.feed(t, e.raw)
			if len(got.requests) > 0 && slices.Equal(got.requests, theirs.requests) {
				alike++
			}
			if d := disagreement(got, theirs); d != "" {
				t.Errorf("%s\n%s: %v\n%s: %v\nof %.1000q", d, ours.name, got, peer.name, theirs, e.raw)
			}
		})
	}
	if alike < 150 { // a third of the corpus is well formed
		t.Errorf("both accepted the same in %d examples only", alike)
	}
}

// TestTheCorpusIsReadAsWritten holds what the sidecar accepts and refuses to the corpus: a server that refuses all would
// agree with everybody. -update writes it.
func TestTheCorpusIsReadAsWritten(t *testing.T) {
	ours := sidecarStack(t)
	for _, f := range readCorpus(t) {
		for _, e := range f.examples {
			got := ours.feed(t, e.raw).lines()
			if !slices.Equal(got, e.want) && !*update {
				t.Errorf("%s: %s:\ngot  %q\nwant %q\nof %.1000q", f.path, e.name, got, e.want, e.raw)
			}
			e.want = got
		}
		if *update {
			f.write(t)
		}
	}
}

// TestWhatServersReadDifferentlyIsRefused: that net/http would forgive these, and how, is no agreement with whoever is in
// front. The place on the connection must not matter.
func TestWhatServersReadDifferentlyIsRefused(t *testing.T) {
	const head, get = "POST /mcp HTTP/1.1\r\nHost: a\r\n", "GET /mcp HTTP/1.1\r\nHost: a\r\n"
	ours := sidecarStack(t)
	before := map[string]struct {
		raw      string
		requests int
	}{
		"as the first":             {"", 0},
		"behind a plain one":       {head + "Content-Length: 2\r\n\r\n{}", 1},
		"behind a plain GET":       {get + "\r\n", 1},
		"behind one that was not":  {"OPTIONS /mcp HTTP/1.1\r\nHost: a\r\n\r\n", 1},
		"behind a body":            {get + "Content-Length: 5\r\n\r\nhello", 1},
		"behind one asked for":     {head + "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n\n \n ", 1},
		"behind an upgrade":        {get + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 1},
		"behind plain ones, mixed": {get + "\r\n" + head + "Content-Length: 2\r\n\r\n{}", 2},
	}
	for name, bad := range map[string]string{
		"two lengths":                 head + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
		"two lengths, the same":       head + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
		"a length as a list":          head + "Content-Length: 2, 2\r\n\r\n{}",
		"a length, then chunked":      head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked, then a length":      head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"chunked twice":               head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked on HTTP/1.0":         "POST /mcp HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a bare LF, request line":     "POST /mcp HTTP/1.1\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
		"a bare LF, header line":      head + "X: y\nContent-Length: 2\r\n\r\n{}",
		"a bare LF, end":              head + "Content-Length: 2\r\n\n{}",
		"a folded line":               head + "X: y\r\n z\r\nContent-Length: 2\r\n\r\n{}",
		"a line folded by a tab":      head + "X: y\r\n\tz\r\nContent-Length: 2\r\n\r\n{}",
		"a folded length":             head + "Content-Length:\r\n 2\r\n\r\n{}",
		"a bare LF on GET":            "GET /mcp HTTP/1.1\nHost: a\n\n",
		"a folded line on GET":        get + "X: y\r\n z\r\n\r\n",
		"a folded line, first header": "POST /mcp HTTP/1.1\r\n Host: a\r\nContent-Length: 2\r\n\r\n{}",
	} {
		for place, first := range before {
			o := ours.feed(t, []byte(first.raw+bad+get+"\r\n"))
			if len(o.requests) != first.requests || len(o.answers) == 0 || !o.refused() {
				t.Errorf("%s, %s: got %v, want %d requests and a refusal", name, place, o, first.requests)
			}
		}
	}
}

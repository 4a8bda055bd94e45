package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// TestSidecarsAreServedAfterManyWatchesEndAtOnce closes the connections of 200 clients of the API together.
func TestSidecarsAreServedAfterManyWatchesEndAtOnce(t *testing.T) {
	for name, args := range map[string]func() []string{
		"embedded": func() []string { return nil },
		"cluster":  func() []string { return []string{"--etcd", startEtcd(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, filepath.Join(t.TempDir(), "data"), args()...)
			c := p.client("http", http.DefaultTransport)
			token, err := c.CreateJoinToken(t.Context(), &outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "demo"}})
			if err != nil {
				t.Fatal(err)
			}
			tg := &target{}
			x := p.sidecar("team/demo", token.Token, tg)
			eventually(t, "connection", func() bool { return x.Status().Connected })
			p.openAndCloseWatches(200)
			if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: demo(t)}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "configuration", func() bool { return len(tg.running()) == 3 })
			if code, text := p.get("/readyz"); code != http.StatusOK {
				t.Errorf("/readyz: %d %s", code, text)
			}
			p.stop()
		})
	}
}

// openAndCloseWatches begins n Watches, each on its own connection, and closes these together.
func (p *process) openAndCloseWatches(n int) {
	p.t.Helper()
	token, err := os.ReadFile(p.started.Token)
	if err != nil {
		p.t.Fatal(err)
	}
	var connections []net.Conn
	for range n {
		c, err := net.Dial("tcp", p.started.API)
		if err != nil {
			p.t.Fatal(err)
		}
		defer c.Close()
		connections = append(connections, c)
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "POST /outrigger.v1.ResourceService/Watch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/connect+json\r\nContent-Length: 7\r\n\r\n\x00\x00\x00\x00\x02{}", strings.TrimSpace(string(token)))
	}
	for i, c := range connections {
		line := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, line); err != nil || string(line) != "HTTP/1.1 200" {
			p.t.Fatalf("watch %d begins with %q, %v", i, line, err)
		}
	}
}

func TestTheAdminPortIsKeptFromPagesInBrowsers(t *testing.T) {
	p := start(t, filepath.Join(t.TempDir(), "data"))
	for _, row := range []struct {
		host, origin string
		want         int
	}{
		{"localhost:7602", "", 200},
		{"", "", 200},
		{"evil.example:7602", "", 403},
		{"", "https://evil.example", 403},
	} {
		for _, path := range []string{"/healthz", "/metrics"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.started.Admin+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = row.host
			if row.origin != "" {
				req.Header.Set("Origin", row.origin)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != row.want {
				t.Errorf("%s as host %q from origin %q: %d, want %d", path, row.host, row.origin, res.StatusCode, row.want)
			}
		}
	}
}

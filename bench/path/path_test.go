package main

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// startNullForTest serves the null upstream of an era in this process and returns its endpoint.
func startNullForTest(t *testing.T, era string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s := newNullServer(era)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return "http://" + l.Addr().String() + "/mcp"
}

func TestEveryKindOfCallIsAnsweredAndChecked(t *testing.T) {
	for _, era := range []string{stateless, legacy} {
		for _, answer := range []string{"json", sse} {
			t.Run(era+"/"+answer, func(t *testing.T) {
				l, err := dialAll(startNullForTest(t, era), era, answer, 3)
				if err != nil {
					t.Fatal(err)
				}
				defer l.close()
				latencies, err := l.drive(context.Background(), 20*time.Millisecond)
				if err != nil || len(latencies) < 3 {
					t.Errorf("drive made %d calls and returned %v, want some calls and no error", len(latencies), err)
				}
			})
		}
	}
}

func TestRequestAndAnswerHaveTheirStatedSizes(t *testing.T) {
	for _, era := range []string{stateless, legacy} {
		if n := len(callBody(era, sse)); n != requestBytes {
			t.Errorf("a %s request has %d bytes, want %d", era, n, requestBytes)
		}
		before, after := answerParts(era)
		if n := len(before) + 9 + len(after); n != answerBytes {
			t.Errorf("a %s answer has %d bytes, want %d", era, n, answerBytes)
		}
	}
}

func TestAWrongAnswerEndsTheRun(t *testing.T) {
	good := "HTTP/1.1 200 OK\r\nContent-Length: 250\r\n\r\n"
	for name, answer := range map[string]string{
		"another id":   good + strings.Repeat("x", 250),
		"an error":     "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
		"cut short":    good,
		"a bad chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"not HTTP":     "hello\r\n\r\n",
		"empty stream": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				if _, err := far.Read(make([]byte, 4096)); err != nil {
					return
				}
				far.Write([]byte(answer))
			}()
			c := &client{conn: near, r: bufio.NewReader(near), era: stateless, answer: "json", id: firstID}
			c.prepare("")
			if err := c.call(); err == nil {
				t.Errorf("call took the answer %q, want an error", answer)
			}
			near.Close()
		})
	}
}

func TestCPUTimeIsReadWhateverTheProcessIsCalled(t *testing.T) {
	const stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 4 0 100 1000 10 0"
	got, err := parseStat([]byte(stat))
	if want := 3 * time.Second; err != nil || got != want {
		t.Errorf("parseStat(%q) = %v, %v, want %v", stat, got, err, want)
	}
	if _, err := parseStat([]byte("7 (a")); err == nil {
		t.Error("parseStat took half a line")
	}
	before, err := cpu(os.Getpid())
	if err != nil || before < 0 {
		t.Errorf("cpu of this process = %v, %v", before, err)
	}
}

func TestTheGateComparesWithNginxInTheSameRun(t *testing.T) {
	w := row{stateless, "json", gateConns, "sidecar"}
	nginx := w
	nginx.what = "nginx"
	costing := func(d time.Duration) []sample { return []sample{{calls: 1, elapsed: 1, proxyCPU: d}} }
	for _, tc := range []struct {
		sidecar, nginx time.Duration
		pass           bool
	}{
		{22, 10, true}, {23, 10, false}, {0, 10, false}, {22, 0, false},
	} {
		r := &report{rows: []row{nginx, w}, samples: map[row][]sample{w: costing(tc.sidecar), nginx: costing(tc.nginx)}}
		var out strings.Builder
		if err := r.gate(&out); (err == nil) != tc.pass {
			t.Errorf("sidecar %d, nginx %d: gate returned %v, want pass %v\n%s", tc.sidecar, tc.nginx, err, tc.pass, &out)
		}
	}
}

// FuzzReadHead holds that no bytes make the head's reader panic, or read past the head.
func FuzzReadHead(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nMcp-Session-Id: a\r\n\r\nabc")
	f.Add("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
	f.Add("\r\n\r\n")
	f.Add(": \r\n\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		r := bufio.NewReader(strings.NewReader(s))
		if _, err := readHead(r); err != nil {
			return
		}
		head, rest, _ := strings.Cut(s, "\r\n\r\n")
		if r.Buffered() > len(rest) {
			t.Errorf("%d bytes are left after the head %q, want at most %d", r.Buffered(), head, len(rest))
		}
	})
}

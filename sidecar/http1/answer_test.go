package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// handlers are ways to answer. Both servers must send the same.
var handlers = map[string]http.HandlerFunc{
	"nothing":        func(w http.ResponseWriter, r *http.Request) {},
	"status alone":   func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) },
	"unknown status": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(299) },
	"accepted": func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		w.WriteHeader(http.StatusAccepted)
	},
	"text":         func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") },
	"guessed":      func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") },
	"guessed late": func(w http.ResponseWriter, r *http.Request) { w.Write(bytes.Repeat([]byte("<html>"), 10_000)) },
	"encoded": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "x")
		io.WriteString(w, "a")
	},
	"many pieces":  func(w http.ResponseWriter, r *http.Request) { pieces(w, 3000, 1) },
	"large pieces": func(w http.ResponseWriter, r *http.Request) { pieces(w, 10, 100_000) },
	"mixed pieces": func(w http.ResponseWriter, r *http.Request) {
		pieces(w, 10, 100)
		pieces(w, 2, 50_000)
		pieces(w, 9, 7)
	},
	"length": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "50"); pieces(w, 50, 1) },
	"large length": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "200000")
		pieces(w, 2, 100_000)
	},
	"length, empty": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "0") },
	"length, flush": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "20")
		for range 2 {
			flush(w)
			pieces(w, 1, 10)
		}
	},
	"too long":   func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "3"); pieces(w, 3, 2) },
	"too short":  func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "30"); pieces(w, 3, 2) },
	"bad length": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "x"); pieces(w, 3, 2) },
	"flushes": func(w http.ResponseWriter, r *http.Request) {
		for range 5 {
			flush(w)
			flush(w)
			pieces(w, 2, 10)
		}
	},
	"flush at the end": func(w http.ResponseWriter, r *http.Request) { pieces(w, 2, 10); flush(w) },
	"no content":       func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204); pieces(w, 1, 1) },
	"not modified": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "a/b")
		w.Header().Set("Etag", "x")
		w.WriteHeader(304)
		pieces(w, 1, 1)
	},
	"early hints": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(103)
		w.Header().Set("X", "y")
		pieces(w, 1, 1)
	},
	"status twice": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(201); w.WriteHeader(202) },
	"header after": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(201); w.Header().Set("X", "y") },
	"many values":  func(w http.ResponseWriter, r *http.Request) { w.Header()["X"] = []string{"1", "2", ""} },
	"split value":  func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", "a\r\nB: c\nd") },
	"bad name": func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X: a\r\nY"] = []string{"1"}
		w.Header()[""] = []string{"1"}
	},
	"own date": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", "x")
		w.Header().Set("Content-Type", "a")
	},
	"close": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close"); pieces(w, 1, 1) },
	"own chunked": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Transfer-Encoding", "chunked")
		flush(w)
		pieces(w, 1, 1)
	},
	"abort":           func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
	"abort, answered": func(w http.ResponseWriter, r *http.Request) { pieces(w, 3, 3); flush(w); panic(http.ErrAbortHandler) },
	"abort with length": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "9")
		pieces(w, 3, 2)
		flush(w)
		panic(http.ErrAbortHandler)
	},
	"panic":      func(w http.ResponseWriter, r *http.Request) { panic("on purpose") },
	"bad status": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(0) },
}

func pieces(w io.Writer, n, size int) {
	for i := range n {
		_, _ = w.Write(bytes.Repeat([]byte{'a' + byte(i%26)}, size)) // some of them must fail
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// received is what a client gets: an answer and how it ended.
func received(t *testing.T, addr string) string {
	t.Helper()
	nc := dial(t, addr)
	send(t, nc, string(callBytes))
	r := bufio.NewReader(nc)
	var out strings.Builder
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return "no answer"
		}
		body, err := io.ReadAll(res.Body)
		res.Header.Del("Date")
		res.Header.Del("Content-Length") // net/http has chunks where this package still counts
		fmt.Fprintf(&out, "%d %v close=%v %d:%x error=%v\n",
			res.StatusCode, res.Header, res.Close, len(body), sha256.Sum256(body), err != nil)
		if res.StatusCode >= 200 {
			break
		}
	}
	send(t, nc, string(callBytes)) // whether the connection goes on
	_, err := r.Peek(1)
	fmt.Fprintf(&out, "more=%v", err == nil)
	return out.String()
}

func TestBothServersAnswerAlike(t *testing.T) {
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				h(w, r)
			}
			want := received(t, serveFor(t, "net/http", http.HandlerFunc(h)))
			got := received(t, serveFor(t, "http1", http.HandlerFunc(h)))
			if got != want {
				t.Errorf("answers differ\ngot  %.1000s\nwant %.1000s", got, want)
			}
		})
	}
}

// counted counts what is written to a connection, and in how many pieces.
type counted struct {
	net.Listener
	writes chan int
}

type countedConn struct {
	*net.TCPConn
	writes chan int
}

func (l counted) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{nc.(*net.TCPConn), l.writes}, nil
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes <- len(p)
	return c.TCPConn.Write(p)
}

// TestOnePieceIsOneWrite: a small answer, and each event of a stream with its framing, is one write.
func TestOnePieceIsOneWrite(t *testing.T) {
	rows := map[string]struct {
		h    http.HandlerFunc
		want int
	}{
		"small":  {func(w http.ResponseWriter, r *http.Request) { pieces(w, 10, 25) }, 1},
		"30 KiB": {func(w http.ResponseWriter, r *http.Request) { pieces(w, 30, 1<<10) }, 1},
		"length": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "20")
			pieces(w, 2, 10)
		}, 1},
		"events": {func(w http.ResponseWriter, r *http.Request) {
			for range 10 {
				pieces(w, 2, 10)
				flush(w)
			}
		}, 11}, // the last chunk is one more
	}
	for name, row := range rows {
		l := counted{listen(t), make(chan int, 1000)}
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answerCall(discardWriter{}, r); row.h(w, r) })
		run(t, l, New(h, standard(h), Options{Log: quiet()}))
		received(t, l.Addr().String())
		received(t, l.Addr().String()) // by then the first has ended
		if n := len(l.writes); n < 3*row.want || n > 4*row.want {
			t.Errorf("%s: got %d writes for four answers, want %d each", name, n, row.want)
		}
	}
}

type discardWriter struct{}

func (discardWriter) Header() http.Header         { return http.Header{} }
func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (discardWriter) WriteHeader(int)             {}

func TestTenMebibytesArriveWhole(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	rows := map[string]http.HandlerFunc{
		"length": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			_, _ = io.Copy(w, struct{ io.Reader }{bytes.NewReader(big)})
		},
		"chunked": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, struct{ io.Reader }{bytes.NewReader(big)})
		},
		"at once": func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(big) },
		"echo": func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			_, _ = w.Write(b)
		},
	}
	for name, h := range rows {
		_, addr := start(t, h, Options{})
		res, err := http.Post("http://"+addr+"/", "a/b", bytes.NewReader(big))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := io.ReadAll(res.Body)
		if res.Body.Close(); err != nil || !bytes.Equal(got, big) {
			t.Errorf("%s: got %d bytes, %v, want %d", name, len(got), err, len(big))
		}
		http.DefaultClient.CloseIdleConnections()
	}
}

// TestAnUnreadBodyKeepsTheConnectionIfItIsShort: the rest is read, or the answer ends the connection and still arrives.
func TestAnUnreadBodyKeepsTheConnectionIfItIsShort(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "no") }), Options{})
	for _, row := range []struct {
		size  int
		close bool
	}{{350, false}, {100 << 10, false}, {256 << 10, false}, {1 << 20, true}, {20 << 20, true}} {
		nc := dial(t, addr)
		sent := make(chan error, 1)
		go func() {
			head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", row.size)
			_, err := nc.Write(append([]byte(head), make([]byte, row.size)...))
			sent <- err
		}()
		r := bufio.NewReader(nc)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%d bytes: %v", row.size, err)
		}
		body, err := io.ReadAll(res.Body)
		if string(body) != "no" || err != nil || res.Close != row.close {
			t.Errorf("%d bytes: got %q close=%v, %v, want close=%v", row.size, body, res.Close, err, row.close)
		}
		if row.close {
			nc.Close()
			<-sent
			continue
		}
		if err := <-sent; err != nil {
			t.Errorf("%d bytes: sending: %v", row.size, err)
		}
		send(t, nc, post("Host: a", "Content-Length: 0"))
		if _, err := http.ReadResponse(r, nil); err != nil {
			t.Errorf("%d bytes: the next request: %v", row.size, err)
		}
	}
}

func TestASlowBodyEndsAtTheHandlersDeadline(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := io.ReadAll(r.Body); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading a slow body: got %v, want %v", err, os.ErrDeadlineExceeded)
		}
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestTimeout)
	}), Options{})
	nc := dial(t, addr)
	send(t, nc, post("Host: a", "Content-Length: 10")+"12345")
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("got %v, %v, want 408", res, err)
	}
}

// TestASlowReaderEndsAtTheHandlersDeadline: nothing more is written after a write that failed half way.
func TestASlowReaderEndsAtTheHandlersDeadline(t *testing.T) {
	failed, left := make(chan error, 1), make(chan struct{})
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				failed <- err
				break
			}
		}
		<-r.Context().Done()
		close(left)
	}), Options{})
	nc := dial(t, addr)
	send(t, nc, post("Host: a", "Content-Length: 0"))
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
		}
	case <-time.After(patience):
		t.Fatal("the write did not fail")
	}
	within(t, time.Second, 1, left, "the request is cancelled")
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Error("a broken answer looks whole")
	}
}

func TestAPanicIsLoggedWithItsStack(t *testing.T) {
	var log lockedBuffer
	_, addr := start(t, handlers["panic"], Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	received(t, addr)
	if got := log.String(); !strings.Contains(got, "on purpose") || !strings.Contains(got, "answer_test.go") {
		t.Errorf("got %q, want the panic and its stack", got)
	}
}

func TestWhatAHandlerLeavesBehindFails(t *testing.T) {
	type kept struct {
		w http.ResponseWriter
		r *http.Request
	}
	keep := make(chan kept, 2)
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { keep <- kept{w, r} }), Options{})
	nc := dial(t, addr)
	send(t, nc, string(callBytes)+string(callBytes))
	old, next := <-keep, <-keep // the second began after the first ended
	if _, err := old.w.Write([]byte("x")); !errors.Is(err, errFinished) {
		t.Errorf("Write: got %v", err)
	}
	if err := http.NewResponseController(old.w).Flush(); !errors.Is(err, errFinished) {
		t.Errorf("Flush: got %v", err)
	}
	if _, err := old.r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("Read: got %v", err)
	}
	if old.r == next.r || old.r.Context() == next.r.Context() || old.r.Context().Err() != context.Canceled {
		t.Error("the second request shares the first's context, or the first's goes on")
	}
}

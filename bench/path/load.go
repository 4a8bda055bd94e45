package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// callTimeout is how long any one answer may take.
const callTimeout = 10 * time.Second

// client is one connection that makes one call after another: a closed loop with one call in flight.
type client struct {
	conn    net.Conn
	r       *bufio.Reader
	era     string
	answer  string
	host    string
	path    string
	request []byte // head and body of the next call
	digits  []byte // the id's place in request
	want    []byte // the next answer's JSON
	wantID  []byte // the id's place in want
	id      int
	body    []byte // of the answer just read
}

// dial connects and, for the legacy era, opens a session.
func dial(endpoint, era, answer string) (*client, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", u.Host, callTimeout)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, r: bufio.NewReaderSize(conn, 16<<10), era: era, answer: answer, host: u.Host, path: u.Path,
		id: firstID}
	session := ""
	if era == legacy {
		if session, err = c.openSession(); err != nil {
			conn.Close()
			return nil, fmt.Errorf("open a session at %s: %w", endpoint, err)
		}
	}
	c.prepare(session)
	return c, nil
}

// prepare lays out the request and the answer to expect, and finds the ids' places in both.
func (c *client) prepare(session string) {
	body := callBody(c.era, c.answer)
	h := requestHead(c.era, c.host, c.path, "tools/call", c.answer, session, len(body))
	c.request = append(h, body...)
	at := len(h) + bytes.Index(body, []byte(idKey)) + len(idKey)
	c.digits = c.request[at : at+9]
	before, after := answerParts(c.era)
	c.want = []byte(before + strconv.Itoa(c.id) + after)
	c.wantID = c.want[len(before) : len(before)+9]
}

// openSession makes the legacy handshake and returns the session's id.
func (c *client) openSession() (string, error) {
	session := ""
	for _, body := range []string{initializeBody, initializedBody} {
		h := requestHead(legacy, c.host, c.path, "", "", session, len(body))
		if _, err := c.conn.Write(append(h, body...)); err != nil {
			return "", err
		}
		head, err := c.read()
		if err != nil {
			return "", err
		}
		if session == "" {
			session = string(head.session)
		}
	}
	if session == "" {
		return "", errors.New("no Mcp-Session-Id in the answer to initialize")
	}
	return session, nil
}

// call makes one call and checks its answer.
func (c *client) call() error {
	c.id++
	strconv.AppendInt(c.digits[:0], int64(c.id), 10)
	strconv.AppendInt(c.wantID[:0], int64(c.id), 10)
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	if _, err := c.read(); err != nil {
		return err
	}
	got := c.body
	if c.answer == sse {
		got = lastData(got)
	}
	if !bytes.Equal(got, c.want) {
		return fmt.Errorf("wrong answer to call %d:\n got %s\nwant %s", c.id, c.body, c.want)
	}
	return nil
}

// read reads one answer, its body into c.body. A status other than 200 and 202 is an error.
func (c *client) read() (head, error) {
	h, err := readHead(c.r)
	if err != nil {
		return h, err
	}
	status := string(h.start[:])
	c.body = c.body[:0]
	if h.chunked {
		err = c.readChunks()
	} else {
		c.body, err = appendFrom(c.r, c.body, h.length)
	}
	if err != nil {
		return h, fmt.Errorf("read the body: %w", err)
	}
	if status != "HTTP/1.1 200" && status != "HTTP/1.1 202" {
		return h, fmt.Errorf("%s: %s", status, c.body)
	}
	return h, nil
}

// readChunks reads a chunked body to its end.
func (c *client) readChunks() error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return fmt.Errorf("chunk size %q", line)
		}
		if c.body, err = appendFrom(c.r, c.body, int(size)); err != nil {
			return err
		}
		if _, err := c.r.Discard(2); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}

// appendFrom appends the next n bytes of r.
func appendFrom(r io.Reader, b []byte, n int) ([]byte, error) {
	at := len(b)
	b = slices.Grow(b, n)[:at+n]
	_, err := io.ReadFull(r, b[at:])
	return b, err
}

// lastData is the data of the last event of a stream whose events have one data line each.
func lastData(stream []byte) []byte {
	i := bytes.LastIndex(stream, []byte("data: "))
	if i < 0 {
		return nil
	}
	data, _, _ := bytes.Cut(stream[i+len("data: "):], []byte("\n"))
	return bytes.TrimSuffix(data, []byte("\r"))
}

// load is a set of connections to one endpoint.
type load []*client

func dialAll(endpoint, era, answer string, n int) (load, error) {
	var l load
	for range n {
		c, err := dial(endpoint, era, answer)
		if err != nil {
			l.close()
			return nil, err
		}
		l = append(l, c)
	}
	return l, nil
}

func (l load) close() {
	for _, c := range l {
		c.conn.Close()
	}
}

// drive keeps every connection busy for d and returns the latency of each call that was answered. The first error ends
// it and is returned.
func (l load) drive(ctx context.Context, d time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	latencies := make([][]time.Duration, len(l))
	errs := make([]error, len(l))
	var wg sync.WaitGroup
	for i, c := range l {
		c.conn.SetDeadline(time.Now().Add(d + callTimeout))
		latencies[i] = make([]time.Duration, 0, 1<<14)
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				start := time.Now()
				if errs[i] = c.call(); errs[i] == nil {
					latencies[i] = append(latencies[i], time.Since(start))
				} else {
					cancel()
				}
			}
		})
	}
	wg.Wait()
	return slices.Concat(latencies...), errors.Join(errs...)
}

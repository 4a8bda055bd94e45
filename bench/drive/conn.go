package drive

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// readBuffer is the size of a connection's, and so the longest head, in bytes.
const readBuffer = 8 << 10

// conn is a connection that makes one call after another. It is opened again after it failed, with the session it had
// unless the server no longer knows that. It belongs to one goroutine.
type conn struct {
	// Set by newConn, never changed.
	c        *Config
	url      *url.URL
	requests requests

	nc      net.Conn // nil: not open
	r       *bufio.Reader
	unwatch func() bool // ends the watch that closes nc with its run
	session string
	expires time.Time // nc's deadline

	json, sse request  // the next call, for either form of answer
	right     template // the last answer that was right and not known before
	rest      []byte   // the last answer without the value that it must hold
	number    int64    // of the last call
	owed      float64  // the part of a streamed answer that is due

	head       wire.Head
	body       wire.Body
	events     wire.Events
	buf        []byte
	answered   time.Time // when the last answer was whole
	firstEvent time.Time // of the last streamed answer
	eventCount int64     // of the last answer
}

// wrongAnswer is an answer that is not the call's.
type wrongAnswer struct {
	number    int64
	got, want string
}

func (e *wrongAnswer) Error() string {
	return fmt.Sprintf("wrong answer to call %d: got %s, want %s", e.number, e.got, e.want)
}

// errRefused is an answer that says the call failed. The connection is as good as before.
var errRefused = errors.New("refused")

// errNoAnswer is a stream that ended before an answer came.
var errNoAnswer = errors.New("the stream ended without an answer")

// errSession is an answer that says the session is not known.
var errSession = errors.New("the session is not known")

func newConn(c *Config, u *url.URL, owner string) *conn {
	k := &conn{c: c, url: u, number: wire.FirstNumber}
	k.requests = requests{c: c, url: u, owner: owner}
	k.prepare()
	return k
}

// prepare lays out the requests for the session there is.
func (k *conn) prepare() {
	k.json = k.requests.call(k.session, false)
	k.sse = request{}
	if k.c.Streamed > 0 {
		k.sse = k.requests.call(k.session, true)
	}
}

// open connects when there is no connection, and opens a session when the era has them and there is none.
func (k *conn) open(ctx context.Context) error {
	if k.nc == nil {
		if err := k.dial(ctx); err != nil {
			return err
		}
	}
	if k.c.Era != wire.Legacy || k.session != "" || k.c.Op == Session {
		return nil
	}
	if err := k.openSession(); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	k.prepare()
	return nil
}

// dial connects. The connection ends with run.
func (k *conn) dial(run context.Context) error {
	ctx, cancel := context.WithTimeout(run, k.c.Timeout)
	defer cancel()
	host := k.url.Host
	if k.url.Port() == "" {
		host = net.JoinHostPort(k.url.Hostname(), k.url.Scheme)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	if k.url.Scheme == "https" {
		if nc, err = k.secure(ctx, nc); err != nil {
			return err
		}
	}
	k.nc, k.expires = nc, time.Time{}
	k.unwatch = context.AfterFunc(run, func() { nc.Close() })
	if k.r == nil {
		k.r = bufio.NewReaderSize(nc, readBuffer)
	} else {
		k.r.Reset(nc)
	}
	return nil
}

// secure makes the TLS handshake.
func (k *conn) secure(ctx context.Context, nc net.Conn) (net.Conn, error) {
	config := &tls.Config{}
	if k.c.TLS != nil {
		config = k.c.TLS.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = k.url.Hostname()
	}
	config.NextProtos = []string{"http/1.1"}
	secure := tls.Client(nc, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}

// close ends the connection, when there is one. The session stays.
func (k *conn) close() {
	if k.nc != nil {
		k.unwatch()
		k.nc.Close()
		k.nc = nil
	}
}

// deadlineSlack is the part of a timeout by which a call's own may be short, so that the connection's deadline need
// not be moved for every call.
const deadlineSlack = 16

// send writes a request. What follows must be read within the timeout.
func (k *conn) send(b []byte) error {
	now := time.Now()
	if end := now.Add(k.c.Timeout); end.Sub(k.expires) > k.c.Timeout/deadlineSlack {
		k.expires = end
		k.nc.SetDeadline(end) //nolint:errcheck // the write tells
	}
	_, err := k.nc.Write(b)
	return err
}

// openSession makes the legacy handshake (MCP 2025-11-25, Lifecycle).
func (k *conn) openSession() error {
	k.session = ""
	if err := k.exchange(k.requests.post("", initializeBody)); err != nil {
		return err
	}
	if len(k.head.Session) == 0 {
		return errors.New("no Mcp-Session-Id in the answer to initialize")
	}
	session := string(k.head.Session)
	if err := k.exchange(k.requests.post(session, initializedBody)); err != nil {
		return err
	}
	k.session = session
	return nil
}

// closeSession ends the session. A server may refuse to (MCP 2025-11-25, Session Management).
func (k *conn) closeSession() error {
	session := k.session
	k.session = ""
	err := k.exchange(k.requests.bodyless("DELETE", session))
	if k.head.Status == 405 && errors.Is(err, errRefused) {
		return nil
	}
	return err
}

// exchange sends a request and reads its answer, the last message of it into buf.
func (k *conn) exchange(request []byte) error {
	if err := k.send(request); err != nil {
		return err
	}
	return k.read(nil)
}

// call makes the next call and checks its answer.
func (k *conn) call() error {
	k.number++
	switch k.c.Op {
	case Session:
		return k.callSession()
	case Stream:
		return k.callStream()
	}
	r := k.next()
	r.set(k.number)
	r.want.set(k.number)
	if err := k.send(r.bytes); err != nil {
		return err
	}
	return k.read(r)
}

// next is the call to make now: of Streamed of them the answer is a stream, spread evenly.
func (k *conn) next() *request {
	if k.owed += k.c.Streamed; k.owed < 1 {
		return &k.json
	}
	k.owed--
	return &k.sse
}

// callSession is a session's whole life.
func (k *conn) callSession() error {
	if err := k.openSession(); err != nil {
		return err
	}
	k.prepare()
	r := k.next()
	r.set(k.number)
	r.want.set(k.number)
	if err := k.send(r.bytes); err != nil {
		return err
	}
	if err := k.read(r); err != nil {
		return err
	}
	return k.closeSession()
}

// read reads an answer and checks it against r; nil takes anything that is no error.
func (k *conn) read(r *request) error {
	if err := k.readHead(); err != nil {
		return err
	}
	k.eventCount, k.firstEvent = 0, time.Time{}
	k.body.Reset(k.r, &k.head)
	err := k.readBody(r)
	if k.head.Close || k.body.UntilClose() {
		k.close()
	}
	return err
}

// readHead reads the head of the final answer; those before it are passed over (RFC 9110, 15.2).
func (k *conn) readHead() error {
	for {
		if err := k.head.Read(k.r); err != nil {
			return err
		}
		if k.head.Status == 0 {
			return fmt.Errorf("%w: %q", wire.ErrHead, k.head.Start)
		}
		if k.head.Status >= 200 {
			return nil
		}
	}
}

func (k *conn) readBody(r *request) (err error) {
	if k.head.Events && k.head.Status == 200 {
		return k.readEvents(r)
	}
	if k.buf, err = k.body.Append(k.buf[:0]); err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	k.answered = time.Now()
	if k.head.Status < 200 || k.head.Status > 299 {
		return k.refused()
	}
	if r == nil && len(k.buf) == 0 {
		return nil // a notification's
	}
	return k.check(r, k.buf)
}

// refused is the error of an answer with a status that says the call failed.
func (k *conn) refused() error {
	if k.head.Status == 404 && k.session != "" {
		return fmt.Errorf("%w: %s: %.200s", errSession, k.head.Start, k.buf)
	}
	return fmt.Errorf("%w: %s: %.200s", errRefused, k.head.Start, k.buf)
}

// readEvents reads an event stream up to its end. The answer is whole, as far as its latency goes, with its event.
func (k *conn) readEvents(r *request) error {
	k.events.Reset(&k.body)
	err, found := errNoAnswer, false
	for {
		data, readErr := k.events.Next()
		if readErr == io.EOF {
			return err
		}
		if readErr != nil {
			return fmt.Errorf("read the stream: %w", readErr)
		}
		if k.firstEvent.IsZero() {
			k.firstEvent = time.Now()
		}
		switch {
		case found:
		case isNotification(data):
			k.eventCount++
		default:
			found = true
			k.answered = time.Now()
			if err = k.checkEvents(r); err == nil {
				err = k.check(r, data)
			}
		}
	}
}

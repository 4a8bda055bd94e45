package sse

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxHeader  = 64 << 10 // bytes of an answer's head
	maxRefusal = 64 << 10 // bytes of an error's body that are looked at
	maxAck     = 4 << 10  // bytes of an accepted POST's answer that are read for the connection's sake
	maxIdle    = 128      // connections kept while unused
	idleTime   = 30 * time.Second
	typeSSE    = "text/event-stream"
)

// client sends requests to one server, over HTTP/1.1. It follows no redirect and asks no proxy of the environment's.
type client struct {
	upstream  string   // the resource's name
	url       *url.URL // of the event stream
	transport *http.Transport
	header    http.Header // of every request: the user agent, and a credential that is always the same

	credential *credential.Source
}

// newClient makes the client for a URL. connect bounds the wait for a connection, and then for TLS on it.
func newClient(name string, to *url.URL, caFile string, connect time.Duration, o Options) (*client, error) {
	roots, err := authorities(caFile)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: connect, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3, // a stream may be silent for long
	}}
	c := &client{upstream: name, url: to, header: http.Header{"User-Agent": {o.UserAgent}}, transport: &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connect,
		DisableCompression:     true,
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
	}}
	if o.Via != "" {
		c.header.Set("Via", "1.1 "+o.Via)
	}
	c.credential = o.Credential
	if value, ok := o.Credential.Fixed(); ok {
		c.header.Set(o.Credential.Header(), value)
	}
	return c, nil
}

// authorities are those of a PEM file, or nil for the system's.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("sse.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("sse.ca_file: no certificate in %q", file)
	}
	return pool, nil
}

// travelling is what of a client's header travels on: trace context, and the way that the call took. It is memory of its
// own, since a request may be written for longer than its client's is there.
func travelling(relay http.Header) http.Header {
	var h http.Header
	for _, name := range [...]string{"Traceparent", "Tracestate", "Baggage", "Via"} {
		if values := relay[name]; len(values) > 0 {
			if h == nil {
				h = make(http.Header)
			}
			h[name] = slices.Clone(values)
		}
	}
	return h
}

// request makes a request with what all have, and with what travels on.
func (c *client) request(ctx context.Context, method string, to *url.URL, travels http.Header, body io.Reader) *http.Request {
	r := (&http.Request{Method: method, URL: to, Host: to.Host, Header: c.header.Clone()}).WithContext(ctx)
	for name, values := range travels {
		r.Header[name] = append(slices.Clone(values), c.header[name]...)
	}
	if body != nil {
		r.Body = io.NopCloser(body)
	}
	return r
}

// get asks for the event stream, which lasts until ctx ends. handshake says why it did when that was meanwhile.
func (c *client) get(ctx, handshake context.Context, relay http.Header, caller *identity.Principal) (io.ReadCloser, error) {
	var connected atomic.Bool
	r := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}), http.MethodGet, c.url, relay, nil)
	r.Header.Set("Accept", typeSSE)
	r.Header.Set("Cache-Control", "no-store")
	res, err := c.send(handshake, r, caller)
	switch {
	case isKind(err, upstream.NoCredential):
		return nil, err
	case err != nil && connected.Load() && handshake.Err() == nil: // asking for a stream twice harms nobody
		return nil, c.fault(upstream.Unreachable, "gave no answer of HTTP when asked for its event stream", err)
	case err != nil:
		return nil, c.failure(handshake, err, false)
	}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch status := res.StatusCode; {
	case status == http.StatusOK && media == typeSSE:
		return res.Body, nil
	case status == http.StatusOK:
		err = c.fault(upstream.BadAnswer, "answered with something else than an event stream", nil)
	default:
		err = c.refused(status)
	}
	_ = res.Body.Close() // nothing more is wanted of it
	return nil, err
}

// send sends a request with what it presents. waits is whose end ends the wait for that. What the server refused with 401 and a
// challenge was not applied (RFC 9110, section 15.5.2): it is sent once more if there is another token to present. Errors: the
// transport's, or an *upstream.Error of kind NoCredential.
func (c *client) send(waits context.Context, r *http.Request, caller *identity.Principal) (*http.Response, error) {
	if !c.credential.Varies() {
		return c.transport.RoundTrip(r)
	}
	value, err := c.credential.Value(waits, caller)
	if err != nil {
		return nil, err
	}
	c.present(r, value)
	res, err := c.transport.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		return res, err
	}
	if len(res.Header["Www-Authenticate"]) == 0 {
		c.credential.Forget(caller, value)
		return res, nil
	}
	another, ok := c.credential.Renew(waits, caller, value)
	if !ok {
		return res, nil
	}
	_ = res.Body.Close() // nothing more is wanted of it
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	c.present(again, another)
	return c.transport.RoundTrip(again)
}

func (c *client) present(r *http.Request, value string) {
	if value != "" {
		r.Header[c.credential.Header()] = []string{value}
	}
}

// rejection is an answer to a POST with a status that says that the message was not accepted.
type rejection struct {
	status int
	body   []byte // the beginning of it
}

func (r *rejection) Error() string { return fmt.Sprintf("refused with %d", r.status) }

// post sends one message and waits until the server has accepted it. wrote is called when all of it is written; it may
// be nil. Errors: a *rejection, or an *upstream.Error.
func (c *client) post(
	ctx context.Context, l *link, relay http.Header, caller *identity.Principal, body []byte, wrote func(),
) error {
	var sent atomic.Bool // a byte may be on its way
	r := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { sent.Store(false) }, // also when a stale connection took nothing
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil && wrote != nil {
				wrote()
			}
		},
	}), http.MethodPost, l.endpoint, relay, bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	if v := l.version(); v != "" && v != version20241105 { // which has no such header
		r.Header.Set(mcp.HeaderVersion, v)
	}
	res, err := c.send(ctx, r, caller)
	if isKind(err, upstream.NoCredential) {
		return err
	}
	if err != nil {
		return c.failure(ctx, err, sent.Load())
	}
	defer res.Body.Close()
	if res.StatusCode < 300 {
		late := time.AfterFunc(postTail, func() { res.Body.Close() })
		defer late.Stop()
		_, _ = io.CopyN(io.Discard, res.Body, maxAck) // so that the connection can be used again
		return nil
	}
	refusal, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal)) // what there is of it
	return &rejection{status: res.StatusCode, body: refusal}
}

// refused is a status that is no success, for which there is no better word.
func (c *client) refused(status int) *upstream.Error {
	kind, detail := upstream.BadAnswer, "answered %d"
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		kind, detail = upstream.Unauthorized, "refused the sidecar, which has no credential for it (%d)"
		switch {
		case c.credential.PerCaller():
			detail = "refused the token that was got for the caller (%d)"
		case c.credential.Header() != "":
			detail = "refused the sidecar's credential (%d)"
		}
	case status >= 300 && status < 400:
		detail = "answered %d, a redirect, which is not followed"
	}
	err := c.fault(kind, fmt.Sprintf(detail, status), nil)
	if kind == upstream.BadAnswer && status >= 400 {
		err.Status = status
	}
	return err
}

// failure says what an error of the transport's means. ctx is whose end counts; sent is whether the server may have seen
// any of the request.
func (c *client) failure(ctx context.Context, err error, sent bool) *upstream.Error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return c.fault(upstream.TimedOut, "no whole answer within the time configured", ctx.Err())
	case ctx.Err() != nil:
		return c.fault(upstream.Lost, "the call was cancelled", ctx.Err())
	case !sent:
		return c.fault(upstream.Unreachable, "no connection to the server", err)
	}
	return c.fault(upstream.Lost, "the connection broke before the answer was whole", err)
}

func (c *client) fault(kind upstream.Kind, detail string, cause error) *upstream.Error {
	return &upstream.Error{Kind: kind, Upstream: c.upstream, Detail: detail, Cause: cause}
}

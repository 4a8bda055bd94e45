package proxy

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

const (
	headTimeout  = 10 * time.Second // to receive a request's head
	idleTimeout  = 2 * time.Minute  // a kept-alive connection without a request
	maxHeadBytes = 64 << 10
	// writeTimeout is how long a client may take to accept one piece of an answer.
	writeTimeout = 30 * time.Second
	// maxStreams is how many requests one HTTP/2 connection may have open.
	maxStreams = 1000
)

// NewServer makes the HTTP server that carries a handler: HTTP/1.1, and HTTP/2 both with prior knowledge and, given a
// TLS configuration, by ALPN. An answer may take any time, but each piece of it must be taken within writeTimeout; the
// handler bounds the reading of bodies.
func NewServer(h http.Handler, tlsConfig *tls.Config, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(tlsConfig == nil)
	return &http.Server{
		Handler:                      timed(h),
		TLSConfig:                    tlsConfig,
		Protocols:                    protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout:            headTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeadBytes,
		DisableGeneralOptionsHandler: true, // it answers OPTIONS * without a bound on the body
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// TLSServer serves TLS on whatever listener it is given, to a bounded number of connections: accepting waits beyond it.
type TLSServer struct {
	*http.Server
	MaxConns int // open at a time
}

// Serve accepts connections until Shutdown or Close, after which it returns http.ErrServerClosed.
func (s TLSServer) Serve(l net.Listener) error {
	return s.ServeTLS(netutil.LimitListener(l, s.MaxConns), "", "")
}

// timed gives every write of h's a deadline. It is for net/http's server, which has only one for whole answers.
func timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			// net/http has dropped a Content-Length that came beside it. What another server would have taken for the rest
			// of this request must not be read as the next (RFC 9112, section 6.1).
			w.Header().Set("Connection", "close")
		}
		t := timedWriter{ResponseWriter: w, http2: r.ProtoMajor == 2}
		h.ServeHTTP(t, r)
		t.within(writeTimeout) // for the last bytes, which the server writes
	})
}

type timedWriter struct {
	http.ResponseWriter
	http2 bool
}

// within bounds writing to the client from now; 0 lifts the bound.
func (t timedWriter) within(d time.Duration) {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	// Both of net/http's own writers have deadlines, so there is no error to expect.
	_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(at)
}

// lift ends a piece's bound. HTTP/2 ends a stream whose deadline has passed even while nothing is being written.
func (t timedWriter) lift() {
	if t.http2 {
		t.within(0)
	}
}

func (t timedWriter) Write(b []byte) (int, error) {
	t.within(writeTimeout)
	defer t.lift()
	return t.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (t timedWriter) FlushError() error {
	t.within(writeTimeout)
	defer t.lift()
	return http.NewResponseController(t.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (t timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

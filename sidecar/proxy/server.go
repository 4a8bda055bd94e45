package proxy

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"
)

const (
	headTimeout  = 10 * time.Second // to receive a request's head
	idleTimeout  = 2 * time.Minute  // a kept-alive connection without a request
	maxHeadBytes = 64 << 10
	// maxStreams is how many requests one HTTP/2 connection may have open.
	maxStreams = 1000
)

// NewServer makes the HTTP server that carries a handler: HTTP/1.1, and HTTP/2 both with prior knowledge and, given a
// TLS configuration, by ALPN. Bodies and answers have no time limit here: the handler sets one for each piece.
func NewServer(h http.Handler, tlsConfig *tls.Config, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(tlsConfig == nil)
	return &http.Server{
		Handler:           h,
		TLSConfig:         tlsConfig,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: headTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeadBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

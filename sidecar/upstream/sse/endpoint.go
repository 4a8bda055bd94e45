package sse

import (
	"errors"
	"net"
	"net/url"
	"strings"
)

const (
	maxEndpoint   = 4 << 10 // bytes
	endpointEvent = "endpoint"
)

// errEndpoint is an endpoint that is no URL where messages could go.
var errEndpoint = errors.New("an endpoint that is not a URL for messages")

// errForeign is an endpoint on another origin than the stream.
var errForeign = errors.New("an endpoint on another origin than the event stream's")

// endpointOf is where messages go, from the data of an endpoint event on the stream of base (2024-11-05,
// basic/transports, "HTTP with SSE"). It may be relative. Scheme, host and port must be the stream's: with a server's
// word alone the sidecar, and its credential, are sent nowhere else.
func endpointOf(base *url.URL, data []byte) (*url.URL, error) {
	text := strings.TrimSpace(string(data))
	if text == "" || len(text) > maxEndpoint {
		return nil, errEndpoint
	}
	u, err := base.Parse(text)
	if err != nil || u.Opaque != "" || u.User != nil {
		return nil, errEndpoint
	}
	if originOf(u) != originOf(base) {
		return nil, errForeign
	}
	to := *base // so that scheme and host are the operator's, whatever was parsed
	to.Path, to.RawPath, to.RawQuery, to.ForceQuery = u.Path, u.RawPath, u.RawQuery, u.ForceQuery
	to.Fragment, to.RawFragment = "", ""
	if to.Path == "" {
		to.Path = "/"
	}
	return &to, nil
}

// originOf is a URL's scheme, host and port, in one form.
func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

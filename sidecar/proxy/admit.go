package proxy

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// admit refuses requests that a browser was led to make (DNS rebinding, foreign pages): Host on loopback connections or
// where hosts are listed, and Origin wherever it is present (basic/transports/streamable-http, Security Warning).
func (ep *endpoint) admit(r *http.Request) error {
	loopback := onLoopback(r)
	if !ep.hostAllowed(r.Host, loopback) {
		return forbidden("host_refused", "the Host header names a host that this endpoint does not serve")
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return nil
	}
	if len(origins) > 1 || !ep.originAllowed(origins[0], loopback) {
		return forbidden("origin_refused", "the Origin header names an origin that may not use this endpoint")
	}
	return nil
}

// comesRound refuses requests that this sidecar sent itself, through others: nothing would end them.
func (ep *endpoint) comesRound(r *http.Request) error {
	via := r.Header["Via"]
	if len(via) == 0 || ep.via == "" || !passed(via, ep.via) {
		return nil
	}
	return &refusal{status: http.StatusLoopDetected, code: mcp.CodeInternalError, reason: reasonLoop, data: ownData(reasonLoop),
		message: "this request has come round to a sidecar that it passed before: an upstream leads back here"}
}

// reasonLoop is what upstream.Loop is called too.
const reasonLoop = "loop"

// passed reports whether a request's Via (RFC 9110, 7.6.3) names a proxy.
func passed(via []string, name string) bool {
	for _, line := range via {
		for hop := range strings.SplitSeq(line, ",") {
			if fields := strings.Fields(hop); len(fields) > 1 && fields[1] == name {
				return true
			}
		}
	}
	return false
}

func forbidden(reason, message string) error {
	return &refusal{status: http.StatusForbidden, code: mcp.CodeInvalidRequest, reason: reason, message: message}
}

func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return true // the stricter case
	}
	tcp, ok := addr.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

func (ep *endpoint) hostAllowed(host string, loopback bool) bool {
	name := hostname(host)
	if ep.hosts[name] || loopback && isLoopbackName(name) {
		return true
	}
	return !loopback && len(ep.hosts) == 0
}

func (ep *endpoint) originAllowed(origin string, loopback bool) bool {
	if ep.origins[origin] {
		return true
	}
	if !loopback {
		return false
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && isLoopbackName(strings.ToLower(u.Hostname()))
}

// hostname is a Host header's name in lower case without port and brackets. Hot: the plain form does not allocate.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func isLoopbackName(name string) bool {
	switch name {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

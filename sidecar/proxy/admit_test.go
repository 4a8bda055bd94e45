package proxy

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// askFrom asks a proxy in memory, as if by a connection that reached it at addr.
func askFrom(r *rig, addr, host, origin string) int {
	req := httptest.NewRequest("POST", "/mcp", strings.NewReader(modernCall("1", "echo", "{}")))
	for k, v := range modern("tools/call", "echo") {
		req.Header.Set(k, v)
	}
	req.Host = host
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	local := &net.TCPAddr{IP: net.ParseIP(addr), Port: 15001}
	req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, net.Addr(local)))
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w.Code
}

// 2025-11-25 and 2026-07-28, basic/transports, Security Warning: 403 for a page's request that was not meant to get here.
func TestHostsAndOrigins(t *testing.T) {
	const loopback, outside = "127.0.0.1", "10.0.0.5"
	plain := newRig(t, &fake{})
	listed := newRig(t, &fake{}, func(b *bindingSpec) {
		b.Hosts, b.Origins = []string{"App.Example", "[2001:db8::1]"}, []string{"https://app.example"}
	})
	for _, tt := range []struct {
		rig                *rig
		addr, host, origin string
		status             int
	}{
		{plain, loopback, "localhost", "", 200},
		{plain, loopback, "LOCALHOST:15001", "", 200},
		{plain, loopback, "127.0.0.1:15001", "", 200},
		{plain, loopback, "127.9.9.9", "", 200},
		{plain, loopback, "[::1]:15001", "", 200},
		{plain, "::1", "[::1]", "", 200},
		{plain, loopback, "evil.example", "", 403},
		{plain, loopback, "localhost.evil.example", "", 403},
		{plain, loopback, "127.0.0.1.evil.example", "", 403},
		{plain, loopback, "localhost@evil.example", "", 403},
		{plain, loopback, "", "", 403},
		{plain, loopback, "10.0.0.5", "", 403},
		{plain, loopback, "localhost", "http://localhost:3000", 200},
		{plain, loopback, "localhost", "http://127.0.0.1", 200},
		{plain, loopback, "localhost", "http://[::1]:5", 200},
		{plain, loopback, "localhost", "https://evil.example", 403},
		{plain, loopback, "localhost", "http://localhost.evil.example", 403},
		{plain, loopback, "localhost", "null", 403},
		{plain, loopback, "localhost", "file://", 403},
		{plain, loopback, "localhost", "ftp://localhost", 403},
		{plain, outside, "anything.example", "", 200},
		{plain, outside, "anything.example", "http://anything.example", 403},
		{plain, outside, "localhost", "http://localhost", 403},
		{listed, outside, "app.example", "", 200},
		{listed, outside, "APP.example:443", "", 200},
		{listed, outside, "[2001:db8::1]:443", "", 200},
		{listed, outside, "other.example", "", 403},
		{listed, outside, "localhost", "", 403},
		{listed, outside, "app.example", "https://app.example", 200},
		{listed, outside, "app.example", "http://app.example", 403},
		{listed, outside, "app.example", "https://app.example.evil.example", 403},
		{listed, loopback, "localhost", "", 200},
		{listed, loopback, "app.example", "https://app.example", 200},
		{listed, loopback, "other.example", "", 403},
	} {
		if got := askFrom(tt.rig, tt.addr, tt.host, tt.origin); got != tt.status {
			t.Errorf("at %s, Host %q, Origin %q: %d, want %d", tt.addr, tt.host, tt.origin, got, tt.status)
		}
	}
}

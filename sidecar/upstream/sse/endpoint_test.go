package sse

import (
	"net/url"
	"strings"
	"testing"
)

func TestEndpoints(t *testing.T) {
	const base = "https://Server.example/a/sse?key=1"
	for _, tt := range []struct{ data, want string }{
		{"/messages?s=1", "https://Server.example/messages?s=1"},
		{"messages/?s=1", "https://Server.example/a/messages/?s=1"},
		{"?s=1", "https://Server.example/a/sse?s=1"},
		{" /m \n", "https://Server.example/m"},
		{"https://server.EXAMPLE:443/m?s=1#there", "https://Server.example/m?s=1"},
		{"//server.example/m", "https://Server.example/m"},
		{"/a%2Fb", "https://Server.example/a%2Fb"},
		{"https://server.example", "https://Server.example/"},
		{`/\evil.example/m`, `https://Server.example/%5Cevil.example/m`},
		{"", ""},
		{"//evil.example/m", ""},
		{"https://evil.example/m", ""},
		{"http://server.example/m", ""},
		{"https://server.example:8443/m", ""},
		{"https://server.example.evil.example/m", ""},
		{"https://server.example@evil.example/m", ""},
		{"https://user@server.example/m", ""},
		{"https:m", ""},
		{"file:///etc/passwd", ""},
		{"data:text/plain,x", ""},
		{"https:///m", ""},
		{"/a\x00b", ""},
		{"/a\r\nHost: evil", ""},
		{"https://[::1/m", ""},
		{"/" + strings.Repeat("x", maxEndpoint), ""},
	} {
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		to, err := endpointOf(u, []byte(tt.data))
		if err == nil {
			got = to.String()
		}
		if got != tt.want {
			t.Errorf("%.80q: %q (%v), want %q", tt.data, got, err, tt.want)
		}
	}
}

func FuzzEndpointsStayOnTheOrigin(f *testing.F) {
	for _, seed := range []string{
		"/messages?s=1", "m", "//evil", "https://evil/", "http://h:80/", "http://h", "http:m", "?", "#", `\\evil`, "http://h@evil",
		"http://[::1]:80/", "/%2f%2fevil", "http://H:080/",
	} {
		f.Add(seed)
	}
	base := &url.URL{Scheme: "http", Host: "h", Path: "/sse"}
	f.Fuzz(func(t *testing.T, data string) {
		to, err := endpointOf(base, []byte(data))
		if err != nil {
			return
		}
		if to.Scheme != "http" || to.Host != "h" || to.User != nil || to.Opaque != "" || to.Fragment != "" {
			t.Errorf("%q became %q", data, to)
		}
		again, err := url.Parse(to.String())
		if err != nil || again.Host != "h" || again.Scheme != "http" || again.User != nil {
			t.Errorf("%q became %q, which reads as %v (%v)", data, to, again, err)
		}
		if strings.ContainsAny(to.RequestURI(), " \r\n\x00") || !strings.HasPrefix(to.RequestURI(), "/") {
			t.Errorf("%q asks for %q", data, to.RequestURI())
		}
	})
}

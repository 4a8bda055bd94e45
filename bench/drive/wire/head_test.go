package wire

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestAHeadIsReadForWhatItSays(t *testing.T) {
	const long = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		in    string
		check func(h *Head) bool
	}{
		"a request":           {"POST /mcp HTTP/1.1\r\nContent-Length: 7\r\n\r\n", func(h *Head) bool { return h.Status == 0 && h.Length == 7 }},
		"no length":           {long + "\r\n", func(h *Head) bool { return h.Status == 200 && h.Length == -1 }},
		"names in any case":   {long + "CONTENT-length:3\r\nmcp-session-ID: s \r\n\r\n", func(h *Head) bool { return h.Length == 3 && string(h.Session) == "s" }},
		"chunked":             {long + "Transfer-Encoding: Chunked\r\n\r\n", func(h *Head) bool { return h.Chunked }},
		"events":              {long + "Content-Type: text/event-stream; charset=utf-8\r\n\r\n", func(h *Head) bool { return h.Events }},
		"JSON":                {long + "Content-Type: application/json\r\n\r\n", func(h *Head) bool { return !h.Events }},
		"the last message":    {long + "Connection: close\r\n\r\n", func(h *Head) bool { return h.Close }},
		"an older version":    {"HTTP/1.0 200 OK\r\n\r\n", func(h *Head) bool { return h.Close && h.Status == 200 }},
		"no reason":           {"HTTP/1.1 202 \r\n\r\n", func(h *Head) bool { return h.Status == 202 }},
		"version and name":    {"POST / HTTP/1.1\r\nMCP-Protocol-Version: v\r\nMcp-Name: n\r\n\r\n", func(h *Head) bool { return string(h.Version) == "v" && string(h.Name) == "n" }},
		"other things passed": {long + "Date: today\r\nX: \r\n\r\n", func(h *Head) bool { return h.Length == -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			h := Head{Session: []byte("of the head before"), Length: 5, Chunked: true}
			if err := h.Read(bufio.NewReader(strings.NewReader(tc.in))); err != nil || !tc.check(&h) {
				t.Errorf("Read(%q) = %+v, %v", tc.in, h, err)
			}
		})
	}
}

func TestWhatIsNotAHeadIsRefused(t *testing.T) {
	for name, in := range map[string]string{
		"a line without a colon": "HTTP/1.1 200 OK\r\nhello\r\n\r\n",
		"a nameless line":        "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
		"a length below zero":    "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"a huge length":          "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
		"two codings":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"no status":              "HTTP/1.1 OK\r\n\r\n",
		"a status of letters":    "HTTP/1.1 2x0 OK\r\n\r\n",
		"over the buffer":        "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5000) + "\r\n\r\n",
	} {
		var h Head
		if err := h.Read(bufio.NewReader(strings.NewReader(in))); !errors.Is(err, ErrHead) {
			t.Errorf("%s: Read(%.60q) = %v, want ErrHead", name, in, err)
		}
	}
	var h Head
	if err := h.Read(bufio.NewReader(strings.NewReader("HTTP/1.1 200"))); err != io.EOF {
		t.Errorf("Read of half a head = %v, want io.EOF", err)
	}
}

// FuzzHead holds that no bytes make the head's reader panic, or read past the head.
func FuzzHead(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nMcp-Session-Id: a\r\n\r\nabc")
	f.Add("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
	f.Add("\r\n\r\n")
	f.Add(": \r\n\r\n")
	f.Add("HTTP/1.\r\n\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		r := bufio.NewReader(strings.NewReader(s))
		var h Head
		if h.Read(r) != nil {
			return
		}
		_, after, _ := strings.Cut(s, "\r\n\r\n")
		if got, _ := io.ReadAll(r); string(got) != after {
			t.Errorf("after the head of %q there is %q, want %q", s, got, after)
		}
	})
}

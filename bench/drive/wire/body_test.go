package wire

import (
	"bufio"
	"errors"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
)

// readBody reads the body of a whole answer and what stands after it.
func readBody(t *testing.T, answer string) (body, after string, err error) {
	t.Helper()
	r := bufio.NewReader(iotest.OneByteReader(strings.NewReader(answer)))
	var h Head
	if err := h.Read(r); err != nil {
		t.Fatalf("head of %q: %v", answer, err)
	}
	var b Body
	b.Reset(r, &h)
	got, err := b.Append([]byte("before "))
	rest, _ := io.ReadAll(r)
	return strings.TrimPrefix(string(got), "before "), string(rest), err
}

func TestABodyEndsWhereItsHeadSays(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, tc := range map[string]struct{ in, body, after string }{
		"by its length":              {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcnext", "abc", "next"},
		"at once":                    {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nnext", "", "next"},
		"a request without a length": {"GET / HTTP/1.1\r\n\r\nnext", "", "next"},
		"a status that has none":     {"HTTP/1.1 204 No Content\r\n\r\nnext", "", "next"},
		"after its last chunk":       {chunked + "2\r\nab\r\n1\r\nc\r\n0\r\n\r\nnext", "abc", "next"},
		"extensions and trailers":    {chunked + "A;x=y\r\n0123456789\r\n00\r\nTrailer: t\r\n\r\nnext", "0123456789", "next"},
		"no chunk at all":            {chunked + "0\r\n\r\nnext", "", "next"},
		"with the connection":        {"HTTP/1.1 200 OK\r\n\r\nabc", "abc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if body, after, err := readBody(t, tc.in); err != nil || body != tc.body || after != tc.after {
				t.Errorf("body of %q = %q, then %q, %v; want %q, then %q", tc.in, body, after, err, tc.body, tc.after)
			}
		})
	}
}

func TestABodyThatIsCutShortIsAnError(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, in := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
		chunked, chunked + "3", chunked + "3\r\nab", chunked + "2\r\nab", chunked + "2\r\nab\r\n", chunked + "0\r\n",
	} {
		if _, _, err := readBody(t, in); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("body of %q: %v, want io.ErrUnexpectedEOF", in, err)
		}
	}
	for _, in := range []string{chunked + "x\r\n", chunked + "-1\r\n", chunked + "fffffffffff\r\n", chunked + "1\r\nabc\r\n"} {
		if _, _, err := readBody(t, in); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("body of %q: %v, want an error that says what is wrong", in, err)
		}
	}
}

// FuzzChunks holds that what this reader and the standard library's both take, they take for the same.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "1;e\r\na\r\n0\r\nt: u\r\n\r\n", "fffffffffffffffff\r\n", "2\r\na"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := bufio.NewReader(strings.NewReader(s))
		var b Body
		b.Reset(r, &Head{Status: 200, Chunked: true, Length: -1})
		got, err := b.Append(nil)
		want, wantErr := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(s)))
		if err == nil && wantErr == nil && string(got) != string(want) {
			t.Errorf("chunks %q: got %q, want %q", s, got, want)
		}
	})
}

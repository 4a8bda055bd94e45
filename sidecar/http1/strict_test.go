package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"testing"
)

var (
	bareLF = regexp.MustCompile(`(^|[^\r])\n`)
	folded = regexp.MustCompile(`\n[ \t]`)
	length = regexp.MustCompile(`(?i)\ncontent-length:`)
)

// FuzzStrict holds what strict lets through to what net/http makes of it: each head that net/http finds in it is one that
// strict has seen as a head too. Where the bytes are cut must not matter.
func FuzzStrict(f *testing.F) {
	for _, e := range corpus(f) {
		if len(e.raw) < 10<<10 {
			f.Add(e.raw, uint16(len(e.raw)/3))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		var whole, parts strict
		n := whole.pass(b)
		at := min(int(cut), len(b))
		inParts := parts.pass(b[:at])
		if inParts == at {
			inParts += parts.pass(b[at:])
		}
		if inParts != n {
			t.Fatalf("%d bytes pass, cut at %d it is %d: %q", n, at, inParts, b)
		}
		if n < len(b) {
			return
		}
		src := bytes.NewReader(b)
		r := bufio.NewReaderSize(src, len(b)+16)
		for {
			begin := len(b) - src.Len() - r.Buffered()
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			head := b[begin : len(b)-src.Len()-r.Buffered()]
			chunked := len(req.TransferEncoding) > 0
			if lengths := len(length.FindAll(head, -1)); req.ProtoMajor == 1 &&
				(bareLF.Match(head) || folded.Match(head) || lengths > 1 || chunked && (lengths > 0 || req.ProtoMinor == 0)) {
				t.Fatalf("this head of %q passes: %q", b, head)
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil || chunked || req.ProtoMajor != 1 {
				return
			}
		}
	})
}

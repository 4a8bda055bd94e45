package mcp

import "bytes"

// Edit replaces a part of a message. A Span with Start == End inserts before Start.
type Edit struct {
	Span Span
	With []byte // nil cuts the part out
}

// Splice appends raw to dst with the edits made; everything else stays byte for byte as it came. The edits are in
// ascending order and do not overlap: Splice panics on others. dst does not share memory with raw.
func Splice(dst, raw []byte, edits ...Edit) []byte {
	from := 0
	for _, e := range edits {
		dst = append(dst, raw[from:e.Span.Start]...)
		dst = append(dst, e.With...)
		from = e.Span.End
	}
	return append(dst, raw[from:]...)
}

// Compact appends raw, a JSON text, to dst without its line breaks, as the stdio transport wants it: one message per
// line (basic/transports/stdio). Strings cannot hold raw line breaks, so nothing else changes.
func Compact(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\n')
		if i < 0 {
			return appendWithoutCR(dst, raw)
		}
		dst = appendWithoutCR(dst, raw[:i])
		raw = raw[i+1:]
	}
}

func appendWithoutCR(dst, line []byte) []byte {
	for {
		i := bytes.IndexByte(line, '\r')
		if i < 0 {
			return append(dst, line...)
		}
		dst = append(dst, line[:i]...)
		line = line[i+1:]
	}
}

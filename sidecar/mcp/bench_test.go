package mcp

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Steps of a call in this package that have no benchmark beside their tests, and what none of them may allocate.

func BenchmarkClassify(b *testing.B) {
	stateless, legacy := mustScan(b, statelessCall), mustScan(b, legacyCall)
	modern, old := headersOf("tools/call", "ledger.post"), http.Header{HeaderSessionID: {"s"}, HeaderVersion: {Version20251125}}
	for _, row := range []struct {
		era Era
		h   http.Header
		m   *Message
	}{{Stateless, modern, &stateless}, {Legacy, old, &legacy}} {
		b.Run(row.era.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := Classify("POST", row.h, row.m); got != row.era {
					b.Fatalf("got %v, want %v", got, row.era)
				}
			}
		})
	}
}

func TestClassifyAndTheLegacyCheckDoNotAllocate(t *testing.T) {
	m := mustScan(t, legacyCall)
	h := http.Header{HeaderSessionID: {"s"}, HeaderVersion: {Version20251125}}
	if n := testing.AllocsPerRun(100, func() {
		if Classify("POST", h, &m) != Legacy || CheckLegacyVersion(h) != nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// mirrored are n arguments that are mirrored in headers, as a client sends them.
func mirrored(n int) (h http.Header, arguments []byte, ps []ParamHeader) {
	h = http.Header{}
	var members []string
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		header := http.CanonicalHeaderKey(HeaderParamPrefix + name)
		ps = append(ps, ParamHeader{Header: header, Path: []string{name}, Type: "string"})
		h[header] = []string{"eu-west-1"}
		members = append(members, fmt.Sprintf(`%q:"eu-west-1"`, name))
	}
	return h, []byte("{" + strings.Join(members, ",") + "}"), ps
}

func BenchmarkCheckParams(b *testing.B) {
	for _, n := range []int{0, 1, 8} {
		h, arguments, ps := mirrored(n)
		b.Run(fmt.Sprintf("headers=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if e := CheckParams(h, arguments, ps); e != nil {
					b.Fatal(e)
				}
			}
		})
	}
}

func TestCheckParamsDoesNotAllocate(t *testing.T) {
	h, arguments, ps := mirrored(3)
	if n := testing.AllocsPerRun(100, func() {
		if e := CheckParams(h, arguments, ps); e != nil {
			t.Fatal(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d plain strings, want 0", n, len(ps))
	}
}

func BenchmarkPeekResponse(b *testing.B) {
	for _, size := range []int{64, 4 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			prefix := []byte(`{"jsonrpc":"2.0","id":12,"result":{"content":"` + strings.Repeat("x", size))
			b.ReportAllocs()
			for b.Loop() {
				if p := PeekResponse(prefix); !p.Answers(prefix, []byte("12")) {
					b.Fatal("no answer")
				}
			}
		})
	}
}

// BenchmarkCopyEvent is what an event of a stream costs: read, scanned and written anew.
func BenchmarkCopyEvent(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			copyEvents(b, size, b.Loop)
		})
	}
}

// copyEvents reads, scans and writes an event of so many bytes while more says so.
func copyEvents(tb testing.TB, size int, more func() bool) {
	message := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", size) + `"}}`
	stream := []byte(strings.Repeat("event: message\nid: 7_12\ndata: "+message+"\n\n", 16))
	source := bytes.NewReader(stream)
	r := NewEventReader(source, 1<<20)
	out := make([]byte, 0, 2*len(message))
	for more() {
		e, err := r.Next()
		if err != nil {
			source.Reset(stream)
			r.Reset(source)
			continue
		}
		m, err := Scan(e.Data, Limits{})
		if err != nil || m.Kind != Notification {
			tb.Fatalf("%.100s: %v", e.Data, err)
		}
		out = AppendEvent(out[:0], e)
	}
	if len(out) < size {
		tb.Fatalf("wrote %d bytes, want more than %d", len(out), size)
	}
}

func TestCopyingAnEventDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are counted without the race detector")
	}
	n := testing.AllocsPerRun(5, func() {
		left := 1000
		copyEvents(t, 200, func() bool { left--; return left >= 0 })
	})
	if perEvent := n / 1000; perEvent > 0.1 {
		t.Errorf("%v allocations for an event, want none beyond the stream's own", perEvent)
	}
}

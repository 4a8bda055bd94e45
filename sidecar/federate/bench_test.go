package federate

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// many are members with as many tools each.
func many(members, each int) (all []upstream.Server) {
	for m := range members {
		var names []string
		for i := range each {
			names = append(names, fmt.Sprintf("tool-%d", i))
		}
		all = append(all, tooled(fmt.Sprintf("m%d", m), names...))
	}
	return all
}

// BenchmarkWarmList is what a merged tools/list costs once it is there, before it is written out.
func BenchmarkWarmList(b *testing.B) {
	for _, size := range []struct{ members, tools int }{{1, 10}, {5, 20}, {20, 50}, {20, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.members, size.tools), func(b *testing.B) {
			s := federation(b, "lists: {pageSize: 100000}", many(size.members, size.tools)...)
			c := newClient(b, s).message(mcp.MethodToolsList, "")
			first, err := s.Call(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			var sum bytes.Buffer
			first.Body.(io.WriterTo).WriteTo(&sum)
			b.ReportMetric(float64(sum.Len()), "answer-bytes")
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Call(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkColdList is what it costs to ask members that answer at once, and to merge what they say.
func BenchmarkColdList(b *testing.B) {
	for _, size := range []struct{ members, tools int }{{20, 50}, {20, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.members, size.tools), func(b *testing.B) {
			members := many(size.members, size.tools)
			s := federation(b, "lists: {pageSize: 100000}", members...)
			c := newClient(b, s).message(mcp.MethodToolsList, "")
			b.ReportAllocs()
			for b.Loop() {
				for _, m := range s.members {
					s.invalidate(m, true, scope{}, tools)
				}
				if _, err := s.Call(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAllocationsOfAWarmList(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := federation(t, "lists: {pageSize: 100000}", many(20, 50)...)
	c := newClient(t, s).message(mcp.MethodToolsList, "")
	ask := func() {
		if _, err := s.Call(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n > 8 {
		t.Errorf("a warm list of 1000 tools takes %v allocations, want at most 8", n)
	}
}

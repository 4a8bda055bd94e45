package care

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// null is an endpoint that costs nothing: it gives the same answer to one call after the other.
type null struct {
	upstream.Server
	answer upstream.Answer
	body   instant
}

type instant struct{}

func (instant) Read([]byte) (int, error) { return 0, io.EOF }
func (instant) Close() error             { return nil }

func (n *null) Call(context.Context, *upstream.Call) (*upstream.Answer, error) {
	n.answer = upstream.Answer{Status: http.StatusOK, Body: &n.body}
	return &n.answer, nil
}

func (n *null) Eras(context.Context) (mcp.Eras, error) { return mcp.EraSet(mcp.Stateless), nil }
func (n *null) Close(context.Context) error            { return nil }

// once makes a call and reads its answer as the proxy does.
func once(ctx context.Context, s upstream.Server, c *upstream.Call) {
	a, err := s.Call(ctx, c)
	if err != nil {
		panic(err)
	}
	_, _ = a.Body.Read(oneByte)
	a.Close()
}

func nulls(n int) (endpoints []upstream.Server) {
	for range n {
		endpoints = append(endpoints, new(null))
	}
	return endpoints
}

// BenchmarkCall is what care adds: "bare" is the endpoint without it.
func BenchmarkCall(b *testing.B) {
	c := request(b, "call x")
	bench := func(name string, s upstream.Server) {
		b.Run(name, func(b *testing.B) {
			ctx := new(lazyctx.Context)
			b.ReportAllocs()
			for b.Loop() {
				once(ctx, s, c)
			}
		})
	}
	bench("bare", new(null))
	for name, s := range map[string]*Server{
		"one endpoint":    New(nulls(1), specOf(unchecked), Options{}),
		"three endpoints": New(nulls(3), specOf(unchecked), Options{}),
		"with retries":    New(nulls(1), specOf(unchecked, attempts(2)), Options{}),
	} {
		bench(name, s)
		closeServer(b, s)
	}
}

// BenchmarkCallParallel is the same from several goroutines, for what they share.
func BenchmarkCallParallel(b *testing.B) {
	c := request(b, "call x")
	s := New([]upstream.Server{fresh{}}, specOf(unchecked), Options{})
	defer closeServer(b, s)
	for name, s := range map[string]upstream.Server{"bare": fresh{}, "one endpoint": s} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				ctx := new(lazyctx.Context)
				for p.Next() {
					once(ctx, s, c)
				}
			})
		})
	}
}

// fresh makes an answer for each call.
type fresh struct{ upstream.Server }

func (fresh) Call(context.Context, *upstream.Call) (*upstream.Answer, error) {
	return &upstream.Answer{Status: http.StatusOK, Body: instant{}}, nil
}

func (fresh) Close(context.Context) error { return nil }

func TestACallAllocatesOnce(t *testing.T) {
	s := New(nulls(1), specOf(unchecked), Options{})
	defer closeServer(t, s)
	c, ctx := request(t, "call x"), new(lazyctx.Context)
	if n := testing.AllocsPerRun(1000, func() { once(ctx, s, c) }); n > 1 {
		t.Errorf("%v allocations for a call, want at most 1", n)
	}
}

var oneByte = make([]byte, 1)

package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/null/server"
	"github.com/outrigger-mesh/outrigger/bench/record"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// mergeCases are the merges in process.
func mergeCases(short bool) (cases []Case) {
	for _, k := range []Case{{"size": "20x50", "tools": "1000"}, {"size": "1x10", "tools": "10"}, {"size": "5x20", "tools": "100"}, {"size": "20x1000", "tools": "20000"}} {
		cases = append(cases, k.with("of", ofWarm), k.with("of", ofCold))
	}
	if short {
		return cases[:2]
	}
	return cases
}

// merges measures each of the merges, turn about.
func (b *Bench) merges(ctx context.Context, cases []Case) error {
	for round := 1; round <= b.heldRounds(); round++ {
		for _, k := range cases {
			var found testing.BenchmarkResult
			load := func(ctx context.Context) (l record.Load, err error) {
				found, err = benchmarkMerge(ctx, k)
				return record.Load{Calls: int64(found.N), Seconds: found.T.Seconds()}, err
			}
			figures := func(record.Row) map[string]float64 {
				return map[string]float64{"op_us": found.T.Seconds() * 1e6 / float64(found.N),
					"op_bytes": float64(found.AllocedBytesPerOp()), "op_allocs": float64(found.AllocsPerOp())}
			}
			row := record.Row{Scenario: "federation", Case: k, Subject: "sidecar", Round: round}
			if _, err := b.Row(ctx, row, load, figures); err != nil {
				return err
			}
		}
	}
	return nil
}

// benchmarkMerge measures a case's merge, after its first answer was found to be whole.
func benchmarkMerge(ctx context.Context, k Case) (found testing.BenchmarkResult, err error) {
	list, err := listCall()
	if err != nil {
		return found, err
	}
	members := mergeMembers(k)
	s := newFederation(k, members)
	defer func() { err = errors.Join(err, s.Close(ctx)) }()
	want := expectedTools(k)
	if err := holds(ctx, s, list, want); err != nil {
		return found, err
	}
	once := func() error { return lists(ctx, s, list, len(want)) }
	if k["of"] == ofCold {
		once = func() error {
			fresh := newFederation(k, members)
			return errors.Join(lists(ctx, fresh, list, len(want)), fresh.Close(ctx))
		}
	}
	found = testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if e := once(); e != nil {
				err = e
			}
		}
	})
	return found, err
}

// listCall is a stateless client's tools/list.
func listCall() (*upstream.Call, error) {
	m, err := mcp.Scan([]byte(listBody), mcp.Limits{})
	return &upstream.Call{Message: &m}, err
}

// holds fails unless a federation's answer holds the tools.
func holds(ctx context.Context, s *federate.Server, list *upstream.Call, tools []byte) error {
	a, err := s.Call(ctx, list)
	if err != nil {
		return err
	}
	defer a.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && !bytes.Contains(body, tools) {
		err = fmt.Errorf("a merged list of %d bytes is not the upstreams' lists, of %d: %.300s", len(body), len(tools), body)
	}
	return err
}

// lists asks a federation for its list, and fails when the answer is shorter than its tools.
func lists(ctx context.Context, s *federate.Server, list *upstream.Call, least int) error {
	a, err := s.Call(ctx, list)
	if err != nil {
		return err
	}
	if a.Length < int64(least) {
		err = fmt.Errorf("a merged list has %d bytes, its tools alone %d", a.Length, least)
	}
	return errors.Join(err, a.Close())
}

// newFederation offers a case's upstreams as one, all tools in one page.
func newFederation(k Case, members []federate.Member) *federate.Server {
	binding := resource.WithDefaults(&outriggerv1.Binding{Name: k["size"],
		Names: &outriggerv1.Names{Prefix: outriggerv1.Prefix_PREFIX_ALWAYS}, Lists: &outriggerv1.Lists{PageSize: wholePage}})
	return federate.New(members, federate.Options{Binding: binding, Log: slog.New(slog.DiscardHandler), Sealer: seal.New(),
		Name: "bench", Version: "1"})
}

// mergeMembers are a case's upstreams, in memory.
func mergeMembers(k Case) (members []federate.Member) {
	count, each := k.upstreams()
	result := slices.Concat([]byte(`{"resultType":"complete","ttlMs":3600000,"cacheScope":"public","tools":`),
		server.Tools(server.ToolNames("", each)), []byte{'}'})
	for i := range count {
		members = append(members, federate.Member{Name: prefixOf(i), Prefix: prefixOf(i), Server: listing{result: result}})
	}
	return members
}

// listing is a server with one list and no other method.
type listing struct {
	upstream.Server // nil: what is not here is not called
	result          []byte
}

// Call implements upstream.Server.
func (l listing) Call(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
	id := c.Message.ID.Of(c.Message.Raw)
	var body []byte
	if c.Message.Method == mcp.MethodToolsList {
		body = slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), l.result, []byte{'}'})
	} else {
		body = mcp.AppendError(nil, id, &mcp.Error{Code: mcp.CodeMethodNotFound, Message: "only tools/list"})
	}
	return &upstream.Answer{Status: 200, Length: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}, nil
}

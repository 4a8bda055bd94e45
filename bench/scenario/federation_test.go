package scenario

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestTheExpectedToolsAreEveryUpstreamsUnderItsPrefix(t *testing.T) {
	for _, tc := range []struct{ size, tools, want string }{
		{"2x2", "4", "s01_null s01_tool_0001 s02_null s02_tool_0001"},
		{"3x2", "2", "s01_null s01_tool_0001"},
		{"1x1", "1", "s01_null"},
	} {
		var tools []struct{ Name string }
		if err := json.Unmarshal(expectedTools(Case{"size": tc.size, "tools": tc.tools}), &tools); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tool := range tools {
			got = append(got, tool.Name)
		}
		if !slices.Equal(got, strings.Fields(tc.want)) {
			t.Errorf("%s, of which %s: %q, want %q", tc.size, tc.tools, got, tc.want)
		}
	}
}

func TestAMergeThatLacksAnUpstreamIsNotMeasured(t *testing.T) {
	k := Case{"of": ofWarm, "size": "3x5", "tools": "15"}
	list, err := listCall()
	if err != nil {
		t.Fatal(err)
	}
	want := expectedTools(k)
	members := mergeMembers(k)
	for _, count := range []int{3, 2} {
		s := newFederation(k, members[:count])
		if err := holds(t.Context(), s, list, want); (err == nil) != (count == 3) {
			t.Errorf("holds with %d of 3 upstreams: %v", count, err)
		}
		if err := lists(t.Context(), s, list, len(want)); (err == nil) != (count == 3) {
			t.Errorf("lists with %d of 3 upstreams: %v", count, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTranslationIsCountedFromTheSameClientsCall(t *testing.T) {
	s := &Subject{Name: "sidecar"}
	row := func(server, discarded string, cpu float64) record.Row {
		return record.Row{Case: Case{"era": "legacy", "server": server, "conns": "1"}, Round: 1, Discarded: discarded,
			Load:  &record.Load{Calls: 1, Latency: record.Latency{P50: 10 * cpu}},
			Usage: []record.Usage{{Process: "sidecar", UserSeconds: cpu / 1e6, RSSMiB: 1}}}
	}
	for name, tc := range map[string]struct {
		discarded string
		keepNoisy bool
		want      float64 // 0: nothing to count from
	}{
		"a quiet row":             {want: 12},
		"a noisy row":             {discarded: "noise"},
		"a noisy row that counts": {discarded: "noise", keepNoisy: true, want: 12},
	} {
		same := sameEra{}
		same.figures(row("legacy", tc.discarded, 20), s, tc.keepNoisy)
		v := same.figures(row("stateless", "", 32), s, tc.keepNoisy)
		if cpu, p50 := v["added_cpu_us"], v["added_p50_us"]; max(cpu-tc.want, tc.want-cpu) > 0.001 || max(p50-10*tc.want, 10*tc.want-p50) > 0.001 {
			t.Errorf("%s: %v, want %v us of CPU added, and ten times that to p50", name, v, tc.want)
		}
	}
}

func bridgesShortly(ctx context.Context, t *testing.T, programs layout.Programs) {
	b, rows := withProcesses(t, programs)
	if err := runBridge(ctx, b); err != nil {
		t.Fatal(err)
	}
	if len(*rows) != 8 {
		t.Errorf("%d rows, want the four cells with 1 and with 64 connections", len(*rows))
	}
	for _, row := range *rows {
		_, added := row.Values["added_p50_us"] // CPU time is of whole ticks, so a moment may have had none
		if translated := row.Case["era"] != row.Case["server"]; row.Discarded != "" || row.Values["calls_s"] <= 0 || added != translated {
			t.Errorf("%s: %v, discarded: %q; want calls, and what translation adds", Describe(row), row.Values, row.Discarded)
		}
	}
}

func federatesShortly(ctx context.Context, t *testing.T, programs layout.Programs) {
	b, rows := withProcesses(t, programs)
	if err := runFederation(ctx, b); err != nil {
		t.Fatal(err)
	}
	if len(*rows) != 7 {
		t.Errorf("%d rows, want five lists and two merges", len(*rows))
	}
	for _, row := range *rows {
		figure := "op_us"
		if row.Case["of"] == ofLists {
			figure = "mib_s"
		}
		if row.Discarded != "" || row.Load.Calls == 0 || row.Values[figure] <= 0 {
			t.Errorf("%s: %v, discarded: %q; want calls and %s", Describe(row), row.Values, row.Discarded, figure)
		}
	}
	missesAWrongList(ctx, t, b)
}

// missesAWrongList holds that a list which is not the expected one fails its row.
func missesAWrongList(ctx context.Context, t *testing.T, b *Bench) {
	up, err := b.Layout.Null(ctx, "-tools", "9")
	if err != nil {
		t.Fatal(err)
	}
	found, err := b.Layout.Load(ctx, "-op", "list", "-calls", "3", "-expect-file", expectedFile(b.Layout, Case{"size": "1x10", "tools": "10"}), up.URL)
	if err != nil || found.Wrong != 3 {
		t.Errorf("%+v, %v; want three wrong answers", found, err)
	}
}

package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Calls of a row each way, and how many are made in a block before the other way has its turn.
const (
	latencyCalls = 2000
	latencyBlock = 200
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "latency",
		Title:    "What is added to a call's latency",
		Question: "How much longer does one call take through a proxy, when nothing else is going on?",
		Method: fmt.Sprintf("%d calls one after the other on one connection, directly and through the proxy, in blocks of %d turn "+
			"about. `added_p50_us` is the median over blocks of the proxy's p50 less that of the direct block before it.",
			latencyCalls, latencyBlock),
		Fields:  []string{"era"},
		Figures: []record.Figure{figureAdded, figureDirect, figureP50, figureP99},
		Charts: []record.Chart{
			{Name: "added", Title: "Added to p50 of a single call", Kind: "bar", X: "era", Y: "added_p50_us", Series: "subject"},
		},
		Targets: []record.Target{
			{Name: "added to p50, stateless, us", Figure: "added_p50_us", Subject: "sidecar", Where: Case{"era": "stateless"}, Most: 120, Gate: 1000},
			{Name: "added to p50, legacy, us", Figure: "added_p50_us", Subject: "sidecar", Where: Case{"era": "legacy"}, Most: 120, Gate: 1000},
		},
	},
	Needs: AnyServer,
	Run:   runLatency,
})

func runLatency(ctx context.Context, b *Bench) error {
	subjects, err := b.Subjects(ctx, "direct", "nginx", "sidecar", "peers")
	if err != nil {
		return err
	}
	var direct *Subject
	if b.Target == nil {
		direct, subjects = subjects[0], subjects[1:]
	}
	cases := b.ofEra(cross("era", "stateless,legacy"))
	b.Plan(b.Rounds * len(cases) * len(subjects))
	for round := 1; round <= b.Rounds; round++ {
		for _, k := range cases {
			for _, s := range subjects {
				row := record.Row{Scenario: "latency", Case: k, Subject: s.Name, Round: round}
				var t blocks
				load := func(ctx context.Context) (record.Load, error) { return t.run(ctx, b, k, direct, s) }
				if _, err := b.Row(ctx, row, load, t.figures); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// blocks are the loads of one row.
type blocks struct{ direct, through []record.Load }

// run makes the calls, each way in turn, and returns those through the subject as one load. Its seconds are all the
// time that both took, so that it is judged by what the machine did meanwhile.
func (t *blocks) run(ctx context.Context, b *Bench, k Case, direct, s *Subject) (record.Load, error) {
	*t = blocks{}
	began := time.Now()
	one := func(s *Subject, to *[]record.Load) error {
		args := append([]string{"-era", k["era"], "-conns", "1", "-warm", "10ms", "-calls", fmt.Sprint(latencyBlock)}, b.targetArgs()...)
		l, err := b.Layout.Load(ctx, append(args, s.URL())...)
		*to = append(*to, l)
		return err
	}
	for range latencyCalls / latencyBlock {
		if direct != nil {
			if err := one(direct, &t.direct); err != nil {
				return record.Load{}, err
			}
		}
		if err := one(s, &t.through); err != nil {
			return record.Load{}, err
		}
	}
	sum, err := mergeLoads(t.through)
	sum.Seconds = time.Since(began).Seconds()
	for _, d := range t.direct {
		sum.Wrong += d.Wrong
		sum.Failures += d.Failures
	}
	return sum, err
}

func (t *blocks) figures(row record.Row) map[string]float64 {
	v := map[string]float64{"p50_us": row.Load.Latency.P50, "p99_us": row.Load.Latency.P99}
	if len(t.direct) == 0 {
		return v
	}
	var added, direct []float64
	for i, d := range t.direct {
		direct = append(direct, d.Latency.P50)
		added = append(added, t.through[i].Latency.P50-d.Latency.P50)
	}
	v["added_p50_us"], v["direct_p50_us"] = median(added), median(direct)
	return v
}

// median of values, the lower one when there are two; 0 when there is none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[(len(s)-1)/2]
}

// mergeLoads is several loads as one: their counts added and their histograms merged.
func mergeLoads(loads []record.Load) (sum record.Load, err error) {
	all := hdrhistogram.New(1, int64(time.Hour), 3)
	for _, l := range loads {
		sum.Calls += l.Calls
		sum.Failures += l.Failures
		sum.Wrong += l.Wrong
		sum.Events += l.Events
		sum.CPUSeconds += l.CPUSeconds
		sum.Connections = l.Connections
		if sum.FirstFailure == "" {
			sum.FirstFailure = l.FirstFailure
		}
		if l.Histogram == "" {
			continue
		}
		h, err := hdrhistogram.Decode([]byte(l.Histogram))
		if err != nil {
			return sum, fmt.Errorf("the load generator's histogram: %w", err)
		}
		all.Merge(h)
	}
	us := func(percentile float64) float64 { return float64(all.ValueAtQuantile(percentile)) / 1e3 }
	sum.Latency = record.Latency{Count: all.TotalCount(), Mean: all.Mean() / 1e3, P50: us(50), P90: us(90), P99: us(99),
		P999: us(99.9), P9999: us(99.99), Max: float64(all.Max()) / 1e3}
	text, err := all.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	sum.Histogram = string(text)
	return sum, err
}

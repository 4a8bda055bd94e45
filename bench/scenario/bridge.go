package scenario

import (
	"context"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "bridge",
		Title:    "What translation between the eras costs",
		Question: "How much more does a call cost when client and server speak different wires?",
		Method: "One sidecar in front of two servers that do nothing, one of each era, and clients of each era: four cells. A call is a " +
			"tools/call of 350 B, answered at once with some 250 B; in a closed loop every connection has one call in flight, and legacy " +
			"clients a session each. `era` is the client's. `added_cpu_us` and `added_p50_us` are the row's CPU per call and p50 " +
			"less those of the same client, with a server of its own era, in the same round.",
		Fields: []string{"era", "server", "conns"},
		Figures: []record.Figure{figureCPU,
			{Name: "added_cpu_us", Title: "CPU added by translation, us", Better: "lower", Digits: 1},
			figureCalls, figureP50, figureAdded, figureP99, figureRSS},
		Charts: []record.Chart{
			{Name: "cells", Title: "CPU per call in the four cells, 64 connections", Kind: "bar", X: "server", Y: "cpu_us", Series: "era",
				Where: map[string]string{"conns": usualConns}},
		},
		Targets: []record.Target{
			{Name: "CPU added for a stateless client of a legacy server, us", Figure: "added_cpu_us", Subject: "sidecar",
				Where: Case{"era": "stateless", "server": "legacy", "conns": usualConns}, Most: 15},
			{Name: "CPU added for a legacy client of a stateless server, us", Figure: "added_cpu_us", Subject: "sidecar",
				Where: Case{"era": "legacy", "server": "stateless", "conns": usualConns}, Most: 15},
		},
	},
	Needs: OwnProcesses,
	Run:   runBridge,
})

// bridgeYAML is a configuration with an endpoint for each of two servers, which are told and not asked for their eras.
const bridgeYAML = `kind: Upstream
name: stateless
spec: {http: {url: "{STATELESS}"}, era: stateless}
---
kind: Upstream
name: legacy
spec: {http: {url: "{LEGACY}"}, era: legacy}
---
kind: Binding
name: stateless
spec: {selector: {matchLabels: {}}, path: /stateless, upstreams: [{name: stateless}]}
---
kind: Binding
name: legacy
spec: {selector: {matchLabels: {}}, path: /legacy, upstreams: [{name: legacy}]}
`

func runBridge(ctx context.Context, b *Bench) error {
	sidecar, err := b.bridgeSidecar(ctx)
	if err != nil {
		return err
	}
	same := sameEra{}
	c := Contest{
		Scenario: "bridge",
		Subjects: []*Subject{{"sidecar", sidecar, sidecar.URL}},
		Cases:    b.ofEra(bridgeCases()),
		Path:     func(k Case) string { return "/" + k["server"] },
		Load:     func(k Case) []string { return []string{"-era", k["era"], "-conns", k["conns"]} },
		Figures: func(row record.Row, s *Subject, _ map[string]record.Row) map[string]float64 {
			return same.figures(row, s, b.KeepNoisy)
		},
	}
	b.Plan(b.Rows(c))
	return b.Contest(ctx, c)
}

// bridgeSidecar starts a server of each era and a sidecar in front of both.
func (b *Bench) bridgeSidecar(ctx context.Context) (*layout.Process, error) {
	stateless, err := b.Layout.Null(ctx, "-era", "stateless")
	if err != nil {
		return nil, err
	}
	legacy, err := b.Layout.Null(ctx, "-era", "legacy")
	if err != nil {
		return nil, err
	}
	return b.Layout.Sidecar(ctx, strings.NewReplacer("{STATELESS}", stateless.URL, "{LEGACY}", legacy.URL).Replace(bridgeYAML))
}

// bridgeCases are the cells; for each client that of its own era comes first, since the other is counted from it.
func bridgeCases() (cases []Case) {
	for _, k := range cross("conns", "1,"+usualConns, "era", "stateless,legacy") {
		other := map[string]string{"stateless": "legacy", "legacy": "stateless"}[k["era"]]
		cases = append(cases, k.with("server", k["era"]), k.with("server", other))
	}
	return cases
}

// sameEra are the figures of rows whose server is of its client's own era.
type sameEra map[sameEraKey]map[string]float64

type sameEraKey struct {
	era, conns string
	round      int
}

// figures are a row's. It notes those of the same era, unless noisy is false and the row was noisy.
func (e sameEra) figures(row record.Row, s *Subject, noisy bool) map[string]float64 {
	v := callFigures(row, s)
	delete(v, "p99_over_p50")
	key := sameEraKey{row.Case["era"], row.Case["conns"], row.Round}
	if row.Case["server"] == row.Case["era"] {
		delete(e, key)
		if noisy || row.Discarded == "" {
			e[key] = v
		}
		return v
	}
	for figure, added := range map[string]string{"cpu_us": "added_cpu_us", "p50_us": "added_p50_us"} {
		if same, ok := e[key][figure]; ok && v[figure] > 0 {
			v[added] = v[figure] - same
		}
	}
	return v
}

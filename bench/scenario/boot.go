package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Where a sidecar's configuration is when it starts.
const (
	bootFile  = "file"
	bootSaved = "last known good"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "boot",
		Title:    "Starting",
		Question: "How long from starting the process until it serves a call, with its configuration on disk?",
		Method: "The sidecar is started `starts` times, one after the other. From just before the process is made it is tried every " +
			"millisecond: `/healthz` until that answers, and a stateless tools/list at the MCP port until that has a result from the server, so the first " +
			"call's own discovery of the server is in it. `" + bootFile + "`: from `--config`. `" + bootSaved + "`: a sidecar that was once configured by a " +
			"control plane, with that control plane gone: identity and configuration come from its state directory. " +
			"`cpu_ms` is the process's CPU time until it was told to end.",
		Fields: []string{"configuration"},
		Figures: []record.Figure{
			{Name: "first_call_ms", Title: "to the first served call, median, ms", Better: "lower", Digits: 1},
			{Name: "worst_ms", Title: "the same, worst, ms", Better: "lower", Digits: 1},
			{Name: "healthz_ms", Title: "to /healthz, median, ms", Better: "lower", Digits: 1},
			{Name: "cpu_ms", Title: "CPU of a start, median, ms", Better: "lower", Digits: 0},
			{Name: "starts", Title: "starts", Digits: 0},
		},
		Charts: []record.Chart{
			{Name: "boot", Title: "Start to first served call, ms", Kind: "bar", X: "configuration", Y: "first_call_ms", Series: "subject"},
		},
		Targets: []record.Target{
			{Name: "start to first served call, configuration in a file, ms", Figure: "first_call_ms", Subject: "sidecar",
				Where: map[string]string{"configuration": bootFile}, Most: 300, Gate: 1000},
			{Name: "start to first served call, configuration saved from a control plane, ms", Figure: "first_call_ms", Subject: "sidecar",
				Where: map[string]string{"configuration": bootSaved}, Most: 300, Gate: 1000},
		},
	},
	Run: runBoot,
})

func runBoot(ctx context.Context, b *Bench) error {
	starts := 20
	if b.Short {
		starts = 10
	}
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return err
	}
	fromFile, err := b.configuredByFile(ctx, up)
	if err != nil {
		return err
	}
	saved, err := b.configuredOnce(ctx, up)
	if err != nil {
		return err
	}
	rounds := b.heldRounds()
	b.Plan(2 * rounds)
	for round := 1; round <= rounds; round++ {
		for _, c := range []*starter{fromFile, saved} {
			if err := b.boot(ctx, c, starts, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// boot measures one row.
func (b *Bench) boot(ctx context.Context, c *starter, starts, round int) error {
	var all []start
	load := func(ctx context.Context) (record.Load, error) {
		all = nil
		for range starts {
			s, err := c.start(ctx)
			if err != nil {
				return record.Load{}, fmt.Errorf("start %d: %w", len(all)+1, err)
			}
			all = append(all, s)
		}
		return record.Load{Calls: int64(len(all)), Connections: 1}, nil
	}
	row := record.Row{Scenario: "boot", Case: Case{"configuration": c.name}, Subject: "sidecar", Round: round}
	_, err := b.Row(ctx, row, load, func(record.Row) map[string]float64 { return bootFigures(all) })
	return err
}

// bootFigures sum up starts; there is one at least.
func bootFigures(all []start) map[string]float64 {
	ms := func(of func(start) time.Duration) []float64 {
		var list []float64
		for _, s := range all {
			list = append(list, of(s).Seconds()*1000)
		}
		slices.Sort(list)
		return list
	}
	calls := ms(func(s start) time.Duration { return s.call })
	health := ms(func(s start) time.Duration { return s.healthz })
	cpu := ms(func(s start) time.Duration { return s.cpu })
	middle := len(all) / 2
	return map[string]float64{"first_call_ms": calls[middle], "worst_ms": calls[len(calls)-1], "healthz_ms": health[middle],
		"cpu_ms": cpu[middle], "starts": float64(len(all))}
}

// configuredByFile is a sidecar with a configuration file.
func (b *Bench) configuredByFile(ctx context.Context, up *layout.Process) (*starter, error) {
	p, err := b.Layout.Sidecar(ctx, layout.SidecarYAML(up.URL))
	if err != nil {
		return nil, err
	}
	return again(bootFile, p)
}

// configuredOnce is a sidecar that a control plane has configured, which is gone.
func (b *Bench) configuredOnce(ctx context.Context, up *layout.Process) (*starter, error) {
	admin := filepath.Join(b.Layout.Dir(), "admin.token")
	if err := os.WriteFile(admin, []byte(benchToken), 0o600); err != nil {
		return nil, err
	}
	plane, api, err := b.Layout.ControlPlane(ctx, "--admin-token-file", admin)
	if err != nil {
		return nil, err
	}
	defer plane.Stop()
	join, err := admit(ctx, api, up.URL)
	if err != nil {
		return nil, err
	}
	token := filepath.Join(b.Layout.Dir(), "join.token")
	if err := os.WriteFile(token, []byte(join), 0o600); err != nil {
		return nil, err
	}
	p, err := b.Layout.Sidecar(ctx, "", "--control-plane", plane.Address, "--node-id", "bench",
		"--join-token-file", token, "--state-dir", filepath.Join(b.Layout.Dir(), "sidecar.state"))
	if err != nil {
		return nil, err
	}
	c := &starter{address: p.Address}
	if _, err := since(ctx, time.Now(), func() error { return c.list(ctx) }); err != nil {
		return nil, err
	}
	return again(bootSaved, p)
}

package scenario

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

const (
	// scrapeEvery is how often the soak reads /metrics: more often than Prometheus would.
	scrapeEvery = 2 * time.Second
	// maxSoakLog is how long the sidecar's output may become, in bytes, before it is emptied: it is an access line a call.
	maxSoakLog = 64 << 20

	wholeProcess = "(whole process)"
	wholeKind    = "(all)"
)

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "soak",
		Title:    "Under load for long, with everything on that observes",
		Question: "Does anything grow while calls go on, how often is garbage collected, and in which packages is the CPU time spent?",
		Method: "16 connections in a closed loop, 8 on each wire, a fifth of the answers as event streams with two events before them, " +
			"with the access line written and `/metrics` read every two seconds. `goroutines_left` and `live_left_mib` are what is more after the load " +
			"than before it, after two collections each: what leaks is there. `rss_begin_mib` is from the first reading after the warm-up, `rss_end_mib` from " +
			"the last under load.\n\n" +
			"The rows of packages divide a CPU profile of the sidecar, taken over the load without its warm-up: `cpu_share` is flat, so what a " +
			"package's functions call counts for the packages called. Packages of ours below 0.1 % and others below 1 % are together in `(others)`. " +
			"A package of ours outside the call path with more than 8 % is to be acted on: `outside_share` is the largest.",
		Fields: []string{"package", "kind"},
		Figures: []record.Figure{
			figureCalls,
			{Name: "cpu_us", Title: "CPU per call, us", Better: "lower", Digits: 1},
			{Name: "gc_s", Title: "collections per second", Better: "lower", Digits: 2},
			{Name: "rss_begin_mib", Title: "RSS at the beginning, MiB", Better: "lower", Digits: 1},
			{Name: "rss_end_mib", Title: "RSS at the end, MiB", Better: "lower", Digits: 1},
			{Name: "live_left_mib", Title: "in use afterwards, more than before, MiB", Better: "lower", Digits: 2},
			{Name: "goroutines", Title: "goroutines under load, most", Better: "lower", Digits: 0},
			{Name: "goroutines_left", Title: "goroutines afterwards, more than before", Better: "lower", Digits: 0},
			{Name: "outside_share", Title: "largest package of ours outside the path, % of CPU", Better: "lower", Digits: 1},
			{Name: "minutes", Title: "minutes", Digits: 1},
			{Name: "cpu_share", Title: "CPU, % of the process", Better: "lower", Digits: 1},
		},
		Charts: []record.Chart{
			{Name: "soak-cpu", Title: "Where the CPU time goes, %", Kind: "bar", X: "kind", Y: "cpu_share", Series: "subject",
				Where: map[string]string{"package": wholeKind}},
		},
		Targets: []record.Target{
			{Name: "flat CPU of the largest package of ours outside the call path, %", Figure: "outside_share", Subject: "sidecar",
				Where: map[string]string{"package": wholeProcess}, Most: 8},
			{Name: "goroutines that a soak leaves behind", Figure: "goroutines_left", Subject: "sidecar",
				Where: map[string]string{"package": wholeProcess}, Most: 2},
			{Name: "memory that a soak leaves in use, MiB", Figure: "live_left_mib", Subject: "sidecar",
				Where: map[string]string{"package": wholeProcess}, Most: 2},
		},
	},
	Run: runSoak,
})

// soakEras are the wires that a soak drives at the same time.
var soakEras = []string{"stateless", "legacy"}

func runSoak(ctx context.Context, b *Bench) error {
	d := 10 * time.Minute
	if b.Short {
		d = time.Minute
	}
	b.Plan(1)
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return err
	}
	sidecar, err := b.Layout.Sidecar(ctx, layout.SidecarYAML(up.URL), "--pprof")
	if err != nil {
		return err
	}
	defer sidecar.Stop()
	s := &soak{layout: b.Layout, subject: &Subject{Name: "sidecar", Process: sidecar}, warm: 5 * time.Second, load: d}
	row, err := s.run(ctx)
	if err != nil {
		return fmt.Errorf("soak: %w", err)
	}
	if err := b.Emit(row); err != nil {
		return err
	}
	b.Plan(0) // the rest takes no time
	for _, r := range s.packages(row) {
		if err := b.Emit(r); err != nil {
			return err
		}
	}
	return nil
}

// soak is one run.
type soak struct {
	layout  *layout.Layout
	subject *Subject
	warm    time.Duration // not counted
	load    time.Duration

	// Set by run.
	scrapes []metrics
	shares  []share
}

// run measures the whole process's row. What the machine's other processes did is in it, but discards nothing: neither
// shares nor leaks depend on it.
func (s *soak) run(ctx context.Context) (row record.Row, err error) {
	if err := firstCalls(ctx, s.layout, s.subject.Process, soakEras...); err != nil {
		return row, err
	}
	before, err := collected(ctx, s.subject.Process)
	if err != nil {
		return row, err
	}
	row = record.Row{Scenario: "soak", Case: Case{"package": wholeProcess}, Subject: s.subject.Name, Round: 1}
	if row, err = s.layout.Measure(ctx, row, s.observed); err != nil {
		return row, err
	}
	row.Discarded = wrongs(row.Load)
	if _, err := drained(ctx, s.subject.Process); err != nil {
		return row, err
	}
	after, err := collected(ctx, s.subject.Process)
	if err != nil {
		return row, err
	}
	row.Values = s.figures(row, before, after)
	return row, nil
}

// observed runs the load with the scrapes and the profile beside it.
func (s *soak) observed(ctx context.Context) (found record.Load, err error) {
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var taken *profile.Profile
	g.Go(func() (err error) {
		defer cancel() // the scrapes end with the load
		found, err = s.bothWires(ctx)
		return err
	})
	g.Go(func() error { return s.scrape(ctx) })
	g.Go(func() (err error) {
		if err := pause(ctx, s.warm); err != nil {
			return err
		}
		taken, err = cpuProfile(ctx, s.subject.Process, s.load-2*time.Second)
		return err
	})
	if err := g.Wait(); err != nil {
		return found, err
	}
	s.shares, err = shares(taken)
	return found, err
}

// bothWires drives half of the connections on each wire, and adds up what they found, but for latencies.
func (s *soak) bothWires(ctx context.Context) (record.Load, error) {
	found := make([]record.Load, len(soakEras))
	var g errgroup.Group
	for i, era := range soakEras {
		g.Go(func() (err error) {
			found[i], err = s.layout.Load(ctx, "-era", era, "-conns", "8", "-streamed", "0.2", "-events", "2",
				"-warm", s.warm.String(), "-duration", s.load.String(), s.subject.URL())
			return err
		})
	}
	err := g.Wait()
	return sum(found), err
}

// sum adds up what load generators found that ran at the same time.
func sum(found []record.Load) (all record.Load) {
	for _, l := range found {
		all.Calls += l.Calls
		all.Failures += l.Failures
		all.Wrong += l.Wrong
		all.Connections += l.Connections
		all.Events += l.Events
		all.CallsPerS += l.CallsPerS
		all.CPUSeconds += l.CPUSeconds
		all.Seconds = max(all.Seconds, l.Seconds)
		if all.FirstFailure == "" {
			all.FirstFailure = l.FirstFailure
		}
	}
	return all
}

// scrape reads the metrics until ctx ends, which is no error, and keeps those after the warm-up.
func (s *soak) scrape(ctx context.Context) error {
	tick := time.NewTicker(scrapeEvery)
	defer tick.Stop()
	for warm := time.Now().Add(s.warm); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		m, err := readMetrics(ctx, s.subject.Process)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case time.Now().After(warm):
			s.scrapes = append(s.scrapes, m)
		}
		s.trimLog()
	}
}

// trimLog empties the sidecar's output when it has become too long. Nobody reads it.
func (s *soak) trimLog() {
	if info, err := os.Stat(s.subject.Process.Log); err == nil && info.Size() > maxSoakLog {
		_ = os.Truncate(s.subject.Process.Log, 0) // the next scrape tries again
	}
}

// figures are the whole process's.
func (s *soak) figures(row record.Row, before, after metrics) map[string]float64 {
	v := map[string]float64{
		"calls_s": row.Load.CallsPerS, "minutes": s.load.Minutes(),
		"goroutines_left": after["go_goroutines"] - before["go_goroutines"],
		"live_left_mib":   (after.liveBytes() - before.liveBytes()) / (1 << 20),
		"outside_share":   largestOutside(s.shares).Percent,
	}
	if cpu, ok := callFigures(row, s.subject)["cpu_us"]; ok {
		v["cpu_us"] = cpu
	}
	for _, m := range s.scrapes {
		v["goroutines"] = max(v["goroutines"], m["go_goroutines"])
	}
	if n := len(s.scrapes); n > 1 {
		first, last := s.scrapes[0], s.scrapes[n-1]
		v["rss_begin_mib"] = first["process_resident_memory_bytes"] / (1 << 20)
		v["rss_end_mib"] = last["process_resident_memory_bytes"] / (1 << 20)
		collections := last["go_gc_duration_seconds_count"] - first["go_gc_duration_seconds_count"]
		v["gc_s"] = collections / (scrapeEvery.Seconds() * float64(n-1))
	}
	return v
}

// packages are the rows of where the CPU time was spent: each kind's, and each package's that is worth one.
func (s *soak) packages(whole record.Row) (rows []record.Row) {
	row := func(name, kind string, percent float64) {
		r := record.Row{Scenario: whole.Scenario, Subject: whole.Subject, Round: whole.Round, Host: whole.Host, Discarded: whole.Discarded,
			Case: Case{"package": name, "kind": kind}, Values: map[string]float64{"cpu_share": percent}}
		rows = append(rows, r)
	}
	kinds, rest := map[string]float64{}, map[string]float64{}
	for _, one := range s.shares {
		kinds[one.Kind] += one.Percent
	}
	for _, kind := range kindsInOrder {
		row(wholeKind, kind, kinds[kind])
	}
	for _, one := range s.shares {
		ours := one.Kind == kindPath || one.Kind == kindOurs
		if one.Percent >= 1 || ours && one.Percent >= 0.1 {
			row(one.Package, one.Kind, one.Percent)
		} else {
			rest[one.Kind] += one.Percent
		}
	}
	for _, kind := range kindsInOrder {
		if rest[kind] > 0 {
			row("(others)", kind, rest[kind])
		}
	}
	return rows
}

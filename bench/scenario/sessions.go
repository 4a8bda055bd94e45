package scenario

import (
	"context"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// What a row of sessions is about.
const (
	ofLifecycles = "lifecycles"
	ofSessions   = "legacy sessions held"
	ofListens    = "stateless streams held"
	ofGETs       = "legacy streams held"
)

// filesOfStream is how many files the sidecar needs for a stream; for a session it needs fewer.
const filesOfStream = 2

// manyHeld is the largest number of sessions or streams that are held: 10,000, or as many streams as the limit on open
// files allows. It is the same for all, so that they can be compared.
var manyHeld = strconv.Itoa(openable(10000, filesOfStream))

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "sessions",
		Title:    "Sessions and idle streams",
		Question: "How many legacy sessions can come and go in a second, and what does one cost that is there, or a stream on which nothing happens?",
		Method: "`" + ofLifecycles + "`: `count` connections, on each one session after the other: initialize, initialized, " +
			"one tools/call, DELETE; `cpu_us` is the proxy's CPU time for one such lifecycle, of four requests.\n\n" +
			"The other rows open `count` sessions or idle streams (a `subscriptions/listen` on the stateless wire, a GET on the " +
			"legacy one, each with its session and its own connection) at a sidecar that was just started with `--pprof`, keep them, and let go. " +
			"The most are 10,000, or as many as the limit on open files allows. " +
			"Memory is read when it has moved by less than 0.5 % for a second, or for three seconds after a collection. `rss_kib_each` is the growth of RSS " +
			"as it is, with what garbage the opening left, divided by `count`: what an operator pays. Of few it says little: the garbage of opening " +
			"is larger than what they hold. `live_kib_each` is the growth " +
			"of what is in use of heap and stacks after a collection that was asked for through `/debug/pprof`: what they hold. " +
			"`released_mib` is RSS after all were let go, `collected_mib` after two collections more, which an idle Go process " +
			"makes by itself within four minutes. `left` counts sessions and streams that were still there then.",
		Fields: []string{"of", "count"},
		Figures: []record.Figure{
			{Name: "lifecycles_s", Title: "lifecycles per second", Better: "higher", Digits: 0},
			{Name: "cpu_us", Title: "CPU per lifecycle, us", Better: "lower", Digits: 1},
			{Name: "ratio_nginx", Title: "CPU per lifecycle, multiples of nginx", Better: "lower", Digits: 2},
			{Name: "p50_us", Title: "lifecycle, p50, us", Better: "lower", Digits: 0},
			{Name: "p99_us", Title: "lifecycle, p99, us", Better: "lower", Digits: 0},
			{Name: "open_s", Title: "time to open all, s", Better: "lower", Digits: 1},
			{Name: "before_mib", Title: "RSS before, MiB", Better: "lower", Digits: 1},
			{Name: "open_mib", Title: "RSS with all open, MiB", Better: "lower", Digits: 1},
			{Name: "released_mib", Title: "RSS after, MiB", Better: "lower", Digits: 1},
			{Name: "collected_mib", Title: "RSS after two collections, MiB", Better: "lower", Digits: 1},
			{Name: "rss_kib_each", Title: "RSS for each, KiB", Better: "lower", Digits: 1},
			{Name: "live_kib_each", Title: "in use for each, KiB", Better: "lower", Digits: 1},
			{Name: "left", Title: "left over", Better: "lower", Digits: 0},
		},
		Charts: []record.Chart{
			{Name: "sessions-lifecycles", Title: "Session lifecycles per second", Kind: "bar", X: "count", Y: "lifecycles_s", Series: "subject",
				Where: map[string]string{"of": ofLifecycles}},
			{Name: "sessions-each", Title: "RSS for each of " + manyHeld + ", KiB", Kind: "bar", X: "of", Y: "rss_kib_each", Series: "subject",
				Where: map[string]string{"count": manyHeld}},
		},
		Targets: []record.Target{
			{Name: "RSS for each of " + manyHeld + " legacy sessions, KiB", Figure: "rss_kib_each", Subject: "sidecar",
				Where: map[string]string{"of": ofSessions, "count": manyHeld}, Most: 4, Gate: 6},
			{Name: "RSS for each of " + manyHeld + " idle stateless streams, KiB", Figure: "rss_kib_each", Subject: "sidecar",
				Where: map[string]string{"of": ofListens, "count": manyHeld}, Most: 12, Gate: 18},
			{Name: "RSS for each of " + manyHeld + " idle legacy streams, KiB", Figure: "rss_kib_each", Subject: "sidecar",
				Where: map[string]string{"of": ofGETs, "count": manyHeld}, Most: 12, Gate: 18},
		},
	},
	Run: runSessions,
})

// heldSidecar is a configuration that takes more sessions than are opened.
func heldSidecar(upstreamURL string) string {
	return strings.ReplaceAll(`kind: Upstream
name: server
spec: {http: {url: "{UPSTREAM}"}}
---
kind: Binding
name: server
spec: {selector: {matchLabels: {}}, path: `+layout.MCPPath+`, upstreams: [{name: server}], session: {maxSessions: 20000}}
`, "{UPSTREAM}", upstreamURL)
}

// holding is how one kind of row is made.
type holding struct {
	era  string
	args []string
}

var holdings = map[string]holding{
	ofSessions: {"legacy", []string{"-era", "legacy", "-op", "session"}},
	ofListens:  {"stateless", []string{"-era", "stateless", "-op", "stream"}},
	ofGETs:     {"legacy", []string{"-era", "legacy", "-op", "stream"}},
}

func runSessions(ctx context.Context, b *Bench) error {
	conns, counts, kinds := "16,64", heldCounts(manyHeld), strings.Join([]string{ofSessions, ofListens, ofGETs}, ",")
	if b.Short {
		conns, counts = "16", manyHeld
	}
	rounds := b.heldRounds()
	cases := cross("of", kinds, "count", counts)
	lifecycles, err := b.lifecycles(ctx, conns)
	if err != nil {
		return err
	}
	b.Plan(b.Rows(lifecycles) + rounds*len(cases))
	if err := b.Contest(ctx, lifecycles); err != nil {
		return err
	}
	for round := 1; round <= rounds; round++ {
		for _, k := range cases {
			if err := b.holdCase(ctx, k, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// heldCounts are how many are held: one, 1,000 and the most, where that is more.
func heldCounts(most string) string {
	if n, err := strconv.Atoi(most); err != nil || n <= 1000 {
		return "1," + most
	}
	return "1,1000," + most
}

// heldRounds is how often memory is measured: it varies less than time, and takes longer.
func (b *Bench) heldRounds() int {
	if b.Short {
		return 1
	}
	return min(b.Rounds, 3)
}

// lifecycles is the contest of sessions that come and go.
func (b *Bench) lifecycles(ctx context.Context, conns string) (Contest, error) {
	subjects, err := b.Subjects(ctx, "direct", "nginx", "sidecar", "peers")
	return Contest{
		Scenario: "sessions",
		Subjects: subjects,
		Cases:    cross("of", ofLifecycles, "count", conns),
		Load:     func(k Case) []string { return []string{"-era", "legacy", "-op", "session", "-conns", k["count"]} },
		Figures: func(row record.Row, s *Subject, beside map[string]record.Row) map[string]float64 {
			all := callFigures(row, s)
			v := map[string]float64{"lifecycles_s": all["calls_s"], "p50_us": all["p50_us"], "p99_us": all["p99_us"]}
			if cpu, ok := all["cpu_us"]; ok {
				v["cpu_us"] = cpu
			}
			compare(v, "cpu_us", "ratio_nginx", beside)
			return v
		},
	}, err
}

// holdCase measures one row of memory, with processes of its own.
func (b *Bench) holdCase(ctx context.Context, k Case, round int) error {
	how := holdings[k["of"]]
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return err
	}
	defer up.Stop()
	sidecar, err := b.Layout.Sidecar(ctx, heldSidecar(up.URL), "--pprof")
	if err != nil {
		return err
	}
	defer sidecar.Stop()
	if err := firstCalls(ctx, b.Layout, sidecar, how.era); err != nil {
		return err
	}
	h, err := hold(ctx, b.Layout, sidecar, append(how.args, "-conns", k["count"])...)
	if err != nil {
		return err
	}
	return b.Emit(record.Row{Scenario: "sessions", Case: k, Subject: "sidecar", Round: round, Values: map[string]float64{
		"open_s": h.setUp, "before_mib": h.before, "open_mib": h.open,
		"released_mib": h.released, "collected_mib": h.collected, "left": h.left,
		"rss_kib_each": h.each(h.open - h.before), "live_kib_each": h.each(h.live),
	}})
}

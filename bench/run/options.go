package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/scenario"
)

// options are a run's extent, from the command line.
type options struct {
	command   string // as it was typed
	scenarios []scenario.Scenario
	out       string // the results folder; empty: one named for date and commit
	logs      string
	history   string
	short     bool
	gate      bool
	keepNoisy bool
	rounds    int
	warm      time.Duration
	duration  time.Duration
	retries   int
	peers     []scenario.Peer
	target    *scenario.Target
	era       string
	programs  layout.Programs
}

// extent is how long a kind of run measures. A comparison of two runs needs four rounds of each (package report).
type extent struct {
	rounds         int
	warm, duration time.Duration
	retries        int
}

var (
	fullExtent  = extent{4, 500 * time.Millisecond, 3 * time.Second, 3}
	shortExtent = extent{3, 200 * time.Millisecond, time.Second, 2}
)

// parseOptions reads the command line. Mistakes are usageErrors; for -help the usage is written to out.
func parseOptions(args []string, out io.Writer) (*options, error) {
	o := &options{command: strings.Join(append([]string{"run"}, args...), " ")}
	f := flag.NewFlagSet("run", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	names := f.String("scenario", "", "what to measure, of "+strings.Join(scenarioNames(scenario.All()), ",")+" (default all)")
	var t targetFlags
	o.register(f)
	t.register(f)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(out)
		f.Usage()
		return nil, err
	} else if err != nil {
		return nil, usageError{err}
	}
	if f.NArg() > 0 {
		return nil, usageError{fmt.Errorf("unexpected argument %q", f.Arg(0))}
	}
	if !slices.Contains([]string{"", "stateless", "legacy"}, o.era) {
		return nil, usageError{fmt.Errorf("-era: %q is neither stateless nor legacy", o.era)}
	}
	o.fill()
	var err error
	if o.target, err = t.target(); err != nil {
		return nil, usageError{err}
	}
	if o.scenarios, err = o.choose(*names); err != nil {
		return nil, usageError{err}
	}
	return o, nil
}

func (o *options) register(f *flag.FlagSet) {
	f.StringVar(&o.out, "out", "", "results folder (default bench/results/DATE-COMMIT)")
	f.StringVar(&o.logs, "logs", "bin/bench/logs", "folder for configurations and logs")
	f.StringVar(&o.history, "history", "", "file to append a row to, when the run is valid")
	f.BoolVar(&o.short, "short", false, "a small set of cases, measured for less time")
	f.BoolVar(&o.gate, "gate", false, "measure the path's gated cases only, and fail when one is beyond its gate (GATE_JSON, GATE_SSE)")
	f.BoolVar(&o.keepNoisy, "keep-noisy", false, "let rows count that stay noisy, and call the run valid all the same")
	f.StringVar(&o.era, "era", "", "only cases of this era, stateless or legacy, where a scenario varies it (default both)")
	f.IntVar(&o.rounds, "rounds", 0, "how often each case is measured (default 4; short 3)")
	f.DurationVar(&o.warm, "warm", 0, "warm-up of a row, not counted (default 500ms; short 200ms)")
	f.DurationVar(&o.duration, "duration", 0, "time a row is measured (default 3s; short 1s)")
	f.IntVar(&o.retries, "retries", -1, "how often a row is measured again when the machine was not quiet (default 3; short 2)")
	f.Func("peer", `another proxy to measure in the same places: NAME=COMMAND with {UPSTREAM} and {PORT}; may be repeated`, o.addPeer)
	f.StringVar(&o.programs.Sidecar, "sidecar", "bin/sidecar", "the sidecar's program")
	f.StringVar(&o.programs.ControlPlane, "controlplane", "bin/controlplane", "the control plane's program")
	f.StringVar(&o.programs.Load, "load", "bin/bench/load", "the load generator's program")
	f.StringVar(&o.programs.Null, "null", "bin/bench/null", "the null server's program")
}

// fill gives the flags that were not set the values of the kind of run.
func (o *options) fill() {
	e := fullExtent
	if o.gate {
		o.short = true
	}
	if o.short {
		e = shortExtent
	}
	if o.rounds <= 0 {
		o.rounds = e.rounds
	}
	if o.warm <= 0 {
		o.warm = e.warm
	}
	if o.duration <= 0 {
		o.duration = e.duration
	}
	if o.retries < 0 {
		o.retries = e.retries
	}
}

func (o *options) addPeer(s string) error {
	name, command, ok := strings.Cut(s, "=")
	switch {
	case !ok || name == "" || command == "":
		return fmt.Errorf("%q is not NAME=COMMAND", s)
	case !strings.Contains(command, "{PORT}"):
		return fmt.Errorf("%q does not say where {PORT} goes", command)
	case slices.Contains([]string{"direct", "nginx", "sidecar", "target", "upstream", "load", "redis", "controlplane"}, name):
		return fmt.Errorf("%q is the bench's own name", name)
	case slices.ContainsFunc(o.peers, func(p scenario.Peer) bool { return p.Name == name }):
		return fmt.Errorf("there are two peers %q", name)
	}
	o.peers = append(o.peers, scenario.Peer{Name: name, Command: command})
	return nil
}

// choose returns the named scenarios, or all that can be measured.
func (o *options) choose(names string) (chosen []scenario.Scenario, err error) {
	if o.gate {
		names = "path"
	}
	all := scenario.All()
	for name := range strings.SplitSeq(names, ",") {
		if name != "" && !slices.Contains(scenarioNames(all), name) {
			return nil, fmt.Errorf("-scenario: %q is none of %s", name, strings.Join(scenarioNames(all), ", "))
		}
	}
	for _, s := range all {
		named := slices.Contains(strings.Split(names, ","), s.Name)
		can := o.target == nil || s.Needs >= o.target.Gives()
		switch {
		case named && !can:
			return nil, fmt.Errorf("-scenario: %s cannot be measured on this target", s.Name)
		case named || names == "" && can:
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}

func scenarioNames(list []scenario.Scenario) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// targetFlags say what a running deployment is.
type targetFlags struct {
	url, pids          string
	tool, args, expect string
	headers            []string
}

func (t *targetFlags) register(f *flag.FlagSet) {
	f.StringVar(&t.url, "target", "", "measure what already runs at this URL, alone; bench/null is behind it unless -tool is given")
	f.StringVar(&t.pids, "pid", "", "process ids of the target, comma-separated: the proxy's first, then others that are its own")
	f.StringVar(&t.tool, "tool", "", "with -target: call this tool, whatever server is behind it")
	f.StringVar(&t.args, "args", "", "with -tool: its arguments, as JSON")
	f.StringVar(&t.expect, "expect", "", "with -tool: text that must be in each answer")
	f.Func("header", "with -target: 'Name: value' to send with each request; may be repeated", func(s string) error {
		t.headers = append(t.headers, s)
		return nil
	})
}

// target is the deployment that the flags name, nil for none.
func (t *targetFlags) target() (*scenario.Target, error) {
	if t.url == "" {
		if t.pids+t.tool+t.args+t.expect != "" || len(t.headers) > 0 {
			return nil, errors.New("-pid, -tool, -args, -expect and -header go with -target")
		}
		return nil, nil
	}
	target := &scenario.Target{URL: t.url, AnyServer: t.tool != ""}
	for s := range strings.SplitSeq(t.pids, ",") {
		if s == "" {
			continue
		}
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("-pid: %q is not a process id", s)
		}
		target.PIDs = append(target.PIDs, pid)
	}
	for _, p := range []struct{ flag, value string }{{"-tool", t.tool}, {"-args", t.args}, {"-expect", t.expect}} {
		if p.value != "" {
			target.Args = append(target.Args, p.flag, p.value)
		}
	}
	for _, h := range t.headers {
		target.Args = append(target.Args, "-header", h)
	}
	return target, nil
}

// Command path measures what one MCP call costs on its way: directly, through nginx, and through the sidecar.
//
// One run starts two upstreams that answer at once (null.go), nginx and a sidecar, each proxy pinned to one core, and
// measures every row turn about: for each era, answer and number of connections first direct, then nginx, then the
// sidecar, and all of it again in each round. A call's cost is the CPU time of the proxy's process alone, divided by
// calls; figures are medians of the rounds. Every answer is checked byte for byte, and a wrong one ends the run.
//
// CPU per call carries over between machines better than rates, and its ratio to nginx in the same run best of all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are a run's extent, from the command line.
type options struct {
	sidecar string // the program
	dir     string // where configurations and logs are written
	what    []string
	eras    []string
	answers []string
	conns   []int
	rounds  int
	warm    time.Duration
	measure time.Duration
	retries int
	gate    bool
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench-path: ")
	if len(os.Args) == 3 && os.Args[1] == "null" {
		log.Fatal(serveNull(os.Args[2]))
	}
	o, err := parseOptions(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		stop()
		log.Fatal(err)
	}
}

// gateTries is how often everything is measured before a gate fails: a noisy machine is over it by chance, a slower
// sidecar every time.
const gateTries = 3

// run measures every row and prints the report. A gate that does not hold is an error.
func run(ctx context.Context, o options) error {
	t, err := startTargets(ctx, o)
	if err != nil {
		return err
	}
	defer t.stop()
	for try := 1; ; try++ {
		r, err := measureAll(ctx, o, t)
		if err != nil {
			return err
		}
		r.print(os.Stdout)
		if !o.gate {
			return nil
		}
		if err := r.gate(os.Stdout); err == nil || try == gateTries {
			return err
		}
	}
}

func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("path", flag.ContinueOnError)
	f.StringVar(&o.sidecar, "sidecar", "bin/sidecar", "the sidecar's program")
	f.StringVar(&o.dir, "dir", "bin/bench", "folder for configurations and logs")
	what := f.String("what", "direct,nginx,sidecar", "what stands between, in turn")
	eras := f.String("era", "stateless,legacy", "eras")
	answers := f.String("answer", "json,sse", "forms of answer")
	conns := f.String("conns", "1,64", "numbers of connections")
	f.IntVar(&o.rounds, "rounds", 3, "rounds")
	f.DurationVar(&o.warm, "warm", 500*time.Millisecond, "warm-up of a row, not counted")
	f.DurationVar(&o.measure, "measure", 3*time.Second, "time a row is measured in a round")
	f.IntVar(&o.retries, "retries", 2, "times a row is measured again in a round when other processes were busy")
	f.BoolVar(&o.gate, "gate", false, "fail when a ratio to nginx at 64 connections is above GATE_JSON or GATE_SSE")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.what, o.eras, o.answers = strings.Split(*what, ","), strings.Split(*eras, ","), strings.Split(*answers, ",")
	for _, c := range strings.Split(*conns, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 || n > 4096 {
			return o, fmt.Errorf("-conns: %q is not a number from 1 to 4096", c)
		}
		o.conns = append(o.conns, n)
	}
	return o, errors.Join(
		known("what", o.what, "direct", "nginx", "sidecar"),
		known("era", o.eras, "stateless", "legacy"),
		known("answer", o.answers, "json", "sse"))
}

// known reports the values of a flag that are none of its words.
func known(name string, got []string, words ...string) error {
	for _, g := range got {
		if !slices.Contains(words, g) {
			return fmt.Errorf("-%s: %q is none of %s", name, g, strings.Join(words, ", "))
		}
	}
	return nil
}

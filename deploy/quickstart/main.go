// Command quickstart runs a whole mesh on this machine: a control plane on its embedded store, an example MCP server
// and a sidecar in front of it that knows the control plane's address, its node id and a join token, no more.
//
// It applies outrigger.yaml through the API, waits until the control plane reports the sidecar as running it, calls the
// server through the sidecar on both wires of MCP, prints what to try next, and stays until SIGINT or SIGTERM. With
// -once, or ONCE=1, it also tries all that it printed, and then stops. Its programs, ports and files end with it,
// however it ends; only SIGKILL leaves its directory under TMPDIR behind.
//
// Exit status: 0 stopped by a signal, or with -once every step passed; 1 a step failed; 2 wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	bin        string
	once       bool
	freePorts  bool
	startLimit time.Duration
}

func main() {
	o, err := parseFlags(os.Args[1:], os.Getenv("ONCE"), os.Stderr)
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once, and its programs with it
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string, onceVariable string, out io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.bin, "bin", "bin", "directory of the programs controlplane, sidecar, rigctl and example-server")
	f.BoolVar(&o.once, "once", onceVariable != "" && onceVariable != "0", "check every step, stop everything and exit (or ONCE=1)")
	f.BoolVar(&o.freePorts, "free-ports", false, "take any free ports, not the usual ones where they are free")
	f.DurationVar(&o.startLimit, "start-limit", 300*time.Millisecond, "with -once, how long a program may take from its start to its first answer")
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintln(out, "quickstart:", err)
	}
	return o, err
}

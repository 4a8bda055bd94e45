// Command run is the bench: it measures scenarios, writes reports of them, and compares two runs.
//
//	run [flags]       measure, and write bench/results/DATE-COMMIT
//	run report DIR    write a run's report again, from its rows
//	run compare A B   say what changed from one run to another beyond noise
//
// It exits with 0 when every row counts, 1 when something failed or a gate does not hold, 2 for bad flags, and 3 when
// the machine was too busy for the run to be valid.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/outrigger-mesh/outrigger/bench/report"
)

// Exit statuses.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitInvalid = 3
)

// usageError is a mistake in the command line.
type usageError struct{ error }

// errInvalid is a run during which the machine was too busy.
var errInvalid = errors.New("the run is invalid")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once; what it started dies with it
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status(err, os.Stderr))
}

// status is the exit status for an error, which it reports.
func status(err error, out io.Writer) int {
	var usage usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintln(out, "bench:", err)
		return exitUsage
	case errors.Is(err, errInvalid):
		fmt.Fprintln(out, "bench:", err)
		return exitInvalid
	}
	fmt.Fprintln(out, "bench:", err)
	return exitFailed
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case command == "report" && len(args) == 2:
		return report.Write(args[1])
	case command == "compare" && len(args) == 3:
		return report.Compare(out, args[1], args[2])
	case command == "report":
		return usageError{errors.New("usage: run report DIR")}
	case command == "compare":
		return usageError{errors.New("usage: run compare A B")}
	}
	o, err := parseOptions(args, progress)
	if err != nil {
		return err
	}
	if o.gate {
		return gate(ctx, o, out, progress)
	}
	return measure(ctx, o, out, progress)
}

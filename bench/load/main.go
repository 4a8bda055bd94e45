package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/outrigger-mesh/outrigger/bench/drive"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Exit statuses.
const (
	exitOK       = 0
	exitFailures = 1 // a call failed or was wrong, or the run could not be made
	exitFlags    = 2
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("load: ")
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(exitOK)
	case err != nil:
		log.Println(err)
		os.Exit(exitFlags)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := execute(ctx, o, os.Stdout, os.Stderr, isTerminal(os.Stderr))
	stop()
	os.Exit(status)
}

// execute does what the command line says and returns the exit status. What was found goes to out; errors, and when
// someone may be looking a line of progress, to err.
func execute(ctx context.Context, o options, out, err io.Writer, looking bool) int {
	l, failed := run(ctx, o, out, err, looking)
	if failed == nil {
		failed = write(out, o, l)
	}
	if failed != nil {
		fmt.Fprintln(err, "load:", failed)
		return exitFailures
	}
	if l.Failures+l.Wrong > 0 {
		return exitFailures
	}
	return exitOK
}

func run(ctx context.Context, o options, out, err io.Writer, looking bool) (record.Load, error) {
	d, wrong := drive.New(o.config)
	if wrong != nil {
		return record.Load{}, wrong
	}
	if looking {
		defer showProgress(err, d)()
	}
	if !o.hold {
		return d.Run(ctx)
	}
	return d.Hold(ctx, func(n int) { fmt.Fprintf(out, "{\"holding\":%d}\n", n) })
}

// write writes what was found.
func write(w io.Writer, o options, l record.Load) error {
	if o.json {
		return json.NewEncoder(w).Encode(l)
	}
	return summary(w, l)
}

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
	defer stop()
	l, err := run(ctx, o)
	if err == nil {
		err = print(os.Stdout, o, l)
	}
	if err != nil {
		log.Println(err)
		os.Exit(exitFailures)
	}
	if l.Failures+l.Wrong > 0 {
		os.Exit(exitFailures)
	}
}

// run drives the server, with a progress line when someone may be looking.
func run(ctx context.Context, o options) (record.Load, error) {
	d, err := drive.New(o.config)
	if err != nil {
		return record.Load{}, err
	}
	if isTerminal(os.Stderr) {
		defer showProgress(os.Stderr, d)()
	}
	if !o.hold {
		return d.Run(ctx)
	}
	return d.Hold(ctx, func(n int) { fmt.Printf("{\"holding\":%d}\n", n) })
}

// print writes what was found.
func print(w io.Writer, o options, l record.Load) error {
	if o.json {
		return json.NewEncoder(w).Encode(l)
	}
	return summary(w, l)
}

// Command sidecar stands beside an MCP server and is its door: it speaks both wires of MCP to clients and to the server,
// with a configuration from a file or from a control plane.
//
// It serves two ports: MCP (--listen) and the operators' (--admin: /healthz, /readyz, /metrics, /config). SIGHUP reads a
// configuration file again. SIGTERM and SIGINT drain: no new connections, calls may finish, streams end in good order,
// all within --drain-timeout.
//
// Exit status: 0 stopped by a signal, or helped; 1 failed; 2 wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func main() {
	o, err := parseFlags(os.Args[1:], os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "sidecar: %v\nsidecar --help lists the flags\n", err)
		os.Exit(2)
	}
	if o.version {
		fmt.Println("sidecar", buildVersion())
		return
	}
	tuneMemory()
	log := newLogger(o, os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil && !errors.Is(err, context.Canceled) {
		log.Error("sidecar stopped", "error", brief(err))
		os.Exit(1)
	}
}

// brief is err in one line. The mistakes of a configuration file have had a line each where they were found.
func brief(err error) error {
	var mistakes resource.Errors
	if errors.As(err, &mistakes) && len(mistakes) > 1 {
		return fmt.Errorf("the configuration file has %d mistakes", len(mistakes))
	}
	return err
}

// newLogger logs to out. Durations are text in JSON too: nobody reads nanoseconds.
func newLogger(o *options, out io.Writer) *slog.Logger {
	h := &slog.HandlerOptions{Level: o.logLevel, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	if o.logFormat == "text" {
		return slog.New(slog.NewTextHandler(out, h))
	}
	return slog.New(slog.NewJSONHandler(out, h))
}

// version is set by the linker in releases.
var version string

// buildVersion is the version of a release, or of the commit that was built.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

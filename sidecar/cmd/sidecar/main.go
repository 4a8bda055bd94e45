// Command sidecar stands beside an MCP server and is its door: it speaks both wires of MCP to clients and to the server,
// with a configuration from a file or from a control plane.
//
// It serves two ports: MCP (--listen) and the operators' (--admin: /healthz, /readyz, /metrics, /config). SIGHUP reads a
// configuration file again. SIGTERM and SIGINT drain: no new connections, calls may finish, streams end in good order,
// all within --drain-timeout.
//
// Exit status: 0 stopped by a signal; 1 failed; 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

func main() {
	o, err := parseFlags(os.Args[1:], os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sidecar:", err)
		os.Exit(2)
	}
	if o.version {
		fmt.Println("sidecar", buildVersion())
		return
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // a sidecar's live heap is small: fewer collections cost little memory
	}
	log := newLogger(o)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, log); err != nil && !errors.Is(err, context.Canceled) {
		log.Error("sidecar stopped", "error", err)
		os.Exit(1)
	}
}

func newLogger(o *options) *slog.Logger {
	h := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, h))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, h))
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

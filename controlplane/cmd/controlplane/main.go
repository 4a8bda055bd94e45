// Command controlplane keeps desired state and delivers it to sidecars.
//
// It serves three ports: the management API (connect, gRPC and JSON), what sidecars dial (delta ADS and the identity
// service, over mTLS), and the admin port (/healthz, /readyz, /metrics). State is in an embedded etcd, or in a cluster
// of the operator's own; replicas over one cluster are equal.
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
	"time"

	"github.com/spf13/cobra"
)

// started is when this process began, nearly.
var started = time.Now()

// version is set by -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := newCommand().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "controlplane:", err)
	if errors.Is(err, errFailed) {
		os.Exit(1)
	}
	os.Exit(2)
}

// errFailed marks errors that are not of usage.
var errFailed = errors.New("failed")

func newCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:           "controlplane",
		Short:         "Keep desired state of Outrigger sidecars and deliver it",
		Version:       buildVersion(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if err := serve(c.Context(), o, o.logger()); err != nil {
				return fmt.Errorf("%w: %w", errFailed, err)
			}
			return nil
		},
	}
	o.register(c.Flags())
	return c
}

// buildVersion is the version of a release, or of the commit that was built; the sidecar and rigctl say the same.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// logger writes to standard error. check has passed.
func (o *options) logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.logLevel)) // checked
	how := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, how))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, how))
}

// Command rigctl is the management API on a command line: it applies, shows and
// deletes resources, makes join tokens for sidecars and API keys for callers, and
// explains who may call what.
//
// Exit status:
//
//	0  done
//	1  refused: by validation, a conflict, a missing token; or not found
//	2  wrong usage, or a file that cannot be read
//	3  the server could not be reached, did not answer in time, or failed
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitRefused     = 1
	exitUsage       = 2
	exitUnreachable = 3
)

// version is set by -ldflags "-X main.version=v1.2.3".
var version string

// buildVersion is the version of a release, or of the commit that was built; the other programs say the same.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var failed *exitError
	if !errors.As(err, &failed) { // cobra's own errors are all about usage
		failed = &exitError{exitUsage, err}
	}
	fmt.Fprintln(stderr, "rigctl: "+strings.TrimSpace(failed.Error()))
	return failed.status
}

// exitError is an error with the exit status that it ends in.
type exitError struct {
	status int
	error
}

func (e *exitError) Unwrap() error { return e.error }

// options are the flags that all commands have.
type options struct {
	server, tokenFile, caFile string
	insecure                  bool
	timeout                   time.Duration
	output                    string
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "rigctl",
		Short: "Manage an Outrigger control plane",
		Long: "Manage an Outrigger control plane.\n\n" +
			"Exit status: 0 done; 1 refused by validation, a conflict or a missing token, or not found;\n" +
			"2 wrong usage or an unreadable file; 3 the server cannot be reached, is late, or failed.",
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return checkFormat(o.output)
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&o.server, "server", envOr("RIGCTL_SERVER", "http://127.0.0.1:7600"), "the control plane's management address ($RIGCTL_SERVER)")
	f.StringVar(&o.tokenFile, "token-file", os.Getenv("RIGCTL_TOKEN_FILE"), "file with the API token ($RIGCTL_TOKEN_FILE; the token itself may be in $RIGCTL_TOKEN)")
	f.StringVar(&o.caFile, "ca-file", "", "PEM file with the authorities to trust for https (default the system's)")
	f.BoolVar(&o.insecure, "insecure", false, "send the token over plain http to a server that is not on this host")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long a call may take")
	f.StringVarP(&o.output, "output", "o", formatTable, "table, wide, yaml or json")
	root.AddCommand(applyCommand(o), getCommand(o), deleteCommand(o), validateCommand(o),
		sidecarsCommand(o), tokenCommand(o), createCommand(o), explainCommand(o), watchCommand(o))
	return root
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

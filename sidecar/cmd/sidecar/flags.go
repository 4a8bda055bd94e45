package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// options are the command line.
type options struct {
	configFile    string
	controlPlanes []string
	nodeID        string
	joinTokenFile string
	stateDir      string
	plaintext     bool
	labels        map[string]string

	listen      string
	admin       string
	tlsCert     string
	tlsKey      string
	tlsClientCA string
	tlsOptional bool
	peerListen  string
	peerAddress string

	credentialsDir string
	drainTimeout   time.Duration
	accessLog      bool
	logLevel       slog.Level
	logFormat      string
	profiling      bool
	version        bool
}

// parseFlags reads the command line. When it asks for help, that is written to out and the error is flag.ErrHelp.
func parseFlags(args []string, out io.Writer) (*options, error) {
	o := &options{labels: map[string]string{}}
	f := o.flags()
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "Usage of sidecar:")
			f.SetOutput(out)
			f.PrintDefaults()
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, o.check()
}

func (o *options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("sidecar", flag.ContinueOnError)
	f.SetOutput(io.Discard) // main says what is wrong, once
	f.StringVar(&o.configFile, "config", "", "run the resources of this YAML or JSON file, without a control plane")
	f.Func("control-plane", "take the configuration from the control plane at these `host:port`s, comma-separated", func(v string) error {
		o.controlPlanes = strings.Split(v, ",")
		return nil
	})
	f.StringVar(&o.nodeID, "node-id", hostName(), "this sidecar's identity at the control plane")
	f.StringVar(&o.joinTokenFile, "join-token-file", "", "file with the token against which the first certificate is issued (or OUTRIGGER_JOIN_TOKEN)")
	f.StringVar(&o.stateDir, "state-dir", "outrigger-state", "keeps identity and last good configuration")
	f.BoolVar(&o.plaintext, "control-plane-plaintext", false, "talk to the control plane without TLS; both sides must be asked to")
	f.Func("label", "`key=value` that selectors match; with --config, or over plaintext (repeatable)", func(v string) error {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return errors.New("want key=value")
		}
		o.labels[key] = value
		return nil
	})
	f.StringVar(&o.listen, "listen", "127.0.0.1:15001", "serve MCP here")
	f.StringVar(&o.admin, "admin", "127.0.0.1:15020", "serve /healthz, /readyz, /metrics and /config here; empty for nowhere")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM certificate chain: serve MCP over TLS")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM key of --tls-cert")
	f.StringVar(&o.tlsClientCA, "tls-client-ca", "", "PEM authorities: require client certificates of theirs")
	f.BoolVar(&o.tlsOptional, "tls-client-optional", false, "with --tls-client-ca: verify a client certificate that is given, and take clients without")
	f.StringVar(&o.peerListen, "peer-listen", "", "serve the other sidecars of the control plane here, over mTLS, so that they find the calls held here; empty for nowhere")
	f.StringVar(&o.peerAddress, "peer-address", "", "the `host:port` by which other sidecars reach --peer-listen, where it is another")
	f.StringVar(&o.credentialsDir, "credentials-dir", "", "where the files that Upstreams' credentials name are")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 20*time.Second, "how long calls may go on after SIGTERM; closing what is behind them takes up to 7s more")
	f.BoolVar(&o.accessLog, "access-log", true, "write one line per call to standard output")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text, to standard error")
	f.BoolVar(&o.profiling, "pprof", false, "serve /debug/pprof on the admin port")
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	return f
}

func (o *options) check() error {
	switch {
	case o.version:
		return nil
	case (o.configFile == "") == (len(o.controlPlanes) == 0):
		return errors.New("exactly one of --config and --control-plane is required")
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case o.tlsClientCA != "" && o.tlsCert == "":
		return errors.New("--tls-client-ca needs --tls-cert")
	case o.tlsOptional && o.tlsClientCA == "":
		return errors.New("--tls-client-optional needs --tls-client-ca")
	case o.peerListen != "" && (len(o.controlPlanes) == 0 || o.plaintext):
		return errors.New("--peer-listen needs the identity that a control plane gives over TLS")
	case o.peerAddress != "" && o.peerListen == "":
		return errors.New("--peer-address needs --peer-listen")
	case o.peerListen != "" && o.peerAddress == "" && unspecified(o.peerListen):
		return errors.New("--peer-listen names no host that others could dial: give --peer-address too")
	case o.logFormat != "json" && o.logFormat != "text":
		return fmt.Errorf("--log-format is json or text, not %q", o.logFormat)
	case o.drainTimeout < 0:
		return fmt.Errorf("--drain-timeout is %v, expected at least 0", o.drainTimeout)
	case len(o.controlPlanes) > 0 && !nodeIDPattern.MatchString(o.nodeID):
		return fmt.Errorf("--node-id is %q, expected 1 to 128 of letters, digits and . _ / -", o.nodeID)
	}
	for _, address := range o.controlPlanes {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("--control-plane: %w, expected host:port", err)
		}
	}
	return resource.ValidLabels("--label", o.labels).Err()
}

// unspecified reports whether an address listens everywhere, and so says nothing of where it can be reached.
func unspecified(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// nodeIDPattern is what a control plane takes for a node id.
var nodeIDPattern = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,128}$`)

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

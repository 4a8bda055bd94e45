package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// options are the flags.
type options struct {
	dataDir                   string
	etcd                      []string
	etcdCA, etcdCert, etcdKey string

	api                   string
	apiTLS, apiInsecure   bool
	apiTLSCert, apiTLSKey string
	adminTokenFile        string

	secretsKeyFile string
	secretsKeyLost bool

	xds          string
	xdsPlaintext bool
	serverNames  []string

	admin string
	pprof bool

	logLevel, logFormat string
}

// register makes o's fields the flags of a command.
func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.dataDir, "data-dir", "./outrigger-data", "where the embedded store, the admin token, the Secrets' key and the authority's certificate are kept")
	f.StringSliceVar(&o.etcd, "etcd", nil, "endpoints of an etcd cluster to keep state in, in place of the embedded store")
	f.StringVar(&o.etcdCA, "etcd-ca", "", "PEM file with the authorities to trust for --etcd (default the system's)")
	f.StringVar(&o.etcdCert, "etcd-cert", "", "PEM file with the client certificate for --etcd")
	f.StringVar(&o.etcdKey, "etcd-key", "", "PEM file with the key of --etcd-cert")

	f.StringVar(&o.api, "api", "127.0.0.1:7600", "address of the management API")
	f.BoolVar(&o.apiTLS, "api-tls", false, "serve the management API over TLS with a certificate of this control plane's own authority")
	f.StringVar(&o.apiTLSCert, "api-tls-cert", "", "PEM file with the certificate chain to serve the management API with, over TLS")
	f.StringVar(&o.apiTLSKey, "api-tls-key", "", "PEM file with the key of --api-tls-cert")
	f.BoolVar(&o.apiInsecure, "api-insecure", false, "let --api be reached from other hosts without TLS: its token and secrets then travel in clear text")
	f.StringVar(&o.adminTokenFile, "admin-token-file", "", "file with the token for the management API, made if missing (default DATA-DIR/admin.token)")

	f.StringVar(&o.secretsKeyFile, "secrets-key-file", "", "file with the keys that seal Secrets in the store, made if missing with the embedded store (default DATA-DIR/secrets.key)")
	f.BoolVar(&o.secretsKeyLost, "secrets-key-lost", false, "go on with the keys of --secrets-key-file though others sealed the store's Secrets: their values have to be given again")

	f.StringVar(&o.xds, "xds", "127.0.0.1:7601", "address that sidecars dial")
	f.BoolVar(&o.xdsPlaintext, "xds-plaintext", false, "serve sidecars without TLS and believe who they say they are; for trying things out on one machine")
	f.StringSliceVar(&o.serverNames, "server-name", nil, "DNS names and IP addresses by which sidecars dial, beside localhost and this host's name")

	f.StringVar(&o.admin, "admin", "127.0.0.1:7602", "address of /healthz, /readyz and /metrics")
	f.BoolVar(&o.pprof, "pprof", false, "serve /debug/pprof on the admin address")

	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// check reports every mistake among the flags, and fills in what depends on others.
func (o *options) check() error {
	var errs []error
	for _, a := range []struct{ flag, address string }{{"api", o.api}, {"xds", o.xds}, {"admin", o.admin}} {
		if _, _, err := net.SplitHostPort(a.address); err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is not host:port", a.flag, a.address))
		}
	}
	errs = append(errs, bothOrNeither("etcd-cert", o.etcdCert, "etcd-key", o.etcdKey),
		bothOrNeither("api-tls-cert", o.apiTLSCert, "api-tls-key", o.apiTLSKey))
	if o.apiTLS && o.apiTLSCert != "" {
		errs = append(errs, errors.New("--api-tls and --api-tls-cert exclude each other"))
	}
	if !o.secureAPI() && !isLoopback(o.api) && !o.apiInsecure {
		errs = append(errs, fmt.Errorf("--api %s can be reached from other hosts: give --api-tls or --api-tls-cert, or --api-insecure", o.api))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		errs = append(errs, fmt.Errorf("--log-level %q is not debug, info, warn or error", o.logLevel))
	}
	if o.logFormat != "text" && o.logFormat != "json" {
		errs = append(errs, fmt.Errorf("--log-format %q is not text or json", o.logFormat))
	}
	if o.adminTokenFile == "" {
		o.adminTokenFile = filepath.Join(o.dataDir, "admin.token")
	}
	if o.secretsKeyFile == "" {
		o.secretsKeyFile = o.defaultSecretsKeyFile()
	}
	return errors.Join(errs...)
}

func (o *options) defaultSecretsKeyFile() string { return filepath.Join(o.dataDir, "secrets.key") }

// deliversSecrets reports whether sidecars are given Secrets: not where any host could have them for the asking.
func (o *options) deliversSecrets() bool { return !o.xdsPlaintext || isLoopback(o.xds) }

// secureAPI reports whether the management API is served over TLS.
func (o *options) secureAPI() bool { return o.apiTLS || o.apiTLSCert != "" }

// storeOptions are the flags as the store takes them.
func (o *options) storeOptions(log *slog.Logger) store.Options {
	s := store.Options{Log: log}
	if len(o.etcd) == 0 {
		s.DataDir = o.dataDir
		return s
	}
	s.Endpoints, s.CAFile, s.CertFile, s.KeyFile = o.etcd, o.etcdCA, o.etcdCert, o.etcdKey
	return s
}

func bothOrNeither(flagA, a, flagB, b string) error {
	if (a == "") != (b == "") {
		return fmt.Errorf("--%s and --%s are given together or not at all", flagA, flagB)
	}
	return nil
}

// isLoopback reports whether only this host can dial an address to listen on.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

// client makes a client of the server that the flags name.
func (o *options) client() (outriggerv1connect.ResourceServiceClient, error) {
	u, err := url.Parse(o.server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--server %q is not an http or https URL", o.server)
	}
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	if token != "" && u.Scheme == "http" && !isLoopback(u.Hostname()) && !o.insecure {
		return nil, fmt.Errorf("--server %s would get the token in clear text: give an https URL, or --insecure", o.server)
	}
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: o.timeout}).DialContext,
		TLSHandshakeTimeout:   o.timeout,
		ResponseHeaderTimeout: o.timeout,
		ForceAttemptHTTP2:     true,
		Proxy:                 http.ProxyFromEnvironment,
	}
	if o.caFile != "" {
		if transport.TLSClientConfig, err = trust(o.caFile); err != nil {
			return nil, err
		}
	}
	client := &http.Client{
		Transport: bearer{token, transport},
		// The token is for this server, not for where it would send us.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return outriggerv1connect.NewResourceServiceClient(client, o.server), nil
}

// isLoopback reports whether a URL's host is this one.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// token reads the API token: of the file, or else of the environment, or else none.
func (o *options) token() (string, error) {
	token, from := os.Getenv("RIGCTL_TOKEN"), "$RIGCTL_TOKEN"
	if o.tokenFile != "" {
		data, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return "", fmt.Errorf("--token-file: %w", err)
		}
		token, from = strings.TrimSpace(string(data)), "--token-file "+o.tokenFile
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", fmt.Errorf("%s holds no token, expected one line of printable ASCII", from)
	}
	return token, nil
}

func trust(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-file %s holds no certificate in PEM form", file)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// bearer adds a token to requests.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// call makes one call within the timeout. Its errors have the exit status that their code means.
func call[Req, Res any](ctx context.Context, o *options, do func(context.Context, *Req) (*Res, error), req *Req) (*Res, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	res, err := do(ctx, req)
	if err != nil {
		return nil, o.failed(err)
	}
	return res, nil
}

// failed is a call's error for people, every violation on a line of its own.
func (o *options) failed(err error) error {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeInternal, connect.CodeUnknown,
		connect.CodeDataLoss, connect.CodeUnimplemented:
		return &exitError{exitUnreachable, fmt.Errorf("%s: %w", o.server, err)}
	case connect.CodeUnauthenticated:
		return &exitError{exitRefused, fmt.Errorf("%w: give --token-file, $RIGCTL_TOKEN_FILE or $RIGCTL_TOKEN", err)}
	case connect.CodeInvalidArgument:
		if lines := violations(err); len(lines) > 0 {
			return &exitError{exitRefused, &mistakesError{lines}}
		}
	}
	return &exitError{exitRefused, err}
}

// mistakesError is what validation found.
type mistakesError struct{ found []*outriggerv1.FieldViolation }

func (e *mistakesError) Error() string {
	lines := []string{fmt.Sprintf("refused, %d mistakes:", len(e.found))}
	if len(e.found) == 1 {
		lines[0] = "refused:"
	}
	for _, v := range e.found {
		lines = append(lines, v.Path+": "+v.Message)
	}
	return strings.Join(lines, "\n  ")
}

// violations are the mistakes that an error carries.
func violations(err error) []*outriggerv1.FieldViolation {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return nil
	}
	var found []*outriggerv1.FieldViolation
	for _, d := range failed.Details() {
		if m, err := d.Value(); err == nil {
			if v, ok := m.(*outriggerv1.FieldViolations); ok {
				found = append(found, v.Violations...)
			}
		}
	}
	return found
}

// since is a time as tables show it.
func since(t time.Time) string {
	if t.Unix() <= 0 {
		return "-"
	}
	return time.Since(t).Round(time.Second).String()
}

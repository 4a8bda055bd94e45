package config

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// dialAt reports what a gRPC call to a server that is no control plane's says.
func dialAt(t *testing.T, s *httptest.Server, creds credentials.TransportCredentials) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := call(ctx, s.Listener.Addr().String(), creds, &outriggerv1.IssueCertificateRequest{})
	return err
}

func TestAWrongAddressIsExplained(t *testing.T) {
	missing := http.NotFoundHandler()
	plain, encrypted, http2 := httptest.NewServer(missing), httptest.NewTLSServer(missing), httptest.NewUnstartedServer(missing)
	http2.Config.Protocols = new(http.Protocols)
	http2.Config.Protocols.SetUnencryptedHTTP2(true)
	http2.Start()
	real := httptest.NewUnstartedServer(grpc.NewServer()) // knows no such service
	real.EnableHTTP2 = true
	real.StartTLS()
	for _, s := range []*httptest.Server{plain, encrypted, http2, real} {
		defer s.Close()
	}
	withTLS := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
	for _, tt := range []struct {
		name  string
		at    *httptest.Server
		creds credentials.TransportCredentials
		want  string
	}{
		{"TLS to a plain port", plain, withTLS, "needs --control-plane-plaintext here"},
		{"plaintext to a TLS port", encrypted, insecure.NewCredentials(), "dialled without --control-plane-plaintext"},
		{"plaintext to another HTTP/2 server", http2, insecure.NewCredentials(), "--xds address?"},
		{"TLS to another gRPC server", real, withTLS, "--xds address?"},
	} {
		if err := dialAt(t, tt.at, tt.creds); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := advised(status.Error(codes.PermissionDenied, "no")); status.Code(err) != codes.PermissionDenied || strings.Contains(err.Error(), "(") {
		t.Errorf("nothing to advise, and got %v", err)
	}
}

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
)

func TestTheManagementAPIUnderAttack(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	secret := p.adminToken()
	const list = "/outrigger.v1.ResourceService/List"
	auth := "Bearer " + secret
	for _, tc := range []struct {
		name    string
		method  string
		path    string
		headers map[string]string
		body    io.Reader
		want    []int
		says    string
	}{
		{"no token", "POST", list, map[string]string{}, strings.NewReader("{}"), []int{401}, "bearer token"},
		{"a wrong token", "POST", list, map[string]string{"Authorization": "Bearer " + strings.Repeat("0", 64)}, strings.NewReader("{}"), []int{401}, "bearer token"},
		{"half the token", "POST", list, map[string]string{"Authorization": auth[:len(auth)/2]}, strings.NewReader("{}"), []int{401}, "bearer token"},
		{"an empty token", "POST", list, map[string]string{"Authorization": "Bearer "}, strings.NewReader("{}"), []int{401}, "bearer token"},
		{"another scheme", "POST", list, map[string]string{"Authorization": "Basic " + secret}, strings.NewReader("{}"), []int{401}, "bearer token"},
		{"the token in the query", "GET", list + "?token=" + secret, map[string]string{}, nil, []int{401, 415}, ""},
		{"a page of a browser", "POST", list, map[string]string{"Authorization": auth, "Origin": "https://evil.example"}, strings.NewReader("{}"), []int{403}, "origin"},
		{"a page of this host", "POST", list, map[string]string{"Authorization": auth, "Origin": "http://127.0.0.1:3000"}, strings.NewReader("{}"), []int{403}, "origin"},
		{"a rebound name", "POST", list, map[string]string{"Authorization": auth, "Host": "evil.example"}, strings.NewReader("{}"), []int{403}, "host"},
		{"not JSON", "POST", list, map[string]string{"Authorization": auth}, strings.NewReader("{not json"), []int{400}, "invalid_argument"},
		{"an unknown field", "POST", list, map[string]string{"Authorization": auth}, strings.NewReader(`{"knid":"Upstream"}`), []int{400}, "knid"},
		{"an unknown field, and a charset", "POST", list, map[string]string{"Authorization": auth, "Content-Type": "application/json; charset=utf-8"},
			strings.NewReader(`{"knid":"Upstream"}`), []int{400}, "knid"},
		{"a charset", "POST", list, map[string]string{"Authorization": auth, "Content-Type": "application/json; charset=utf-8"}, strings.NewReader(`{}`), []int{200}, "revision"},
		{"a GET", "GET", list + "?connect=v1&encoding=json&message=%7B%7D", map[string]string{"Authorization": auth}, nil, []int{200}, "revision"},
		{"no body at all", "POST", list, map[string]string{"Authorization": auth}, nil, []int{400}, "invalid_argument"},
		{"another content type", "POST", list, map[string]string{"Authorization": auth, "Content-Type": "text/plain"}, strings.NewReader("{}"), []int{415}, ""},
		{"deep JSON", "POST", "/outrigger.v1.ResourceService/Apply", map[string]string{"Authorization": auth},
			strings.NewReader(`{"resources":[{"spec":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_001) + "}]}"), []int{400}, "invalid_argument"},
		{"a huge body", "POST", "/outrigger.v1.ResourceService/Apply", map[string]string{"Authorization": auth},
			io.LimitReader(endless{}, 64<<20), []int{400, 413, 429}, "resource_exhausted"},
		{"a huge body of nobody", "POST", "/outrigger.v1.ResourceService/Apply", map[string]string{}, io.LimitReader(endless{}, 64<<20), []int{401}, "bearer token"},
		{"an unknown method", "POST", "/outrigger.v1.ResourceService/Drop", map[string]string{"Authorization": auth}, strings.NewReader("{}"), []int{404}, ""},
		{"a path upwards", "GET", "/../../etc/passwd", map[string]string{"Authorization": auth}, nil, []int{301, 307, 404}, ""},
		{"health of nobody", "GET", "/healthz", map[string]string{}, nil, []int{200}, "ok"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(within(t), tc.method, "http://"+p.api+tc.path, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			for k, v := range tc.headers {
				r.Header.Set(k, v)
			}
			r.Host = tc.headers["Host"]
			transport := httpClient(t, "").Transport
			res, err := transport.RoundTrip(r)
			if err != nil {
				if strings.HasPrefix(tc.name, "a huge body") { // the server may close what it does not want to read
					t.Logf("cut: %v", err)
					return
				}
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if res.StatusCode == want && strings.Contains(string(body), tc.says) && len(body) < 4<<10 {
					return
				}
			}
			t.Errorf("answered %d %.300q, want one of %v and %q", res.StatusCode, body, tc.want, tc.says)
		})
	}
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb(),
	} {
		t.Run(name, func(t *testing.T) {
			overAnyProtocol(t, p, option)
		})
	}
	if log := p.output(); strings.Contains(log, secret) || strings.Contains(log, auth[:len(auth)/2]) || strings.Contains(log, "panic") {
		t.Error("the log has the admin token, or a panic")
	}
	p.stop()
}

// endless is a stream of one letter, within a JSON string.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	copy(b, bytes.Repeat([]byte("["), len(b)))
	return len(b), nil
}

// overAnyProtocol checks that who holds the token is served, and who does not is told so, in the protocol itself.
func overAnyProtocol(t *testing.T, p *plane, option connect.ClientOption) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	for token, want := range map[string]connect.Code{p.adminToken(): 0, "wrong": connect.CodeUnauthenticated} {
		client := outriggerv1connect.NewResourceServiceClient(&http.Client{Transport: bearer{token, transport}}, "http://"+p.api, option)
		_, err := client.List(within(t), &outriggerv1.ListRequest{})
		if (err != nil) != (want != 0) || err != nil && connect.CodeOf(err) != want {
			t.Errorf("with token %.5q…: %v, want %v", token, err, want)
		}
	}
}

// dialXDS connects to a control plane's port for sidecars, without a check of who it is.
func dialXDS(t *testing.T, p *plane, certificates ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(p.xds, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: certificates,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestThePortForSidecarsUnderAttack(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	p.apply(both("http://127.0.0.1:1", "")...)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(p.join())
	if err != nil {
		t.Fatal(err)
	}
	good := strings.TrimSpace(string(token))
	identity := outriggerv1.NewIdentityServiceClient(dialXDS(t, p))
	for _, tc := range []struct {
		name string
		req  *outriggerv1.IssueCertificateRequest
		want codes.Code
	}{
		{"nothing", &outriggerv1.IssueCertificateRequest{}, codes.InvalidArgument},
		{"a garbage request", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: good, Csr: []byte("garbage")}, codes.InvalidArgument},
		{"a damaged request", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: good, Csr: append(csr[:len(csr)-1:len(csr)-1], csr[len(csr)-1]^1)}, codes.InvalidArgument},
		{"a huge request", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: good, Csr: make([]byte, 1<<20)}, codes.InvalidArgument},
		{"a request beyond any bound", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: good, Csr: make([]byte, 32<<20)}, codes.ResourceExhausted},
		{"a node id with a line end", &outriggerv1.IssueCertificateRequest{NodeId: "n\nm", JoinToken: good, Csr: csr}, codes.InvalidArgument},
		{"a long node id", &outriggerv1.IssueCertificateRequest{NodeId: strings.Repeat("n", 1000), JoinToken: good, Csr: csr}, codes.InvalidArgument},
		{"no token and no certificate", &outriggerv1.IssueCertificateRequest{NodeId: "n", Csr: csr}, codes.Unauthenticated},
		{"a garbage token", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: "../../etc/passwd", Csr: csr}, codes.Unauthenticated},
		{"the token, after all this", &outriggerv1.IssueCertificateRequest{NodeId: "n", JoinToken: good, Csr: csr}, codes.OK},
		{"the token again", &outriggerv1.IssueCertificateRequest{NodeId: "m", JoinToken: good, Csr: csr}, codes.Unauthenticated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := identity.IssueCertificate(within(t), tc.req); status.Code(err) != tc.want {
				t.Errorf("answered %v, want %v", err, tc.want)
			}
		})
	}
	t.Run("a stream without a certificate", func(t *testing.T) {
		if err := openStream(within(t), dialXDS(t, p)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%v, want unauthenticated", err)
		}
	})
	t.Run("a stream with a certificate of one's own", func(t *testing.T) {
		pair, _, _ := newAuthority(t).pair(t)
		if err := openStream(within(t), dialXDS(t, p, pair)); err == nil || status.Code(err) == codes.OK {
			t.Errorf("it was served")
		}
	})
	t.Run("bytes that are not TLS", func(t *testing.T) {
		c, err := net.Dial("tcp", p.xds)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		err = errors.Join(c.SetDeadline(time.Now().Add(patience)), write(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 1<<10 {
			t.Errorf("answered %d bytes (%v), want that it hangs up", len(b), err)
		}
	})
	if log := p.output(); strings.Contains(log, strings.Split(good, "_")[2]) || strings.Contains(log, "panic") {
		t.Error("the log has the join token's secret, or a panic")
	}
	p.stop()
}

func write(to io.Writer, text string) error {
	_, err := io.WriteString(to, text)
	return err
}

// openStream asks for everything, and returns why it gets nothing.
func openStream(ctx context.Context, conn *grpc.ClientConn) error {
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	err = s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/outrigger.v1.Upstream"})
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.Recv()
	return err
}

// What is secret stays out of what the programs say, in every corner that shows configuration.
func TestNothingSecretIsShown(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"), "--log-level", "debug")
	credentials := t.TempDir()
	writeFile(t, filepath.Join(credentials, "peer.key"), "file-swordfish\n")
	tokenFile := p.join()
	s := p.joinSidecar("edge-1", tokenFile, t.TempDir(), []string{"OUTRIGGER_CREDENTIAL_PEER=env-swordfish"},
		"--credentials-dir", credentials, "--log-level", "debug", "--pprof")
	url := newPeer("peer").serve(t) + statelessPath
	p.apply(
		upstream("by-env", fmt.Sprintf("http: {url: %q}, credential: {env: OUTRIGGER_CREDENTIAL_PEER}", url)), binding("by-env", "/by-env", "by-env", ""),
		upstream("by-file", fmt.Sprintf("http: {url: %q}, credential: {file: peer.key}", url)), binding("by-file", "/by-file", "by-file", ""),
		"kind: Secret\nname: peer\nspec: {values: {key: sealed-swordfish}}\n",
		upstream("by-secret", fmt.Sprintf("http: {url: %q}, credential: {secret: {name: peer, key: key}}", url)), binding("by-secret", "/by-secret", "by-secret", ""),
		upstream("process", `stdio: {command: ["false"], env: {PASSWORD: "stdio-swordfish"}}, timeouts: {connect: 0.1s, handshake: 0.1s}`), binding("process", "/process", "process", ""))
	for _, name := range []string{"by-env", "by-file", "by-secret", "process"} {
		p.runs("Binding", name, "edge-1 running")
	}
	wantText(t, connectSDK(t, s.url+"/by-env", versionStateless, nil), "credential", nil, "env-swordfish")
	wantText(t, connectSDK(t, s.url+"/by-file", versionStateless, nil), "credential", nil, "file-swordfish")
	wantText(t, connectSDK(t, s.url+"/by-secret", versionStateless, nil), "credential", nil, "sealed-swordfish")
	key := strings.TrimSpace(p.must("create", "key", "nightly"))
	if _, err := tryConnectSDK(t, s.url+"/process", versionLegacy, nil); err == nil {
		t.Error("a server that ends at once was connected to")
	}
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{
		"the sidecar's log": s.output(), "the control plane's log": p.output(),
		"rigctl get": p.must("get", "-o", "yaml"),
		"the store":  stored(t, filepath.Join(p.dir, "etcd")),
	}
	for _, page := range []string{"/config", "/metrics", "/readyz", "/debug/pprof/cmdline"} {
		if _, shown["the sidecar's "+page], err = get(t, s.admin, page); err != nil {
			t.Error(err)
		}
	}
	for _, page := range []string{"/metrics", "/readyz"} {
		if _, shown["the control plane's "+page], err = get(t, p.admin, page); err != nil {
			t.Error(err)
		}
	}
	for where, text := range shown {
		for _, secret := range []string{"env-swordfish", "file-swordfish", "sealed-swordfish", "stdio-swordfish", key, p.adminToken(), strings.Split(string(token), "_")[2], "PRIVATE KEY"} {
			if secret == "stdio-swordfish" && (where == "the store" || where == "rigctl get") {
				continue // it is no Secret there, as docs/resources.md says
			}
			if strings.Contains(text, secret) {
				t.Errorf("%s shows %q", where, secret)
			}
		}
		if text == "" {
			t.Errorf("%s is empty", where)
		}
	}
}

// stored is everything in the files of a store.
func stored(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // etcd renamed it meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all.String()
}

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tenMistakes is a file with ten mistakes, and where each is reported and with which words.
const tenMistakes = `kind: Upstream
name: Not_A_Name
spec: {http: {url: "http://127.0.0.1:3000/mcp"}}
---
kind: Upstream
name: no-transport
spec: {era: auto}
---
kind: Upstream
name: bad-url
spec: {http: {url: "ftp://x"}, timeouts: {connect: -1s}, credential: {env: HOME}}
---
kind: Binding
name: misspelt
spec: {selector: {}, pathh: /mcp, upstreams: [{name: bad-url}]}
---
kind: Binding
name: no-selector
spec: {path: mcp, upstreams: []}
---
kind: Binding
name: dangling
spec: {selector: {}, path: /dangling, upstreams: [{name: nobody}]}
`

var tenPlaces = []string{
	"Upstream/Not_A_Name: name: ",
	"Upstream/no-transport: spec: ",
	"Upstream/bad-url: spec.http.url: ",
	"Upstream/bad-url: spec.timeouts.connect: ",
	"Upstream/bad-url: spec.credential.env: ",
	"Binding/misspelt: spec.pathh: ",
	"Binding/no-selector: spec.selector: ",
	"Binding/no-selector: spec.path: ",
	"Binding/no-selector: spec.upstreams: ",
	"Binding/dangling: spec.upstreams[0].name: ",
}

func TestEveryMistakeOfAFileIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "bad.yaml"), tenMistakes)
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	for name, args := range map[string][]string{
		"validate": {"validate", "-f", file}, "apply": {"apply", "-f", file}, "a dry run": {"apply", "--dry-run", "-f", file},
	} {
		out, errs, status := p.rigctl(args...)
		if status != 1 || out != "" || !strings.Contains(errs, fmt.Sprintf("%d mistakes", len(tenPlaces))) {
			t.Errorf("%s ended with %d and said %q, want 1 and %d mistakes", name, status, out+errs, len(tenPlaces))
		}
		for _, place := range tenPlaces {
			if !strings.Contains(errs, file+": "+place) {
				t.Errorf("%s said:\n%s\nwithout %q", name, errs, file+": "+place)
			}
		}
	}
	if out := p.must("get"); strings.Contains(out, "bad-url") {
		t.Errorf("what was refused is stored: %s", out)
	}
	s := start(t, nil, "sidecar", "--listen", "127.0.0.1:0", "--admin", "", "--config", file)
	if status := s.exit(patience); status != 1 {
		t.Errorf("a sidecar ended with %d, want 1", status)
	}
	for _, place := range tenPlaces {
		path, _, _ := strings.Cut(place, ": ")
		if !containsAll(s.output(), []string{path, strings.TrimSuffix(strings.TrimPrefix(place, path+": "), ": ")}) {
			t.Errorf("a sidecar did not say %q", place)
		}
	}
}

func TestExitStatusesOfRigctl(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	good := writeFile(t, filepath.Join(t.TempDir(), "good.yaml"), httpUpstream("demo", "http://127.0.0.1:3000/mcp"))
	stale := writeFile(t, filepath.Join(t.TempDir(), "stale.yaml"), "revision: 1\n"+httpUpstream("demo", "http://127.0.0.1:3000/mcp"))
	nowhere := "http://" + freeAddress(t)
	for _, tc := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"validate", "-f", good}, 0, ""},
		{[]string{"apply", "-f", good, "--dry-run"}, 0, "dry run"},
		{[]string{"get", "upstream", "demo"}, 1, "demo"},
		{[]string{"apply", "-f", good}, 0, "Upstream/demo applied"},
		{[]string{"apply", "-f", stale}, 1, "revision"},
		{[]string{"get", "upstream", "demo", "-o", "json"}, 0, `"revision"`},
		{[]string{"get", "gadgets"}, 2, "not a kind"},
		{[]string{"get", "-o", "xml"}, 2, "xml"},
		{[]string{"apply"}, 2, "filename"},
		{[]string{"apply", "-f", good + ".none"}, 2, "no such file"},
		{[]string{"frobnicate"}, 2, "frobnicate"},
		{[]string{"get", "--server", nowhere}, 3, nowhere},
		{[]string{"get", "--token-file", good}, 2, "holds no token"},
		{[]string{"get", "--token-file", writeFile(t, filepath.Join(t.TempDir(), "wrong"), "another-token")}, 1, "bearer token"},
		{[]string{"delete", "upstream", "demo"}, 0, "demo"},
		{[]string{"delete", "upstream", "demo"}, 1, "demo"},
	} {
		if out, errs, status := p.rigctl(tc.args...); status != tc.status || !strings.Contains(out+errs, tc.says) {
			t.Errorf("rigctl %q ended with %d and said %q, want %d and %q", tc.args, status, out+errs, tc.status, tc.says)
		}
	}
}

func TestAFileIsReloaded(t *testing.T) {
	t.Parallel()
	resources := func(p *peer, more string) string {
		return strings.Join(both(p.serve(t), ""), "---\n") + more
	}
	first, second := newPeer("first"), newPeer("second")
	s, file := fileSidecar(t, nil, resources(first, ""))
	c := connectSDK(t, s.url+statelessPath, versionStateless, nil)
	is := func(name string) func() error {
		return func() error {
			got, err := callSDK(t, c, "name", nil)
			if want := fmt.Sprintf("%s %d", name, os.Getpid()); err != nil || got != want {
				return fmt.Errorf("answered %q (%v), want %q", got, err, want)
			}
			return nil
		}
	}
	eventually(t, "the first", is("first"))
	before := s.config().Source.Generation

	writeFile(t, file, resources(second, "")) // a change of the file
	eventually(t, "the second, by a change of the file", is("second"))
	after := s.config().Source
	if after.Generation == before || after.Source != "file" || len(after.Refused) != 0 {
		t.Errorf("the source is %+v, want another generation than %s", after, before)
	}

	writeFile(t, file, tenMistakes)
	eventually(t, "the refusal shows", func() error {
		if got := s.config().Source.Refused; len(got) != len(tenPlaces) {
			return fmt.Errorf("refused %+v, want %d mistakes", got, len(tenPlaces))
		}
		return nil
	})
	for _, place := range tenPlaces {
		if !strings.Contains(fmt.Sprint(s.config().Source.Refused), place) {
			t.Errorf("/config says %+v, without %q", s.config().Source.Refused, place)
		}
	}
	s.signal(syscall.SIGHUP)
	s.says("reload refused; what ran before goes on")
	if err := is("second")(); err != nil {
		t.Errorf("after a bad file: %v", err)
	}

	writeFile(t, file, resources(first, "# and\n"))
	s.signal(syscall.SIGHUP)
	eventually(t, "the first again", is("first"))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss shows", func() error {
		if got := s.config().Source.Refused; len(got) != 1 || !strings.Contains(got[0].Reason, "no such file") {
			return fmt.Errorf("refused %+v, want that the file is gone", got)
		}
		return nil
	})
	if err := is("first")(); err != nil {
		t.Errorf("without the file: %v", err)
	}
	s.stop()
}

func TestWrongUsageEndsAtOnce(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := writeFile(t, filepath.Join(t.TempDir(), "sidecar.yaml"), strings.Join(both("http://127.0.0.1:1", ""), "---\n"))
	data := filepath.Join(t.TempDir(), "data")
	for _, tc := range []struct {
		program string
		args    []string
		status  int
		says    []string
	}{
		{"sidecar", []string{"--version"}, 0, []string{"sidecar"}},
		{"controlplane", []string{"--version"}, 0, []string{"controlplane"}},
		{"controlplane", []string{"--help"}, 0, []string{"--data-dir", "--xds"}},
		{"sidecar", nil, 2, []string{"--config", "--control-plane"}},
		{"sidecar", []string{"--frobnicate"}, 2, []string{"frobnicate"}},
		{"sidecar", []string{"--config", file, "--control-plane", "127.0.0.1:1"}, 2, []string{"exactly one"}},
		{"sidecar", []string{"--config", file, "--drain-timeout", "soon"}, 2, []string{"soon"}},
		{"sidecar", []string{"--config", file, "--log-level", "loud"}, 2, []string{"loud"}},
		{"sidecar", []string{"--config", file, "--tls-cert", file}, 2, []string{"--tls-key"}},
		{"sidecar", []string{"--config", file, "--tls-cert", file, "--tls-key", file}, 1, []string{"--tls-cert"}},
		{"sidecar", []string{"--config", file + ".none"}, 1, []string{"no such file"}},
		{"sidecar", []string{"--config", file, "--listen", taken.Addr().String()}, 1, []string{"--listen", "address already in use"}},
		{"sidecar", []string{"--config", file, "--listen", "127.0.0.1:0", "--admin", taken.Addr().String()}, 1, []string{"--admin", "address already in use"}},
		{"controlplane", []string{"--data-dir", data, "--api", taken.Addr().String()}, 1, []string{"--api", "address already in use"}},
		{"controlplane", []string{"--frobnicate"}, 2, []string{"frobnicate"}},
		{"controlplane", []string{"--data-dir", data, "--api", "0.0.0.0:0"}, 2, []string{"--api-tls"}},
	} {
		args := tc.args
		if tc.program == "sidecar" && !strings.Contains(fmt.Sprint(args), "--admin") {
			args = append(args[:len(args):len(args)], "--admin", "")
		}
		if out, errs, status := command(t, nil, tc.program, args...); status != tc.status || !containsAll(out+errs, tc.says) {
			t.Errorf("%s %q ended with %d and said %q, want %d and %q", tc.program, args, status, out+errs, tc.status, tc.says)
		}
	}
}

// authority makes certificates for a test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	der, key := a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.key, a.cert = key, cert
	a.pool.AddCert(cert)
	return a
}

// sign makes a certificate of the authority, or its own.
func (a *authority) sign(t *testing.T, c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "e2e"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// pair makes a certificate for loopback, and writes it and its key as PEM.
func (a *authority) pair(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	der, key := a.sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile = writeFile(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	keyFile = writeFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, certFile, keyFile
}

func TestEveryHTTPVersion(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	client, certFile, keyFile := a.pair(t)
	caFile := writeFile(t, filepath.Join(t.TempDir(), "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))
	resources := both(newPeer("peer").serve(t), "")
	plain, _ := fileSidecar(t, nil, resources...)
	sealed, _ := fileSidecar(t, []string{"--tls-cert", certFile, "--tls-key", keyFile}, resources...)
	mutual, _ := fileSidecar(t, []string{"--tls-cert", certFile, "--tls-key", keyFile, "--tls-client-ca", caFile}, resources...)
	anonymous, known := &tls.Config{RootCAs: a.pool}, &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{client}}
	stranger, _, _ := newAuthority(t).pair(t)
	for _, tc := range []struct {
		name    string
		to      *sidecar
		tls     *tls.Config
		version int // of HTTP; 0 when the connection is refused
	}{
		{"HTTP/1.1", plain, nil, 1},
		{"h2c", plain, nil, 2},
		{"HTTP/1.1 over TLS", sealed, anonymous, 1},
		{"h2 by ALPN", sealed, anonymous, 2},
		{"an untrusted server", sealed, &tls.Config{}, 0},
		{"h2 with a client certificate", mutual, known, 2},
		{"no client certificate", mutual, anonymous, 0},
		{"a stranger's client certificate", mutual, &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{stranger}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, era := range eras {
				url := tc.to.url + era.path
				protocols := new(http.Protocols)
				protocols.SetHTTP1(tc.version == 1)
				protocols.SetHTTP2(tc.version != 1 && tc.tls != nil)
				protocols.SetUnencryptedHTTP2(tc.version == 2 && tc.tls == nil)
				if tc.tls != nil {
					url = strings.Replace(url, "http:", "https:", 1)
				}
				transport := &http.Transport{Protocols: protocols, TLSClientConfig: tc.tls.Clone()}
				defer transport.CloseIdleConnections()
				version := 0
				w := &wire{url: url, version: era.version, http: &http.Client{Transport: seen{transport, &version}}}
				err := w.initialize(within(t))
				if tc.version == 0 && era.version == versionStateless {
					_, err = w.call(within(t), "1", "echo", "x", nil)
				}
				if (err != nil) != (tc.version == 0) {
					t.Fatalf("%s: %v", era.name, err)
				}
				if tc.version == 0 {
					continue
				}
				r, err := w.call(within(t), "1", "echo", "hello", nil)
				if err != nil || r.text() != "hello" || version != tc.version {
					t.Errorf("%s: %+v (%v) over HTTP/%d, want hello over HTTP/%d", era.name, r, err, version, tc.version)
				}
			}
		})
	}
}

// seen notes the version of HTTP of the last answer.
type seen struct {
	next    http.RoundTripper
	version *int
}

func (s seen) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := s.next.RoundTrip(r)
	if err == nil {
		*s.version = res.ProtoMajor
	}
	return res, err
}

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

// agent makes a client certificate with a SPIFFE id.
func (a *authority) agent(t *testing.T, id string) tls.Certificate {
	t.Helper()
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	der, key := a.sign(t, &x509.Certificate{URIs: []*url.URL{u}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// withHeader adds a header to requests.
type withHeader struct {
	http.RoundTripper
	name, value string
}

func (w withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.name != "" {
		r.Header.Set(w.name, w.value)
	}
	return w.RoundTripper.RoundTrip(r)
}

// Who presents a certificate is who it names, and rules hold for that; where certificates are optional, others prove
// themselves in another way or are told how.
func TestACertificateIsWhoCalls(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, certFile, keyFile := a.pair(t)
	caFile := writeFile(t, filepath.Join(t.TempDir(), "ca.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))
	key := apikey.New()
	resources := append(both(newPeer("peer").serve(t), ""), `kind: Policy
name: callers
spec:
  identity:
    providers: [{name: mesh, certificate: {spiffeIds: ["spiffe://example/agents/*"]}}, {name: machines, keys: {}}]
  rules:
    - {action: allow}
    - {action: deny, principals: ["spiffe://example/agents/b"], methods: [tools/call]}
`, fmt.Sprintf("kind: Key\nname: ci\nspec: {hash: %s}\n", apikey.Hash(key, nil)))
	s, _ := fileSidecar(t, []string{"--tls-cert", certFile, "--tls-key", keyFile, "--tls-client-ca", caFile, "--tls-client-optional"}, resources...)
	stranger := newAuthority(t)
	for _, tc := range []struct {
		name        string
		certificate []tls.Certificate
		header      [2]string
		want        string // of a call: its outcome, or "no connection"
	}{
		{"an agent", []tls.Certificate{a.agent(t, "spiffe://example/agents/a")}, [2]string{}, "200"},
		{"one that a rule names", []tls.Certificate{a.agent(t, "spiffe://example/agents/b")}, [2]string{}, "403 error"},
		{"none that is taken", []tls.Certificate{a.agent(t, "spiffe://example/others/a")}, [2]string{}, "401 error"},
		{"an agent with a bad key", []tls.Certificate{a.agent(t, "spiffe://example/agents/a")}, [2]string{"X-Api-Key", apikey.New()}, "401 error"},
		{"a key", nil, [2]string{"X-Api-Key", key}, "200"},
		{"nothing", nil, [2]string{}, "401 error"},
		{"an agent of another authority", []tls.Certificate{stranger.agent(t, "spiffe://example/agents/a")}, [2]string{}, "no connection"},
	} {
		for _, version := range []int{1, 2} {
			protocols := new(http.Protocols)
			protocols.SetHTTP1(version == 1)
			protocols.SetHTTP2(version == 2)
			transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: a.pool, Certificates: tc.certificate}}
			w := &wire{
				url: strings.Replace(s.url, "http:", "https:", 1) + statelessPath, version: versionStateless,
				http: &http.Client{Transport: withHeader{transport, tc.header[0], tc.header[1]}},
			}
			got := "no connection"
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},%s}}`, meta)
			if res, err := w.post(within(t), body, "tools/call", "echo"); err == nil {
				got = outcome(res)
			}
			if got != tc.want {
				t.Errorf("%s, HTTP/%d: %s, want %s", tc.name, version, got, tc.want)
			}
			transport.CloseIdleConnections()
		}
	}
}

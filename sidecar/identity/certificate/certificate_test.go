package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

var begun = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// node is a certificate with what signs for it.
type node struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	up   []*x509.Certificate // to the root
}

// authority makes a root, or with a parent what stands between.
func authority(t *testing.T, parent *node, life time.Duration) *node {
	return issue(t, parent, life, func(c *x509.Certificate) {
		c.Subject, c.IsCA, c.BasicConstraintsValid, c.KeyUsage = pkix.Name{CommonName: t.Name()}, true, true, x509.KeyUsageCertSign
	})
}

func issue(t *testing.T, parent *node, life time.Duration, change func(*x509.Certificate)) *node {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: begun.Add(-time.Minute), NotAfter: begun.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	change(template)
	n := &node{t: t, key: key}
	by, signer := template, key
	if parent != nil {
		by, signer = parent.cert, parent.key
		n.up = append([]*x509.Certificate{parent.cert}, parent.up...)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	if n.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return n
}

// named is a client's certificate with names: URIs, and DNS names.
func (n *node) named(life time.Duration, names ...string) *node {
	return issue(n.t, n, life, func(c *x509.Certificate) {
		for _, name := range names {
			if !strings.Contains(name, ":") {
				c.DNSNames = append(c.DNSNames, name)
				continue
			}
			u, err := url.Parse(name)
			if err != nil {
				n.t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	})
}

// way is from a certificate to its root.
func (n *node) way() []*x509.Certificate { return append([]*x509.Certificate{n.cert}, n.up...) }

// given is what a client sends: all but the root.
func (n *node) given() []*x509.Certificate { return n.way()[:len(n.up)] }

// file writes authorities as caFile has them.
func file(t *testing.T, all ...*node) string {
	t.Helper()
	var text []byte
	for _, n := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.cert.Raw})...)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newVerifier(t *testing.T, p *outriggerv1.CertificateProvider) *Verifier {
	t.Helper()
	v, err := New("mesh", p)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNamesDecideWhoACertificateIs(t *testing.T) {
	root := authority(t, nil, 24*time.Hour)
	anyone := &outriggerv1.CertificateProvider{}
	agents := &outriggerv1.CertificateProvider{SpiffeIds: []string{"spiffe://example/agents/*", "spiffe://example/ops/?"}}
	hosts := &outriggerv1.CertificateProvider{DnsNames: []string{"*.mesh.example", "a+b.example"}}
	both := &outriggerv1.CertificateProvider{SpiffeIds: agents.SpiffeIds, DnsNames: hosts.DnsNames}
	for _, tt := range []struct {
		name     string
		provider *outriggerv1.CertificateProvider
		names    []string
		id       string // empty: refused
	}{
		{"any name", anyone, []string{"spiffe://example/x"}, "spiffe://example/x"},
		{"any host", anyone, []string{"b.example", "a.example"}, "dns:b.example"},
		{"an id before hosts", anyone, []string{"a.example", "spiffe://example/x"}, "spiffe://example/x"},
		{"no name at all", anyone, nil, ""},
		{"a URI of another sort", anyone, []string{"https://example/x"}, ""},
		{"an id that matches", agents, []string{"spiffe://example/agents/a/b"}, "spiffe://example/agents/a/b"},
		{"one character", agents, []string{"spiffe://example/ops/7"}, "spiffe://example/ops/7"},
		{"two where one is taken", agents, []string{"spiffe://example/ops/77"}, ""},
		{"an id that goes on where the glob ends", agents, []string{"spiffe://example/agents"}, ""},
		{"an id with the taken one inside", agents, []string{"spiffe://evil/?spiffe://example/agents/a"}, ""},
		{"another trust domain", agents, []string{"spiffe://example.evil/agents/a"}, ""},
		{"another case", agents, []string{"spiffe://example/AGENTS/a"}, ""},
		{"a host where ids are taken", agents, []string{"agents.example"}, ""},
		{"two ids", anyone, []string{"spiffe://example/agents/a", "spiffe://example/agents/b"}, ""},
		{"an id beside another URI", anyone, []string{"spiffe://example/agents/a", "https://example"}, ""},
		{"an id with a query", anyone, []string{"spiffe://example/agents/a?x"}, ""},
		{"an id with a fragment", anyone, []string{"spiffe://example/agents/a#x"}, ""},
		{"an id with a user", anyone, []string{"spiffe://u@example/agents/a"}, ""},
		{"an id without a trust domain", anyone, []string{"spiffe:///agents/a"}, ""},
		{"a host that matches", hosts, []string{"x.mesh.example"}, "dns:x.mesh.example"},
		{"the second host matches", hosts, []string{"other.example", "x.mesh.example"}, "dns:x.mesh.example"},
		{"no host matches", hosts, []string{"mesh.example", "x.mesh.example.evil"}, ""},
		{"what is special in a pattern is itself", hosts, []string{"a+b.example"}, "dns:a+b.example"},
		{"and nothing else", hosts, []string{"aab.example", "a+bxexample"}, ""},
		{"an id where hosts are taken", hosts, []string{"spiffe://example/agents/a"}, ""},
		{"one of both is enough: the id", both, []string{"spiffe://example/agents/a", "other.example"}, "spiffe://example/agents/a"},
		{"one of both is enough: the host", both, []string{"spiffe://example/x", "x.mesh.example"}, "spiffe://example/x"},
		{"none of both", both, []string{"spiffe://example/x", "other.example"}, ""},
	} {
		c := root.named(time.Hour, tt.names...)
		p, err := newVerifier(t, tt.provider).Verify(c.given(), [][]*x509.Certificate{c.way()}, begun)
		if tt.id == "" {
			if !errors.Is(err, ErrName) || p != nil {
				t.Errorf("%s: %v, %v; want %v", tt.name, p, err, ErrName)
			}
			continue
		}
		if err != nil || p.ID != tt.id || p.Provider != "mesh" {
			t.Errorf("%s: %v, %v; want %s", tt.name, p, err, tt.id)
		}
	}
}

func TestACertificateIsGoodForAsLongAsItsWayToAnAuthority(t *testing.T) {
	root := authority(t, nil, 24*time.Hour)
	short := authority(t, root, time.Hour)
	c := short.named(2*time.Hour, "spiffe://example/a")
	v := newVerifier(t, &outriggerv1.CertificateProvider{})
	p, err := v.Verify(c.given(), [][]*x509.Certificate{c.way()}, begun)
	if err != nil || !p.Expires.Equal(begun.Add(time.Hour)) || !p.IssuedAt.Equal(begun.Add(-time.Minute)) {
		t.Fatalf("%+v, %v; want one that ends with what stands between, in an hour", p, err)
	}
	for _, after := range []time.Duration{time.Hour, 2 * time.Hour} {
		if _, err := v.Verify(c.given(), [][]*x509.Certificate{c.way()}, begun.Add(after)); !errors.Is(err, ErrExpired) {
			t.Errorf("after %v: %v, want %v", after, err, ErrExpired)
		}
	}
	direct := root.named(2*time.Hour, "spiffe://example/a") // another way, which is good for longer
	if p, err = v.Verify(c.given(), [][]*x509.Certificate{c.way(), direct.way()}, begun); err != nil || !p.Expires.Equal(begun.Add(2*time.Hour)) {
		t.Errorf("%+v, %v; want the way that is good for longest", p, err)
	}
}

func TestACAFileNarrowsTheAuthorities(t *testing.T) {
	root, elsewhere := authority(t, nil, 24*time.Hour), authority(t, nil, 24*time.Hour)
	between := authority(t, root, 24*time.Hour)
	c := between.named(time.Hour, "spiffe://example/a")
	server := issue(t, root, time.Hour, func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = []string{"a.example"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	for _, tt := range []struct {
		name  string
		trust *node
		who   *node
		want  error
	}{
		{"its root", root, c, nil},
		{"what stands between", between, c, nil},
		{"another", elsewhere, c, ErrAuthority},
		{"a server's certificate", root, server, ErrAuthority},
	} {
		v := newVerifier(t, &outriggerv1.CertificateProvider{CaFile: file(t, tt.trust)})
		p, err := v.Verify(tt.who.given(), [][]*x509.Certificate{tt.who.way()}, begun)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if err != nil {
			continue
		}
		again, err := v.Verify(p.Certificates, [][]*x509.Certificate{p.Certificates}, begun)
		if err != nil || again.ID != p.ID || !again.Expires.Equal(p.Expires) {
			t.Errorf("%s: judged again by what was kept: %+v, %v; want the same as %+v", tt.name, again, err, p)
		}
	}
}

func TestACAFileThatIsOfNoUseIsAnError(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{empty, empty + ".gone"} {
		if _, err := New("mesh", &outriggerv1.CertificateProvider{CaFile: path}); err == nil || !strings.Contains(err.Error(), "caFile") {
			t.Errorf("%s: %v, want an error that names caFile", path, err)
		}
	}
}

package assertion

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// authority issues certificates to sidecars.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

var begun = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotBefore: begun.Add(-time.Hour), NotAfter: begun.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(template, template, a.key.Public())
	return a
}

func (a *authority) sign(template, parent *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue makes the certificate of a sidecar, for a key and an hour.
func (a *authority) issue(key crypto.Signer, usage x509.ExtKeyUsage, uris ...string) *tls.Certificate {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: begun.Add(-time.Minute), NotAfter: begun.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			a.t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	leaf := a.sign(template, a.cert, key.Public())
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

const (
	uriA = "spiffe://outrigger/sidecar/a"
	uriB = "spiffe://outrigger/sidecar/b"
)

var claim = Claim{Audience: "holder", Binding: "main", Message: []byte(`{"id":1}`)}

func signed(t testing.TB, by *tls.Certificate, c Claim, at time.Time) *outriggerv1.CallerAssertion {
	t.Helper()
	a, err := Sign(by, "https://idp|ann", c, at)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnAssertionIsForOneRequestOfOneSidecarToAnother(t *testing.T) {
	ca, elsewhere := newAuthority(t), newAuthority(t)
	by := ca.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA)
	good := signed(t, by, claim, begun)
	changed := func(change func(*outriggerv1.CallerAssertion)) *outriggerv1.CallerAssertion {
		a := proto.CloneOf(good)
		change(a)
		return a
	}
	with := func(change func(*Claim)) Claim {
		c := claim
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name   string
		a      *outriggerv1.CallerAssertion
		signer string
		claim  Claim
		after  time.Duration
		want   error
	}{
		{"as it was signed", good, uriA, claim, 0, nil},
		{"at the end of its life", good, uriA, claim, Life, nil},
		{"by a clock that is ahead", good, uriA, claim, -Life, nil},
		{"too old", good, uriA, claim, Life + time.Second, ErrTime},
		{"from the future", good, uriA, claim, -Life - time.Second, ErrTime},
		{"from a century away", signed(t, by, claim, begun.AddDate(900, 0, 0)), uriA, claim, 0, ErrTime},
		{"none", nil, uriA, claim, 0, ErrMalformed},
		{"from another sidecar", good, uriB, claim, 0, ErrSigner},
		{"from nobody", good, "", claim, 0, ErrSigner},
		{"for another sidecar", good, uriA, with(func(c *Claim) { c.Audience = "holder2" }), 0, ErrPurpose},
		{"for another binding", good, uriA, with(func(c *Claim) { c.Binding = "" }), 0, ErrPurpose},
		{"for another message", good, uriA, with(func(c *Claim) { c.Message = append(c.Message, ' ') }), 0, ErrPurpose},
		{"another authority's", signed(t, elsewhere.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA), claim, begun), uriA, claim, 0, ErrSigner},
		{"with a server's certificate", signed(t, ca.issue(newKey(t), x509.ExtKeyUsageServerAuth, uriA), claim, begun), uriA, claim, 0, ErrSigner},
		{"with two names", signed(t, ca.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA, uriB), claim, begun), uriA, claim, 0, ErrSigner},
		{"with no name", signed(t, ca.issue(newKey(t), x509.ExtKeyUsageClientAuth), claim, begun), "", claim, 0, ErrSigner},
		{"with an expired certificate", signed(t, by, claim, begun.Add(2*time.Hour)), uriA, claim, 2 * time.Hour, ErrSigner},
		{"signed with another key", signed(t, &tls.Certificate{Certificate: by.Certificate, PrivateKey: newKey(t)}, claim, begun), uriA, claim, 0, ErrSignature},
		{"without certificates", changed(func(a *outriggerv1.CallerAssertion) { a.Chain = nil }), uriA, claim, 0, ErrMalformed},
		{"with too many", changed(func(a *outriggerv1.CallerAssertion) { a.Chain = make([][]byte, maxChain+1) }), uriA, claim, 0, ErrMalformed},
		{"with nonsense for one", changed(func(a *outriggerv1.CallerAssertion) { a.Chain = append(a.Chain, []byte("x")) }), uriA, claim, 0, ErrMalformed},
		{"without a signature", changed(func(a *outriggerv1.CallerAssertion) { a.Signature = nil }), uriA, claim, 0, ErrSignature},
		{"without a statement", changed(func(a *outriggerv1.CallerAssertion) { a.Statement = nil }), uriA, claim, 0, ErrSignature},
	} {
		got, err := Verify(tt.a, tt.signer, ca.roots(), tt.claim, begun.Add(tt.after))
		if !errors.Is(err, tt.want) || (err == nil) != (got == "https://idp|ann") {
			t.Errorf("%s: %q, %v; want %v", tt.name, got, err, tt.want)
		}
		if err != nil && (got != "" || strings.Contains(err.Error(), "ann")) {
			t.Errorf("%s: %q, and an error that names the caller: %v", tt.name, got, err)
		}
	}
}

func TestEveryByteOfAnAssertionCounts(t *testing.T) {
	ca := newAuthority(t)
	good := signed(t, ca.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA), claim, begun)
	for _, field := range []func(*outriggerv1.CallerAssertion) []byte{
		func(a *outriggerv1.CallerAssertion) []byte { return a.Statement },
		func(a *outriggerv1.CallerAssertion) []byte { return a.Signature },
		func(a *outriggerv1.CallerAssertion) []byte { return a.Chain[0] },
	} {
		for i := range field(good) {
			a := proto.CloneOf(good)
			field(a)[i] ^= 1
			if got, err := Verify(a, uriA, ca.roots(), claim, begun); err == nil {
				t.Errorf("byte %d altered: taken, for %q", i, got)
			}
		}
	}
}

// What the key signs elsewhere, as any digest of 32 bytes, is no assertion.
func TestASignatureOfTheStatementAloneIsNotEnough(t *testing.T) {
	ca := newAuthority(t)
	by := ca.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA)
	a := signed(t, by, claim, begun)
	digest := crypto.SHA256.New()
	digest.Write(a.Statement)
	var err error
	if a.Signature, err = by.PrivateKey.(crypto.Signer).Sign(rand.Reader, digest.Sum(nil), crypto.SHA256); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(a, uriA, ca.roots(), claim, begun); !errors.Is(err, ErrSignature) {
		t.Errorf("got %v, want %v", err, ErrSignature)
	}
}

func TestAnIntermediateComesWithTheChain(t *testing.T) {
	root := newAuthority(t)
	between := &authority{t: t, key: newKey(t)}
	between.cert = root.sign(&x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "between"}, NotBefore: begun.Add(-time.Hour), NotAfter: begun.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, root.cert, between.key.Public())
	by := between.issue(newKey(t), x509.ExtKeyUsageClientAuth, uriA)
	if _, err := Verify(signed(t, by, claim, begun), uriA, root.roots(), claim, begun); !errors.Is(err, ErrSigner) {
		t.Errorf("without it: %v, want %v", err, ErrSigner)
	}
	by.Certificate = append(by.Certificate, between.cert.Raw)
	if _, err := Verify(signed(t, by, claim, begun), uriA, root.roots(), claim, begun); err != nil {
		t.Errorf("with it: %v", err)
	}
}

func TestOnlyAnECDSAKeySigns(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range []*tls.Certificate{{}, {PrivateKey: key}} {
		if a, err := Sign(by, "ann", claim, begun); err == nil {
			t.Errorf("%T signed: %v", by.PrivateKey, a)
		}
	}
}

// FuzzVerify holds that nothing is taken but what was signed.
func FuzzVerify(f *testing.F) {
	ca := newAuthority(f)
	good := signed(f, ca.issue(newKey(f), x509.ExtKeyUsageClientAuth, uriA), claim, begun)
	f.Add(good.Statement, good.Signature, good.Chain[0])
	f.Add([]byte(nil), []byte(nil), ca.cert.Raw)
	roots := ca.roots()
	f.Fuzz(func(t *testing.T, statement, signature, leaf []byte) {
		a := &outriggerv1.CallerAssertion{Statement: statement, Signature: signature, Chain: [][]byte{leaf}}
		if who, err := Verify(a, uriA, roots, claim, begun); err == nil && string(statement) != string(good.Statement) {
			t.Fatalf("taken, for %q: %x", who, statement)
		}
	})
}

func BenchmarkSignAndVerify(b *testing.B) {
	ca := newAuthority(b)
	by, roots := ca.issue(newKey(b), x509.ExtKeyUsageClientAuth, uriA), ca.roots()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Verify(signed(b, by, claim, begun), uriA, roots, claim, begun); err != nil {
			b.Fatal(err)
		}
	}
}

// Package certificate judges the client certificates of callers (RFC 5280; SPIFFE X.509-SVID).
//
// The TLS handshake has verified a certificate against the authorities of the port before a Verifier sees it. Not here:
// which requests are judged by a certificate (package authn).
package certificate

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Errors of Verify. Their texts may be shown to callers.
var (
	ErrAuthority = errors.New("the certificate is of an authority that is not accepted")
	ErrName      = errors.New("the certificate has no name that is accepted")
	ErrExpired   = errors.New("the certificate has expired")
)

// Verifier judges certificates for one provider. It is never changed.
type Verifier struct {
	name        string
	roots       *x509.CertPool // nil: those of the port
	ids, names  []*regexp.Regexp
	unqualified bool // any name will do
}

// New makes the Verifier of a provider of that name. The error is of its caFile.
func New(name string, p *outriggerv1.CertificateProvider) (*Verifier, error) {
	v := &Verifier{name: name, ids: compile(p.GetSpiffeIds()), names: compile(p.GetDnsNames())}
	v.unqualified = len(v.ids) == 0 && len(v.names) == 0
	if p.GetCaFile() == "" {
		return v, nil
	}
	pem, err := os.ReadFile(p.GetCaFile())
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	v.roots = x509.NewCertPool()
	if !v.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile: %s holds no certificate", p.GetCaFile())
	}
	return v, nil
}

// compile makes globs of "*" and "?" ready.
func compile(globs []string) (all []*regexp.Regexp) {
	for _, g := range globs {
		pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(g))
		all = append(all, regexp.MustCompile("(?s)^(?:"+pattern+")$"))
	}
	return all
}

// Name is the provider's.
func (v *Verifier) Name() string { return v.name }

// Verify finds who a client is by the certificates that it gave, its own first, and the ways from that to an authority by
// which the port has verified it. Its Tenant is not looked up.
func (v *Verifier) Verify(given []*x509.Certificate, ways [][]*x509.Certificate, now time.Time) (*identity.Principal, error) {
	own := given[0]
	if !now.Before(own.NotAfter) { // the connection may be older
		return nil, ErrExpired
	}
	if v.roots != nil {
		var err error
		if ways, err = v.trusted(given, now); err != nil {
			return nil, ErrAuthority
		}
	}
	way, end := lasting(ways)
	if !now.Before(end) {
		return nil, ErrExpired
	}
	p := &identity.Principal{
		Provider: v.name, DNSNames: own.DNSNames, Certificates: way, IssuedAt: own.NotBefore, Expires: end,
	}
	var ok bool
	if p.SPIFFEID, ok = spiffeID(own); !ok {
		return nil, ErrName
	}
	if p.ID = v.accepted(p); p.ID == "" {
		return nil, ErrName
	}
	return p, nil
}

// trusted are the ways from a certificate to the provider's own authorities.
func (v *Verifier) trusted(given []*x509.Certificate, now time.Time) ([][]*x509.Certificate, error) {
	between := x509.NewCertPool()
	for _, c := range given[1:] {
		between.AddCert(c)
	}
	return given[0].Verify(x509.VerifyOptions{
		Roots: v.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// lasting is the way that is good for longest, and its end.
func lasting(ways [][]*x509.Certificate) (way []*x509.Certificate, end time.Time) {
	for _, w := range ways {
		first := w[0].NotAfter
		for _, c := range w[1:] {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(end) {
			way, end = w, first
		}
	}
	return way, end
}

// spiffeID is a certificate's SPIFFE id, if it has one. Not ok is one that has it as none may: with a second URI, or with
// more than a trust domain and a path (X.509-SVID, section 2; SPIFFE-ID, section 2).
func spiffeID(c *x509.Certificate) (id string, ok bool) {
	for _, u := range c.URIs {
		if u.Scheme != "spiffe" {
			continue
		}
		if len(c.URIs) > 1 || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" {
			return "", false
		}
		return u.String(), true
	}
	return "", true
}

// Takes reports whether a caller has a name that the provider takes, whatever proves it.
func (v *Verifier) Takes(p *identity.Principal) bool { return v.accepted(p) != "" }

// accepted is what a caller is called who has a name that the provider takes; empty: it has none.
func (v *Verifier) accepted(p *identity.Principal) string {
	if p.SPIFFEID != "" && (v.unqualified || matchOne(v.ids, p.SPIFFEID)) {
		return p.SPIFFEID
	}
	for _, name := range p.DNSNames {
		switch {
		case !v.unqualified && !matchOne(v.names, name):
		case p.SPIFFEID != "":
			return p.SPIFFEID
		default:
			return "dns:" + name
		}
	}
	return ""
}

func matchOne(globs []*regexp.Regexp, name string) bool {
	return slices.ContainsFunc(globs, func(g *regexp.Regexp) bool { return g.MatchString(name) })
}

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

// Verify finds who a client is by the certificates that it gave, its own first. Its Tenant is not looked up.
func (v *Verifier) Verify(chain []*x509.Certificate, now time.Time) (*identity.Principal, error) {
	own := chain[0]
	if !now.Before(own.NotAfter) { // the connection may be older
		return nil, ErrExpired
	}
	if v.roots != nil && !v.trusted(chain, now) {
		return nil, ErrAuthority
	}
	p := &identity.Principal{Provider: v.name, DNSNames: own.DNSNames, Expires: own.NotAfter}
	for _, u := range own.URIs {
		if u.Scheme == "spiffe" {
			if p.SPIFFEID != "" {
				return nil, ErrName // a SPIFFE certificate has exactly one (X.509-SVID, section 2)
			}
			p.SPIFFEID = u.String()
		}
	}
	if !v.accepts(p) {
		return nil, ErrName
	}
	switch {
	case p.SPIFFEID != "":
		p.ID = p.SPIFFEID
	case len(p.DNSNames) > 0:
		p.ID = "dns:" + p.DNSNames[0]
	default:
		return nil, ErrName
	}
	return p, nil
}

func (v *Verifier) trusted(chain []*x509.Certificate, now time.Time) bool {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: v.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

// accepts reports whether a caller has a name that the provider takes.
func (v *Verifier) accepts(p *identity.Principal) bool {
	if v.unqualified {
		return true
	}
	for _, glob := range v.ids {
		if p.SPIFFEID != "" && glob.MatchString(p.SPIFFEID) {
			return true
		}
	}
	for i, name := range p.DNSNames {
		for _, glob := range v.names {
			if glob.MatchString(name) {
				if p.SPIFFEID == "" && i > 0 { // the name that was accepted is who it is
					p.DNSNames = append([]string{name}, p.DNSNames...)
				}
				return true
			}
		}
	}
	return false
}

// Accepts reports whether a caller that was verified before would still be, by its names and its end.
func (v *Verifier) Accepts(p *identity.Principal, now time.Time) bool {
	known := *p
	return p.Provider == v.name && now.Before(p.Expires) && v.accepts(&known)
}

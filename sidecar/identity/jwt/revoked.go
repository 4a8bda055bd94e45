package jwt

import (
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Revocations are the tokens and callers that are not accepted any more. They are never changed, and safe for concurrent
// use; nil revokes nothing.
type Revocations struct {
	byJTI     map[string][]revocation
	bySubject map[string][]revocation // those without jti
}

// revocation is what has to match beside the value that it is filed under. What is empty matches all.
type revocation struct {
	issuer, subject string
	before          time.Time
}

// NewRevocations files what an Identity revokes. It returns nil when that is nothing.
func NewRevocations(all []*outriggerv1.Revocation) *Revocations {
	if len(all) == 0 {
		return nil
	}
	r := &Revocations{byJTI: make(map[string][]revocation), bySubject: make(map[string][]revocation)}
	for _, v := range all {
		one := revocation{issuer: v.GetIssuer(), subject: v.GetSubject()}
		if t := v.GetIssuedBefore(); t != nil {
			one.before = t.AsTime()
		}
		switch {
		case v.GetJti() != "":
			r.byJTI[v.GetJti()] = append(r.byJTI[v.GetJti()], one)
		case v.GetSubject() != "":
			r.bySubject[v.GetSubject()] = append(r.bySubject[v.GetSubject()], one)
		}
	}
	return r
}

// Match reports whether a caller is revoked. The subject of one without a token is its ID, as "key:NAME". A token that
// does not say when it was issued counts as issued before any time.
//
// Hot: two lookups, and it does not allocate.
func (r *Revocations) Match(p *identity.Principal) bool {
	if r == nil {
		return false
	}
	subject := p.Subject
	if subject == "" {
		subject = p.ID
	}
	return p.JTI != "" && matchAny(r.byJTI[p.JTI], p, subject) || matchAny(r.bySubject[subject], p, subject)
}

func matchAny(all []revocation, p *identity.Principal, subject string) bool {
	for i := range all {
		r := &all[i]
		if (r.issuer == "" || r.issuer == p.Issuer) && (r.subject == "" || r.subject == subject) &&
			(r.before.IsZero() || p.IssuedAt.Before(r.before)) {
			return true
		}
	}
	return false
}

package identity

import (
	"crypto/x509"
	"encoding/json"
	"time"
)

// AnonymousID is the principal of a caller that carried no credential, where that is allowed.
const AnonymousID = "anonymous"

// Principal is who calls. One is shared by all requests that carry the same credential, and never changed once it was
// handed out; a new configuration makes new ones.
type Principal struct {
	// ID is what sessions, held calls and streams belong to. It is the same for a token and the one that refreshes it:
	// "ISSUER|SUBJECT" of a token, "key:NAME" of a Key, a certificate's SPIFFE id or "dns:NAME", or AnonymousID.
	ID string
	// Provider is the name of the Identity's provider that judged the credential; empty for the anonymous.
	Provider string
	// Issuer and Subject are a token's.
	Issuer, Subject string
	// Groups and Scopes are sorted, without doubles.
	Groups, Scopes []string
	// Tenant is the name of the one Tenant that the caller belongs to, or empty.
	Tenant string
	// Claims is a token's payload, a JSON object; nil for other credentials.
	Claims json.RawMessage
	// ClaimText are the strings among the claims, also those in objects, by path as in outriggerv1.ClaimPaths.
	ClaimText map[string]string
	// Key is the name of the Key, KeyHash what is kept of the key itself, and KeyLabels are its labels.
	Key       string
	KeyHash   string
	KeyLabels map[string]string
	// SPIFFEID is a certificate's, and DNSNames are its others. Certificates are it and what leads from it to an authority.
	SPIFFEID     string
	DNSNames     []string
	Certificates []*x509.Certificate
	// Expires is when the credential ends; zero: never. Open streams end then.
	Expires time.Time
	// IssuedAt is when a token or certificate was issued, and JTI is a token's, for revocations.
	IssuedAt time.Time
	JTI      string
	// Token is the caller's own access token, for an exchange; empty for other credentials. It is a secret.
	Token string
}

// String names the principal in logs. It holds no secret.
func (p *Principal) String() string { return p.ID }

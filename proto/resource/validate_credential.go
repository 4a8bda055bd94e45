package resource

import (
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func (v *validator) credential(c *outriggerv1.Credential) {
	const at = "spec.credential"
	if h := c.Header; h != "" {
		v.check(httpguts.ValidHeaderFieldName(h), at+".header", "%s is not a header's name", quote(h))
		v.check(!ownHeader(h), at+".header", "%s is not a header that a credential may set", quote(h))
	}
	v.check(httpguts.ValidHeaderFieldValue(c.Prefix), at+".prefix", "must not contain control characters")
	switch s := c.Source.(type) {
	case *outriggerv1.Credential_Env:
		v.env(at+".env", s.Env)
	case *outriggerv1.Credential_File:
		v.file(at+".file", s.File)
	case *outriggerv1.Credential_Secret:
		v.secretReference(at+".secret", s.Secret)
	case *outriggerv1.Credential_ClientCredentials:
		v.tokenEndpoint(at+".clientCredentials.endpoint", s.ClientCredentials.GetEndpoint())
	case *outriggerv1.Credential_TokenExchange:
		v.tokenEndpoint(at+".tokenExchange.endpoint", s.TokenExchange.GetEndpoint())
	default:
		v.errs.addf(at, "no source, expected exactly one of env, file, secret, clientCredentials and tokenExchange")
	}
}

func (v *validator) env(at, name string) {
	rest, ok := strings.CutPrefix(name, CredentialEnvPrefix)
	v.check(ok && rest != "" && envPattern.MatchString(name), at, "%s, expected a variable whose name begins with %s", quote(name), CredentialEnvPrefix)
}

func (v *validator) file(at, name string) {
	bare := name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00") && len(name) <= 255
	v.check(bare, at, "%s, expected the bare name of a file in the credentials directory", quote(name))
}

func (v *validator) secretReference(at string, r *outriggerv1.SecretReference) {
	v.name(at+".name", r.GetName())
	v.check(secretKeyPattern.MatchString(r.GetKey()), at+".key", "%s is not the key of a Secret's value", quote(r.GetKey()))
}

func (v *validator) tokenEndpoint(at string, e *outriggerv1.TokenEndpoint) {
	scheme := v.trustedURL(at+".url", e.GetUrl())
	v.check(e.GetClientId() != "" && printable(e.GetClientId()), at+".clientId", "%s is not a client id", quote(e.GetClientId()))
	switch s := e.GetClientSecret().GetSource().(type) {
	case *outriggerv1.ClientSecret_Env:
		v.env(at+".clientSecret.env", s.Env)
	case *outriggerv1.ClientSecret_File:
		v.file(at+".clientSecret.file", s.File)
	case *outriggerv1.ClientSecret_Secret:
		v.secretReference(at+".clientSecret.secret", s.Secret)
	default:
		v.errs.addf(at+".clientSecret", "no source, expected exactly one of env, file and secret")
	}
	v.scopes(at+".scopes", e.GetScopes())
	if e.GetResource() != "" {
		v.url(at+".resource", e.GetResource())
	}
	v.check(printable(e.GetAudience()), at+".audience", "%s must not contain control characters", quote(e.GetAudience()))
	v.caFile(at+".caFile", e.GetCaFile(), scheme)
	v.duration(at+".timeout", e.GetTimeout(), 0, 5*time.Minute)
}

// trustedURL checks the URL of something that is believed: https, or http on a loopback address. It returns the scheme.
func (v *validator) trustedURL(at, s string) (scheme string) {
	scheme = v.url(at, s)
	if scheme == "http" {
		u, err := url.Parse(s)
		v.check(err == nil && loopback(u.Hostname()), at, "%s is not https, as it must be but for a loopback address", quote(s))
	}
	return scheme
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// externalURL checks the URL that clients dial, in the form in which they compare it (RFC 9728, section 3.3).
func (v *validator) externalURL(at, s string) {
	if s == "" || v.url(at, s) == "" {
		return
	}
	u, err := url.Parse(s)
	if err != nil {
		return // url has said so
	}
	v.check(u.RawQuery == "" && !u.ForceQuery, at, "must not have a query")
	v.check(u.Scheme+"://"+u.Host == strings.ToLower(u.Scheme+"://"+u.Host) && strings.HasPrefix(s, u.Scheme+"://"+u.Host), at, "%s, expected scheme and host in lower case", quote(s))
	v.check(!strings.HasSuffix(s, "/"), at, "%s ends with '/', expected the URL without it", quote(s))
	v.check(u.Path == "" || path.Clean(u.Path) == u.Path && pathPattern.MatchString(u.Path), at, "%s, expected a path in its shortest form, of letters, digits and . _ ~ - /", quote(s))
}

func (v *validator) secret(s *outriggerv1.Secret) {
	v.check(len(s.Values) > 0, "spec.values", "required: at least one value")
	total := 0
	for _, key := range sortedKeys(s.Values) {
		v.check(secretKeyPattern.MatchString(key), "spec.values."+key, "%s is not a value's key: expected 1 to 128 of letters, digits and . _ -", quote(key))
		total += len(key) + len(s.Values[key])
	}
	v.check(total <= maxSecret, "spec.values", "%d bytes, expected at most %d", total, maxSecret)
}

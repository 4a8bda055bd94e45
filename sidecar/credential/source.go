package credential

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const defaultHeader = "Authorization"

// Static is a Source with one value for all requests. Errors name no value: it, or the header, cannot stand in a request.
func Static(header, value string) (*Source, error) {
	s, err := named(header)
	if err != nil {
		return nil, err
	}
	if !httpguts.ValidHeaderFieldValue(value) {
		return nil, errors.New("a value that cannot stand in a header")
	}
	s.value, s.digest = value, digestOf(s.header, value)
	return s, nil
}

func named(header string) (*Source, error) {
	name := http.CanonicalHeaderKey(cmp.Or(header, defaultHeader))
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return nil, errors.New("header: not the name of one")
	case strings.HasPrefix(name, "Mcp-"), slices.Contains(otherUse, name):
		return nil, fmt.Errorf("header: %s has another use", name)
	}
	return &Source{header: name}, nil
}

// otherUse are headers that frame a request or say what it is about.
var otherUse = []string{
	"Host", "Connection", "Content-Length", "Transfer-Encoding", "Content-Type", "Accept", "Accept-Encoding", "Expect",
	"Upgrade", "Trailer", "Idempotency-Key", "X-Idempotency-Key", mcp.HeaderLastEventID,
}

func digestOf(parts ...string) []byte {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%q ", p)
	}
	return h.Sum(nil)
}

// For is the Source of an Upstream; nil when it names none. It reaches for no token. Errors say what of spec.credential
// cannot be had where this sidecar runs; they name the place, never a value.
func (s *Sources) For(u *outriggerv1.Upstream, secrets Secrets) (*Source, error) {
	c := u.GetCredential()
	switch {
	case c == nil:
		return nil, nil
	case s == nil:
		return nil, errors.New("spec.credential: this sidecar presents none")
	}
	source, err := s.source(u, c, secrets)
	if err != nil {
		return nil, fmt.Errorf("spec.credential: %w", err)
	}
	return source, nil
}

func (s *Sources) source(u *outriggerv1.Upstream, c *outriggerv1.Credential, secrets Secrets) (*Source, error) {
	switch from := c.GetSource().(type) {
	case *outriggerv1.Credential_Env:
		return static(c, from.Env, envValue)
	case *outriggerv1.Credential_File:
		return static(c, from.File, s.fileValue)
	case *outriggerv1.Credential_Secret:
		return static(c, from.Secret, secrets.value)
	case *outriggerv1.Credential_ClientCredentials:
		return s.obtained(u, c, from.ClientCredentials.GetEndpoint(), false, secrets)
	case *outriggerv1.Credential_TokenExchange:
		return s.obtained(u, c, from.TokenExchange.GetEndpoint(), true, secrets)
	}
	return nil, errors.New("no source that this sidecar knows")
}

// static is the Source of a value that read finds at a place.
func static[Place any](c *outriggerv1.Credential, at Place, read func(Place) (string, error)) (*Source, error) {
	value, err := read(at)
	if err != nil {
		return nil, err
	}
	return Static(c.GetHeader(), c.GetPrefix()+value)
}

// obtained is the Source of tokens.
func (s *Sources) obtained(
	u *outriggerv1.Upstream, c *outriggerv1.Credential, e *outriggerv1.TokenEndpoint, exchanges bool, secrets Secrets,
) (*Source, error) {
	source, err := named(c.GetHeader())
	if err != nil {
		return nil, err
	}
	secret, err := s.clientSecret(e.GetClientSecret(), secrets)
	if err != nil {
		return nil, fmt.Errorf("clientSecret: %w", err)
	}
	var authorities []byte
	if file := e.GetCaFile(); file != "" {
		if authorities, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("caFile: %w", err)
		}
	}
	to, err := s.newEndpoint(u, e, secret, exchanges, authorities)
	if err != nil {
		return nil, err
	}
	source.digest = digestOf(source.header, secret, string(authorities))
	source.tokens = newTokens(s, u.GetName(), cmp.Or(c.GetPrefix(), "Bearer "), to)
	return source, nil
}

package authn

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// wellKnown is where protected-resource metadata are (RFC 9728, section 3).
const wellKnown = "/.well-known/oauth-protected-resource"

// MetadataPaths are the paths at which a client looks for the metadata of a resource, the one with the resource's own path
// first, as URL.Path has them (RFC 9728, section 3.1; MCP, basic/authorization).
func MetadataPaths(externalURL string) []string {
	u, err := url.Parse(externalURL)
	if err != nil || externalURL == "" {
		return nil
	}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		return []string{wellKnown + path, wellKnown}
	}
	return []string{wellKnown}
}

// metadataURL is where the metadata of a resource are; empty without one.
func metadataURL(externalURL string) string {
	u, err := url.Parse(externalURL)
	if err != nil || externalURL == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host + wellKnown + strings.TrimSuffix(u.EscapedPath(), "/")
}

// newMetadata is the document of RFC 9728, section 2; nil without externalUrl or an authorization server to name.
func newMetadata(s Spec) []byte {
	servers := s.Identity.GetAuthorizationServers()
	if len(servers) == 0 {
		for _, p := range s.Identity.GetProviders() {
			if issuer := p.GetJwt().GetIssuer(); issuer != "" && !slices.Contains(servers, issuer) {
				servers = append(servers, issuer)
			}
		}
	}
	if s.Binding.GetExternalUrl() == "" || len(servers) == 0 {
		return nil
	}
	document, _ := json.Marshal(struct { // strings only: it cannot fail
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
	}{s.Binding.GetExternalUrl(), servers, s.Identity.GetScopes(), []string{"header"}})
	return document
}

// challenges are the refusals of a binding.
type challenges struct {
	metadata string // the parameter, with ", " before it; or empty
	scopes   string // likewise
	missing  *identity.Refusal
	scheme   *identity.Refusal
}

func newChallenges(s Spec) challenges {
	c := challenges{}
	if newMetadata(s) != nil {
		c.metadata = parameter("resource_metadata", metadataURL(s.Binding.GetExternalUrl()))
	}
	if scopes := s.Identity.GetScopes(); len(scopes) > 0 {
		c.scopes = parameter("scope", strings.Join(scopes, " "))
	}
	// Who knows of no bearer tokens is told of no error (RFC 6750, section 3.1).
	c.missing = &identity.Refusal{Status: http.StatusUnauthorized, Challenge: bearer(c.metadata + c.scopes), Reason: "no_credential",
		Message: "a credential is required"}
	c.scheme = &identity.Refusal{Status: http.StatusUnauthorized, Challenge: c.missing.Challenge, Reason: "scheme",
		Message: "Authorization is of another scheme than Bearer"}
	return c
}

// escaped makes a text the inside of a quoted-string (RFC 9110, section 5.6.4).
var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// parameter is one of a challenge (RFC 9110, section 11.2), with ", " before it.
func parameter(name, value string) string {
	return `, ` + name + `="` + escaped.Replace(value) + `"`
}

// bearer is a challenge of these parameters. One without any needs a realm (RFC 6750, section 3).
func bearer(parameters string) string {
	if parameters == "" {
		parameters = parameter("realm", "mcp")
	}
	return "Bearer " + strings.TrimPrefix(parameters, ", ")
}

// invalid refuses a credential that is bad (RFC 6750, section 3.1).
func (c challenges) invalid(reason, message string) *identity.Refusal {
	return &identity.Refusal{Status: http.StatusUnauthorized, Reason: reason, Message: message,
		Challenge: bearer(parameter("error", "invalid_token") + parameter("error_description", message) + c.metadata + c.scopes)}
}

// malformed refuses a request that carries credentials as nobody may.
func (c challenges) malformed(reason, message string) *identity.Refusal {
	return &identity.Refusal{Status: http.StatusBadRequest, Reason: reason, Message: message,
		Challenge: bearer(parameter("error", "invalid_request") + parameter("error_description", message) + c.metadata)}
}

// insufficient refuses a caller for want of scopes.
func (c challenges) insufficient(scopes []string) *identity.Refusal {
	const message = "the token lacks scopes that this needs"
	return &identity.Refusal{Status: http.StatusForbidden, Reason: "insufficient_scope", Message: message,
		Challenge: bearer(parameter("error", "insufficient_scope") + parameter("scope", strings.Join(scopes, " ")) +
			c.metadata + parameter("error_description", message))}
}

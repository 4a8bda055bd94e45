package jwt

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func TestASupposedTokenProvesWhatItsClaimsSay(t *testing.T) {
	s := Spec{Name: "idp", Provider: &outriggerv1.JWTProvider{Issuer: "https://idp.example", Claims: &outriggerv1.ClaimPaths{
		Subject: "email", Groups: "realm.roles", Tenant: `acme\.org.id`,
	}}}
	claimed := func() map[string]any {
		return map[string]any{
			"email": "jo@example", "realm": map[string]any{"roles": []any{"dev", "dev", "a"}, "other": "x"}, "scope": "write read",
			"acme.org": map[string]any{"id": "acme"},
		}
	}
	for name, row := range map[string]struct {
		say            Supposed
		subject        string
		groups, scopes []string
		tenant         string
	}{
		"all of the claims": {Supposed{Claims: claimed()}, "jo@example", []string{"a", "dev"}, []string{"read", "write"}, "acme"},
		"what is given wins": {Supposed{Subject: "eve", Groups: []string{"z", "b"}, Scopes: []string{"x", "c"}, Claims: claimed()},
			"eve", []string{"b", "z"}, []string{"c", "x"}, "acme"},
		"no claims": {Supposed{Subject: "eve"}, "eve", nil, nil, ""},
	} {
		got, err := Suppose(s, row.say)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := got.Principal
		if p.ID != "https://idp.example|"+row.subject || p.Subject != row.subject || p.Provider != "idp" || !slices.Equal(p.Groups, row.groups) ||
			!slices.Equal(p.Scopes, row.scopes) || got.TenantClaim != row.tenant {
			t.Errorf("%s: %+v, tenant %q; want %+v", name, p, got.TenantClaim, row)
		}
		var c map[string]any
		if err := json.Unmarshal(p.Claims, &c); err != nil || c["iss"] != "https://idp.example" || c["email"] != row.subject || p.ClaimText["email"] != row.subject {
			t.Errorf("%s: claims %s (%v), texts %v; want the issuer and the subject among them", name, p.Claims, err, p.ClaimText)
		}
	}
	for name, say := range map[string]Supposed{
		"no subject":   {Groups: []string{"a"}},
		"a bad group":  {Subject: "jo", Claims: map[string]any{"realm": map[string]any{"roles": []any{1.0}}}},
		"a bad tenant": {Subject: "jo", Claims: map[string]any{"acme.org": map[string]any{"id": 7.0}}},
	} {
		var refused *Error
		if _, err := Suppose(s, say); !errors.As(err, &refused) || refused.Reason != Claims {
			t.Errorf("%s: %v, want that a claim is missing or wrong", name, err)
		}
	}
}

package jwt

import (
	"encoding/json"
	"strings"
)

// Supposed is what a token would say. What is empty is left to the claims.
type Supposed struct {
	Subject        string
	Groups, Scopes []string
	// Claims is a JSON object, decoded. It becomes the token's.
	Claims map[string]any
}

// Suppose is what such a token of the Spec's provider would prove if it were signed, current and for the right audience. It
// is for who explains what tokens are good for; nothing is verified by it. The error is an *Error: a claim is absent or of
// a wrong type.
func Suppose(s Spec, say Supposed) (*Token, error) {
	v := &Verifier{name: s.Name, issuer: s.Provider.GetIssuer(), paths: readPaths(s.Provider.GetClaims())}
	c := claims(say.Claims)
	if c == nil {
		c = claims{}
	}
	c["iss"] = v.issuer
	if say.Subject != "" {
		c.put(v.paths.subject, say.Subject)
	}
	if say.Groups != nil {
		groups := make([]any, len(say.Groups))
		for i, g := range say.Groups {
			groups[i] = g
		}
		c.put(v.paths.groups, groups)
	}
	if say.Scopes != nil {
		c.put(v.paths.scopes[0], strings.Join(say.Scopes, " "))
	}
	t, err := v.read(c)
	if err != nil {
		return nil, err
	}
	if t.Principal.Claims, err = json.Marshal(c); err != nil {
		return nil, refuse(Claims)
	}
	return t, nil
}

// put sets the value at a path, and makes objects of what is on the way.
func (c claims) put(p path, value any) {
	object := map[string]any(c)
	for _, name := range p[:len(p)-1] {
		next, ok := object[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			object[name] = next
		}
		object = next
	}
	object[p[len(p)-1]] = value
}

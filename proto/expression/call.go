package expression

import (
	"encoding/json"
	"maps"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// Caller is what expressions see of who calls.
type Caller struct {
	ID, Issuer, Subject string
	Groups, Scopes      []string
	Claims              json.RawMessage // a JSON object, or nil
	Key                 string
	KeyLabels           map[string]string
	SPIFFEID            string
	Provider            string
}

// Principal is a Caller made ready, once for all of its calls. It is safe for concurrent use.
type Principal struct {
	id, issuer, subject, key, spiffeID, provider ref.Val
	groups, scopes, keyLabels                    ref.Val

	object    *object // nil where the claims cannot be read
	claimsErr error
}

// NewPrincipal makes a Caller ready.
func NewPrincipal(c Caller) *Principal {
	a := types.DefaultTypeAdapter
	p := &Principal{
		id: types.String(c.ID), issuer: types.String(c.Issuer), subject: types.String(c.Subject),
		key: types.String(c.Key), spiffeID: types.String(c.SPIFFEID), provider: types.String(c.Provider),
		groups: types.NewStringList(a, c.Groups), scopes: types.NewStringList(a, c.Scopes),
		keyLabels: types.NewStringStringMap(a, maps.Clone(c.KeyLabels)),
	}
	if c.Claims == nil {
		c.Claims = json.RawMessage("{}")
	}
	if p.object, p.claimsErr = newObject(c.Claims, false); p.claimsErr == nil {
		p.object.readAll()
	}
	return p
}

// claims is the object, or a new error: CEL writes into those that it gets.
func (p *Principal) claims() ref.Val {
	if p.claimsErr != nil {
		return types.NewErr("claims: %v", p.claimsErr)
	}
	return p.object
}

// Tool is what expressions see of a tool.
type Tool struct {
	Name                                         string
	ReadOnly, Destructive, Idempotent, OpenWorld bool
}

// Call is what an expression is evaluated for. One goroutine uses it at a time.
type Call struct {
	Principal         *Principal // required
	Tenant, Method    string
	Tool              Tool
	Prompt, Resource  string // the prompt's name, the resource's URI
	Binding, Upstream string
	Time              time.Time
	Arguments         []byte // a JSON object
	ArgumentsUnknown  bool   // then what depends on them is Unknown

	args ref.Val // once they were read
}

type (
	prompt   struct{ name string }
	resource struct{ uri string }
)

// Parent is for CEL: there is none.
func (c *Call) Parent() interpreter.Activation { return nil }

// ResolveName is for CEL: a variable's value.
func (c *Call) ResolveName(name string) (any, bool) {
	switch name {
	case "principal":
		return c.Principal, true
	case "tenant":
		return c.Tenant, true
	case "method":
		return c.Method, true
	case "tool":
		return &c.Tool, true
	case "prompt":
		return &prompt{c.Prompt}, true
	case "resource":
		return &resource{c.Resource}, true
	case "binding":
		return c.Binding, true
	case "upstream":
		return c.Upstream, true
	case "time":
		return types.Timestamp{Time: c.Time}, true
	case "args":
		return c.arguments(), true
	default:
		return nil, false
	}
}

// arguments reads them when the first expression asks.
func (c *Call) arguments() ref.Val {
	switch {
	case c.ArgumentsUnknown:
		return types.NewUnknown(0, types.NewAttributeTrail("args"))
	case c.args != nil:
		return c.args
	}
	o, err := newObject(c.Arguments, true)
	if err != nil {
		return types.NewErr("arguments: %v", err)
	}
	c.args = o
	return o
}

// unknown is a call of which nothing is known.
type unknown struct{}

func (unknown) Parent() interpreter.Activation { return nil }

func (unknown) ResolveName(name string) (any, bool) {
	for _, v := range variables {
		if v.text == name {
			return types.NewUnknown(0, types.NewAttributeTrail(name)), true
		}
	}
	return nil, false
}

package expression

import (
	"fmt"
	_ "time/tzdata" // time.getHours("Europe/Zurich") has one meaning, also where the system has no zones

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// The types of variables that have fields.
const (
	typePrincipal = "outrigger.Principal"
	typeTool      = "outrigger.Tool"
	typePrompt    = "outrigger.Prompt"
	typeResource  = "outrigger.Resource"
)

// variable is a name that expressions know. Authors rely on these: add freely, never rename, never change a type.
type variable struct {
	name Name
	text string
	kind *cel.Type
}

var variables = []variable{
	{NamePrincipal, "principal", cel.ObjectType(typePrincipal)},
	{NameTenant, "tenant", cel.StringType},
	{NameMethod, "method", cel.StringType},
	{NameTool, "tool", cel.ObjectType(typeTool)},
	{NamePrompt, "prompt", cel.ObjectType(typePrompt)},
	{NameResource, "resource", cel.ObjectType(typeResource)},
	{NameBinding, "binding", cel.StringType},
	{NameUpstream, "upstream", cel.StringType},
	{NameTime, "time", cel.TimestampType},
	{NameArgs, "args", cel.MapType(cel.StringType, cel.DynType)},
}

var texts = cel.ListType(cel.StringType)

// fields are those of each type, by name.
var fields = map[string]map[string]*types.FieldType{
	typePrincipal: {
		"id":        field(cel.StringType, func(p *Principal) any { return p.id }),
		"issuer":    field(cel.StringType, func(p *Principal) any { return p.issuer }),
		"subject":   field(cel.StringType, func(p *Principal) any { return p.subject }),
		"groups":    field(texts, func(p *Principal) any { return p.groups }),
		"scopes":    field(texts, func(p *Principal) any { return p.scopes }),
		"claims":    field(cel.MapType(cel.StringType, cel.DynType), func(p *Principal) any { return p.claims() }),
		"key":       field(cel.StringType, func(p *Principal) any { return p.key }),
		"keyLabels": field(cel.MapType(cel.StringType, cel.StringType), func(p *Principal) any { return p.keyLabels }),
		"spiffeId":  field(cel.StringType, func(p *Principal) any { return p.spiffeID }),
		"provider":  field(cel.StringType, func(p *Principal) any { return p.provider }),
	},
	typeTool: {
		"name":        field(cel.StringType, func(t *Tool) any { return t.Name }),
		"readOnly":    field(cel.BoolType, func(t *Tool) any { return t.ReadOnly }),
		"destructive": field(cel.BoolType, func(t *Tool) any { return t.Destructive }),
		"idempotent":  field(cel.BoolType, func(t *Tool) any { return t.Idempotent }),
		"openWorld":   field(cel.BoolType, func(t *Tool) any { return t.OpenWorld }),
	},
	typePrompt:   {"name": field(cel.StringType, func(p *prompt) any { return p.name })},
	typeResource: {"uri": field(cel.StringType, func(r *resource) any { return r.uri })},
}

// field reads a field of a T. It is set, as has() asks, when it is not empty.
func field[T any](kind *cel.Type, get func(T) any) *types.FieldType {
	from := func(target any) (any, error) {
		t, ok := target.(T)
		if !ok {
			return nil, fmt.Errorf("a %T has no such field", target)
		}
		return get(t), nil
	}
	return &types.FieldType{Type: kind, GetFrom: from, IsSet: func(target any) bool {
		value, err := from(target)
		return err == nil && !types.DefaultTypeAdapter.NativeToValue(value).(interface{ IsZeroValue() bool }).IsZeroValue()
	}}
}

// provider adds our types to those of CEL.
type provider struct{ *types.Registry }

func (p provider) FindStructType(name string) (*types.Type, bool) {
	if _, ours := fields[name]; ours {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Registry.FindStructType(name)
}

func (p provider) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if of, ours := fields[name]; ours {
		f, ok := of[field]
		return f, ok
	}
	return p.Registry.FindStructFieldType(name, field)
}

func newEnvironment() (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	opts := []cel.EnvOption{
		cel.CustomTypeAdapter(registry), cel.CustomTypeProvider(provider{registry}),
		cel.ParserExpressionSizeLimit(maxText), cel.ParserRecursionLimit(maxNesting), cel.ExpressionNodeLimit(maxNodes),
		cel.ExpressionNestingDepthLimit(maxNesting), cel.RegexProgramSizeLimit(maxRegex),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals(),
			cel.ValidateRegexProgramSizeLimit(maxRegex), cel.ValidateHomogeneousAggregateLiterals(),
			cel.ValidateComprehensionNestingLimit(maxLoops)),
	}
	for _, v := range variables {
		opts = append(opts, cel.Variable(v.text, v.kind))
	}
	return cel.NewEnv(opts...)
}

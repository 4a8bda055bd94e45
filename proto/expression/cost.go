package expression

import (
	"regexp"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// plan makes an expression ready to run. What an evaluation costs is counted only where the worst that could come might cost
// too much: counting takes longer than most expressions do.
func plan(checked *cel.Ast) (cel.Program, error) {
	worst, err := environment().EstimateCost(checked, largest)
	if err != nil || worst.Max > maxCost || !plain(checked) {
		return counted(checked)
	}
	return environment().Program(checked, options...)
}

var options = []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.OptimizeRegex(shortTexts(overloads.Matches), shortTexts(overloads.MatchesString))}

// counted stops an evaluation that costs more than maxCost.
func counted(checked *cel.Ast) (cel.Program, error) {
	return environment().Program(checked, append(options[:len(options):len(options)], cel.CostTracking(spent{}), cel.CostLimit(maxCost))...)
}

// cheap are the functions of which CEL's estimates hold also where types are not known.
var cheap = map[string]bool{
	operators.LogicalAnd: true, operators.LogicalOr: true, operators.LogicalNot: true, operators.Conditional: true,
	operators.Equals: true, operators.NotEquals: true, operators.In: true, operators.Index: true,
	overloads.StartsWith: true, overloads.EndsWith: true, overloads.Contains: true, overloads.Matches: true,
}

// plain reports whether an expression goes through no lists or maps and calls only what is cheap.
func plain(checked *cel.Ast) bool {
	found := true
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			found = false
		case ast.CallKind:
			call := e.AsCall()
			found = found && (cheap[call.FunctionName()] || compares(call) && slices.ContainsFunc(call.Args(), isLiteral))
		}
	}))
	return found
}

func isLiteral(e ast.Expr) bool { return e.Kind() == ast.LiteralKind }

func compares(call ast.CallExpr) bool {
	switch call.FunctionName() {
	case operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return true
	default:
		return false
	}
}

// sizes estimates whatever does not stand in the expression itself.
type sizes struct{ text, list, dyn uint64 }

var (
	usual   = sizes{text: 1000, list: 100, dyn: 100}
	largest = sizes{text: 16 << 20, list: maxMembers, dyn: 16 << 20}
)

func (s sizes) EstimateSize(n cost.AstNode) *cost.SizeEstimate {
	if n.ComputedSize() != nil {
		return nil
	}
	most := s.list
	switch n.Type().Kind() {
	case types.StringKind, types.BytesKind:
		most = s.text
	case types.DynKind:
		most = s.dyn
	case types.ListKind, types.MapKind:
	default:
		return nil
	}
	at := cost.RangedSizeEstimate(0, most)
	return &at
}

func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// spent is what calls cost that CEL counts as one unit though they look at all of a value whose type was not known, or at
// what is inside of lists.
type spent struct{}

func (spent) CallCost(function, _ string, args []ref.Val, _ ref.Val) *uint64 {
	if cheap[function] && function != operators.Equals && function != operators.NotEquals && function != operators.In {
		return nil
	}
	units := uint64(1)
	for _, a := range args {
		units += weight(a, maxCost)
	}
	return &units
}

// weight is how much there is of a value, counted no further than most.
func weight(value ref.Val, most uint64) (units uint64) {
	switch v := value.(type) {
	case types.String:
		return uint64(len(v)) / 10
	case types.Bytes:
		return uint64(len(v)) / 10
	case *object:
		return uint64(v.size) / 10
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True && units <= most; {
			units += 1 + weight(it.Next(), most)
		}
	}
	return units
}

// maxMatched is how long a text may be that a regular expression is held to: unlike other work it cannot be stopped.
const maxMatched = 64 << 10

// shortTexts is what matches() does: its regular expressions are compiled once, and longer texts fail.
func shortTexts(overload string) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{Function: overloads.Matches, OverloadID: overload, RegexIndex: 1, Factory: matcher}
}

func matcher(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	match := func(args ...ref.Val) ref.Val {
		text, ok := args[0].(types.String)
		switch {
		case !ok:
			return types.MaybeNoSuchOverloadErr(args[0])
		case len(text) > maxMatched:
			return types.NewErr("a text of %d bytes is too long for matches, which takes %d", len(text), maxMatched)
		}
		return types.Bool(compiled.MatchString(string(text)))
	}
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), match), nil
}

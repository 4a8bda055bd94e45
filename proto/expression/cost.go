package expression

import (
	"regexp"

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
	if err != nil || worst.Max > maxCost || grows(checked) {
		return counted(checked)
	}
	return environment().Program(checked, options...)
}

var options = []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize), cel.OptimizeRegex(shortTexts(overloads.Matches), shortTexts(overloads.MatchesString))}

// counted stops an evaluation that costs more than maxCost.
func counted(checked *cel.Ast) (cel.Program, error) {
	return environment().Program(checked, append(options[:len(options):len(options)], cel.CostTracking(spent{}), cel.CostLimit(maxCost))...)
}

// grows reports whether an expression goes through lists or maps, or puts together what may be texts or lists. CEL's
// estimates of that are too low where types are not known.
func grows(checked *cel.Ast) (found bool) {
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		found = found || e.Kind() == ast.ComprehensionKind || e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.Add
	}))
	return found
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

func (spent) CallCost(function, overload string, args []ref.Val, _ ref.Val) *uint64 {
	switch function {
	case operators.Equals, operators.NotEquals, operators.In, operators.Add, operators.Less, operators.LessEquals,
		operators.Greater, operators.GreaterEquals, overloads.Size, overloads.TypeConvertString, overloads.TypeConvertBytes:
	default:
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

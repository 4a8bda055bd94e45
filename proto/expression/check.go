package expression

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
)

// read is an expression that was found right, or what is wrong with it.
func read(text string) (*cel.Ast, []Problem) {
	if len(text) > maxText {
		return nil, []Problem{{Message: fmt.Sprintf("%d bytes, expected at most %d", len(text), maxText)}}
	}
	checked, issues := environment().Compile(text)
	if len(issues.Errors()) > 0 { // Err would write all of them out
		return nil, problemsOf(issues)
	}
	c := checker{ast: checked}
	c.output()
	c.parts()
	if len(c.problems) == 0 {
		c.cost()
	}
	if len(c.problems) == 0 {
		c.possible()
	}
	return checked, c.problems
}

// maxProblems are told of one expression: one mistake may make for many.
const maxProblems = 10

// problemsOf is what CEL has against an expression, in the order of places.
func problemsOf(issues *cel.Issues) (all []Problem) {
	for _, e := range issues.Errors() {
		p := Problem{Line: max(0, e.Location.Line()), Column: e.Location.Column() + 1, Message: e.Message}
		if p.Line == 0 {
			p.Column = 0
		}
		if len(all) < maxProblems && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// checker finds what CEL itself has nothing against.
type checker struct {
	ast      *cel.Ast
	problems []Problem
}

func (c *checker) report(id int64, format string, args ...any) {
	at := c.ast.NativeRep().SourceInfo().GetStartLocation(id)
	c.problems = append(c.problems, Problem{at.Line(), at.Column() + 1, fmt.Sprintf(format, args...)})
}

func (c *checker) root() ast.Expr { return c.ast.NativeRep().Expr() }

// output holds the whole to a bool.
func (c *checker) output() {
	if kind := c.ast.OutputType(); kind != cel.BoolType {
		hint := ""
		if kind == cel.DynType {
			hint = "; compare it, as with == true"
		}
		c.report(c.root().ID(), "is of type %s, expected bool%s", cel.FormatCELType(kind), hint)
	}
}

// parts refuses what has a type but no use: principal and the like without a field, and regular expressions that are not
// known beforehand.
func (c *checker) parts() {
	selected := map[int64]bool{}
	ast.PreOrderVisit(c.root(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			selected[e.AsSelect().Operand().ID()] = true
		case ast.IdentKind:
			if _, ours := fields[c.ast.NativeRep().GetType(e.ID()).TypeName()]; ours && !selected[e.ID()] {
				c.report(e.ID(), "%s is no value of its own, expected one of its fields", e.AsIdent())
			}
		case ast.StructKind:
			c.report(e.ID(), "objects cannot be made here")
		case ast.CallKind:
			if call := e.AsCall(); call.FunctionName() == overloads.Matches {
				pattern := call.Args()[len(call.Args())-1]
				if pattern.Kind() != ast.LiteralKind {
					c.report(pattern.ID(), "the regular expression has to stand here, in quotes")
				}
			}
		}
	}))
}

// cost refuses what would be too much work with texts and lists as large as they usually are.
func (c *checker) cost() {
	estimate, err := environment().EstimateCost(c.ast, usual)
	switch {
	case err != nil:
		c.report(c.root().ID(), "its cost cannot be told: %v", err)
	case estimate.Max > maxUsual:
		c.report(c.root().ID(), "too costly: its estimated cost is over %d, as with lists gone through for each element of others", maxUsual)
	}
}

// possible refuses what is false for every call, or fails for every call.
func (c *checker) possible() {
	program, err := counted(c.ast)
	if err != nil {
		c.report(c.root().ID(), "%v", err)
		return
	}
	value, _, err := program.Eval(unknown{})
	switch outcome, err := result(value, err); {
	case outcome == Failed:
		c.report(c.root().ID(), "fails for every call: %v", err)
	case outcome == False:
		c.report(c.root().ID(), "can never be true")
	default:
		if e := contradiction(c.root()); e != nil {
			c.report(e.ID(), "can never be true: its parts contradict each other")
		}
	}
}

// namesIn are the variables that an expression names; a variable of a macro with the name of one counts as it.
func namesIn(checked *cel.Ast) (all Name) {
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			for _, v := range variables {
				if e.AsIdent() == v.text {
					all |= v.name
				}
			}
		case ast.SelectKind:
			if of := checked.NativeRep().GetType(e.AsSelect().Operand().ID()); of.TypeName() == typeTool && e.AsSelect().FieldName() != "name" {
				all |= NameHints
			}
		}
	}))
	return all
}

// contradiction is a part that makes the whole false for every call: an && that asks one variable to be two texts, or to be
// true and false. It sees only what stands there plainly, and is never wrong about it.
func contradiction(e ast.Expr) ast.Expr {
	if e.Kind() != ast.CallKind {
		return nil
	}
	call := e.AsCall()
	switch call.FunctionName() {
	case operators.LogicalOr:
		var last ast.Expr
		for _, side := range call.Args() {
			if last = contradiction(side); last == nil {
				return nil
			}
		}
		return last
	case operators.LogicalAnd:
		for _, side := range call.Args() {
			if found := contradiction(side); found != nil {
				return found
			}
		}
		if asked := (demands{}); !asked.all(e) {
			return e
		}
	}
	return nil
}

// demands are the values that parts of an && leave to a variable, by its path.
type demands map[string][]string

// all adds what an expression demands when it is true, and reports whether that is possible.
func (d demands) all(e ast.Expr) bool {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.LogicalAnd {
		for _, side := range e.AsCall().Args() {
			if !d.all(side) {
				return false
			}
		}
		return true
	}
	path, values := demand(e)
	if path == "" {
		return true
	}
	if before, ok := d[path]; ok {
		values = slices.DeleteFunc(values, func(v string) bool { return !slices.Contains(before, v) })
	}
	d[path] = values
	return len(values) > 0
}

// demand is a variable's path and the values that make an expression true; no path for what is not as simple.
func demand(e ast.Expr) (path string, values []string) {
	if p := pathOf(e); p != "" {
		return p, []string{"true"}
	}
	if e.Kind() != ast.CallKind {
		return "", nil
	}
	args := e.AsCall().Args()
	switch e.AsCall().FunctionName() {
	case operators.LogicalNot:
		return pathOf(args[0]), []string{"false"}
	case operators.Equals:
		for i, side := range args {
			if value, ok := literal(side); ok {
				return pathOf(args[1-i]), []string{value}
			}
		}
	case operators.In:
		if args[1].Kind() != ast.ListKind {
			return "", nil
		}
		for _, e := range args[1].AsList().Elements() {
			value, ok := literal(e)
			if !ok {
				return "", nil
			}
			values = append(values, value)
		}
		return pathOf(args[0]), values
	}
	return "", nil
}

// pathOf is a variable with fields, as it is written; empty for anything else.
func pathOf(e ast.Expr) string {
	switch {
	case e.Kind() == ast.IdentKind:
		return e.AsIdent()
	case e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly():
		if of := pathOf(e.AsSelect().Operand()); of != "" {
			return of + "." + e.AsSelect().FieldName()
		}
	}
	return ""
}

// literal is a text, quoted, or true or false.
func literal(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	switch v := e.AsLiteral().(type) {
	case types.String:
		return fmt.Sprintf("%q", string(v)), true
	case types.Bool:
		return fmt.Sprint(bool(v)), true
	default:
		return "", false
	}
}

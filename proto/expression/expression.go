// Package expression reads the CEL expressions of rules: what is wrong with one, and what it comes to for a call.
//
// An expression sees the variables that docs/policy.md lists and CEL's standard functions, and says true or false. Check
// tells authors their mistakes; Compile is for those who evaluate. The same package is used by whoever accepts a Policy and
// by the sidecar that runs it, so that both mean the same. Everything is pure; a Program is safe for concurrent use. Not
// here: which rules a call is held to (package policy of the sidecar).
package expression

import (
	"errors"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// What an expression may be, and what it may cost. A unit is CEL's: a step, or ten characters of a text looked at.
const (
	maxText    = 4096      // characters
	maxNodes   = 2000      // of its syntax tree, after macros
	maxNesting = 48        // of parentheses, calls and operators
	maxLoops   = 3         // macros inside of macros
	maxRegex   = 200       // instructions of a regular expression
	maxUsual   = 1_000_000 // units, as estimated for usual sizes
	maxCost    = 100_000   // units that one evaluation spends
)

// Problem is one mistake in an expression. Line and Column count from 1; both are 0 where it has no place.
type Problem struct {
	Line, Column int
	Message      string
}

// Check is every mistake that can be told without a call; none for an expression that can be used.
func Check(text string) []Problem {
	_, problems := read(text)
	return problems
}

// Name is a variable that an expression names, or what it asks of one.
type Name uint16

const (
	NamePrincipal Name = 1 << iota
	NameTenant
	NameMethod
	NameTool
	NameHints // what a tool says of itself: tool.readOnly and the like
	NamePrompt
	NameResource
	NameBinding
	NameUpstream
	NameTime
	NameArgs
)

// Program is an expression that can be evaluated.
type Program struct {
	names   Name
	program cel.Program
}

// Compile makes a Program of what Check has nothing against.
func Compile(text string) (*Program, []Problem) {
	checked, problems := read(text)
	if len(problems) > 0 {
		return nil, problems
	}
	program, err := plan(checked)
	if err != nil {
		return nil, []Problem{{Message: err.Error()}}
	}
	return &Program{namesIn(checked), program}, nil
}

// Names reports whether the expression names any of these.
func (p *Program) Names(any Name) bool { return p.names&any != 0 }

// Only reports whether it names nothing else than these.
func (p *Program) Only(these Name) bool { return p.names&^these == 0 }

// Result is what an expression came to.
type Result uint8

const (
	Failed  Result = iota // it has no value: a key that is not there, a wrong type, too costly
	False                 //
	True                  //
	Unknown               // it depends on arguments, which are not known
)

// ErrCost is that an evaluation was stopped because it cost too much.
var ErrCost = errors.New("too costly: it was stopped")

// Eval evaluates for a call. The error says why it failed.
func (p *Program) Eval(c *Call) (Result, error) {
	value, _, err := p.program.Eval(c)
	return result(value, err)
}

func result(value ref.Val, err error) (Result, error) {
	var stopped interpreter.EvalCancelledError
	switch {
	case errors.As(err, &stopped):
		return Failed, ErrCost
	case err != nil:
		return Failed, err
	case value == types.True:
		return True, nil
	case value == types.False:
		return False, nil
	case types.IsUnknown(value):
		return Unknown, nil
	default:
		return Failed, errors.New("not a bool")
	}
}

// environment is what every expression is written in.
var environment = sync.OnceValue(func() *cel.Env {
	env, err := newEnvironment()
	if err != nil {
		panic(err) // it depends on nothing but this package
	}
	return env
})

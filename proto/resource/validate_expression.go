package resource

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/proto/expression"
)

// expression checks a CEL expression that is given. Places in it count from 1.
func (v *validator) expression(at, text string) {
	if text == "" {
		return
	}
	for _, p := range expression.Check(text) {
		place := ""
		if p.Line > 0 {
			place = fmt.Sprintf("line %d, column %d: ", p.Line, p.Column)
		}
		v.errs.addf(at, "%s%s", place, p.Message)
	}
}

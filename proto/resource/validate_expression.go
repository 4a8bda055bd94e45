package resource

// expression checks a CEL expression that is given.
func (v *validator) expression(at, text string) {
	v.check(len(text) <= 4096, at, "%d bytes, expected at most %d", len(text), 4096)
}

package resource

import (
	"fmt"
	"strings"
)

// Error is one mistake.
type Error struct {
	// Path is where, as the author would look for it: "spec.upstreams[0].name".
	Path string
	// Message is what is wrong and what was expected.
	Message string
}

func (e Error) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + ": " + e.Message
}

// Errors is every mistake found, in the order of the document. An empty one is no error: see Err.
type Errors []Error

// Error has one line for each mistake.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Err is es as an error, nil when there is none.
func (es Errors) Err() error {
	if len(es) == 0 {
		return nil
	}
	return es
}

// Under puts a place before every path: Under("Binding/demo") makes "Binding/demo: spec.path".
func (es Errors) Under(place string) Errors {
	out := make(Errors, len(es))
	for i, e := range es {
		out[i] = Error{Path: place, Message: e.Message}
		if e.Path != "" {
			out[i].Path += ": " + e.Path
		}
	}
	return out
}

// addf appends a mistake.
func (es *Errors) addf(path, format string, args ...any) {
	*es = append(*es, Error{Path: path, Message: fmt.Sprintf(format, args...)})
}

// withoutValues is es without what was given in place of what was expected: a mistake in a Secret does not tell it.
func (es Errors) withoutValues() Errors {
	out := make(Errors, len(es))
	for i, e := range es {
		expected, got, _ := strings.Cut(e.Message, ", got ")
		out[i] = Error{Path: e.Path, Message: expected}
		if strings.HasSuffix(got, inQuotes) {
			out[i].Message += inQuotes
		}
	}
	return out
}

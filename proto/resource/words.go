package resource

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// describe says what a value is, for "expected …, got …".
func describe(v *structpb.Value) string {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return quote(k.StringValue)
	case *structpb.Value_NumberValue:
		return strconv.FormatFloat(k.NumberValue, 'g', -1, 64)
	case *structpb.Value_BoolValue:
		return strconv.FormatBool(k.BoolValue)
	case *structpb.Value_StructValue:
		return "a mapping"
	case *structpb.Value_ListValue:
		return "a list"
	}
	return "nothing"
}

// quote is s for a message, cut when it is long.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q…", s[:most])
	}
	return strconv.Quote(s)
}

const inQuotes = " (put it in quotes)"

// quoteHint explains the usual way to get something else than a string by accident.
func quoteHint(v *structpb.Value) string {
	switch v.GetKind().(type) {
	case *structpb.Value_NumberValue, *structpb.Value_BoolValue:
		return inQuotes
	}
	return ""
}

// oneOf lists words: "auto, legacy or stateless".
func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// suggest goes after a message about an unknown word: the one that was probably meant, or else all there are.
func suggest(got string, known []string) string {
	if likely := meant(got, known); likely != "" {
		return likely
	}
	return ", expected " + oneOf(known)
}

// meant asks about the word that was probably meant, if there is one.
func meant(got string, known []string) string {
	if best := closest(got, known); best != "" {
		return fmt.Sprintf(", did you mean %q?", best)
	}
	return ""
}

// closest is the known word that is likely meant by another, "" when none is.
func closest(got string, known []string) string {
	best, least := "", 1+len(got)/3
	for _, k := range known {
		if d := distance(strings.ToLower(got), strings.ToLower(k)); d <= least {
			best, least = k, d-1
		}
	}
	return best
}

// distance counts the edits between two words; a letter more, less, or other is one.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

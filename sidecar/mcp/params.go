package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// annotation is the keyword that makes clients mirror an argument (server/tools, "x-mcp-header").
const annotation = "x-mcp-header"

// maxSafeInteger bounds the integers that may be mirrored.
const maxSafeInteger = 1<<53 - 1

// ParamHeader is one argument of a tool that travels in a header too.
type ParamHeader struct {
	Header string   // the whole name in canonical form, such as Mcp-Param-Region
	Path   []string // where the argument is: property names from the root of arguments
	Type   string   // string, integer or boolean
}

// ParamHeaders reads the annotations of a tool's inputSchema, in the order of their headers. An error says why the
// tool is invalid; clients over HTTP must then drop it from the tools they list (server/tools, "x-mcp-header").
func ParamHeaders(inputSchema []byte) ([]ParamHeader, error) {
	if !bytes.Contains(inputSchema, []byte(annotation)) && !bytes.Contains(inputSchema, []byte(`\u`)) {
		return nil, nil // most tools; only \u could hide the annotation's letters
	}
	decoder := json.NewDecoder(bytes.NewReader(inputSchema))
	decoder.UseNumber()
	var schema any
	if err := decoder.Decode(&schema); err != nil {
		return nil, fmt.Errorf("inputSchema: %w", err)
	}
	w := annotations{byHeader: make(map[string]bool)}
	w.walk(schema, nil, true)
	slices.SortFunc(w.found, func(a, b ParamHeader) int { return cmp.Compare(a.Header, b.Header) })
	return w.found, w.err
}

// annotations collects the annotations of one schema.
type annotations struct {
	found    []ParamHeader
	byHeader map[string]bool
	err      error // the first fault
}

// Keywords whose values are schemas, lists of them, or objects of them (JSON Schema 2020-12 core, and draft-07). Other
// keywords hold data, where the annotation's name means nothing.
var (
	schemaKeywords = []string{"items", "additionalItems", "contains", "additionalProperties", "propertyNames",
		"unevaluatedItems", "unevaluatedProperties", "if", "then", "else", "not", "contentSchema",
		"allOf", "anyOf", "oneOf", "prefixItems"}
	mapKeywords = []string{"patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)

// walk visits a schema and those inside of it. An annotation counts only where properties alone lead to; elsewhere no
// one value would belong to it. path is only valid during the call.
func (a *annotations) walk(schema any, path []string, reachable bool) {
	if list, ok := schema.([]any); ok {
		for _, s := range list {
			a.walk(s, path, reachable)
		}
		return
	}
	object, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if value, ok := object[annotation]; ok {
		a.add(value, object["type"], path, reachable)
	}
	if properties, ok := object["properties"].(map[string]any); ok {
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			a.walk(properties[name], append(path, name), reachable)
		}
	}
	for _, keyword := range schemaKeywords {
		a.walk(object[keyword], path, false)
	}
	for _, keyword := range mapKeywords {
		schemas, _ := object[keyword].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(schemas)) {
			a.walk(schemas[name], path, false)
		}
	}
}

func (a *annotations) add(value, kind any, path []string, reachable bool) {
	name, _ := value.(string)
	kindName, _ := kind.(string)
	header := textproto.CanonicalMIMEHeaderKey(HeaderParamPrefix + name)
	place := strings.Join(path, ".")
	switch {
	case !reachable || len(path) == 0:
		a.fail("%s under %q: properties alone do not lead there", annotation, place)
	case !isHTTPToken(name):
		a.fail("%s of %q: not a header name", annotation, place)
	case kindName != "string" && kindName != "integer" && kindName != "boolean":
		a.fail("%s of %q: its type is not string, integer or boolean", annotation, place)
	case a.byHeader[header]:
		a.fail("%s of %q: another argument has that header", annotation, place)
	}
	a.byHeader[header] = true
	a.found = append(a.found, ParamHeader{Header: header, Path: slices.Clone(path), Type: kindName})
}

func (a *annotations) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}

// isHTTPToken reports whether name is one or more tchar (RFC 9110, 5.6.2).
func isHTTPToken(name string) bool {
	for _, c := range []byte(name) {
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

// CheckParams holds the Mcp-Param-* headers of a tools/call to its arguments (server/tools, "x-mcp-header"): a value
// that is there and not null needs its header with the same value; any other argument must have none. ps come from
// ParamHeaders; headers that they do not name are not looked at. The Error has no ID.
func CheckParams(h http.Header, arguments []byte, ps []ParamHeader) *Error {
	for _, p := range ps {
		if e := checkParam(h, arguments, p); e != nil {
			return e
		}
	}
	return nil
}

func checkParam(h http.Header, arguments []byte, p ParamHeader) *Error {
	place := "params.arguments." + strings.Join(p.Path, ".")
	value, err := argument(arguments, p.Path)
	if err != nil {
		return refuse(CodeInvalidRequest, place+": "+err.Error())
	}
	values := h[p.Header]
	switch {
	case len(values) > 1:
		return refuse(CodeHeaderMismatch, "more than one value of "+p.Header)
	case value == nil && len(values) == 0:
		return nil
	case value == nil || len(values) == 0 || !mirrorsValue(values[0], value):
		return mismatch(p.Header, len(values) > 0, place)
	}
	return nil
}

var errTwice = errors.New("comes twice")

// argument finds a value by the names that lead to it; nil when it is absent or null.
func argument(object []byte, path []string) ([]byte, error) {
	for _, name := range path {
		if !isObject(object) {
			return nil, nil
		}
		value, err := memberNamed(object, name)
		if err != nil {
			return nil, err
		}
		object = value
	}
	if string(object) == "null" {
		return nil, nil
	}
	return object, nil
}

// memberNamed is a member's value in a valid object; nil when it has none.
func memberNamed(object []byte, want string) (value []byte, err error) {
	s := scanner{data: object, maxDepth: len(object)}
	s.enter(1)
	for more := s.peek() != '}'; more; more, _ = s.more('}') {
		span, ok := s.name()
		start := s.pos
		if !ok || !s.value(1) {
			return nil, nil
		}
		name := span.Of(object)
		if bytes.IndexByte(name, '\\') >= 0 {
			name, _ = unescape(name)
		}
		if string(name) != want {
			continue
		}
		if value != nil {
			return nil, errTwice
		}
		value = object[start:s.pos]
	}
	return value, nil
}

// mirrorsValue compares a header with a value of any type; objects and arrays have no header form. Numbers are
// compared as integers, not as digits.
func mirrorsValue(header string, value []byte) bool {
	switch value[0] {
	case '"':
		text := value[1 : len(value)-1]
		if bytes.IndexByte(text, '\\') >= 0 {
			var ok bool
			if text, ok = unescape(text); !ok {
				return false
			}
		}
		return Mirrors(header, text)
	case 't', 'f':
		return Mirrors(header, value)
	case '{', '[':
		return false
	}
	decoded, err := DecodeHeaderValue(header)
	if err != nil {
		return false
	}
	got, ok := safeInteger(decoded)
	want, ok2 := safeInteger(string(value))
	return ok && ok2 && got == want
}

// safeInteger reads an integer that every reader holds exactly, 1.0 and 1e2 among them.
func safeInteger(text string) (int64, bool) {
	if strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) > maxSafeInteger {
			return 0, false
		}
		n = int64(f)
	}
	return n, -maxSafeInteger <= n && n <= maxSafeInteger
}

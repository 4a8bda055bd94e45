package mcp

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// server/tools, "x-mcp-header": where an annotation may stand and what it may say.
func TestParamHeaders(t *testing.T) {
	property := func(schema string) string { return `{"type":"object","properties":{"p":` + schema + `}}` }
	region := []ParamHeader{{Header: "Mcp-Param-Region", Path: []string{"p"}, Type: "string"}}
	for _, row := range []struct {
		name, schema string
		want         []ParamHeader
		valid        bool
	}{
		{"no annotation", property(`{"type":"string"}`), nil, true},
		{"no schema to speak of", `{}`, nil, true},
		{"a string", property(`{"type":"string","x-mcp-header":"Region"}`), region, true},
		{"its name in another case", property(`{"type":"string","x-mcp-header":"REGION"}`), region, true},
		{"its keyword behind escapes", property(`{"type":"string","x-mcp-h\u0065ader":"Region"}`), region, true},
		{"an integer", property(`{"type":"integer","x-mcp-header":"N"}`), []ParamHeader{{"Mcp-Param-N", []string{"p"}, "integer"}}, true},
		{"a boolean", property(`{"type":"boolean","x-mcp-header":"B"}`), []ParamHeader{{"Mcp-Param-B", []string{"p"}, "boolean"}}, true},
		{"deep inside", property(`{"type":"object","properties":{"q":{"type":"string","x-mcp-header":"Q"},"o":{"type":"string","x-mcp-header":"O"}}}`),
			[]ParamHeader{{"Mcp-Param-O", []string{"p", "o"}, "string"}, {"Mcp-Param-Q", []string{"p", "q"}, "string"}}, true},
		{"a property of that name", `{"properties":{"x-mcp-header":{"type":"string"}}}`, nil, true},
		{"data of that name", property(`{"type":"object","default":{"x-mcp-header":1},"enum":[{"x-mcp-header":2}],"x-vendor":{"x-mcp-header":3}}`), nil, true},
		{"numbers beyond float64 beside it", property(`{"type":"string","x-mcp-header":"Region","x-limit":1e999}`), region, true},

		{"an empty name", property(`{"type":"string","x-mcp-header":""}`), nil, false},
		{"a space in it", property(`{"type":"string","x-mcp-header":"My Region"}`), nil, false},
		{"a colon in it", property(`{"type":"string","x-mcp-header":"a:b"}`), nil, false},
		{"a line break in it", property(`{"type":"string","x-mcp-header":"a\r\nb"}`), nil, false},
		{"not ASCII", property(`{"type":"string","x-mcp-header":"Grüße"}`), nil, false},
		{"no string", property(`{"type":"string","x-mcp-header":7}`), nil, false},
		{"null", property(`{"type":"string","x-mcp-header":null}`), nil, false},
		{"on a number", property(`{"type":"number","x-mcp-header":"N"}`), nil, false},
		{"on an object", property(`{"type":"object","x-mcp-header":"N"}`), nil, false},
		{"on an array", property(`{"type":"array","x-mcp-header":"N"}`), nil, false},
		{"on null", property(`{"type":"null","x-mcp-header":"N"}`), nil, false},
		{"without a type", property(`{"x-mcp-header":"N"}`), nil, false},
		{"on several types", property(`{"type":["string","null"],"x-mcp-header":"N"}`), nil, false},
		{"twice but for case", `{"properties":{"a":{"type":"string","x-mcp-header":"N"},"b":{"type":"object","properties":{"c":{"type":"string","x-mcp-header":"n"}}}}}`, nil, false},
		{"on the root", `{"type":"string","x-mcp-header":"N"}`, nil, false},
		{"one good, one bad", `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"number","x-mcp-header":"B"}}}`, nil, false},
		{"in items", property(`{"type":"array","items":{"type":"string","x-mcp-header":"N"}}`), nil, false},
		{"in properties of items", property(`{"items":{"properties":{"q":{"type":"string","x-mcp-header":"N"}}}}`), nil, false},
		{"in prefixItems", property(`{"prefixItems":[{"type":"string","x-mcp-header":"N"}]}`), nil, false},
		{"in oneOf", property(`{"oneOf":[{"type":"string","x-mcp-header":"N"}]}`), nil, false},
		{"in anyOf of the root", `{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"N"}}}]}`, nil, false},
		{"in allOf", property(`{"allOf":[{"type":"string","x-mcp-header":"N"}]}`), nil, false},
		{"in not", property(`{"not":{"type":"string","x-mcp-header":"N"}}`), nil, false},
		{"in then", property(`{"if":true,"then":{"type":"string","x-mcp-header":"N"}}`), nil, false},
		{"in additionalProperties", `{"additionalProperties":{"type":"string","x-mcp-header":"N"}}`, nil, false},
		{"in patternProperties", `{"patternProperties":{"^a":{"type":"string","x-mcp-header":"N"}}}`, nil, false},
		{"behind a $ref", `{"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"string","x-mcp-header":"N"}}}`, nil, false},
		{"not JSON", `{"x-mcp-header":`, nil, false},
	} {
		got, err := ParamHeaders([]byte(row.schema))
		if (err == nil) != row.valid || row.valid && !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: ParamHeaders(%s): got %v, %v; want %v, valid %v", row.name, row.schema, got, err, row.want, row.valid)
		}
	}
}

func TestCheckParams(t *testing.T) {
	text := []ParamHeader{{"Mcp-Param-P", []string{"p"}, "string"}}
	number := []ParamHeader{{"Mcp-Param-P", []string{"p"}, "integer"}}
	truth := []ParamHeader{{"Mcp-Param-P", []string{"p"}, "boolean"}}
	deep := []ParamHeader{{"Mcp-Param-P", []string{"o", "p"}, "string"}}
	sent := func(values ...string) http.Header {
		return http.Header{"Mcp-Param-P": values, "Mcp-Param-Other": {"x"}}
	}
	for _, row := range []struct {
		name      string
		h         http.Header
		arguments string
		ps        []ParamHeader
		code      int
	}{
		{"equal", sent("eu"), `{"p":"eu"}`, text, 0},
		{"equal, encoded", sent("=?base64?IGV1LXdlc3Qg?="), `{"p":" eu-west "}`, text, 0},
		{"equal, escaped", sent("eu"), `{"p":"\u0065u"}`, text, 0},
		{"equal, its key escaped", sent("eu"), `{"\u0070":"eu"}`, text, 0},
		{"equal, deep inside", sent("eu"), `{"p":"other","o":{"p":"eu"}}`, deep, 0},
		{"empty and there", sent(""), `{"p":""}`, text, 0},
		{"no arguments", sent(), ``, text, 0},
		{"absent", sent(), `{}`, text, 0},
		{"null", sent(), `{"p":null}`, text, 0},
		{"null above it", sent(), `{"o":null}`, deep, 0},
		{"no object above it", sent(), `{"o":[{"p":"eu"}]}`, deep, 0},
		{"no annotations", sent("x"), `{"p":"eu"}`, nil, 0},
		{"true", sent("true"), `{"p":true}`, truth, 0},
		{"an integer", sent("42"), `{"p":42}`, number, 0},
		{"a negative one", sent("-7"), `{"p":-7}`, number, 0},
		{"equal as numbers", sent("42.0"), `{"p":42}`, number, 0},
		{"equal as numbers the other way", sent("100"), `{"p":1e2}`, number, 0},
		{"the largest integer", sent("9007199254740991"), `{"p":9007199254740991}`, number, 0},

		{"different", sent("us"), `{"p":"eu"}`, text, CodeHeaderMismatch},
		{"different in case", sent("EU"), `{"p":"eu"}`, text, CodeHeaderMismatch},
		{"malformed", sent("=?base64?!?="), `{"p":"eu"}`, text, CodeHeaderMismatch},
		{"missing", sent(), `{"p":"eu"}`, text, CodeHeaderMismatch},
		{"missing for an empty string", sent(), `{"p":""}`, text, CodeHeaderMismatch},
		{"there for an absent argument", sent("eu"), `{}`, text, CodeHeaderMismatch},
		{"there for null", sent("null"), `{"p":null}`, text, CodeHeaderMismatch},
		{"two values", sent("eu", "eu"), `{"p":"eu"}`, text, CodeHeaderMismatch},
		{"another truth", sent("false"), `{"p":true}`, truth, CodeHeaderMismatch},
		{"another spelling of truth", sent("True"), `{"p":true}`, truth, CodeHeaderMismatch},
		{"another integer", sent("43"), `{"p":42}`, number, CodeHeaderMismatch},
		{"one above the largest", sent("9007199254740992"), `{"p":9007199254740992}`, number, CodeHeaderMismatch},
		{"a huge exponent", sent("1e999999999"), `{"p":1e999999999}`, number, CodeHeaderMismatch},
		{"a fraction", sent("1.5"), `{"p":1.5}`, number, CodeHeaderMismatch},
		{"hexadecimal", sent("0x10"), `{"p":16}`, number, CodeHeaderMismatch},
		{"an object", sent("{}"), `{"p":{}}`, text, CodeHeaderMismatch},
		{"twice in the body", sent("eu"), `{"p":"eu","p":"us"}`, text, CodeInvalidRequest},
		{"twice in the body behind escapes", sent("eu"), `{"p":"eu","\u0070":"us"}`, text, CodeInvalidRequest},
	} {
		checkError(t, row.name, CheckParams(row.h, []byte(row.arguments), row.ps), row.code, 400)
	}
}

func FuzzParamHeaders(f *testing.F) {
	f.Add([]byte(`{"properties":{"a":{"type":"string","x-mcp-header":"N"},"b":{"properties":{"c":{"type":"integer","x-mcp-header":"C"}}}}}`))
	f.Add([]byte(`{"properties":{"a":{"items":[{"type":"string","x-mcp-header":"N"}]}}}`))
	f.Fuzz(func(t *testing.T, schema []byte) {
		ps, err := ParamHeaders(schema)
		if err != nil {
			return
		}
		arguments, h := map[string]any{}, http.Header{}
		seen := map[string]bool{}
		for _, p := range ps {
			if http.CanonicalHeaderKey(p.Header) != p.Header || !strings.HasPrefix(p.Header, HeaderParamPrefix) || seen[p.Header] {
				t.Errorf("ParamHeaders(%s): header %q", schema, p.Header)
			}
			seen[p.Header] = true
			set(arguments, p.Path, "v")
			h.Set(p.Header, "v")
		}
		body, err := json.Marshal(arguments)
		if err != nil {
			t.Fatal(err)
		}
		if e := CheckParams(h, body, ps); e != nil {
			t.Errorf("CheckParams(%v, %s) for %s: %v", h, body, schema, e)
		}
	})
}

// set puts a value where a path leads.
func set(object map[string]any, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		inner, ok := object[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			object[name] = inner
		}
		object = inner
	}
	object[path[len(path)-1]] = value
}

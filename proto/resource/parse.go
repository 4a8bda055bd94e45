package resource

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Bounds on a document, far above what people write.
const (
	maxDocument = 16 << 20 // bytes
	maxValues   = 500_000  // values after aliases are followed
	maxNesting  = 100      // values within values
)

// maxExact is the largest integer up to which a float64 holds every one.
const maxExact = 1 << 53

// Load reads a file of resources completely: parsed, decoded, and checked alone and together.
// Paths begin with the file's name: "outrigger.yaml: Binding/demo: spec.path".
func Load(name string, data []byte) ([]Object, Errors) {
	resources, errs := Parse(name, data)
	objs := make([]Object, 0, len(resources))
	for _, r := range resources {
		o, mistakes := Check(r)
		errs = append(errs, mistakes.Under(r.Kind+"/"+r.Name).Under(name)...)
		if o != nil {
			objs = append(objs, o)
		}
	}
	errs = append(errs, ValidateSet(objs).Under(name)...)
	if len(errs) > 0 {
		return nil, errs
	}
	return objs, nil
}

// Check decodes a resource and validates it. With a mistake the object is as much as others may be checked against, so
// that who refers to it is not blamed as well; there is none for an unknown kind.
func Check(r *outriggerv1.Resource) (Object, Errors) {
	o, errs := decode(r)
	if len(errs) == 0 {
		return o, Validate(o)
	}
	if b, ok := o.(*outriggerv1.Binding); ok {
		b.Selector = nil // what cannot be read whole shares its path with nobody
	}
	return o, errs
}

// Parse reads the resources of a YAML stream or a JSON text, each of whose documents is a resource or a List of them
// ({kind: List, items: [...]}). Paths begin with name, the file's. With mistakes in the fields beside a spec, what has a
// kind and a name is returned all the same, for the rest of its mistakes to be found; what has not is checked here.
//
// Keys may not be repeated. Aliases are followed within a bound; merge keys (<<) are not. An integer that a Struct
// would round is kept as a string of its digits, as protobuf's JSON form does.
func Parse(name string, data []byte) ([]*outriggerv1.Resource, Errors) {
	var p parser
	documents, err := p.documents(data)
	if err != nil {
		return nil, Errors{{Path: name, Message: err.Error()}}
	}
	for _, d := range documents {
		p.document(d)
	}
	if len(p.errs) == 0 {
		return p.out, nil
	}
	return p.out, p.errs.Under(name)
}

// parser collects the resources of one text.
type parser struct {
	values int // made so far
	seen   int // resources seen so far
	out    []*outriggerv1.Resource
	errs   Errors
}

// documents reads the text's documents without looking at what they mean.
func (p *parser) documents(data []byte) ([]*structpb.Value, error) {
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%d bytes, expected at most %d", len(data), maxDocument)
	}
	if json.Valid(data) {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		v, err := p.json(d, 0)
		return []*structpb.Value{v}, err
	}
	var out []*structpb.Value
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
		}
		v, err := p.yaml(&n, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

// count accounts for one more value at a depth.
func (p *parser) count(depth int) error {
	p.values++
	switch {
	case p.values > maxValues:
		return fmt.Errorf("more than %d values (aliases count wherever they are used)", maxValues)
	case depth > maxNesting:
		return fmt.Errorf("nested deeper than %d", maxNesting)
	}
	return nil
}

// json reads the next value of a JSON text that is known to be well formed.
func (p *parser) json(d *json.Decoder, depth int) (*structpb.Value, error) {
	if err := p.count(depth); err != nil {
		return nil, err
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return p.jsonObject(d, depth)
		}
		return p.jsonArray(d, depth)
	case json.Number:
		return number(t.String())
	case string:
		return structpb.NewStringValue(t), nil
	case bool:
		return structpb.NewBoolValue(t), nil
	}
	return structpb.NewNullValue(), nil
}

// jsonObject reads an object from after its brace to its end.
func (p *parser) jsonObject(d *json.Decoder, depth int) (*structpb.Value, error) {
	fields := make(map[string]*structpb.Value)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := token.(string)
		if _, ok := fields[key]; ok {
			return nil, fmt.Errorf("key %q is given twice", key)
		}
		if fields[key], err = p.json(d, depth+1); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return structpb.NewStructValue(&structpb.Struct{Fields: fields}), err
}

// jsonArray reads an array from after its bracket to its end.
func (p *parser) jsonArray(d *json.Decoder, depth int) (*structpb.Value, error) {
	var list []*structpb.Value
	for d.More() {
		v, err := p.json(d, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return structpb.NewListValue(&structpb.ListValue{Values: list}), err
}

// yaml makes a value of a node.
func (p *parser) yaml(n *yaml.Node, depth int) (*structpb.Value, error) {
	if err := p.count(depth); err != nil {
		return nil, at(n, err)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return p.yaml(n.Content[0], depth)
	case yaml.AliasNode:
		return p.yaml(n.Alias, depth+1) // deeper, so that an alias within itself ends
	case yaml.MappingNode:
		return p.yamlMapping(n, depth)
	case yaml.SequenceNode:
		list := make([]*structpb.Value, len(n.Content))
		for i, item := range n.Content {
			var err error
			if list[i], err = p.yaml(item, depth+1); err != nil {
				return nil, err
			}
		}
		return structpb.NewListValue(&structpb.ListValue{Values: list}), nil
	case yaml.ScalarNode:
		return yamlScalar(n)
	}
	return structpb.NewNullValue(), nil // an empty document
}

func (p *parser) yamlMapping(n *yaml.Node, depth int) (*structpb.Value, error) {
	fields := make(map[string]*structpb.Value, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch _, twice := fields[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			return nil, at(key, errors.New("a key must be a string"))
		case key.ShortTag() == "!!merge":
			return nil, at(key, errors.New("merge keys (<<) are not supported"))
		case twice:
			return nil, at(key, fmt.Errorf("key %q is given twice", key.Value))
		}
		var err error
		if fields[key.Value], err = p.yaml(value, depth+1); err != nil {
			return nil, err
		}
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields}), nil
}

// yamlScalar makes a value of a scalar by the tag that YAML resolves for it.
func yamlScalar(n *yaml.Node) (*structpb.Value, error) {
	switch tag := n.ShortTag(); tag {
	case "!!null":
		return structpb.NewNullValue(), nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return structpb.NewBoolValue(b), at(n, err)
	case "!!int":
		return yamlInt(n)
	case "!!float":
		v, err := number(strings.ReplaceAll(n.Value, "_", ""))
		return v, at(n, err)
	case "!!str", "!!timestamp": // a date is nothing special in a resource
		return structpb.NewStringValue(n.Value), nil
	default:
		return nil, at(n, fmt.Errorf("tag %s is not supported", tag))
	}
}

// yamlInt makes a value of an integer in any of YAML's notations.
func yamlInt(n *yaml.Node) (*structpb.Value, error) {
	var i int64
	if n.Decode(&i) == nil {
		return number(strconv.FormatInt(i, 10))
	}
	var u uint64
	if err := n.Decode(&u); err != nil {
		return nil, at(n, fmt.Errorf("%s is too large a number", n.Value))
	}
	return number(strconv.FormatUint(u, 10))
}

// number makes a value of a JSON number: a string if it is an integer that a float64 may not hold.
func number(s string) (*structpb.Value, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, fmt.Errorf("%s is not a finite number", s)
	}
	if math.Abs(f) > maxExact && !strings.ContainsAny(s, ".eE") {
		return structpb.NewStringValue(s), nil
	}
	return structpb.NewNumberValue(f), nil
}

// at says in which line of the document err is.
func at(n *yaml.Node, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("line %d: %s", n.Line, strings.TrimPrefix(err.Error(), "yaml: "))
}

// document takes the resources of one document.
func (p *parser) document(v *structpb.Value) {
	if _, empty := v.Kind.(*structpb.Value_NullValue); empty {
		return
	}
	if list := v.GetListValue(); list != nil {
		p.items(list)
		return
	}
	fields := v.GetStructValue().GetFields()
	if fields["kind"].GetStringValue() != "List" {
		p.resource(v)
		return
	}
	for _, key := range sortedKeys(fields) {
		if key != "kind" && key != "items" {
			p.errs.addf(key, "unknown field of a List, expected kind and items")
		}
	}
	if list := fields["items"].GetListValue(); list != nil {
		p.items(list)
	} else {
		p.errs.addf("items", "expected a list of resources, got %s", describe(fields["items"]))
	}
}

func (p *parser) items(list *structpb.ListValue) {
	for _, item := range list.Values {
		p.resource(item)
	}
}

// resource takes one resource.
func (p *parser) resource(v *structpb.Value) {
	place := fmt.Sprintf("resources[%d]", p.seen)
	p.seen++
	s := v.GetStructValue()
	if s == nil {
		p.errs.addf(place, "expected a resource with kind, name and spec, got %s", describe(v))
		return
	}
	kind, name := s.Fields["kind"].GetStringValue(), s.Fields["name"].GetStringValue()
	if kind != "" && name != "" {
		place = kind + "/" + name
	}
	r := &outriggerv1.Resource{Kind: kind, Name: name}
	var errs Errors
	for _, key := range sortedKeys(s.Fields) {
		setField(r, key, s.Fields[key], &errs)
	}
	if kind == "" && s.Fields["kind"] == nil {
		errs.addf("kind", "required, expected %s", oneOf(Kinds()))
	}
	if name == "" && s.Fields["name"] == nil {
		errs.addf("name", "required")
	}
	if kind != "" && name != "" {
		p.out = append(p.out, r)
	} else {
		errs = append(errs, anonymous(r)...)
	}
	p.errs = append(p.errs, errs.Under(place)...)
}

// anonymous finds the mistakes of a resource whose kind or name is missing, but that.
func anonymous(r *outriggerv1.Resource) Errors {
	r.Name = cmp.Or(r.Name, "x")
	if r.Kind == "" {
		return ValidLabels("labels", r.Labels)
	}
	_, errs := Check(r)
	return errs
}

// topFields are the fields of a Resource.
var topFields = []string{"kind", "labels", "name", "revision", "spec", "status"}

// setField sets one field beside spec.
func setField(r *outriggerv1.Resource, key string, v *structpb.Value, errs *Errors) {
	switch key {
	case "kind", "name":
		if _, ok := v.Kind.(*structpb.Value_StringValue); !ok {
			errs.addf(key, "expected a string, got %s", describe(v))
		}
	case "labels":
		r.Labels = stringMap(key, v, errs)
	case "spec":
		if r.Spec = v.GetStructValue(); r.Spec == nil && !isNull(v) {
			errs.addf(key, "expected a mapping, got %s", describe(v))
		}
	case "revision":
		n, ok := integer(v)
		if !ok || n > math.MaxInt64 {
			errs.addf(key, "expected a whole number from 0, got %s", describe(v))
		}
		r.Revision = int64(n)
	case "status": // output only
	default:
		errs.addf(key, "unknown field%s", suggest(key, topFields))
	}
}

// stringMap reads a mapping of strings.
func stringMap(path string, v *structpb.Value, errs *Errors) map[string]string {
	if isNull(v) {
		return nil
	}
	s := v.GetStructValue()
	if s == nil {
		errs.addf(path, "expected a mapping of strings, got %s", describe(v))
		return nil
	}
	out := make(map[string]string, len(s.Fields))
	for _, key := range sortedKeys(s.Fields) {
		if _, ok := s.Fields[key].Kind.(*structpb.Value_StringValue); !ok {
			errs.addf(path+"."+key, "expected a string, got %s%s", describe(s.Fields[key]), quoteHint(s.Fields[key]))
		}
		out[key] = s.Fields[key].GetStringValue()
	}
	return out
}

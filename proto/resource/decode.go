package resource

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Decode makes the message of a resource, for Validate to check what its values mean. With a mistake of form (unknown
// fields, wrong types, words that are not among an enumeration's) there is no message, and Decode reports every mistake
// of either sort, but those that only follow from one that it reports.
//
// Fields are named in lowerCamelCase or as in the proto; enumerations by their short lower-case words or full names;
// durations are written as Go's ("1m30s") or protobuf's ("90s"), times as RFC 3339 has them.
func Decode(r *outriggerv1.Resource) (Object, Errors) {
	o, errs := decode(r)
	if len(errs) > 0 {
		return nil, errs
	}
	return o, nil
}

// decode makes as much of a resource's message as can be read; none for an unknown kind. Without mistakes of form, the
// message is whole and Validate has not seen it.
func decode(r *outriggerv1.Resource) (Object, Errors) {
	o, ok := New(r.GetKind())
	if !ok {
		var v validator
		v.errs.addf("kind", "unknown kind %s, expected %s%s", quote(r.GetKind()), oneOf(Kinds()), meant(r.GetKind(), Kinds()))
		v.name("name", r.GetName())
		checkLabels("labels", r.GetLabels(), &v.errs)
		return nil, v.errs
	}
	d := decoder{misread: map[string]bool{}, partial: map[string]bool{}}
	d.message("spec", o.ProtoReflect(), r.GetSpec(), true)
	if r.GetKind() == KindSecret {
		d.errs = d.errs.withoutValues()
	}
	checkLabels("labels", r.GetLabels(), &d.errs)
	setName(o, r.GetName())
	if len(d.errs) == 0 {
		return o, nil
	}
	for _, e := range Validate(o) {
		if !d.follows(e.Path) {
			d.errs = append(d.errs, e)
		}
	}
	return o, d.errs
}

// decoder walks a Struct beside a message's descriptor.
type decoder struct {
	errs    Errors
	misread map[string]bool // paths of fields that are there but not in the message
	partial map[string]bool // paths of messages that one of several alternatives was not read into
}

// lose notes that a field was given and could not be read: that it seems absent is no mistake of its own.
func (d *decoder) lose(path, name string, fd protoreflect.FieldDescriptor) {
	d.misread[path+"."+name] = true
	if fd != nil && fd.ContainingOneof() != nil {
		d.partial[path] = true
	}
}

// follows reports whether a mistake of value at a path may be there only because something was not read.
func (d *decoder) follows(path string) bool {
	if d.partial[path] {
		return true
	}
	for lost := range d.misread {
		if rest, under := strings.CutPrefix(path, lost); under && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// message fills m. The top message has no name here: it stands beside the spec.
func (d *decoder) message(path string, m protoreflect.Message, s *structpb.Struct, top bool) {
	fields := m.Descriptor().Fields()
	for _, key := range sortedKeys(s.GetFields()) {
		value, at := s.Fields[key], path+"."+key
		fd := fields.ByJSONName(key)
		if fd == nil {
			fd = fields.ByName(protoreflect.Name(key))
		}
		switch {
		case fd == nil:
			names := fieldNames(m.Descriptor(), top)
			d.errs.addf(at, "unknown field%s", suggest(key, names))
			if likely := closest(key, names); likely != "" {
				d.lose(path, likely, fields.ByJSONName(likely))
			}
		case top && key == "name":
			d.errs.addf(at, "a resource's name stands beside its spec, not in it")
		case isNull(value): // as if it were not there
		case m.Has(fd):
			d.errs.addf(at, "the same field as %s", fd.JSONName())
		case otherOf(m, fd) != "":
			d.errs.addf(at, "%s is set already, expected only one of %s", otherOf(m, fd), oneofNames(fd))
		default:
			if !d.field(at, m, fd, value) {
				d.lose(path, fd.JSONName(), fd)
			}
		}
	}
}

// otherOf names the field of fd's oneof that is set, if any.
func otherOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) string {
	if oneof := fd.ContainingOneof(); oneof != nil && !oneof.IsSynthetic() {
		if other := m.WhichOneof(oneof); other != nil {
			return other.JSONName()
		}
	}
	return ""
}

// field sets one field of m, or reports that it could not be read.
func (d *decoder) field(path string, m protoreflect.Message, fd protoreflect.FieldDescriptor, v *structpb.Value) bool {
	switch {
	case fd.IsMap(): // all of ours are of strings to strings: TestEveryFieldCanBeDecoded
		to := m.Mutable(fd).Map()
		for key, value := range stringMap(path, v, &d.errs) {
			to.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(value))
		}
	case fd.IsList():
		list := v.GetListValue()
		if list == nil {
			d.errs.addf(path, "expected a list, got %s", describe(v))
			return false
		}
		to := m.Mutable(fd).List()
		for i, item := range list.Values {
			at := fmt.Sprintf("%s[%d]", path, i)
			value, ok := d.value(at, fd, to.NewElement, item)
			if !ok {
				d.misread[at], value = true, to.NewElement() // in its place, so that those after it keep theirs
			}
			to.Append(value)
		}
	default:
		newValue := func() protoreflect.Value { return m.NewField(fd) }
		value, ok := d.value(path, fd, newValue, v)
		if !ok {
			return false
		}
		m.Set(fd, value)
	}
	return true
}

// value makes a single value of a field's type, a message from newValue.
func (d *decoder) value(path string, fd protoreflect.FieldDescriptor, newValue func() protoreflect.Value, v *structpb.Value) (protoreflect.Value, bool) {
	if fd.Kind() != protoreflect.MessageKind {
		value, expected := scalar(fd, v)
		if expected != "" {
			d.errs.addf(path, "expected %s, got %s", expected, describe(v))
		}
		return value, expected == ""
	}
	if fd.Message().FullName() == durationName {
		t, ok := duration(v)
		if !ok {
			d.errs.addf(path, `expected a duration such as "30s" or "1m30s", got %s`, describe(v))
		}
		return protoreflect.ValueOfMessage(durationpb.New(t).ProtoReflect()), ok
	}
	if fd.Message().FullName() == timestampName {
		t, err := time.Parse(time.RFC3339, v.GetStringValue())
		if err != nil {
			d.errs.addf(path, `expected a time such as "2027-01-31T12:00:00Z", got %s`, describe(v))
		}
		return protoreflect.ValueOfMessage(timestamppb.New(t).ProtoReflect()), err == nil
	}
	s := v.GetStructValue()
	if s == nil {
		d.errs.addf(path, "expected a mapping, got %s", describe(v))
		return protoreflect.Value{}, false
	}
	value := newValue()
	d.message(path, value.Message(), s, false)
	return value, true
}

const (
	durationName  = "google.protobuf.Duration"
	timestampName = "google.protobuf.Timestamp"
)

func duration(v *structpb.Value) (time.Duration, bool) {
	s, ok := v.Kind.(*structpb.Value_StringValue)
	if !ok {
		return 0, false
	}
	t, err := time.ParseDuration(s.StringValue)
	return t, err == nil
}

// scalar makes a value of a field's kind, or says what it expected.
func scalar(fd protoreflect.FieldDescriptor, v *structpb.Value) (_ protoreflect.Value, expected string) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		if s, ok := v.Kind.(*structpb.Value_StringValue); ok {
			return protoreflect.ValueOfString(s.StringValue), ""
		}
		return protoreflect.Value{}, "a string" + quoteHint(v)
	case protoreflect.BoolKind:
		if b, ok := v.Kind.(*structpb.Value_BoolValue); ok {
			return protoreflect.ValueOfBool(b.BoolValue), ""
		}
		return protoreflect.Value{}, "true or false"
	case protoreflect.EnumKind:
		if n, ok := enumNumber(fd.Enum(), v.GetStringValue()); ok {
			return protoreflect.ValueOfEnum(n), ""
		}
		return protoreflect.Value{}, oneOf(enumWords(fd.Enum()))
	case protoreflect.Uint32Kind:
		if n, ok := integer(v); ok && n <= math.MaxUint32 {
			return protoreflect.ValueOfUint32(uint32(n)), ""
		}
		return protoreflect.Value{}, fmt.Sprintf("a whole number from 0 to %d", uint32(math.MaxUint32))
	case protoreflect.Uint64Kind:
		if n, ok := integer(v); ok {
			return protoreflect.ValueOfUint64(n), ""
		}
		return protoreflect.Value{}, "a whole number from 0 (in quotes above 2^53)"
	}
	return protoreflect.Value{}, "nothing: this version cannot read the field" // no field is so: TestEveryFieldCanBeDecoded
}

// integer reads a whole number from 0, given as a number or, as in protobuf's JSON form, as a string of digits.
func integer(v *structpb.Value) (uint64, bool) {
	switch k := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		f := k.NumberValue
		return uint64(f), f >= 0 && f <= maxExact && f == math.Trunc(f)
	case *structpb.Value_StringValue:
		n, err := strconv.ParseUint(k.StringValue, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// enumPrefix begins the full names of an enumeration's values: "ERA_" of Era.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// enumWord is the short word of an enumeration's value.
func enumWord(v protoreflect.EnumValueDescriptor) string {
	prefix := enumPrefix(v.Parent().(protoreflect.EnumDescriptor))
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}

// enumWords lists the short words of an enumeration, without that of no choice.
func enumWords(e protoreflect.EnumDescriptor) []string {
	var words []string
	for i := 1; i < e.Values().Len(); i++ {
		words = append(words, enumWord(e.Values().Get(i)))
	}
	return words
}

// enumNumber finds a value by its short word or its full name.
func enumNumber(e protoreflect.EnumDescriptor, s string) (protoreflect.EnumNumber, bool) {
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		if s == string(v.Name()) || v.Number() != 0 && s == enumWord(v) {
			return v.Number(), true
		}
	}
	return 0, false
}

// fieldNames lists the names that a message's fields have in a document.
func fieldNames(m protoreflect.MessageDescriptor, top bool) []string {
	var names []string
	for i := range m.Fields().Len() {
		if name := m.Fields().Get(i).JSONName(); !top || name != "name" {
			names = append(names, name)
		}
	}
	return names
}

func oneofNames(fd protoreflect.FieldDescriptor) string {
	var names []string
	fields := fd.ContainingOneof().Fields()
	for i := range fields.Len() {
		names = append(names, fields.Get(i).JSONName())
	}
	return strings.Join(names, ", ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func isNull(v *structpb.Value) bool {
	_, null := v.GetKind().(*structpb.Value_NullValue)
	return null || v.GetKind() == nil
}

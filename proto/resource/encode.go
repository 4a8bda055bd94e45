package resource

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Encode is the spec of an Object as Decode reads it, in its canonical form: lowerCamelCase names, short words for
// enumerations, durations as "1m30s", times in UTC as RFC 3339 has them, and only what is set.
func Encode(o Object) *structpb.Struct {
	s := encodeMessage(o.ProtoReflect())
	delete(s.Fields, "name")
	return s
}

func encodeMessage(m protoreflect.Message) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		s.Fields[fd.JSONName()] = encodeField(fd, v)
		return true
	})
	return s
}

func encodeField(fd protoreflect.FieldDescriptor, v protoreflect.Value) *structpb.Value {
	switch {
	case fd.IsMap():
		s := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
		v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			s.Fields[key.String()] = encodeValue(fd.MapValue(), value)
			return true
		})
		return structpb.NewStructValue(s)
	case fd.IsList():
		list := make([]*structpb.Value, v.List().Len())
		for i := range list {
			list[i] = encodeValue(fd, v.List().Get(i))
		}
		return structpb.NewListValue(&structpb.ListValue{Values: list})
	}
	return encodeValue(fd, v)
}

func encodeValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) *structpb.Value {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *durationpb.Duration:
			return structpb.NewStringValue(formatDuration(m.AsDuration()))
		case *timestamppb.Timestamp:
			return structpb.NewStringValue(m.AsTime().Format(time.RFC3339Nano))
		}
		return structpb.NewStructValue(encodeMessage(v.Message()))
	case protoreflect.EnumKind:
		value := fd.Enum().Values().ByNumber(v.Enum())
		if value == nil { // from a newer version
			return structpb.NewStringValue(strconv.Itoa(int(v.Enum())))
		}
		return structpb.NewStringValue(enumWord(value))
	case protoreflect.BoolKind:
		return structpb.NewBoolValue(v.Bool())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		if v.Uint() > maxExact {
			return structpb.NewStringValue(strconv.FormatUint(v.Uint(), 10))
		}
		return structpb.NewNumberValue(float64(v.Uint()))
	}
	return structpb.NewStringValue(v.String())
}

// formatDuration is Go's form without its empty parts: "15m", not "15m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

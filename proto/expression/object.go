package expression

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// object is a JSON object as a CEL map. Its members are found when it is made and read when they are first asked for, so a
// long text that no expression looks at costs nothing. After readAll it is safe for concurrent use.
type object struct {
	size    int // of its JSON, in bytes
	strict  bool
	members []member
	byName  map[string]int // nil for a few
}

type member struct {
	name  string
	raw   []byte
	value ref.Val // once it was read
	err   error   // why it cannot be
}

// few members are found faster one by one.
const few = 16

// newObject fails for what is not a JSON object, has a name twice, or has too many members. In a strict one names are also
// the same when they differ in case only: there are servers that do not tell them apart.
func newObject(raw []byte, strict bool) (*object, error) {
	o := &object{size: len(raw), strict: strict}
	var folded map[string]bool // in a strict one with more than a few
	err := members(raw, func(name string, value []byte) error {
		if len(o.members) == maxMembers {
			return errMembers
		}
		if o.find(name) != nil || strict && o.has(name, folded) {
			return fmt.Errorf("%q is there twice", name)
		}
		o.members = append(o.members, member{name: name, raw: value})
		switch n := len(o.members); {
		case n == few:
			o.byName, folded = make(map[string]int), make(map[string]bool)
			for i, m := range o.members {
				o.byName[m.name], folded[fold(m.name)] = i, true
			}
		case n > few:
			o.byName[name], folded[fold(name)] = n-1, true
		}
		return nil
	})
	return o, err
}

// has reports whether a name is there in any case.
func (o *object) has(name string, folded map[string]bool) bool {
	if folded != nil {
		return folded[fold(name)]
	}
	return slices.ContainsFunc(o.members, func(m member) bool { return strings.EqualFold(m.name, name) })
}

// fold is the same for names that strings.EqualFold takes for equal.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }

func (o *object) find(name string) *member {
	if o.byName != nil {
		if i, ok := o.byName[name]; ok {
			return &o.members[i]
		}
		return nil
	}
	for i := range o.members {
		if o.members[i].name == name {
			return &o.members[i]
		}
	}
	return nil
}

// read is a member's value, or a new error: CEL writes into those that it gets.
func (o *object) read(m *member) ref.Val {
	if m.value == nil && m.err == nil {
		m.value, m.err = decode(m.raw, o.strict)
	}
	if m.err != nil {
		return types.NewErr("%s: %v", m.name, m.err)
	}
	return m.value
}

// readAll reads everything in it, so that nothing changes any more.
func (o *object) readAll() {
	for i := range o.members {
		readAll(o.read(&o.members[i]))
	}
}

func readAll(value ref.Val) {
	switch v := value.(type) {
	case *object:
		v.readAll()
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			readAll(it.Next())
		}
	}
}

// whole is the same as a map of CEL's own, or an error, for what is seldom asked.
func (o *object) whole() ref.Val {
	all := make(map[ref.Val]ref.Val, len(o.members))
	for i := range o.members {
		value := o.read(&o.members[i])
		if types.IsError(value) {
			return value
		}
		all[types.String(o.members[i].name)] = value
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, all)
}

// What follows is traits.Mapper.

func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	m := o.find(string(name))
	if m == nil {
		return nil, false
	}
	value := o.read(m)
	return value, !types.IsError(value)
}

func (o *object) Get(key ref.Val) ref.Val {
	value, found := o.Find(key)
	if !found && value == nil {
		return types.NewErr("no such key: %v", key)
	}
	return value
}

func (o *object) Contains(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	return types.Bool(o.find(string(name)) != nil)
}

func (o *object) Iterator() traits.Iterator {
	names := make([]string, len(o.members))
	for i := range o.members {
		names[i] = o.members[i].name
	}
	return types.NewStringList(types.DefaultTypeAdapter, names).Iterator()
}

func (o *object) Equal(other ref.Val) ref.Val {
	if _, ok := other.(traits.Mapper); !ok {
		return types.False
	}
	whole := o.whole()
	if types.IsError(whole) {
		return whole
	}
	return whole.Equal(other)
}

func (o *object) ConvertToType(kind ref.Type) ref.Val {
	switch kind {
	case types.MapType:
		return o
	case types.TypeType:
		return types.MapType
	default:
		return types.NewErr("type conversion error from 'map' to '%s'", kind.TypeName())
	}
}

func (o *object) ConvertToNative(kind reflect.Type) (any, error) {
	return o.whole().ConvertToNative(kind)
}

func (o *object) Size() ref.Val     { return types.Int(len(o.members)) }
func (o *object) IsZeroValue() bool { return len(o.members) == 0 }
func (o *object) Type() ref.Type    { return types.MapType }
func (o *object) Value() any        { return o }

// Package resource is what operators write: Upstreams, Bindings, Policies and the rest in YAML or JSON, decoded to their messages and
// checked, with every mistake reported under the path where it was typed.
//
// A document becomes Resources (Parse), a Resource its message (Decode), and a message is checked alone (Validate; Check
// does both) and among the others (ValidateSet); Load does all of it. The same code guards a file, the command line, the management
// API and what a sidecar is sent, so that a mistake reads the same everywhere. What is accepted means the same after
// Encode and another Decode.
//
// Everything here is a pure function, safe for concurrent use. Not here: what only a sidecar knows, such as whether
// a credential is present (package config's Target.Check).
package resource

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// The kinds.
const (
	KindSecret   = "Secret"
	KindUpstream = "Upstream"
	KindBinding  = "Binding"
	KindTenant   = "Tenant"
	KindKey      = "Key"
	KindPolicy   = "Policy"
)

// ManifestTypeURL is the type URL of a sidecar's Manifest, which is made by the control plane and is no kind.
const ManifestTypeURL = typePrefix + "Manifest"

// RevocationsTypeURL is likewise that of the sidecars that were deleted, which every sidecar is sent.
const RevocationsTypeURL = typePrefix + "Revocations"

// typePrefix begins every type URL of ours.
const typePrefix = "type.googleapis.com/outrigger.v1."

// Object is a resource's message: an *outriggerv1.Upstream, Binding, Policy, Tenant, Key or Secret.
type Object interface {
	proto.Message
	GetName() string
}

// Kinds lists the kinds in the order in which they depend on each other.
func Kinds() []string {
	return []string{KindSecret, KindUpstream, KindBinding, KindTenant, KindKey, KindPolicy}
}

// New makes an empty Object of a kind, or reports that there is no such kind.
func New(kind string) (Object, bool) {
	switch kind {
	case KindSecret:
		return &outriggerv1.Secret{}, true
	case KindUpstream:
		return &outriggerv1.Upstream{}, true
	case KindBinding:
		return &outriggerv1.Binding{}, true
	case KindTenant:
		return &outriggerv1.Tenant{}, true
	case KindKey:
		return &outriggerv1.Key{}, true
	case KindPolicy:
		return &outriggerv1.Policy{}, true
	}
	return nil, false
}

// KindOf is the kind of an Object.
func KindOf(o Object) string { return string(o.ProtoReflect().Descriptor().Name()) }

// Ref names an Object as messages and paths do: "Binding/demo".
func Ref(o Object) string { return KindOf(o) + "/" + o.GetName() }

// TypeURL is how xDS names a kind.
func TypeURL(kind string) string { return typePrefix + kind }

// KindOfTypeURL is the reverse of TypeURL; it reports false for anything that is not the type URL of a kind.
func KindOfTypeURL(url string) (kind string, ok bool) {
	kind, ok = strings.CutPrefix(url, typePrefix)
	if !ok {
		return "", false
	}
	_, ok = New(kind)
	return kind, ok
}

// setName sets the name of an Object.
func setName(o Object, name string) {
	m := o.ProtoReflect()
	m.Set(m.Descriptor().Fields().ByName("name"), protoreflect.ValueOfString(name))
}

// Matches reports whether a sidecar with these labels is selected. A missing selector selects none, an empty one all.
func Matches(s *outriggerv1.Selector, labels map[string]string) bool {
	if s == nil {
		return false
	}
	for key, want := range s.MatchLabels {
		if got, ok := labels[key]; !ok || got != want {
			return false
		}
	}
	return true
}

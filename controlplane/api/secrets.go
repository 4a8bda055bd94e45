package api

import (
	"errors"
	"maps"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// hideValues empties the values of a Secret, as every reader sees them: the API tells of no value whether it is stored
// sealed or was just given.
func hideValues(r *outriggerv1.Resource) {
	values := store.SecretValues(r)
	for key := range values {
		values[key] = structpb.NewStringValue("")
	}
}

// keptValues are the mistakes of a Secret's empty values. An empty value keeps what is stored for its key, so that what was
// read can be applied again; where nothing is stored, it says nothing.
func (g *given) keptValues(r, stored *outriggerv1.Resource) (mistakes resource.Errors) {
	before := store.SecretValues(stored)
	for _, key := range slices.Sorted(maps.Keys(store.SecretValues(r))) {
		if store.SecretValues(r)[key].GetStringValue() != "" {
			continue
		}
		at := "spec.values." + key
		switch sealed, ok := before[key]; {
		case !ok:
			mistakes = append(mistakes, resource.Error{Path: at, Message: "empty, which keeps the value that is stored, but none is"})
		case g.secrets != nil:
			if _, err := g.secrets.Open(r.Name, key, sealed.GetStringValue()); err != nil {
				mistakes = append(mistakes, resource.Error{Path: at, Message: "empty, which keeps the value that is stored, but that cannot be opened any more"})
			}
		}
	}
	return mistakes
}

// sealValues makes a Secret's values those to store. One that is the same as before stays as it was sealed, so that
// applying what is stored changes nothing.
func (g *given) sealValues(r, stored *outriggerv1.Resource) error {
	values, before := store.SecretValues(r), store.SecretValues(stored)
	if g.secrets == nil && len(values) > 0 {
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("this control plane has no key to seal Secrets with: give it --secrets-key-file"))
	}
	for key, v := range values {
		value, sealed := v.GetStringValue(), before[key].GetStringValue()
		if sealed != "" {
			if opened, err := g.secrets.Open(r.Name, key, sealed); value == "" || err == nil && opened == value {
				values[key] = structpb.NewStringValue(sealed)
				continue
			}
		}
		values[key] = structpb.NewStringValue(g.secrets.Seal(r.Name, key, value))
	}
	return nil
}

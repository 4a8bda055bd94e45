package store

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// ResourcesPrefix is where resources are kept, as resources/{kind}/{name}. It is a promise to stored state.
const ResourcesPrefix = "resources/"

// GenerationKey is written with every change of a resource, so that its revision stands for all of them.
const GenerationKey = "generation"

// ResourceKey is the key of one resource.
func ResourceKey(kind, name string) string { return ResourcesPrefix + kind + "/" + name }

// EncodeResource is a resource as it is stored: without revision, which the store counts, and status. A Secret's values
// have been sealed.
func EncodeResource(r *outriggerv1.Resource) ([]byte, error) {
	stored := &outriggerv1.Resource{Kind: r.Kind, Name: r.Name, Labels: r.Labels, Spec: r.Spec}
	return proto.MarshalOptions{Deterministic: true}.Marshal(stored)
}

// DecodeResource is the resource in an entry, with its revision. A Secret's values are as they are stored, sealed.
func DecodeResource(e Entry) (*outriggerv1.Resource, error) {
	r := new(outriggerv1.Resource)
	if err := proto.Unmarshal(e.Value, r); err != nil {
		return nil, fmt.Errorf("store: %s holds no resource: %w", e.Key, err)
	}
	r.Revision = e.Revision
	return r, nil
}

// Resources reads every resource, or those of one kind, as they are at one revision, ordered by kind and name.
func (s *Store) Resources(ctx context.Context, kind string) ([]*outriggerv1.Resource, int64, error) {
	prefix := ResourcesPrefix
	if kind != "" {
		prefix = ResourceKey(kind, "")
	}
	entries, revision, err := s.List(ctx, prefix)
	if err != nil {
		return nil, 0, err
	}
	resources := make([]*outriggerv1.Resource, len(entries))
	for i, e := range entries {
		if resources[i], err = DecodeResource(e); err != nil {
			return nil, 0, err
		}
	}
	return resources, revision, nil
}

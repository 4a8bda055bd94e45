package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxAttempts is how often a write is tried while other replicas write.
const maxAttempts = 10

// desired is everything that is stored, as a write is checked against it.
type desired struct {
	generation int64 // revision of store.GenerationKey, -1 before the first write
	byRef      map[string]*outriggerv1.Resource
	objects    []resource.Object // in order of refs
}

// change works out a write from what is stored: no writes for nothing to do, or an error for the caller.
type change func(*desired) ([]store.Write, error)

// write makes a change, all or nothing, on condition that what it was worked out from is still so. It returns the
// revision of the write, 0 if there was nothing to do.
func (a *API) write(ctx context.Context, plan change) (revision int64, err error) {
	select {
	case a.writing <- struct{}{}: // writers of one replica wait here rather than overtake each other
		defer func() { <-a.writing }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for range maxAttempts {
		d, err := a.desired(ctx)
		if err != nil {
			return 0, a.failed(ctx, err)
		}
		writes, err := plan(d)
		if err != nil || len(writes) == 0 {
			return 0, err
		}
		writes = append(writes, store.Write{Key: store.GenerationKey, IfRevision: d.generation})
		revision, err := a.store.Apply(ctx, writes)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, a.failed(ctx, err)
		}
		return revision, nil
	}
	return 0, connect.NewError(connect.CodeUnavailable, errors.New("too many writes at once: try again"))
}

// desired reads the generation before the resources: if these are newer, the write that depends on it fails.
func (a *API) desired(ctx context.Context) (*desired, error) {
	d := &desired{generation: -1, byRef: map[string]*outriggerv1.Resource{}}
	e, ok, err := a.store.Get(ctx, store.GenerationKey)
	if err != nil {
		return nil, err
	}
	if ok {
		d.generation = e.Revision
	}
	resources, _, err := a.store.Resources(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range resources {
		d.byRef[r.Kind+"/"+r.Name] = r
		o, mistakes := resource.Decode(r) // not checked again: for 500 rules that would take 0.19 s
		if len(mistakes) > 0 {
			o, _ = resource.Check(r) // what can be read of it
		}
		if o != nil {
			d.objects = append(d.objects, o)
		}
	}
	return d, nil
}

// with is what would be stored: the objects except those named in gone, then added.
func (d *desired) with(gone map[string]bool, added []resource.Object) []resource.Object {
	var all []resource.Object
	for _, o := range d.objects {
		if !gone[resource.Ref(o)] {
			all = append(all, o)
		}
	}
	return append(all, added...)
}

// newMistakes are those of the whole as it would be, except where the stored whole has some already and nothing is
// touched: what an older version let in blocks nobody else.
func (d *desired) newMistakes(after []resource.Object, touched map[string]bool) resource.Errors {
	mistakes := resource.ValidateSet(after)
	if len(mistakes) == 0 {
		return nil
	}
	known := map[string]bool{}
	for _, m := range resource.ValidateSet(d.objects) {
		ref, _ := cutRef(m.Path)
		known[m.Path] = !touched[ref]
	}
	return slices.DeleteFunc(mistakes, func(m resource.Error) bool { return known[m.Path] })
}

// cutRef splits a path such as "Binding/demo: spec.path".
func cutRef(path string) (ref, rest string) {
	ref, rest, _ = strings.Cut(path, ": ")
	return ref, rest
}

package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxResources bounds one Apply.
const maxResources = 1000

// given is an ApplyRequest, read.
type given struct {
	secrets   *store.Secrets
	resources []*outriggerv1.Resource // in canonical form, with the revision that was given
	objects   []resource.Object       // of those that have a known kind
	position  map[string]int          // by ref, the last
	mistakes  resource.Errors         // of each alone
}

// Apply implements ResourceService.
func (a *API) Apply(ctx context.Context, req *outriggerv1.ApplyRequest) (*outriggerv1.ApplyResponse, error) {
	if n := len(req.Resources); n > maxResources {
		return nil, invalid(resource.Errors{{Path: "resources", Message: fmt.Sprintf("%d, expected at most %d", n, maxResources)}})
	}
	g := read(req.Resources)
	g.secrets = a.options.Secrets
	var result []*outriggerv1.Resource
	revision, err := a.write(ctx, func(d *desired) ([]store.Write, error) {
		if err := g.check(d); err != nil {
			return nil, err
		}
		writes, after, err := g.writes(d)
		result = after
		if req.DryRun {
			return nil, err
		}
		return writes, err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range result {
		if revision != 0 && r.Revision == changed {
			r.Revision = revision
		}
		r.Revision = max(r.Revision, 0) // a dry run's is unknown
		hideValues(r)
		r.Status = a.status(r)
	}
	return &outriggerv1.ApplyResponse{Resources: result}, nil
}

// read decodes what was given, each by itself.
func read(resources []*outriggerv1.Resource) *given {
	g := &given{position: map[string]int{}}
	for i, r := range resources {
		o, mistakes := resource.Check(r)
		for _, m := range mistakes {
			g.mistakes = append(g.mistakes, resource.Error{Path: fmt.Sprintf("resources[%d].%s", i, m.Path), Message: m.Message})
		}
		if r.GetRevision() < 0 {
			g.mistakes = append(g.mistakes, resource.Error{Path: fmt.Sprintf("resources[%d].revision", i), Message: "negative"})
		}
		if o == nil {
			continue
		}
		g.position[resource.Ref(o)] = i
		g.objects = append(g.objects, o)
		g.resources = append(g.resources, &outriggerv1.Resource{
			Kind: r.Kind, Name: r.Name, Labels: r.Labels, Spec: resource.Encode(o), Revision: r.Revision,
		})
	}
	return g
}

// check reports every mistake, those of the whole under the given resource that makes them.
func (g *given) check(d *desired) error {
	replaced := map[string]bool{}
	for ref := range g.position {
		replaced[ref] = true
	}
	mistakes := g.mistakes
	for _, m := range d.newMistakes(d.with(replaced, g.objects), replaced) {
		ref, rest := cutRef(m.Path)
		if i, ok := g.position[ref]; ok {
			m.Path = fmt.Sprintf("resources[%d].%s", i, rest)
		}
		mistakes = append(mistakes, m)
	}
	for _, r := range g.resources {
		i := g.position[r.Kind+"/"+r.Name]
		for _, m := range g.keptValues(r, d.byRef[r.Kind+"/"+r.Name]) {
			m.Path = fmt.Sprintf("resources[%d].%s", i, m.Path)
			mistakes = append(mistakes, m)
		}
	}
	if len(mistakes) > 0 {
		return invalid(mistakes)
	}
	return nil
}

// changed stands for the revision that a resource will have once written.
const changed = -1

// writes are what differs from what is stored, and the resources as they will be after that. It is ABORTED for any
// whose revision is not the stored one.
func (g *given) writes(d *desired) (writes []store.Write, after []*outriggerv1.Resource, err error) {
	var stale []string
	for _, r := range g.resources {
		ref := r.Kind + "/" + r.Name
		stored := d.byRef[ref]
		if r.Revision != 0 && r.Revision != stored.GetRevision() {
			stale = append(stale, staleText(ref, r.Revision, stored))
			continue
		}
		r := proto.CloneOf(r)
		if err := g.sealValues(r, stored); err != nil {
			return nil, nil, err
		}
		after = append(after, r)
		if r.Revision = stored.GetRevision(); proto.Equal(r, stored) {
			continue
		}
		value, err := store.EncodeResource(r)
		if err != nil {
			return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s: %w", ref, err))
		}
		writes = append(writes, store.Write{Key: store.ResourceKey(r.Kind, r.Name), Value: value})
		r.Revision = changed
	}
	if len(stale) > 0 {
		return nil, nil, connect.NewError(connect.CodeAborted, errors.New(strings.Join(stale, "; ")))
	}
	return writes, after, nil
}

func staleText(ref string, revision int64, stored *outriggerv1.Resource) string {
	if stored == nil {
		return fmt.Sprintf("%s was given with revision %d, but it does not exist", ref, revision)
	}
	return fmt.Sprintf("%s was given with revision %d, but it is at %d", ref, revision, stored.Revision)
}

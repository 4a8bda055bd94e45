package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxPage is the most and the default resources of a page.
const maxPage = 1000

// Get implements ResourceService.
func (a *API) Get(ctx context.Context, req *outriggerv1.GetRequest) (*outriggerv1.GetResponse, error) {
	if err := checkKind(req.Kind); err != nil {
		return nil, err
	}
	e, ok, err := a.store.Get(ctx, store.ResourceKey(req.Kind, req.Name))
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	if !ok {
		return nil, notFound(req.Kind, req.Name)
	}
	r, err := store.DecodeResource(e)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	hideValues(r)
	r.Status = a.status(r)
	return &outriggerv1.GetResponse{Resource: r}, nil
}

// List implements ResourceService. A status has only its counts here: with each sidecar, a page could be of any size.
func (a *API) List(ctx context.Context, req *outriggerv1.ListRequest) (*outriggerv1.ListResponse, error) {
	after, err := checkList(req)
	if err != nil {
		return nil, err
	}
	resources, revision, err := a.store.Resources(ctx, req.Kind)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	if after.revision != 0 {
		revision = after.revision // to watch from there misses nothing of any page
	}
	size := maxPage
	if n := int(req.PageSize); n > 0 {
		size = min(n, maxPage)
	}
	res := &outriggerv1.ListResponse{Revision: revision}
	selector := &outriggerv1.Selector{MatchLabels: req.MatchLabels}
	for _, r := range resources {
		key := store.ResourceKey(r.Kind, r.Name)
		if key <= after.key || !resource.Matches(selector, r.Labels) {
			continue
		}
		if len(res.Resources) == size {
			last := res.Resources[size-1]
			res.NextPageToken = position{revision, store.ResourceKey(last.Kind, last.Name)}.String()
			break
		}
		hideValues(r)
		r.Status = counts(a.status(r))
		res.Resources = append(res.Resources, r)
	}
	return res, nil
}

// checkList checks a ListRequest and returns where its page begins.
func checkList(req *outriggerv1.ListRequest) (after position, err error) {
	if req.Kind != "" {
		if err := checkKind(req.Kind); err != nil {
			return position{}, err
		}
	}
	if req.PageSize < 0 {
		return position{}, invalid(resource.Errors{{Path: "page_size", Message: "negative"}})
	}
	after, ok := parsePosition(req.PageToken)
	if !ok {
		return position{}, invalid(resource.Errors{{Path: "page_token", Message: "not one that List returned"}})
	}
	return after, nil
}

// status is what became of a resource. Until the fleet has heard of its revision, no sidecar can run that: what runs
// an earlier one is behind, or a change would be reported as running before anybody has it.
func (a *API) status(r *outriggerv1.Resource) *outriggerv1.Status {
	unheard := a.fleet.Revision() < r.Revision // asked before the status, which may only be newer
	s := a.fleet.Status(r.Kind, r.Name)
	if s == nil || !unheard {
		return s
	}
	behind := &outriggerv1.Status{Behind: s.Running + s.Refused + s.Behind}
	for _, c := range s.Sidecars {
		behind.Sidecars = append(behind.Sidecars, &outriggerv1.SidecarResourceState{
			Sidecar: c.Sidecar, State: outriggerv1.State_STATE_BEHIND, Since: timestamppb.Now(),
		})
	}
	return behind
}

// counts is a status without each sidecar's.
func counts(s *outriggerv1.Status) *outriggerv1.Status {
	if s == nil {
		return nil
	}
	return &outriggerv1.Status{Running: s.Running, Refused: s.Refused, Behind: s.Behind}
}

// position is what a page token says: the revision of the first page and the last key before the next.
type position struct {
	revision int64
	key      string
}

func (p position) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.revision, p.key))
}

// parsePosition reads a page token; the empty one is the beginning.
func parsePosition(token string) (p position, ok bool) {
	if token == "" {
		return position{}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return position{}, false
	}
	_, err = fmt.Sscanf(string(text), "%d %s", &p.revision, &p.key)
	return p, err == nil && p.revision > 0 && strings.HasPrefix(p.key, store.ResourcesPrefix)
}

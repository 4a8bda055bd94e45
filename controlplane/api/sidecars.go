package api

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// ListSidecars implements ResourceService.
func (a *API) ListSidecars(context.Context, *outriggerv1.ListSidecarsRequest) (*outriggerv1.ListSidecarsResponse, error) {
	return &outriggerv1.ListSidecarsResponse{Sidecars: a.fleet.Sidecars()}, nil
}

// DeleteSidecar implements ResourceService. Other replicas learn of it from the store.
func (a *API) DeleteSidecar(ctx context.Context, req *outriggerv1.DeleteSidecarRequest) (*outriggerv1.DeleteSidecarResponse, error) {
	found, err := a.authority.Revoke(ctx, req.Id)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	if !found {
		return nil, notFound("Sidecar", req.Id)
	}
	a.fleet.Revoke(req.Id)
	return &outriggerv1.DeleteSidecarResponse{}, nil
}

// Bounds of a join token.
const (
	defaultTTL = time.Hour
	maxTTL     = 30 * 24 * time.Hour
	maxUses    = 100_000
)

// CreateJoinToken implements ResourceService.
func (a *API) CreateJoinToken(ctx context.Context, req *outriggerv1.CreateJoinTokenRequest) (*outriggerv1.CreateJoinTokenResponse, error) {
	ttl, uses := defaultTTL, max(req.MaxUses, 1)
	mistakes := resource.ValidLabels("labels", req.Labels)
	if req.Ttl != nil {
		ttl = req.Ttl.AsDuration()
	}
	if ttl <= 0 || ttl > maxTTL {
		mistakes = append(mistakes, resource.Error{Path: "ttl", Message: fmt.Sprintf("%v, expected above 0 and at most %v", ttl, maxTTL)})
	}
	if req.MaxUses < 0 || req.MaxUses > maxUses {
		mistakes = append(mistakes, resource.Error{Path: "max_uses", Message: fmt.Sprintf("%d, expected 1 to %d", req.MaxUses, maxUses)})
	}
	if len(mistakes) > 0 {
		return nil, invalid(mistakes)
	}
	token, expires, err := a.authority.Create(ctx, req.Labels, ttl, uses)
	if err != nil {
		a.options.Log.Error("no join token made", "error", err)
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	return &outriggerv1.CreateJoinTokenResponse{Token: token, Expires: timestamppb.New(expires)}, nil
}

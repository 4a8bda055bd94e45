package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Delete implements ResourceService.
func (a *API) Delete(ctx context.Context, req *outriggerv1.DeleteRequest) (*outriggerv1.DeleteResponse, error) {
	if err := checkKind(req.Kind); err != nil {
		return nil, err
	}
	_, err := a.write(ctx, func(d *desired) ([]store.Write, error) {
		ref := req.Kind + "/" + req.Name
		stored := d.byRef[ref]
		if stored == nil {
			return nil, notFound(req.Kind, req.Name)
		}
		if req.Revision != 0 && req.Revision != stored.Revision {
			return nil, connect.NewError(connect.CodeAborted, errors.New(staleText(ref, req.Revision, stored)))
		}
		gone := map[string]bool{ref: true}
		if left := d.newMistakes(d.with(gone, nil), gone); len(left) > 0 {
			return nil, inUse(ref, left)
		}
		return []store.Write{{Key: store.ResourceKey(req.Kind, req.Name), Delete: true}}, nil
	})
	if err != nil {
		return nil, err
	}
	return &outriggerv1.DeleteResponse{}, nil
}

// inUse names where a resource is needed, given the mistakes that its absence would make.
func inUse(ref string, left resource.Errors) error {
	const most = 10
	var users []string
	for _, m := range left[:min(len(left), most)] {
		user, field := cutRef(m.Path)
		users = append(users, fmt.Sprintf("%s (%s)", user, field))
	}
	text := fmt.Sprintf("%s is named by %s", ref, strings.Join(users, ", "))
	if more := len(left) - most; more > 0 {
		text = fmt.Sprintf("%s and %d more", text, more)
	}
	return connect.NewError(connect.CodeFailedPrecondition, errors.New(text))
}

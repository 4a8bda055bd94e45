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

// sink is a Watch's answers.
type sink = *connect.ServerStream[outriggerv1.WatchResponse]

// maxWatches bounds the Watches that are served at once.
const maxWatches = 1000

// Watch implements ResourceService. Resources have no status here: it changes without the resource.
func (a *API) Watch(ctx context.Context, req *outriggerv1.WatchRequest, out sink) error {
	select {
	case a.watching <- struct{}{}:
		defer func() { <-a.watching }()
	default:
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d watches are open, which is the most", cap(a.watching)))
	}
	prefix := store.ResourcesPrefix
	if req.Kind != "" {
		if err := checkKind(req.Kind); err != nil {
			return err
		}
		prefix = store.ResourceKey(req.Kind, "")
	}
	after := req.FromRevision
	if after < 0 {
		return invalid(resource.Errors{{Path: "from_revision", Message: "negative"}})
	}
	if after == 0 {
		revision, err := a.sendAll(ctx, req.Kind, out)
		if err != nil {
			return err
		}
		after = revision
	}
	return a.sendChanges(ctx, prefix, after, out)
}

// sendAll sends what there is and returns its revision.
func (a *API) sendAll(ctx context.Context, kind string, out sink) (revision int64, err error) {
	resources, revision, err := a.store.Resources(ctx, kind)
	if err != nil {
		return 0, a.failed(ctx, err)
	}
	for _, r := range resources {
		hideValues(r)
		if err := out.Send(&outriggerv1.WatchResponse{Change: outriggerv1.Change_CHANGE_PUT, Resource: r}); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

// sendChanges sends what changes after a revision until the caller, the server or the store ends it.
func (a *API) sendChanges(ctx context.Context, prefix string, after int64, out sink) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := a.store.Watch(ctx, prefix, after)
	if err := out.Send(nil); err != nil { // headers: the caller knows that the watch has begun
		return err
	}
	for {
		select {
		case <-a.stopped:
			return connect.NewError(connect.CodeUnavailable, errors.New("stopping: watch again from the last revision received"))
		case <-ctx.Done():
			return ctx.Err()
		case batch, ok := <-changes:
			if !ok {
				return a.failed(ctx, errors.New("the watch ended"))
			}
			if batch.Err != nil {
				return a.failed(ctx, batch.Err)
			}
			if err := send(out, batch.Events); err != nil {
				return err
			}
		}
	}
}

// send sends one transaction's changes.
func send(out sink, events []store.Event) error {
	for _, e := range events {
		res := &outriggerv1.WatchResponse{Change: outriggerv1.Change_CHANGE_DELETED}
		if e.Deleted {
			kind, name, _ := strings.Cut(strings.TrimPrefix(e.Key, store.ResourcesPrefix), "/")
			res.Resource = &outriggerv1.Resource{Kind: kind, Name: name, Revision: e.Revision}
		} else {
			r, err := store.DecodeResource(e.Entry)
			if err != nil {
				return connect.NewError(connect.CodeInternal, err)
			}
			hideValues(r)
			res.Change, res.Resource = outriggerv1.Change_CHANGE_PUT, r
		}
		if err := out.Send(res); err != nil {
			return err
		}
	}
	return nil
}

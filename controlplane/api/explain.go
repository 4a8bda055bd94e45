package api

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/explain"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// Explain implements ResourceService.
func (a *API) Explain(ctx context.Context, req *outriggerv1.ExplainRequest) (*outriggerv1.ExplainResponse, error) {
	if req.Binding == "" {
		return nil, invalid(resource.Errors{{Path: "binding", Message: "required"}})
	}
	d, err := a.desired(ctx)
	if err != nil {
		return nil, a.failed(ctx, err)
	}
	res, err := explain.Explain(d.objects, req, time.Now())
	var mistakes resource.Errors
	switch {
	case errors.As(err, &mistakes):
		return nil, invalid(mistakes)
	case errors.Is(err, explain.ErrNoBinding):
		return nil, notFound(resource.KindBinding, req.Binding)
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return res, nil
}

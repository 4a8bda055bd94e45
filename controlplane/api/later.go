package api

import (
	"context"

	"connectrpc.com/connect"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// CreateKey implements ResourceService.
func (a *API) CreateKey(context.Context, *outriggerv1.CreateKeyRequest) (*outriggerv1.CreateKeyResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, nil)
}

// Explain implements ResourceService.
func (a *API) Explain(context.Context, *outriggerv1.ExplainRequest) (*outriggerv1.ExplainResponse, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, nil)
}

package api

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxViolations is how many mistakes one error carries: clients bound the size of trailers.
const maxViolations = 100

// invalid is an INVALID_ARGUMENT with every mistake as a detail, and the first in its message.
func invalid(mistakes resource.Errors) error {
	text := mistakes[0].Error()
	if more := len(mistakes) - 1; more > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, more)
	}
	err := connect.NewError(connect.CodeInvalidArgument, errors.New(text))
	violations := new(outriggerv1.FieldViolations)
	for _, m := range mistakes[:min(len(mistakes), maxViolations)] {
		violations.Violations = append(violations.Violations, &outriggerv1.FieldViolation{Path: m.Path, Message: m.Message})
	}
	if detail, detailErr := connect.NewErrorDetail(violations); detailErr == nil {
		err.AddDetail(detail)
	}
	return err
}

// failed is a store's error as the caller can act on it.
func (a *API) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // the caller's own deadline, or it went away; connect knows the code
		return ctx.Err()
	case errors.Is(err, store.ErrTooLarge):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%w: apply fewer resources at once", err))
	case errors.Is(err, store.ErrCompacted):
		return connect.NewError(connect.CodeOutOfRange, fmt.Errorf("%w: list again", err))
	case errors.Is(err, store.ErrLagging):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: watch again from the last revision received", err))
	}
	a.options.Log.Error("the store failed", "error", err)
	return connect.NewError(connect.CodeUnavailable, err)
}

func notFound(kind, name string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("%s/%s does not exist", kind, name))
}

// checkKind is an INVALID_ARGUMENT unless kind is one.
func checkKind(kind string) error {
	if _, ok := resource.New(kind); ok {
		return nil
	}
	return invalid(resource.Errors{{Path: "kind", Message: fmt.Sprintf("%q is not a kind, expected one of %v", kind, resource.Kinds())}})
}
